//! Grammars in GBNF: which texts a completion may be.
//!
//! The language is llama.cpp's, as its `grammars/README.md` describes it, and so are the rules that its reader makes of a text and
//! the tokens that are allowed after each other; tests hold both to llama.cpp's own. What is ours is how it is done, since
//! llama.cpp says on its standard error only what is wrong with a grammar, and answers some with an endless loop, a full memory or
//! the end of the process:
//!
//! - What is wrong with a grammar is said with its line and column ([`ParseError`]).
//! - `{3,2}` is refused, where llama.cpp makes 2⁶⁴ rules of it.
//! - A rule that is named must be defined, also where it is repeated no times.
//! - A token that is named by its id must be in the vocabulary.
//! - Sizes are bounded: [`MAX_BYTES`], [`MAX_ELEMENTS`], [`MAX_DEPTH`].
//! - A grammar that reads one text in millions of ways is given up: nothing is allowed any more.
//! - Bytes that are not in UTF-8 are never allowed. A text does not end inside of a character, and `[^é]` allows the first byte of
//!   another character that begins like é.
//! - Token ids (`<[7]>`) are only looked at where a token begins.

mod alphabet;
mod branch;
mod json;
mod lazy;
mod matcher;
mod named_tokens;
mod parse_error;
mod reader;
mod rules;
mod schema;
mod spellings;
#[cfg(test)]
mod tests;
mod utf8;

use std::fmt;
use std::sync::Arc;

pub use lazy::{LazyGrammar, MAX_REACH, MAX_TRIGGER_BYTES, MAX_TRIGGERS, Triggers};
pub use parse_error::ParseError;
pub use reader::TokenLookup;
pub use schema::{
    MAX_NAME_BYTES, MAX_PATTERN_BYTES, MAX_PROPERTIES, MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_PARTS, MAX_WAYS, to_gbnf,
};
pub use spellings::Spellings;

use crate::request::{Constraint, ConstraintSource};
use alphabet::Alphabet;
use branch::Branch;
use matcher::{Language, Matcher, State};
use utf8::PartialChar;

/// Most bytes of a grammar.
pub const MAX_BYTES: usize = 1 << 20;

/// Most elements that the repetitions of a grammar are unrolled to.
pub const MAX_ELEMENTS: usize = 1 << 20;

/// Most parentheses inside of each other.
pub const MAX_DEPTH: usize = 256;

/// Most rules that come of the repetitions of one item; llama.cpp's number.
const MAX_REPETITIONS: usize = 2_000;

/// A grammar that was read, for the vocabulary of one model.
pub struct Grammar {
    spellings: Arc<Spellings>,
    matcher: Matcher,
    start: State,
}

impl Grammar {
    /// Reads a grammar, whose texts begin with its rule `root`. `tokens` and `spellings` are of one vocabulary.
    ///
    /// # Errors
    /// [`ParseError`] says what is wrong with it, and where.
    pub fn new(text: &str, tokens: &dyn TokenLookup, spellings: Arc<Spellings>) -> Result<Self, ParseError> {
        if text.len() > MAX_BYTES {
            let message = format!("the grammar of {} bytes is longer than {MAX_BYTES} bytes", text.len());
            return Err(ParseError::new(text, MAX_BYTES, message));
        }
        let (rules, classes) = reader::read(text, tokens)?;
        let language = Arc::new(Language { rules, alphabet: Alphabet::new(&classes) });
        let (matcher, start) = Matcher::new(language);
        if matcher.is_exhausted() {
            return Err(ParseError::new(text, 0, "the grammar has too many ways to begin a text"));
        }
        Ok(Self { spellings, matcher, start })
    }

    /// Bytes that it takes, about, without what it shares with the other grammars of its model.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        self.matcher.n_bytes()
    }
}

impl ConstraintSource for Grammar {
    fn start(&self) -> Box<dyn Constraint> {
        let (spellings, matcher) = (Arc::clone(&self.spellings), self.matcher.clone());
        Box::new(Branch { spellings, matcher, state: self.start, partial: PartialChar::default() })
    }

    fn n_bytes(&self) -> usize {
        self.matcher.n_bytes()
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}
