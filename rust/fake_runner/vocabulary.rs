//! Vocabulary of the fake runner: printable characters.

use std::borrow::Cow;

use crate::request::Token;
use crate::sampling::Vocabulary;

/// Size of the vocabulary: the end token, the two halves of "é", printable characters, and last a newline.
pub const N_VOCAB: usize = 96;

pub const END: Token = 0;

/// A token that is never sampled, however likely.
pub const SUPPRESSED: Token = 3;

/// The BOS token, if a test puts it at the beginning: `{`.
pub const OPENING: Token = 94;

pub const NEWLINE: Token = 95;

/// Spelling of every token but [`END`].
const BYTES: [u8; N_VOCAB] = {
    let mut bytes = [0; N_VOCAB];
    (bytes[1], bytes[2], bytes[N_VOCAB - 1]) = (0xC3, 0xA9, b'\n');
    let mut byte = 32;
    while byte < 124 {
        bytes[byte as usize - 29] = byte;
        byte += 1;
    }
    bytes
};

pub(crate) fn spelling_of(token: Token) -> &'static [u8] {
    let id = usize::try_from(token).expect("a token of the vocabulary");
    if token == END { &[] } else { &BYTES[id..=id] }
}

fn token_of(byte: u8) -> Option<Token> {
    (1..).zip(&BYTES[1..]).find(|&(_, &known)| known == byte).map(|(token, _)| token)
}

/// Returns the tokens of ASCII `text` without control characters except newlines.
pub fn tokens_of(text: &str) -> Vec<Token> {
    text.bytes().map(|byte| token_of(byte).expect("the text has only bytes of the vocabulary")).collect()
}

pub(super) struct FakeVocabulary {
    pub(super) end_tokens: &'static [Token],
}

impl Vocabulary for FakeVocabulary {
    fn n_vocab(&self) -> usize {
        N_VOCAB
    }

    fn spelling(&self, token: Token) -> &[u8] {
        spelling_of(token)
    }

    fn spelling_alone(&self, token: Token) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.spelling(token))
    }

    fn piece(&self, token: Token) -> &[u8] {
        self.spelling(token)
    }

    fn tokenize(&self, text: &[u8]) -> Vec<Token> {
        text.iter().filter_map(|&byte| token_of(byte)).collect()
    }

    fn newline(&self) -> Option<Token> {
        Some(NEWLINE)
    }

    fn opening(&self) -> Option<Token> {
        Some(OPENING)
    }

    fn is_end(&self, token: Token) -> bool {
        self.end_tokens.contains(&token)
    }

    fn end_tokens(&self) -> &[Token] {
        self.end_tokens
    }

    fn end_of_turn(&self) -> Option<Token> {
        self.end_tokens.first().copied()
    }
}
