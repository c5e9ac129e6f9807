//! What the samplers ask of a model's vocabulary.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::request::Token;
use crate::sampling::sequence_breakers::SequenceBreakers;

/// Lists of sequence breakers that are kept; clients send the same few.
const MAX_LISTS: usize = 16;

/// The vocabulary of a model, as far as samplers need it. It is asked on any thread.
pub trait Vocabulary: Send + Sync {
    /// How many tokens there are; their ids begin at 0.
    fn n_vocab(&self) -> usize;

    /// The bytes that `token`, one of them, is spelt with, those of control tokens included.
    fn spelling(&self, token: Token) -> &[u8];

    /// The bytes of a text of this token alone: its spelling, less the space that some vocabularies put before every text.
    fn spelling_alone(&self, token: Token) -> Cow<'_, [u8]>;

    /// The bytes that `token` adds to a text: none for a control token.
    fn piece(&self, token: Token) -> &[u8];

    /// The tokens of `text`, which need not be UTF-8, without any that are added to a text and without control tokens.
    fn tokenize(&self, text: &[u8]) -> Vec<Token>;

    /// The token of a line's end, where there is one.
    fn newline(&self) -> Option<Token>;

    /// The token that begins texts, where there is one.
    fn opening(&self) -> Option<Token>;

    /// Whether `token` ends a text.
    fn is_end(&self, token: Token) -> bool;

    /// Every token that ends a text.
    fn end_tokens(&self) -> &[Token];

    /// The token that ends a turn, or else a text.
    fn end_of_turn(&self) -> Option<Token>;
}

/// A vocabulary with what was looked up in it. Cheap to clone; clones share it.
#[derive(Clone)]
pub struct TokenStrings {
    vocabulary: Arc<dyn Vocabulary>,
    /// The lists that were asked for last, the latest last.
    breakers: Arc<Mutex<Vec<CachedBreakers>>>,
}

/// A list of sequence breakers, and what it comes to.
type CachedBreakers = (Vec<String>, Arc<SequenceBreakers>);

impl TokenStrings {
    /// Of `vocabulary`; nothing is looked up yet.
    pub fn new(vocabulary: impl Vocabulary + 'static) -> Self {
        Self { vocabulary: Arc::new(vocabulary), breakers: Arc::default() }
    }

    /// The tokens at which a repetition ends, for these texts.
    ///
    /// The first time, that takes a pass over the vocabulary: about 1 ms at 152,064 tokens. The last [`MAX_LISTS`] lists are remembered.
    pub(crate) fn breakers(&self, texts: &[String]) -> Arc<SequenceBreakers> {
        let mut known = self.breakers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = known.iter().position(|(list, _)| list == texts) {
            known[at..].rotate_left(1);
        } else {
            // Others wait meanwhile; they would mostly ask for the same.
            let breakers = Arc::new(SequenceBreakers::new(texts, &*self.vocabulary));
            if known.len() == MAX_LISTS {
                known.remove(0);
            }
            known.push((texts.to_vec(), breakers));
        }
        let (_, breakers) = known.last().expect("one was found or made");
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
        f.debug_struct("Lexicon").field("n_vocab", &self.vocabulary.n_vocab()).finish_non_exhaustive()
    }
}

/// Vocabularies of tests.
#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Tokens are the pieces that are given; the first ones end a text, as many as asked for.
    pub(crate) struct Pieces {
        pieces: Vec<Vec<u8>>,
        ends: Vec<Token>,
        newline: Option<Token>,
    }

    impl Pieces {
        pub(crate) fn lexicon(pieces: &[&str], n_ends: usize) -> TokenStrings {
            TokenStrings::new(Self {
                pieces: pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect(),
                ends: (0..).take(n_ends).collect(),
                newline: (0..).zip(pieces).find(|&(_, &piece)| piece == "\n").map(|(token, _)| token),
            })
        }

        /// Of pieces that need not be UTF-8.
        pub(crate) fn of_bytes(pieces: &[&[u8]], n_ends: usize) -> TokenStrings {
            let pieces = pieces.iter().map(|piece| piece.to_vec()).collect();
            TokenStrings::new(Self { pieces, ends: (0..).take(n_ends).collect(), newline: None })
        }

        /// Where nothing is asked of the pieces: these tokens end a text.
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
    fn a_list_is_looked_up_once_and_few_are_remembered() {
        let lexicon = Pieces::lexicon(&["a", "b", "ab"], 0);
        let list = |text: &str| vec![text.to_owned()];
        let first = lexicon.breakers(&list("a"));
        assert!(Arc::ptr_eq(&first, &lexicon.clone().breakers(&list("a"))));
        for i in 1..MAX_LISTS {
            lexicon.breakers(&list(&"b".repeat(i)));
            assert!(Arc::ptr_eq(&first, &lexicon.breakers(&list("a"))));
        }
        assert!(Arc::ptr_eq(&lexicon.breakers(&list("bb")), &lexicon.breakers(&list("bb"))));
        let forgotten = lexicon.breakers(&list("b"));
        for i in 0..MAX_LISTS {
            lexicon.breakers(&list(&"a".repeat(i + 2)));
        }
        assert!(!Arc::ptr_eq(&forgotten, &lexicon.breakers(&list("b"))));
    }
}
