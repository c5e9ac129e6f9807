//! Branches that think before they answer.

use std::sync::Arc;

use super::*;
use crate::fake_runner::{END, N_VOCAB};
use crate::grammar::{Grammar, Lazy, Spellings, Tokens, Triggers};
use crate::request::{SharedConstraint, Thought, Trigger};
use crate::sampling::Mirostat;

/// The vocabulary of the fake model.
struct Words;

impl Tokens for Words {
    fn spelt(&self, _: &str) -> Option<Token> {
        None
    }

    fn n_vocab(&self) -> usize {
        N_VOCAB
    }
}
