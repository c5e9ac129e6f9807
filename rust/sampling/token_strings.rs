//! The samplers' view of a model's vocabulary.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex};

use crate::lock::lock;
use crate::request::Token;
use crate::sampling::penalties::sequence_breakers::SequenceBreakers;

const MAX_LISTS: usize = 16;

/// The part of a model's vocabulary that samplers need. Called on any thread.
pub trait Vocabulary: Send + Sync {
    /// Returns the number of tokens; ids start at 0.
    fn n_vocab(&self) -> usize;

    /// Returns the bytes of `token`, also for control tokens.
    fn spelling(&self, token: Token) -> &[u8];

    /// Returns the spelling without the space that some vocabularies add before every text.
    fn spelling_alone(&self, token: Token) -> Cow<'_, [u8]>;

    /// Returns the bytes that `token` adds to a text: none for a control token.
    fn piece(&self, token: Token) -> &[u8];

    /// Tokenizes `text`, which need not be UTF-8, without adding tokens and without recognising control tokens.
    fn tokenize(&self, text: &[u8]) -> Vec<Token>;

    /// Tokenizes `text` as a continuation of other text: without the space that some vocabularies add before every text.
    fn tokenize_on(&self, text: &[u8]) -> Vec<Token> {
        self.tokenize(text)
    }

    /// Returns the newline token, if there is one.
    fn newline(&self) -> Option<Token>;

    /// Returns the token that starts texts, if there is one.
    fn opening(&self) -> Option<Token>;

    /// Returns true if `token` ends a text.
    fn is_end(&self, token: Token) -> bool;

    /// Returns every token that ends a text.
    fn end_tokens(&self) -> &[Token];

    /// Returns the token that ends a turn, or else a token that ends a text.
    fn end_of_turn(&self) -> Option<Token>;
}

/// A vocabulary with a cache of lookups. Cheap to clone; clones share the cache.
#[derive(Clone)]
pub struct TokenStrings {
    vocabulary: Arc<dyn Vocabulary>,
    breakers: Arc<Mutex<Vec<CachedBreakers>>>,
}

type CachedBreakers = (Vec<String>, Arc<SequenceBreakers>);

impl TokenStrings {
    /// Wraps `vocabulary` with an empty cache.
    pub fn new(vocabulary: impl Vocabulary + 'static) -> Self {
        Self { vocabulary: Arc::new(vocabulary), breakers: Arc::default() }
    }

    /// The first lookup of a list takes a pass over the vocabulary: about 1 ms at 152,064 tokens.
    pub(crate) fn breakers(&self, texts: &[String]) -> Arc<SequenceBreakers> {
        let mut cached = lock(&self.breakers);
        if let Some(index) = cached.iter().position(|(list, _)| list == texts) {
            cached[index..].rotate_left(1);
        } else {
            // The lock is held during the lookup; concurrent callers mostly need the same list.
            let breakers = Arc::new(SequenceBreakers::new(texts, &*self.vocabulary));
            if cached.len() == MAX_LISTS {
                cached.remove(0);
            }
            cached.push((texts.to_vec(), breakers));
        }
        let (_, breakers) = cached.last().expect("an entry was just found or added");
        Arc::clone(breakers)
    }
}

impl std::ops::Deref for TokenStrings {
    type Target = dyn Vocabulary;

    fn deref(&self) -> &Self::Target {
        &*self.vocabulary
    }
}

impl fmt::Debug for TokenStrings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenStrings").field("n_vocab", &self.vocabulary.n_vocab()).finish_non_exhaustive()
    }
}

/// Vocabularies for tests.
#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A vocabulary of the given pieces, of which the first `n_ends` end a text.
    pub(crate) struct Pieces {
        pieces: Vec<Vec<u8>>,
        ends: Vec<Token>,
        newline: Option<Token>,
    }

    impl Pieces {
        pub(crate) fn token_strings(pieces: &[&str], n_ends: usize) -> TokenStrings {
            TokenStrings::new(Self {
                pieces: pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect(),
                ends: (0..).take(n_ends).collect(),
                newline: (0..).zip(pieces).find(|&(_, &piece)| piece == "\n").map(|(token, _)| token),
            })
        }

        /// A vocabulary of pieces that need not be UTF-8.
        pub(crate) fn of_bytes(pieces: &[&[u8]], n_ends: usize) -> TokenStrings {
            let pieces = pieces.iter().map(|piece| piece.to_vec()).collect();
            TokenStrings::new(Self { pieces, ends: (0..).take(n_ends).collect(), newline: None })
        }

        /// A vocabulary without pieces, in which `ends` end a text.
        pub(crate) fn none(ends: &[Token]) -> TokenStrings {
            TokenStrings::new(Self { pieces: Vec::new(), ends: ends.to_vec(), newline: None })
        }
    }

    impl Vocabulary for Pieces {
        fn n_vocab(&self) -> usize {
            self.pieces.len()
        }

        fn spelling(&self, token: Token) -> &[u8] {
            &self.pieces[usize::try_from(token).unwrap()]
        }

        fn spelling_alone(&self, token: Token) -> Cow<'_, [u8]> {
            Cow::Borrowed(self.spelling(token))
        }

        fn piece(&self, token: Token) -> &[u8] {
            if self.is_end(token) { &[] } else { self.spelling(token) }
        }

        fn tokenize(&self, mut text: &[u8]) -> Vec<Token> {
            let mut tokens = Vec::new();
            while !text.is_empty() {
                let longest = (0..).zip(&self.pieces).filter(|(_, piece)| text.starts_with(piece)).max_by_key(|(_, p)| p.len());
                let (token, piece) = longest.expect("the pieces spell every text of the test");
                tokens.push(token);
                text = &text[piece.len()..];
            }
            tokens
        }

        fn newline(&self) -> Option<Token> {
            self.newline
        }

        fn opening(&self) -> Option<Token> {
            None
        }

        fn is_end(&self, token: Token) -> bool {
            self.ends.contains(&token)
        }

        fn end_tokens(&self) -> &[Token] {
            &self.ends
        }

        fn end_of_turn(&self) -> Option<Token> {
            self.ends.first().copied()
        }
    }

    #[test]
    fn a_list_is_looked_up_once_and_only_the_latest_are_cached() {
        let token_strings = Pieces::token_strings(&["a", "b", "ab"], 0);
        let list = |text: &str| vec![text.to_owned()];
        let first = token_strings.breakers(&list("a"));
        assert!(Arc::ptr_eq(&first, &token_strings.clone().breakers(&list("a"))));
        for i in 1..MAX_LISTS {
            token_strings.breakers(&list(&"b".repeat(i)));
            assert!(Arc::ptr_eq(&first, &token_strings.breakers(&list("a"))));
        }
        assert!(Arc::ptr_eq(&token_strings.breakers(&list("bb")), &token_strings.breakers(&list("bb"))));
        let evicted = token_strings.breakers(&list("b"));
        for i in 0..MAX_LISTS {
            token_strings.breakers(&list(&"a".repeat(i + 2)));
        }
        assert!(!Arc::ptr_eq(&evicted, &token_strings.breakers(&list("b"))));
    }
}
