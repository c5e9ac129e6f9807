//! A model's vocabulary, read once, so that a step copies a slice and never calls llama.cpp for text.

use std::ffi::{CStr, c_char};

use llama_cpp_sys_2 as sys;

use crate::request::Token;

/// A control or unknown token: it has a spelling, but is no part of a text.
const HIDDEN: u8 = 1;
/// A token that ends a text.
const END: u8 = 2;

/// One row per token of a vocabulary.
pub(super) struct Vocabulary {
    /// All spellings, one after the other.
    bytes: Vec<u8>,
    /// Token `t` is spelt `bytes[starts[t]..starts[t + 1]]`.
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
    /// Why llama.cpp could not read every text with it, for [`crate::error::Error::ModelLoad`].
    pub(super) unsafe fn read(vocab: *const sys::llama_vocab) -> Result<Self, String> {
        // SAFETY: the caller's promise.
        unsafe { check_byte_tokens(vocab) }?;
        // SAFETY: the caller's promise.
        let n_vocab = unsafe { sys::llama_vocab_n_tokens(vocab) };
        let mut n_suppressed = 0_i32;
        // SAFETY: the caller's promise; the number is writable.
        let suppressed = unsafe { sys::llama_vocab_get_suppress_tokens(vocab, &raw mut n_suppressed) };
        let suppressed_tokens = if suppressed.is_null() {
            Vec::new()
        } else {
            // SAFETY: llama.cpp's own list, as long as it says, which lives as long as the vocabulary.
            unsafe { std::slice::from_raw_parts(suppressed, n_suppressed.unsigned_abs() as usize) }.to_vec()
        };
        // SAFETY: the caller's promise.
        let adds_special = unsafe { has_the_specials_it_adds(vocab) };
        let (bytes, starts, flags, end_tokens) = (Vec::new(), vec![0], Vec::new(), Vec::new());
        let mut read = Self { bytes, starts, flags, end_tokens, suppressed_tokens, adds_special };
        for token in 0..n_vocab {
            let start = read.bytes.len();
            // SAFETY: `token` is in the vocabulary.
            unsafe { append_spelling(vocab, token, &mut read.bytes) };
            let end = u32::try_from(read.bytes.len()).expect("a vocabulary's text is far below 4 GiB");
            read.starts.push(end);
            // SAFETY: `token` is in the vocabulary; a buffer of no bytes is asked only whether there would be any.
            let is_hidden = unsafe { sys::llama_token_to_piece(vocab, token, std::ptr::null_mut(), 0, 0, false) } == 0
                && read.bytes.len() > start;
            // SAFETY: `token` is in the vocabulary.
            let is_end = unsafe { sys::llama_vocab_is_eog(vocab, token) };
            read.flags.push(if is_hidden { HIDDEN } else { 0 } | if is_end { END } else { 0 });
            if is_end {
                read.end_tokens.push(token);
            }
        }
        Ok(read)
    }

    /// Size of the vocabulary.
    pub(super) fn n_vocab(&self) -> usize {
        self.flags.len()
    }

    /// The spelling of `token`, that of control tokens included; `None` outside of the vocabulary.
    pub(super) fn spelling(&self, token: Token) -> Option<&[u8]> {
        let index = usize::try_from(token).ok()?;
        let (start, end) = (*self.starts.get(index)?, *self.starts.get(index + 1)?);
        Some(&self.bytes[start as usize..end as usize])
    }

    /// What `token` adds to a text: nothing for a control token; `None` outside of the vocabulary.
    pub(super) fn text(&self, token: Token) -> Option<&[u8]> {
        let spelling = self.spelling(token)?;
        Some(if self.has(token, HIDDEN) { &[] } else { spelling })
    }

    /// Whether `token` ends a text; false outside of the vocabulary.
    pub(super) fn is_end(&self, token: Token) -> bool {
        self.has(token, END)
    }

    /// Every token that ends a text, in order.
    pub(super) fn end_tokens(&self) -> &[Token] {
        &self.end_tokens
    }

    /// Every control token, and the unknown token, in order.
    pub(super) fn control_tokens(&self) -> impl Iterator<Item = Token> {
        (0..).zip(&self.flags).filter(|(_, flags)| **flags & HIDDEN != 0).map(|(token, _)| token)
    }

    /// Tokens that the model asks never to draw.
    pub(super) fn suppressed_tokens(&self) -> &[Token] {
        &self.suppressed_tokens
    }

    /// Whether the special tokens that the vocabulary asks for can be added to a text.
    pub(super) fn adds_special(&self) -> bool {
        self.adds_special
    }

    fn has(&self, token: Token, flag: u8) -> bool {
        usize::try_from(token).ok().and_then(|index| self.flags.get(index)).is_some_and(|flags| flags & flag != 0)
    }
}

/// # Safety
/// `token` is in `vocab`, which is as [`Vocabulary::read`] asks.
unsafe fn append_spelling(vocab: *const sys::llama_vocab, token: Token, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    let mut room = 64;
    loop {
        bytes.resize(start + room, 0);
        let length = i32::try_from(room).expect("a token's spelling is shorter than 2 GiB");
        // SAFETY: the caller's promise, and `length` bytes are writable at `start`.
        let written =
            unsafe { sys::llama_token_to_piece(vocab, token, bytes[start..].as_mut_ptr().cast::<c_char>(), length, 0, true) };
        // A negative answer is the room that was wanted.
        let size = written.unsigned_abs() as usize;
        if written >= 0 {
            return bytes.truncate(start + size);
        }
        room = size;
    }
}

/// Refuses a model without a vocabulary, and a `SentencePiece` vocabulary that cannot spell every byte: llama.cpp looks for
/// `<0xE2>`, then for the byte itself, wherever it has no piece for a text, and ends the process where there is neither.
///
/// # Safety
/// `vocab` belongs to a loaded model.
unsafe fn check_byte_tokens(vocab: *const sys::llama_vocab) -> Result<(), String> {
    // SAFETY: the caller's promise.
    match unsafe { sys::llama_vocab_type(vocab) } {
        sys::LLAMA_VOCAB_TYPE_NONE => return Err("it holds no vocabulary, so it cannot read a text".to_owned()),
        sys::LLAMA_VOCAB_TYPE_SPM => {}
        _ => return Ok(()),
    }
    let mut is_spelt = [false; 256];
    // SAFETY: the caller's promise.
    for token in 0..unsafe { sys::llama_vocab_n_tokens(vocab) } {
        // SAFETY: `token` is in the vocabulary, whose texts end in NUL and live as long as the model.
        let text = unsafe { CStr::from_ptr(sys::llama_vocab_get_text(vocab, token)) };
        if let Some(byte) = byte_spelt_by(text.to_bytes()) {
            is_spelt[usize::from(byte)] = true;
        }
    }
    match is_spelt.iter().filter(|&&is_spelt| is_spelt).count() {
        256 => Ok(()),
        n_bytes => Err(format!("its vocabulary has {n_bytes} of 256 byte tokens, so it cannot spell every text")),
    }
}

/// The byte that a piece of this text stands for, if it stands for one: `<0xE2>`, or the byte itself.
fn byte_spelt_by(text: &[u8]) -> Option<u8> {
    match *text {
        [byte] => Some(byte),
        [b'<', b'0', b'x', high, low, b'>'] => {
            let digit = |digit| b"0123456789ABCDEF".iter().position(|&known| known == digit);
            u8::try_from(digit(high)? * 16 + digit(low)?).ok()
        }
        _ => None,
    }
}

/// Whether the vocabulary has every token that it asks to be added; llama.cpp ends the process where one is missing.
///
/// # Safety
/// `vocab` belongs to a loaded model, and its type is not `LLAMA_VOCAB_TYPE_NONE`.
unsafe fn has_the_specials_it_adds(vocab: *const sys::llama_vocab) -> bool {
    // SAFETY: the caller's promise. A token that there is not is negative.
    unsafe {
        // WordPiece adds its two whatever the vocabulary asks for.
        let is_word_piece = sys::llama_vocab_type(vocab) == sys::LLAMA_VOCAB_TYPE_WPM;
        (!sys::llama_vocab_get_add_bos(vocab) && !is_word_piece || sys::llama_vocab_bos(vocab) >= 0)
            && (!is_word_piece || sys::llama_vocab_sep(vocab) >= 0)
            && (!sys::llama_vocab_get_add_eos(vocab) || sys::llama_vocab_eos(vocab) >= 0)
            && (!sys::llama_vocab_get_add_sep(vocab) || sys::llama_vocab_sep(vocab) >= 0)
    }
}

#[cfg(test)]
mod tests {
    use super::byte_spelt_by;

    #[test]
    fn a_byte_is_spelt_in_hexadecimal_or_by_itself() {
        assert_eq!(byte_spelt_by(b"<0xE2>"), Some(0xE2));
        assert_eq!(byte_spelt_by(b"a"), Some(b'a'));
        for text in [&b"<0xe2>"[..], b"<0xE>", b"<0xE2", b"ab", b""] {
            assert_eq!(byte_spelt_by(text), None, "{text:?}");
        }
    }
}
