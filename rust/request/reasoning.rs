//! Reasoning of a completion: its markers and its budget.

use std::fmt::Display;

use crate::error::Result;
use crate::request::{Token, ensure, validate_tokens};

/// Maximum length of [`Reasoning::starts`], and of [`Reasoning::ends`].
pub const MAX_MARKERS: usize = 16;

pub const MAX_MARKER_BYTES: usize = 256;

pub const MAX_CLOSING: usize = 4_096;

/// Markers that delimit reasoning, and its token budget.
///
/// A [`Constraint`](crate::request::Constraint) applies to text outside of reasoning only: from the end of reasoning that the
/// prompt begins, else to a branch that either begins with reasoning or has none. A constraint with a trigger reads the markers
/// too, and reasoning may occur until the trigger matches. A text does not end inside reasoning that constrained text must
/// follow, unless the constraint allows that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasoning {
    /// At most [`MAX_MARKERS`] of at most [`MAX_MARKER_BYTES`]. Control tokens match by their spelling.
    pub starts: Vec<String>,
    /// Markers that end reasoning; at least one, with the same bounds.
    pub ends: Vec<String>,
    pub begins_inside: bool,
    /// Maximum tokens of one reasoning block, without `closing` and the start marker; `None` is unlimited.
    pub budget: Option<u32>,
    /// Tokens that end reasoning whose budget is exhausted, at the next character boundary; at most [`MAX_CLOSING`].
    pub closing: Vec<Token>,
}

impl Reasoning {
    pub(crate) fn validate(&self, n_vocab: usize) -> Result<()> {
        let ensure = |holds: bool, message: &dyn Display| ensure(holds, "reasoning", message);
        for (name, markers) in [("starts", &self.starts), ("ends", &self.ends)] {
            let n = markers.len();
            ensure(n <= MAX_MARKERS, &format_args!("reasoning.{name} has {n} markers; at most {MAX_MARKERS} are allowed"))?;
            for n in markers.iter().map(String::len) {
                let limit = format_args!("each must have 1 to {MAX_MARKER_BYTES} bytes");
                let message = format_args!("reasoning.{name} has a marker of {n} bytes; {limit}");
                ensure((1..=MAX_MARKER_BYTES).contains(&n), &message)?;
            }
        }
        ensure(!self.ends.is_empty(), &"reasoning.ends is empty; it must have at least one marker")?;
        let remedy = "add at least one marker, since the prompt does not end inside reasoning";
        ensure(!self.starts.is_empty() || self.begins_inside, &format_args!("reasoning.starts is empty; {remedy}"))?;
        let has_closing = self.budget.is_none() || !self.closing.is_empty();
        let remedy = "set the message or a marker in reasoning.ends";
        ensure(has_closing, &format_args!("reasoning.budget needs tokens that end the reasoning; {remedy}"))?;
        let n = self.closing.len();
        let limit = format_args!("at most {MAX_CLOSING} are allowed");
        let message = format_args!("the message and the first marker of reasoning.ends have {n} tokens; {limit}");
        ensure(n <= MAX_CLOSING, &message)?;
        validate_tokens("reasoning", &self.closing, n_vocab)
    }
}
