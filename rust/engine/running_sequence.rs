//! A sequence in a slot, and what it is doing there.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cache::{PrefixMatch, Reload, Reservation};
use crate::engine::runner::{AdapterSet, KvSeqId};
use crate::engine::scheduling_key::SchedulingKey;
use crate::engine::sequence::Sequence;
use crate::request::{FinishReason, PlacedMedia, SavedPrefix, Token};

/// Cells kept free for each running sequence when another one is admitted, so that it need not be preempted at once.
pub(super) const MARGIN: u32 = 64;

/// What a sequence in a slot is doing.
pub(crate) enum Phase {
    /// It is given back what is stored of it; nothing of it is computed meanwhile.
    Restoring {
        /// What is left of that, in order.
        pieces: VecDeque<Reload>,
        /// The logits after all of its tokens, where they come with the last piece.
        logits: Option<Arc<[f32]>>,
    },
    /// It resumes, and holds nothing until a more senior sequence holds the prefix that both have.
    Awaiting(PrefixDependency),
    /// Its prompt is being computed, or, of one that was preempted, what is not cached of it.
    Prefilling,
    /// The token drawn last is computed, and another one drawn.
    Decoding,
    /// It is a place for a beam, and holds nothing until its search has one for it.
    Following,
    /// All of it is computed and copied piece by piece.
    Copying(SavedPrefix),
}

/// A prefix that a more senior running sequence is computing, or is given back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PrefixDependency {
    /// That sequence.
    pub(crate) provider: SchedulingKey,
    /// Length of the prefix.
    pub(crate) n_tokens: u32,
    /// Protects the computed tokens of the waiting sequence.
    pub(crate) reservation: Reservation,
}

impl Phase {
    /// The first phase of a sequence that is placed over what `matched` found.
    pub(crate) fn of_match(matched: PrefixMatch) -> Self {
        let PrefixMatch { restores, logits, .. } = matched;
        if restores.is_empty() { Self::Prefilling } else { Self::Restoring { pieces: VecDeque::from(restores), logits } }
    }

    /// Its name, for the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Restoring { .. } => "restoring",
            Self::Awaiting(_) => "awaiting a prefix",
            Self::Prefilling => "prefilling",
            Self::Decoding => "decoding",
            Self::Following => "following",
            Self::Copying(_) => "copying",
        }
    }
}

/// A sequence in a slot.
pub(crate) struct RunningSequence {
    pub(crate) sequence: Sequence,
    pub(crate) slot: u32,
    /// Owns its cells.
    pub(crate) id: KvSeqId,
    /// Whether nobody shares them, and how many of its first tokens are grouped then.
    pub(crate) n_grouped: Option<u32>,
    /// `[0, n_held)` of its tokens is computed.
    pub(crate) n_held: u32,
    /// How many more the next decode computes.
    pub(crate) n_planned: u32,
    /// For how many steps in a row it has stood back for others.
    pub(crate) n_waited: u32,
    pub(crate) phase: Phase,
    /// Why it ends with this step.
    pub(crate) end: Option<FinishReason>,
}

impl RunningSequence {
    /// Tokens that wait to be computed or restored: the one drawn last, or a prompt's rest; none where a prompt is all there is.
    pub(crate) fn n_uncomputed(&self) -> u32 {
        if self.follows() { 0 } else { self.sequence.n_tokens() - self.n_held }
    }

    /// Whether it is a place for a beam that has none.
    pub(crate) fn follows(&self) -> bool {
        matches!(self.phase, Phase::Following)
    }

    /// The prefix that it waits for.
    pub(crate) fn prefix_dependency(&self) -> Option<&PrefixDependency> {
        if let Phase::Awaiting(prefix) = &self.phase { Some(prefix) } else { None }
    }

    /// Whether it and `other` are beams of one search, which leave their slots together.
    pub(crate) fn is_together_with(&self, other: &Self) -> bool {
        self.sequence.beam.is_some() && self.sequence.request_id == other.sequence.request_id
    }

    /// Tokens that the next decode could compute.
    pub(crate) fn n_ready(&self) -> u32 {
        match self.phase {
            Phase::Restoring { .. } | Phase::Awaiting(_) | Phase::Following | Phase::Copying(_) => 0,
            Phase::Prefilling | Phase::Decoding => self.n_uncomputed(),
        }
    }

    /// How its next token is computed.
    pub(crate) fn variant(&self) -> &AdapterSet {
        self.sequence.variants.at(self.n_held)
    }

    /// The picture or sound that the next decode begins or goes on with.
    pub(crate) fn available_media(&self) -> Option<&PlacedMedia> {
        self.sequence.media_from(self.n_held).first().filter(|placed| placed.start <= self.n_held)
    }

    /// Whether that is to be computed in one decode.
    pub(crate) fn takes_all_available(&self) -> bool {
        self.available_media().is_some_and(|placed| placed.media.sees_ahead())
    }

    /// How much of it may stay where it ends here: a picture that is held whole or not at all goes if it is not all there.
    pub(crate) fn n_cacheable(&self) -> u32 {
        let cut = self.available_media().filter(|placed| placed.is_cut_at(self.n_held));
        cut.map_or(self.n_held, |placed| placed.start)
    }

    /// The next piece that it is to be given back.
    pub(crate) fn next_restore(&self) -> Option<&Reload> {
        match &self.phase {
            Phase::Restoring { pieces, .. } => pieces.front(),
            Phase::Awaiting(_) | Phase::Prefilling | Phase::Decoding | Phase::Following | Phase::Copying(_) => None,
        }
    }

    /// Its next piece was given back. Where that was the last one it is over with restoring, and what came with it is returned: the
    /// logits after all of its tokens.
    pub(crate) fn was_restored(&mut self) -> Option<Arc<[f32]>> {
        let Phase::Restoring { pieces, logits } = &mut self.phase else { return None };
        let done = pieces.pop_front().expect("something was restored");
        self.n_held = done.kept.end;
        if !pieces.is_empty() {
            return None;
        }
        let logits = logits.take();
        self.phase = Phase::Prefilling;
        logits
    }

    /// The tokens that the next decode computes, in one piece or two.
    pub(crate) fn planned(&self) -> [&[Token]; 2] {
        self.sequence.tokens.slices(self.n_held..self.n_held + self.n_planned)
    }

    /// Whether the next decode computes its last token, so that another can be drawn.
    pub(crate) fn will_draw(&self) -> bool {
        self.n_planned == self.n_uncomputed()
    }

    /// Whether the next decode computes one token of it, after which another can be drawn: in a step that costs as much as any
    /// other token of a stream.
    pub(crate) fn takes_one_row(&self) -> bool {
        self.n_planned == 1 && self.will_draw()
    }

    /// A copy of the tokens that it holds.
    pub(crate) fn held(&self) -> Vec<Token> {
        self.sequence.tokens.first(self.n_held)
    }
}

/// Cells that a running sequence will take.
pub(super) fn n_reserved(running: &RunningSequence) -> i64 {
    let n_awaited = running.prefix_dependency().map_or(0, |prefix| prefix.n_tokens);
    i64::from(running.n_uncomputed() - n_awaited + headroom(&running.sequence))
}

/// Cells that a sequence is expected to take beside those of its tokens.
pub(super) fn headroom(sequence: &Sequence) -> u32 {
    sequence.n_remaining().map_or(MARGIN, |n| n.min(MARGIN))
}
