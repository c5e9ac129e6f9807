//! A sequence in a slot, and its phase.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::cache::{PrefixMatch, Reload};
use crate::engine::cache_manager::guards::{PathGuard, ReservationGuard};
use crate::engine::runner::{AdapterSet, KvSeqId};
use crate::engine::scheduler::request_group::PrefixDependency;
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::scheduler::sequence::Sequence;
use crate::request::{FinishReason, PlacedMedia, SavedPrefix, Task, Token};

/// Cells kept free for each running sequence when another one is admitted, so that it is not preempted immediately.
pub(crate) const HEADROOM: u32 = 64;

pub(crate) enum Phase {
    Reloading {
        entries: VecDeque<Reload>,
        /// Logits after all of its tokens, if the last entry has them.
        logits: Option<Arc<[f32]>>,
    },
    /// The sequence resumes, and waits without cells until a more senior one has the prefix that both share. The reservation keeps
    /// its computed tokens.
    AwaitingPrefix(PrefixDependency, ReservationGuard),
    /// The prompt, or the part of a preempted sequence that is not cached, is being computed.
    Prefilling,
    ReadyToSample(Arc<[f32]>),
    Decoding,
    Vacant,
    /// Fully computed, and being copied into a [`SavedPrefix`] part by part.
    Saving(SavedPrefix),
}

impl Phase {
    /// Returns the phase of a sequence that enters on `matched`: if that has all of its tokens, it samples from its kept logits.
    pub(crate) fn for_match(matched: PrefixMatch, sequence: &mut Sequence) -> Self {
        let kept_logits = sequence.kept_logits.take().filter(|_| matched.n_tokens() == sequence.n_tokens());
        let PrefixMatch { reloads, logits, .. } = matched;
        if reloads.is_empty() {
            kept_logits.map_or(Self::Prefilling, Self::ReadyToSample)
        } else {
            Self::Reloading { entries: VecDeque::from(reloads), logits: logits.or(kept_logits) }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Reloading { .. } => "reloading",
            Self::AwaitingPrefix(..) => "awaiting a prefix",
            Self::Prefilling => "prefilling",
            Self::ReadyToSample(_) => "ready to sample",
            Self::Decoding => "decoding",
            Self::Vacant => "vacant",
            Self::Saving(_) => "saving",
        }
    }
}

/// Tokens that a sequence is expected to sample, which the step computes after its last one, each with logits, to sample several.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) tokens: Vec<Token>,
    /// Number of the first of `tokens` that were sampled.
    pub(crate) n_accepted: usize,
}

pub(crate) struct RunningSequence {
    pub(crate) sequence: Sequence,
    pub(crate) slot: u32,
    pub(super) phase: Phase,
    pub(super) path: PathGuard,
    /// True if it may share cells with other sequences.
    pub(crate) shares_cells: bool,
    /// Number of computed tokens: `[0, n_computed)`.
    pub(crate) n_computed: u32,
    /// Number of its rows in this step's decode, without drafts; 0 once they are sampled.
    pub(super) n_planned: u32,
    /// Index of its first row in this step's plan, of those that are not sampled yet.
    pub(super) first_row: usize,
    pub(super) draft: Draft,
    /// Number of consecutive steps in which it yielded its row.
    pub(super) n_skipped: u32,
    pub(super) finish_reason: Option<FinishReason>,
}

impl RunningSequence {
    pub(crate) fn new(sequence: Sequence, slot: u32, phase: Phase, path: PathGuard, n_computed: u32) -> Self {
        Self {
            sequence,
            slot,
            phase,
            path,
            shares_cells: true,
            n_computed,
            n_planned: 0,
            first_row: 0,
            draft: Draft::default(),
            n_skipped: 0,
            finish_reason: None,
        }
    }

    pub(crate) fn key(&self) -> SchedulingKey {
        self.sequence.scheduling_key()
    }

    pub(crate) fn id(&self) -> KvSeqId {
        self.path.id()
    }

    /// Returns the number of tokens to compute or reload: the last sampled token, or the rest of a prompt.
    pub(crate) fn n_uncomputed(&self) -> u32 {
        if self.is_vacant() { 0 } else { self.sequence.n_tokens() - self.n_computed }
    }

    pub(crate) fn phase_name(&self) -> &'static str {
        self.phase.name()
    }

    pub(crate) fn drop_draft(&mut self) {
        self.draft = Draft::default();
    }

    pub(crate) fn is_vacant(&self) -> bool {
        matches!(self.phase, Phase::Vacant)
    }

    pub(crate) fn prefix_dependency(&self) -> Option<PrefixDependency> {
        if let Phase::AwaitingPrefix(dependency, _) = self.phase { Some(dependency) } else { None }
    }

    pub(crate) fn runs_with(&self, other: &Self) -> bool {
        self.sequence.runs_together && self.sequence.group_id == other.sequence.group_id
    }

    pub(crate) fn n_ready(&self) -> u32 {
        if matches!(self.phase, Phase::Prefilling | Phase::Decoding) { self.n_uncomputed() } else { 0 }
    }

    pub(crate) fn adapter_set(&self) -> &AdapterSet {
        self.sequence.adapter_schedule.at(self.n_computed)
    }

    pub(crate) fn available_media(&self) -> Option<&PlacedMedia> {
        self.sequence.media_from(self.n_computed).first().filter(|placed| placed.start <= self.n_computed)
    }

    pub(crate) fn takes_all_available(&self) -> bool {
        self.available_media().is_some_and(|placed| placed.media.sees_ahead())
    }

    /// Returns the number of computed tokens that may be cached: those before an incomplete image that is saved as a whole.
    pub(crate) fn n_cacheable(&self) -> u32 {
        let cut = self.available_media().filter(|placed| placed.is_cut_at(self.n_computed));
        cut.map_or(self.n_computed, |placed| placed.start)
    }

    pub(crate) fn next_reload(&self) -> Option<&Reload> {
        if let Phase::Reloading { entries, .. } = &self.phase { entries.front() } else { None }
    }

    /// Returns the number of cells for which junior sequences yield theirs before the next entry is reloaded: cells that it will keep,
    /// as if it computed them. For cells that the entry needs only temporarily they yield only if it cannot be computed.
    pub(crate) fn n_reload_cells(&self) -> Option<u32> {
        let next = self.next_reload()?;
        let range = if self.sequence.is_load() { &next.range } else { &next.kept };
        Some(range.end - range.start)
    }

    /// Marks the next entry as reloaded. After the last one, a completion samples if the logits after its tokens were saved.
    pub(crate) fn finish_reload(&mut self) {
        let Phase::Reloading { entries, logits } = &mut self.phase else { return };
        let done = entries.pop_front().expect("an entry was reloaded");
        self.n_computed = done.kept.end;
        if entries.is_empty() {
            let logits = logits.take().filter(|_| self.sequence.request.task == Task::Complete);
            self.phase = logits.map_or(Phase::Prefilling, Phase::ReadyToSample);
        }
    }

    /// Counts its rows of the last decode as computed tokens. Returns true if it had any.
    pub(crate) fn record_computed_rows(&mut self) -> bool {
        let n_planned = std::mem::take(&mut self.n_planned);
        self.n_computed += n_planned;
        self.first_row += n_planned as usize;
        n_planned > 0
    }

    pub(crate) fn is_planned(&self) -> bool {
        self.n_planned > 0
    }

    /// Excludes the sequence from the step.
    pub(crate) fn unplan(&mut self) {
        self.n_planned = 0;
    }

    /// Returns the row of this step's decode that computes the token at `position`.
    pub(crate) fn row_of(&self, position: u32) -> usize {
        self.first_row + (position - self.n_computed) as usize
    }

    pub(crate) fn planned_range(&self) -> Range<u32> {
        self.n_computed..self.n_computed + self.n_planned
    }

    /// Returns the tokens of its rows in this step's decode, drafts included.
    pub(crate) fn planned_tokens(&self) -> [&[Token]; 3] {
        let [shared, own] = self.sequence.tokens.slices(self.planned_range());
        [shared, own, &self.draft.tokens]
    }

    /// Returns true if the next decode computes its last token, so that another can be sampled.
    pub(crate) fn will_sample(&self) -> bool {
        self.n_planned == self.n_uncomputed()
    }

    /// Returns true if it computes only the token that it sampled last, or the last one of a prompt.
    pub(crate) fn takes_one_row(&self) -> bool {
        self.n_planned == 1 && self.will_sample()
    }

    pub(crate) fn computed_tokens(&self) -> Vec<Token> {
        self.sequence.tokens.first(self.n_computed)
    }
}

pub(crate) fn n_expected_cells(running: &RunningSequence) -> i64 {
    let n_awaited = running.prefix_dependency().map_or(0, |dependency| dependency.n_tokens);
    i64::from(running.n_uncomputed() - n_awaited + headroom(&running.sequence))
}

pub(crate) fn headroom(sequence: &Sequence) -> u32 {
    sequence.n_remaining().map_or(HEADROOM, |n| n.min(HEADROOM))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::engine::ids::MemberIndex;
    use crate::engine::scheduler::request_group::test_group;
    use crate::request::{Prompt, Request};
    use crate::sampling::token_strings::tests::Pieces;

    /// Creates a sequence with a prompt of 20 tokens that was preempted while its logits were stored.
    fn preempted() -> Sequence {
        let (group, _) = test_group(0, Request::new(Prompt::from_tokens(vec![1; 20]), 0));
        let mut sequence = Sequence::new(&group, MemberIndex(0), 100, &Pieces::none(&[]), Instant::now());
        sequence.kept_logits = Some([0.5].into());
        sequence
    }

    #[test]
    fn a_sequence_that_resumes_with_all_of_its_tokens_samples_from_the_logits_that_it_kept() {
        let mut sequence = preempted();
        let phase = Phase::for_match(PrefixMatch::on_device(KvSeqId(0), 20), &mut sequence);
        assert!(matches!(phase, Phase::ReadyToSample(logits) if *logits == [0.5]));
        assert!(sequence.kept_logits.is_none());
    }

    #[test]
    fn a_sequence_that_resumes_with_fewer_tokens_computes_the_rest() {
        let mut sequence = preempted();
        let phase = Phase::for_match(PrefixMatch::on_device(KvSeqId(0), 19), &mut sequence);
        assert!(matches!(phase, Phase::Prefilling));
        assert!(sequence.kept_logits.is_none());
    }
}
