//! Slots: which one a sequence takes, and what it leaves there.

use std::time::{Duration, Instant};

use crate::cache::common_prefix;
use crate::engine::job::Job;
use crate::engine::runner::Runner;
use crate::engine::running::Running;
use crate::engine::worker::Worker;
use crate::request::Token;

/// How long a slot that is free stays so for somebody who found it busy and wants it erased.
const ERASE_WAIT: Duration = Duration::from_millis(200);

impl<R: Runner> Worker<R> {
    /// The slot that a branch of `job` takes: the one that it would like where that is free, else the one that was left the longest
    /// ago; what names the slot to load into gets no other. `None` where none of these is free, or each is about to be erased.
    pub(super) fn free_slot(&self, job: &Job, wanted: Option<u32>) -> Option<u32> {
        let is_free = |slot: &u32| self.is_free(*slot);
        let longest_idle = || (0..self.limits.n_slots).filter(is_free).min_by_key(|&slot| (self.left[slot as usize].at, slot));
        let wanted = wanted.filter(is_free);
        if job.must_have().is_some() { wanted } else { wanted.or_else(longest_idle) }
    }

    /// Whether nobody runs in `slot`, and nobody who found it busy is about to erase it.
    pub(super) fn is_free(&self, slot: u32) -> bool {
        let is_erased_next = self.left[slot as usize].erase_by.is_some_and(|by| Instant::now() < by);
        !is_erased_next && self.running_in(slot).is_none()
    }

    fn running_in(&self, slot: u32) -> Option<&Running> {
        self.running.iter().find(|running| running.slot == slot)
    }

    fn fills_its_slot(&self, running: &Running) -> bool {
        self.jobs[&running.sequence.request_id].fills(running.slot)
    }

    /// A slot keeps the tokens of the sequence that leaves it, until the next one comes that fills it.
    pub(super) fn leave_slot(&mut self, running: &Running) {
        if !self.fills_its_slot(running) {
            return;
        }
        self.leave_slot_with(running, running.held().to_vec());
    }

    /// As [`Worker::leave_slot`], where these are the tokens.
    pub(super) fn leave_slot_with(&mut self, running: &Running, tokens: Vec<Token>) {
        let at = self.next_turn();
        let variant = self.jobs[&running.sequence.request_id].variant.clone();
        let left = &mut self.left[running.slot as usize];
        (left.at, left.variant, left.tokens) = (at, variant, tokens);
    }

    /// What `slot` holds: what the sequence that fills it has computed, else what the last one left.
    pub(super) fn tokens_in(&self, slot: u32) -> &[Token] {
        let running = self.running_in(slot).filter(|running| self.fills_its_slot(running));
        running.map_or(&self.left[slot as usize].tokens[..], Running::held)
    }

    /// Forgets what was left in `slot`, and says how many tokens that were; `None` where a sequence runs.
    pub(super) fn erase_slot(&mut self, slot: u32) -> Option<u32> {
        if self.running_in(slot).is_some() {
            self.left[slot as usize].erase_by = Some(Instant::now() + ERASE_WAIT);
            return None;
        }
        let left = std::mem::take(&mut self.left[slot as usize]);
        // What other slots hold stays.
        let others = self.left.iter().filter(|other| other.variant == left.variant);
        let n_kept = others.map(|other| common_prefix(&other.tokens, &left.tokens)).max().unwrap_or(0);
        self.cache.erase(&left.variant, &left.tokens, n_kept);
        Some(u32::try_from(left.tokens.len()).expect("a sequence fits its context"))
    }
}
