//! A model's vocabulary, read once, so that a step copies slices and never calls llama.cpp for text.

pub(super) mod grammar;
pub(super) mod infill;
pub(super) mod raw_vocab;
pub mod rerank;
pub(super) mod safe_cuts;
pub(super) mod special_tokens;
pub(super) mod splitter;
pub(super) mod token_strings;
pub(super) mod tokenizer;

use llama_cpp_sys_2 as sys;

use crate::llama::vocabulary::raw_vocab::RawVocab;
use crate::request::Token;

/// Flag of a control or unknown token: it has a spelling, but is not part of a text.
const HIDDEN: u8 = 1;
const END: u8 = 2;

pub(super) struct VocabularyTable {
    bytes: Vec<u8>,
    /// The spelling of token `t` is `bytes[starts[t]..starts[t + 1]]`.
    starts: Vec<u32>,
    flags: Vec<u8>,
    pub(super) end_tokens: Vec<Token>,
    pub(super) suppressed_tokens: Vec<Token>,
    pub(super) adds_special: bool,
}

impl VocabularyTable {
    /// Reads the vocabulary. Fails if llama.cpp could not encode every text with it.
    pub(super) fn read(vocab: RawVocab<'_>) -> Result<Self, String> {
        check_byte_tokens(vocab)?;
        let mut n_suppressed = 0_i32;
        // SAFETY: the vocabulary is alive; the number is writable.
        let suppressed = unsafe { sys::llama_vocab_get_suppress_tokens(vocab.as_ptr(), &raw mut n_suppressed) };
        let suppressed_tokens = if suppressed.is_null() {
            Vec::new()
        } else {
            // SAFETY: llama.cpp's own list of `n_suppressed` tokens, which lives as long as the vocabulary.
            unsafe { std::slice::from_raw_parts(suppressed, n_suppressed.unsigned_abs() as usize) }.to_vec()
        };
        let adds_special = has_required_specials(vocab);
        let (bytes, starts, flags, end_tokens) = (Vec::new(), vec![0], Vec::new(), Vec::new());
        let mut vocabulary = Self { bytes, starts, flags, end_tokens, suppressed_tokens, adds_special };
        for token in vocab.tokens() {
            let start = vocabulary.bytes.len();
            vocab.append_spelling(token, &mut vocabulary.bytes);
            let end = u32::try_from(vocabulary.bytes.len()).expect("a vocabulary's text is far below 4 GiB");
            vocabulary.starts.push(end);
            let is_hidden = !vocab.is_in_text(token) && vocabulary.bytes.len() > start;
            let is_end = vocab.is_end(token);
            vocabulary.flags.push(if is_hidden { HIDDEN } else { 0 } | if is_end { END } else { 0 });
            if is_end {
                vocabulary.end_tokens.push(token);
            }
        }
        Ok(vocabulary)
    }

    pub(super) fn n_vocab(&self) -> usize {
        self.flags.len()
    }

    pub(super) fn spelling(&self, token: Token) -> Option<&[u8]> {
        let index = usize::try_from(token).ok()?;
        let (start, end) = (*self.starts.get(index)?, *self.starts.get(index + 1)?);
        Some(&self.bytes[start as usize..end as usize])
    }

    /// Returns the bytes that `token` adds to a text: none for a control token.
    pub(super) fn text(&self, token: Token) -> Option<&[u8]> {
        let spelling = self.spelling(token)?;
        Some(if self.has(token, HIDDEN) { &[] } else { spelling })
    }

    pub(super) fn is_end(&self, token: Token) -> bool {
        self.has(token, END)
    }

    pub(super) fn control_tokens(&self) -> impl Iterator<Item = Token> {
        (0..).zip(&self.flags).filter(|(_, flags)| **flags & HIDDEN != 0).map(|(token, _)| token)
    }

    fn has(&self, token: Token, flag: u8) -> bool {
        usize::try_from(token).ok().and_then(|index| self.flags.get(index)).is_some_and(|flags| flags & flag != 0)
    }
}

/// Rejects a model without a vocabulary, and a `SentencePiece` vocabulary that cannot spell every byte: for text without a piece
/// llama.cpp looks up `<0xE2>`, then the byte itself, and ends the process if it finds neither.
fn check_byte_tokens(vocab: RawVocab<'_>) -> Result<(), String> {
    match vocab.kind() {
        sys::LLAMA_VOCAB_TYPE_NONE => return Err("it has no vocabulary, so it cannot process text".to_owned()),
        sys::LLAMA_VOCAB_TYPE_SPM => {}
        _ => return Ok(()),
    }
    let mut is_spelt = [false; 256];
    for token in vocab.tokens() {
        if let Some(byte) = byte_of_piece(vocab.text(token)) {
            is_spelt[usize::from(byte)] = true;
        }
    }
    match is_spelt.iter().filter(|&&is_spelt| is_spelt).count() {
        256 => Ok(()),
        n_bytes => Err(format!("its vocabulary has only {n_bytes} of 256 byte tokens, so it cannot encode every text")),
    }
}

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

/// llama.cpp ends the process if a token that it adds is missing.
fn has_required_specials(vocab: RawVocab<'_>) -> bool {
    let [bos, eos, sep] =
        [sys::llama_vocab_bos, sys::llama_vocab_eos, sys::llama_vocab_sep].map(|special| vocab.token(special).is_some());
    // WordPiece always adds its two tokens.
    let is_word_piece = vocab.kind() == sys::LLAMA_VOCAB_TYPE_WPM;
    (bos || !is_word_piece && !vocab.get(sys::llama_vocab_get_add_bos))
        && (sep || !is_word_piece && !vocab.get(sys::llama_vocab_get_add_sep))
        && (eos || !vocab.get(sys::llama_vocab_get_add_eos))
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
