//! A model's vocabulary, read once, so that a step copies slices and never calls llama.cpp for text.

pub(in crate::llama) mod grammar;
pub(in crate::llama) mod infill;
pub mod rerank;
pub(in crate::llama) mod safe_cuts;
pub(in crate::llama) mod special_tokens;
pub(in crate::llama) mod splitter;
pub(in crate::llama) mod token_strings;
pub(in crate::llama) mod tokenizer;

use std::ffi::{CStr, c_char};

use llama_cpp_sys_2 as sys;

use crate::request::Token;

/// Flag of a control or unknown token: it has a spelling, but is not part of a text.
const HIDDEN: u8 = 1;
/// Flag of a token that ends a text.
const END: u8 = 2;

/// Table of the tokens of a vocabulary.
pub(in crate::llama) struct Vocabulary {
    /// All spellings, concatenated.
    bytes: Vec<u8>,
    /// The spelling of token `t` is `bytes[starts[t]..starts[t + 1]]`.
    starts: Vec<u32>,
    flags: Vec<u8>,
    end_tokens: Vec<Token>,
    suppressed_tokens: Vec<Token>,
    adds_special: bool,
}

impl Vocabulary {
    /// Reads the vocabulary.
    ///
    /// # Safety
    /// `vocab` belongs to a loaded model.
    ///
    /// # Errors
    /// The reason why llama.cpp could not encode every text with it, for [`crate::error::Error::ModelLoad`].
    pub(in crate::llama) unsafe fn read(vocab: *const sys::llama_vocab) -> Result<Self, String> {
        // SAFETY: guaranteed by the caller.
        unsafe { check_byte_tokens(vocab) }?;
        // SAFETY: guaranteed by the caller.
        let n_vocab = unsafe { sys::llama_vocab_n_tokens(vocab) };
        let mut n_suppressed = 0_i32;
        // SAFETY: guaranteed by the caller; the number is writable.
        let suppressed = unsafe { sys::llama_vocab_get_suppress_tokens(vocab, &raw mut n_suppressed) };
        let suppressed_tokens = if suppressed.is_null() {
            Vec::new()
        } else {
            // SAFETY: llama.cpp's own list of `n_suppressed` tokens, which lives as long as the vocabulary.
            unsafe { std::slice::from_raw_parts(suppressed, n_suppressed.unsigned_abs() as usize) }.to_vec()
        };
        // SAFETY: guaranteed by the caller.
        let adds_special = unsafe { has_required_specials(vocab) };
        let (bytes, starts, flags, end_tokens) = (Vec::new(), vec![0], Vec::new(), Vec::new());
        let mut vocabulary = Self { bytes, starts, flags, end_tokens, suppressed_tokens, adds_special };
        for token in 0..n_vocab {
            let start = vocabulary.bytes.len();
            // SAFETY: `token` is in the vocabulary.
            unsafe { append_spelling(vocab, token, &mut vocabulary.bytes) };
            let end = u32::try_from(vocabulary.bytes.len()).expect("a vocabulary's text is far below 4 GiB");
            vocabulary.starts.push(end);
            // SAFETY: `token` is in the vocabulary; with an empty buffer, the call only returns whether there would be text.
            let is_hidden = unsafe { sys::llama_token_to_piece(vocab, token, std::ptr::null_mut(), 0, 0, false) } == 0
                && vocabulary.bytes.len() > start;
            // SAFETY: `token` is in the vocabulary.
            let is_end = unsafe { sys::llama_vocab_is_eog(vocab, token) };
            vocabulary.flags.push(if is_hidden { HIDDEN } else { 0 } | if is_end { END } else { 0 });
            if is_end {
                vocabulary.end_tokens.push(token);
            }
        }
        Ok(vocabulary)
    }

    pub(in crate::llama) fn n_vocab(&self) -> usize {
        self.flags.len()
    }

    /// Returns the spelling of `token`, including control tokens; `None` if it is not in the vocabulary.
    pub(in crate::llama) fn spelling(&self, token: Token) -> Option<&[u8]> {
        let index = usize::try_from(token).ok()?;
        let (start, end) = (*self.starts.get(index)?, *self.starts.get(index + 1)?);
        Some(&self.bytes[start as usize..end as usize])
    }

    /// Returns the bytes that `token` adds to a text: none for a control token; `None` if it is not in the vocabulary.
    pub(in crate::llama) fn text(&self, token: Token) -> Option<&[u8]> {
        let spelling = self.spelling(token)?;
        Some(if self.has(token, HIDDEN) { &[] } else { spelling })
    }

    /// Returns whether `token` ends a text; false if it is not in the vocabulary.
    pub(in crate::llama) fn is_end(&self, token: Token) -> bool {
        self.has(token, END)
    }

    pub(in crate::llama) fn end_tokens(&self) -> &[Token] {
        &self.end_tokens
    }

    /// Every control token, and the unknown token, in order.
    pub(in crate::llama) fn control_tokens(&self) -> impl Iterator<Item = Token> {
        (0..).zip(&self.flags).filter(|(_, flags)| **flags & HIDDEN != 0).map(|(token, _)| token)
    }

    /// Tokens that the model's metadata excludes from sampling.
    pub(in crate::llama) fn suppressed_tokens(&self) -> &[Token] {
        &self.suppressed_tokens
    }

    /// Returns whether the special tokens that the vocabulary requires can be added to a text.
    pub(in crate::llama) fn adds_special(&self) -> bool {
        self.adds_special
    }

    fn has(&self, token: Token, flag: u8) -> bool {
        usize::try_from(token).ok().and_then(|index| self.flags.get(index)).is_some_and(|flags| flags & flag != 0)
    }
}

/// Appends the spelling of `token`.
///
/// # Safety
/// `token` is in `vocab`, which satisfies the requirements of [`Vocabulary::read`].
unsafe fn append_spelling(vocab: *const sys::llama_vocab, token: Token, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    let mut capacity = 64;
    loop {
        bytes.resize(start + capacity, 0);
        let length = i32::try_from(capacity).expect("a token's spelling is shorter than 2 GiB");
        // SAFETY: guaranteed by the caller, and `length` bytes are writable at `start`.
        let written =
            unsafe { sys::llama_token_to_piece(vocab, token, bytes[start..].as_mut_ptr().cast::<c_char>(), length, 0, true) };
        // A negative result is the required size.
        let size = written.unsigned_abs() as usize;
        if written >= 0 {
            return bytes.truncate(start + size);
        }
        capacity = size;
    }
}

/// Rejects a model without a vocabulary, and a `SentencePiece` vocabulary that cannot spell every byte: for text without a piece
/// llama.cpp looks up `<0xE2>`, then the byte itself, and ends the process if it finds neither.
///
/// # Safety
/// `vocab` belongs to a loaded model.
unsafe fn check_byte_tokens(vocab: *const sys::llama_vocab) -> Result<(), String> {
    // SAFETY: guaranteed by the caller.
    match unsafe { sys::llama_vocab_type(vocab) } {
        sys::LLAMA_VOCAB_TYPE_NONE => return Err("it has no vocabulary, so it cannot process text".to_owned()),
        sys::LLAMA_VOCAB_TYPE_SPM => {}
        _ => return Ok(()),
    }
    let mut is_spelt = [false; 256];
    // SAFETY: guaranteed by the caller.
    for token in 0..unsafe { sys::llama_vocab_n_tokens(vocab) } {
        // SAFETY: `token` is in the vocabulary, whose texts end in NUL and live as long as the model.
        let text = unsafe { CStr::from_ptr(sys::llama_vocab_get_text(vocab, token)) };
        if let Some(byte) = byte_of_piece(text.to_bytes()) {
            is_spelt[usize::from(byte)] = true;
        }
    }
    match is_spelt.iter().filter(|&&is_spelt| is_spelt).count() {
        256 => Ok(()),
        n_bytes => Err(format!("its vocabulary has only {n_bytes} of 256 byte tokens, so it cannot encode every text")),
    }
}

/// Returns the byte that a piece of this text represents, if any: `<0xE2>`, or the byte itself.
fn byte_of_piece(text: &[u8]) -> Option<u8> {
    match *text {
        [byte] => Some(byte),
        [b'<', b'0', b'x', high, low, b'>'] => {
            let digit = |digit| b"0123456789ABCDEF".iter().position(|&candidate| candidate == digit);
            u8::try_from(digit(high)? * 16 + digit(low)?).ok()
        }
        _ => None,
    }
}

/// Returns whether the vocabulary has every token that it requires to be added; llama.cpp ends the process if one is missing.
///
/// # Safety
/// `vocab` belongs to a loaded model, and its type is not `LLAMA_VOCAB_TYPE_NONE`.
unsafe fn has_required_specials(vocab: *const sys::llama_vocab) -> bool {
    // SAFETY: guaranteed by the caller. A missing token is negative.
    unsafe {
        // WordPiece always adds its two tokens.
        let is_word_piece = sys::llama_vocab_type(vocab) == sys::LLAMA_VOCAB_TYPE_WPM;
        (!sys::llama_vocab_get_add_bos(vocab) && !is_word_piece || sys::llama_vocab_bos(vocab) >= 0)
            && (!is_word_piece || sys::llama_vocab_sep(vocab) >= 0)
            && (!sys::llama_vocab_get_add_eos(vocab) || sys::llama_vocab_eos(vocab) >= 0)
            && (!sys::llama_vocab_get_add_sep(vocab) || sys::llama_vocab_sep(vocab) >= 0)
    }
}

#[cfg(test)]
mod tests {
    use super::byte_of_piece;

    #[test]
    fn a_byte_piece_is_hexadecimal_or_the_byte_itself() {
        assert_eq!(byte_of_piece(b"<0xE2>"), Some(0xE2));
        assert_eq!(byte_of_piece(b"a"), Some(b'a'));
        for text in [&b"<0xe2>"[..], b"<0xE>", b"<0xE2", b"ab", b""] {
            assert_eq!(byte_of_piece(text), None, "{text:?}");
        }
    }
}
