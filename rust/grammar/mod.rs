//! Grammars in GBNF, which constrain the text of a completion.
//!
//! The language is llama.cpp's (`grammars/README.md`). The rules that its parser makes of a text, and the tokens that are allowed
//! after each other, are the same; tests compare both. The implementation is ours, because llama.cpp reports errors of a grammar
//! only on its standard error, and some grammars make it loop endlessly, exhaust the memory or abort the process:
//!
//! - Errors of a grammar are reported with their line and column ([`ParseError`]).
//! - `{3,2}` is refused; llama.cpp makes 2⁶⁴ rules of it.
//! - A rule that is referred to must be defined, even if it is repeated zero times.
//! - A token that is referred to by its id must be in the vocabulary.
//! - Sizes are bounded: [`MAX_BYTES`], [`MAX_ELEMENTS`], [`MAX_DEPTH`].
//! - A grammar that can parse one text in millions of ways is abandoned: no token is allowed any more.
//! - Bytes that are not valid UTF-8 are never allowed. A text cannot end inside a character, and `[^é]` allows the first byte
//!   of another character that shares it with é.
//! - Token ids (`<[7]>`) are matched only at the start of a token.
#![expect(missing_docs, reason = "items with a clear name and type need no comment")]

mod alphabet;
mod branch;
mod gbnf;
mod json;
mod lazy;
mod matcher;
mod named_tokens;
mod parse_error;
mod ranges;
mod rules;
mod schema;
mod spellings;
#[cfg(test)]
mod tests;
mod utf8;

use std::fmt;
use std::sync::Arc;

pub use gbnf::TokenLookup;
pub use lazy::{LazyGrammar, MAX_REACH, MAX_TRIGGER_BYTES, MAX_TRIGGERS, Triggers};
pub use parse_error::ParseError;
pub use schema::{
    MAX_ALTERNATIVES, MAX_NAME_BYTES, MAX_PATTERN_BYTES, MAX_PROPERTIES, MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_PARTS,
    to_gbnf,
};
pub use spellings::Spellings;

use crate::request::{Constraint, ConstraintSource};
use alphabet::Alphabet;
use branch::GrammarBranch;
use matcher::{Language, Matcher};
use utf8::PartialChar;

pub const MAX_BYTES: usize = 1 << 20;

/// Maximum elements that the repetitions of a grammar are unrolled to.
pub const MAX_ELEMENTS: usize = 1 << 20;

/// Maximum nesting depth of parentheses.
pub const MAX_DEPTH: usize = 256;

/// Maximum rules that the repetitions of one item may make; llama.cpp's limit.
const MAX_REPETITIONS: usize = 2_000;

/// A parsed grammar for the vocabulary of one model.
pub struct Grammar {
    /// A branch without text, which all branches are copies of.
    start: GrammarBranch,
}

impl Grammar {
    /// Parses a grammar, whose root rule is `root`. `tokens` and `spellings` belong to the same vocabulary.
    ///
    /// # Errors
    /// A [`ParseError`] with the error and its position.
    pub fn new(text: &str, tokens: &dyn TokenLookup, spellings: Arc<Spellings>) -> Result<Self, ParseError> {
        if text.len() > MAX_BYTES {
            let message = format!("the grammar of {} bytes is longer than {MAX_BYTES} bytes", text.len());
            return Err(ParseError::new(text, MAX_BYTES, message));
        }
        let (rules, classes) = gbnf::parse(text, tokens)?;
        let language = Arc::new(Language { rules, alphabet: Alphabet::new(&classes) });
        let (matcher, state) = Matcher::new(language);
        if matcher.is_exhausted() {
            return Err(ParseError::new(text, 0, "the grammar is too ambiguous: there are too many ways to begin a text"));
        }
        Ok(Self { start: GrammarBranch { spellings, matcher, state, partial: PartialChar::default() } })
    }
}

impl ConstraintSource for Grammar {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(self.start.clone())
    }

    /// Size without the data that it shares with other grammars of its model.
    fn n_bytes(&self) -> usize {
        self.start.matcher.n_bytes()
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}
