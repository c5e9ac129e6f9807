//! A sequence in a slot.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cache::Restore;
use crate::engine::runner::SequenceId;
use crate::engine::sequence::Sequence;
use crate::request::{FinishReason, SavedPrefix, Token};

/// A sequence in a slot.
pub(crate) struct Running {
    pub(crate) sequence: Sequence,
    pub(crate) slot: u32,
    /// Owns its cells.
    pub(crate) id: SequenceId,
    /// `[0, n_held)` of its tokens is computed.
    pub(crate) n_held: u32,
    /// How many more the next decode computes.
    pub(crate) n_planned: u32,
    /// What is to be restored before anything is computed.
    pub(crate) restores: VecDeque<Restore>,
    /// The logits after all of its tokens, where they come with what is restored.
    pub(crate) logits: Option<Arc<[f32]>>,
    /// What was copied so far, where it is to be saved.
    pub(crate) saved: SavedPrefix,
    /// Why it ends with this step.
    pub(crate) end: Option<FinishReason>,
}

impl Running {
    /// Tokens that wait to be computed or restored: the one drawn last, or a prompt's rest; none where a prompt is all there is.
    pub(crate) fn n_uncomputed(&self) -> u32 {
        self.sequence.n_tokens() - self.n_held
    }

    /// Tokens that the next decode could compute.
    pub(crate) fn n_ready(&self) -> u32 {
        if self.restores.is_empty() { self.n_uncomputed() } else { 0 }
    }

    /// The tokens that the next decode computes.
    pub(crate) fn planned(&self) -> &[Token] {
        &self.sequence.tokens[self.n_held as usize..(self.n_held + self.n_planned) as usize]
    }

    /// Whether the next decode computes its last token, so that another can be drawn.
    pub(crate) fn will_draw(&self) -> bool {
        self.n_planned == self.n_uncomputed()
    }

    /// Whether the next decode computes one token that was drawn, or the last one of a prompt.
    pub(crate) fn is_decoding(&self) -> bool {
        self.n_planned == 1 && self.will_draw()
    }

    /// The tokens that it holds.
    pub(crate) fn held(&self) -> &[Token] {
        &self.sequence.tokens[..self.n_held as usize]
    }
}
