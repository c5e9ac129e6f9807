//! What of a completion is a thought.

use crate::error::{Error, Result};
use crate::request::Token;

/// Most texts that begin a thought, and most that end one.
pub const MAX_MARKERS: usize = 16;

/// Most bytes of one of them.
pub const MAX_MARKER_BYTES: usize = 256;

/// Most tokens of [`Reasoning::closing`].
pub const MAX_CLOSING: usize = 4_096;

/// What begins a thought and what ends it, and how long it may be.
///
/// What is held to a [`Constraint`](crate::request::Constraint) is what is said outside of thoughts:
///
/// - Where the prompt ends inside of a thought, the constraint begins with what follows the thought's end.
/// - Otherwise a branch may begin with a thought, and the constraint begins after it, or with the constraint, and no thought follows.
/// - One that waits for a trigger is told what is said outside of thoughts, with the texts that begin and end them; thoughts may
///   follow until the trigger is met.
/// - A text does not end in a thought that a constraint follows, unless that allows it to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasoning {
    /// Texts that begin a thought: at most [`MAX_MARKERS`] of at most [`MAX_MARKER_BYTES`]. Control tokens count with their spelling.
    pub starts: Vec<String>,
    /// Texts that end one; at least one, bounded as those are.
    pub ends: Vec<String>,
    /// Whether the prompt ends inside of a thought.
    pub begins_inside: bool,
    /// Most tokens of one thought, those of `closing` and of the text that begins it not counted; `None` is no limit.
    pub budget: Option<u32>,
    /// Tokens that end a thought whose budget is used up and whose last character is whole; at least one where there is a budget,
    /// and at most [`MAX_CLOSING`].
    pub closing: Vec<Token>,
}

impl Reasoning {
    /// Checks every field against its range and the model's vocabulary of `n_vocab` pieces.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for the first field that is out of range.
    pub fn validate(&self, n_vocab: usize) -> Result<()> {
        let refuse = |message: String| Err(Error::InvalidRequest { param: "thought", message });
        for (name, markers) in [("starts", &self.starts), ("ends", &self.ends)] {
            if markers.len() > MAX_MARKERS {
                return refuse(format!("thought has {} {name}; it may have {MAX_MARKERS}", markers.len()));
            }
            if let Some(marker) = markers.iter().find(|marker| !(1..=MAX_MARKER_BYTES).contains(&marker.len())) {
                let n = marker.len();
                return refuse(format!("thought has one of {n} bytes among its {name}; each must have 1 to {MAX_MARKER_BYTES}"));
            }
        }
        if self.ends.is_empty() {
            return refuse("thought has no text among its ends; it needs at least one".to_owned());
        }
        if self.starts.is_empty() && !self.begins_inside {
            return refuse("thought has no text among its starts, and the prompt does not end inside of one".to_owned());
        }
        if self.budget.is_some() && self.closing.is_empty() {
            return refuse("thought has a budget, and nothing that could end it".to_owned());
        }
        if self.closing.len() > MAX_CLOSING {
            let n = self.closing.len();
            return refuse(format!(
                "thought is ended with {n} tokens; its message and the first of its ends may have {MAX_CLOSING}"
            ));
        }
        let is_unknown = |token: &&Token| usize::try_from(**token).map_or(true, |id| id >= n_vocab);
        if let Some(token) = self.closing.iter().find(is_unknown) {
            return refuse(format!("token {token} is outside of the vocabulary of {n_vocab} pieces"));
        }
        Ok(())
    }
}
