//! The vocabulary sorted by spelling, so that tokens with a common prefix are checked together.

use crate::request::Token;

/// The spellings of a model's tokens.
#[derive(Debug)]
pub struct Spellings {
    bytes: Vec<u8>,
    /// Token `t` is spelt `bytes[starts[t]..starts[t + 1]]`.
    starts: Vec<u32>,
    end_tokens: Vec<Token>,
    pub(super) order: Vec<SpellingEntry>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct SpellingEntry {
    pub(super) token: Token,
    /// Bytes in common with the preceding entry.
    pub(super) n_common: u32,
}

impl Spellings {
    /// Sorts the spellings of all tokens, given from token 0 on.
    pub fn new<'a>(spellings: impl IntoIterator<Item = &'a [u8]>, end_tokens: &[Token]) -> Self {
        let mut vocabulary = Self { bytes: Vec::new(), starts: vec![0], end_tokens: end_tokens.to_vec(), order: Vec::new() };
        for spelling in spellings {
            vocabulary.bytes.extend_from_slice(spelling);
            vocabulary.starts.push(u32::try_from(vocabulary.bytes.len()).expect("the spellings are far below 4 GiB"));
        }
        let n_vocab = Token::try_from(vocabulary.n_vocab()).expect("token ids have 31 bits");
        // llama.cpp ignores a spelling that begins with NUL.
        let is_text = |token: &Token| !matches!(vocabulary.spelling(*token), [] | [0, ..]) && !vocabulary.is_end(*token);
        let mut tokens: Vec<Token> = (0..n_vocab).filter(is_text).collect();
        tokens.sort_unstable_by_key(|&token| vocabulary.spelling(token));
        let mut before: &[u8] = &[];
        let mut order = Vec::with_capacity(tokens.len());
        for token in tokens {
            let spelling = vocabulary.spelling(token);
            let n_common = spelling.iter().zip(before).take_while(|(a, b)| a == b).count();
            order.push(SpellingEntry { token, n_common: u32::try_from(n_common).expect("a spelling is far below 4 GiB") });
            before = spelling;
        }
        vocabulary.order = order;
        vocabulary
    }

    pub fn n_vocab(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the spelling of a token; empty for an id outside of the vocabulary.
    pub(super) fn spelling(&self, token: Token) -> &[u8] {
        let range = usize::try_from(token).ok().and_then(|token| self.starts.get(token..token.checked_add(2)?));
        match range {
            Some(&[start, end]) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }

    pub(super) fn is_end(&self, token: Token) -> bool {
        self.end_tokens.contains(&token)
    }

    pub(super) fn end_tokens(&self) -> &[Token] {
        &self.end_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_sorted_by_spelling() {
        let spellings = Spellings::new([&b"b"[..], b"", b"abc", b"</s>", b"\0x", b"ab", b"abd"], &[3]);
        let order: Vec<(Token, u32)> = spellings.order.iter().map(|entry| (entry.token, entry.n_common)).collect();
        assert_eq!(order, [(5, 0), (2, 2), (6, 2), (0, 0)]);
        assert_eq!(spellings.n_vocab(), 7);
        assert_eq!([0, 3, 6, 7, -1].map(|token| spellings.spelling(token)), [&b"b"[..], b"</s>", b"abd", b"", b""]);
        assert!(spellings.is_end(3) && !spellings.is_end(2));
    }
}
