//! Reasoning of a completion: its markers and its budget.

use crate::error::Result;
use crate::request::{Token, reject, validate_tokens};

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
        let reject = |message: String| reject("reasoning", message);
        for (name, markers) in [("starts", &self.starts), ("ends", &self.ends)] {
            if markers.len() > MAX_MARKERS {
                return reject(format!("reasoning.{name} has {} markers; at most {MAX_MARKERS} are allowed", markers.len()));
            }
            if let Some(marker) = markers.iter().find(|marker| !(1..=MAX_MARKER_BYTES).contains(&marker.len())) {
                let n = marker.len();
                return reject(format!(
                    "reasoning.{name} has a marker of {n} bytes; each must have 1 to {MAX_MARKER_BYTES} bytes"
                ));
            }
        }
        if self.ends.is_empty() {
            return reject("reasoning.ends is empty; it must have at least one marker".to_owned());
        }
        if self.starts.is_empty() && !self.begins_inside {
            let remedy = "add at least one marker, since the prompt does not end inside reasoning";
            return reject(format!("reasoning.starts is empty; {remedy}"));
        }
        if self.budget.is_some() && self.closing.is_empty() {
            let remedy = "set the message or a marker in reasoning.ends";
            return reject(format!("reasoning.budget needs tokens that end the reasoning; {remedy}"));
        }
        if self.closing.len() > MAX_CLOSING {
            let n = self.closing.len();
            let limit = format!("at most {MAX_CLOSING} are allowed");
            return reject(format!("the message and the first marker of reasoning.ends have {n} tokens; {limit}"));
        }
        validate_tokens("reasoning", &self.closing, n_vocab)
    }
}
