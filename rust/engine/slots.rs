//! The places where sequences run, and what the last one left in each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::AdapterSchedule;
use crate::engine::request_group::RequestGroup;
use crate::engine::runner::KvSeqId;
use crate::engine::running_sequence::RunningSequence;
use crate::engine::sequence::Tokens;
use crate::request::Token;

/// How long a slot that is free stays so for somebody who found it busy and wants it erased.
const ERASE_WAIT: Duration = Duration::from_millis(200);

/// What the last sequence left in a slot.
#[derive(Debug, Default)]
struct FinishedSlot {
    /// Counts the leaving of slots.
    at: u64,
    variants: AdapterSchedule,
    /// What it had computed: the first `n_held` of its tokens.
    tokens: Tokens,
    n_held: u32,
    /// Until then nobody else gets the slot, since whoever wants it erased asks again when it is free.
    erase_by: Option<Instant>,
}

/// The slots and the sequences that run in them.
pub(super) struct Slots {
    /// Most senior first.
    running: Vec<RunningSequence>,
    /// By slot.
    is_taken: Vec<bool>,
    /// By slot.
    left: Vec<FinishedSlot>,
    n_left: u64,
}

impl Slots {
    pub(super) fn new(n_slots: u32) -> Self {
        let left = (0..n_slots).map(|_| FinishedSlot::default()).collect();
        Self { running: Vec::new(), is_taken: vec![false; n_slots as usize], left, n_left: 0 }
    }

    /// The sequences that run, most senior first.
    pub(super) fn running(&self) -> &[RunningSequence] {
        &self.running
    }

    pub(super) fn running_mut(&mut self) -> &mut [RunningSequence] {
        &mut self.running
    }

    /// Puts a sequence among those that run; returns its place.
    pub(super) fn enter(&mut self, running: RunningSequence) -> usize {
        let seniority = running.sequence.seniority();
        let nth = self.running.partition_point(|other| other.sequence.seniority() < seniority);
        self.is_taken[running.slot as usize] = true;
        self.running.insert(nth, running);
        nth
    }

    /// Takes the sequence at `nth` out of its slot.
    pub(super) fn take(&mut self, nth: usize) -> RunningSequence {
        let running = self.running.remove(nth);
        self.is_taken[running.slot as usize] = false;
        running
    }

    /// Takes the sequences out of their slots for which `is_over` holds.
    pub(super) fn take_all(&mut self, is_over: impl Fn(&RunningSequence) -> bool) -> Vec<RunningSequence> {
        let taken: Vec<RunningSequence> = self.running.extract_if(.., |running| is_over(running)).collect();
        for running in &taken {
            self.is_taken[running.slot as usize] = false;
        }
        taken
    }

    pub(super) fn are_full(&self) -> bool {
        self.running.len() == self.left.len()
    }

    /// Slots that nobody has.
    pub(super) fn n_untaken(&self) -> usize {
        self.left.len() - self.running.len()
    }

    /// Slots that somebody may get now.
    pub(super) fn n_free(&self) -> usize {
        (0u32..).zip(&self.left).filter(|&(slot, _)| self.is_free(slot)).count()
    }

    /// The slot of the sequence that runs on `id`.
    pub(super) fn slot_of(&self, id: KvSeqId) -> Option<u32> {
        self.running.iter().find(|running| running.id == id).map(|running| running.slot)
    }

    /// The slot that a branch of `request_group` takes: the one that it would like where that is free, else the one that was left the longest
    /// ago; what names the slot to load into gets no other. `None` where none of these is free, or each is about to be erased.
    pub(super) fn free_slot(&self, job: &RequestGroup) -> Option<u32> {
        match (job.n_cells_required(), job.request.slot) {
            (Some(slot), _) => Some(slot).filter(|&slot| self.is_free(slot)),
            (None, Some(slot)) => self.free_slot_like(slot),
            (None, None) => self.longest_idle(),
        }
    }

    /// `slot`, or the one that was left the longest ago.
    pub(super) fn free_slot_like(&self, slot: u32) -> Option<u32> {
        Some(slot).filter(|&slot| self.is_free(slot)).or_else(|| self.longest_idle())
    }

    fn longest_idle(&self) -> Option<u32> {
        let free = (0u32..).zip(&self.left).filter(|&(slot, _)| self.is_free(slot));
        free.min_by_key(|&(slot, left)| (left.at, slot)).map(|(slot, _)| slot)
    }

    /// Whether nobody runs in `slot`, and nobody who found it busy is about to erase it.
    pub(super) fn is_free(&self, slot: u32) -> bool {
        let is_erased_next = || self.left[slot as usize].erase_by.is_some_and(|by| Instant::now() < by);
        !self.is_taken[slot as usize] && !is_erased_next()
    }

    pub(super) fn running_in(&self, slot: u32) -> Option<&RunningSequence> {
        self.running.iter().find(|running| running.slot == slot)
    }

    /// How long until the first slot that is kept for somebody who wants it erased is free for others.
    pub(super) fn kept_for(&self) -> Option<Duration> {
        let now = Instant::now();
        self.left.iter().filter_map(|left| left.erase_by?.checked_duration_since(now)).min()
    }

    /// A sequence leaves `slot`, where the first `n_held` of its `tokens` stay known until the next one comes that fills it.
    pub(super) fn leave(&mut self, slot: u32, variants: &AdapterSchedule, tokens: Tokens, n_held: u32) {
        self.n_left += 1;
        let left = &mut self.left[slot as usize];
        (left.at, left.variants, left.tokens, left.n_held) = (self.n_left, variants.clone(), tokens, n_held);
    }

    /// What was left in `slot`, and how it was computed.
    pub(super) fn left_in(&self, slot: u32) -> (&AdapterSchedule, Vec<Token>) {
        let left = &self.left[slot as usize];
        (&left.variants, left.tokens.first(left.n_held))
    }

    /// What was left in `slot` is not known any more.
    pub(super) fn forget(&mut self, slot: u32) {
        let left = &mut self.left[slot as usize];
        (left.tokens, left.n_held) = (Tokens::default(), 0);
    }

    /// Whoever found `slot` busy will ask again when it is free.
    pub(super) fn keep_for_erasing(&mut self, slot: u32) {
        self.left[slot as usize].erase_by = Some(Instant::now() + ERASE_WAIT);
    }

    /// Takes out what was left in `slot`: its tokens, how they were computed, and how many of the first of them other slots hold
    /// too.
    pub(super) fn take_left(&mut self, slot: u32) -> (AdapterSchedule, Vec<Token>, u32) {
        let tokens: Arc<[Token]> = self.left_in(slot).1.into();
        let FinishedSlot { variants, .. } = std::mem::take(&mut self.left[slot as usize]);
        let n_common =
            |other: &FinishedSlot| other.tokens.common_prefix(&tokens).min(other.n_held).min(other.variants.n_common(&variants));
        let n_kept = self.left.iter().map(n_common).max().unwrap_or(0);
        (variants, tokens.to_vec(), n_kept)
    }
}
