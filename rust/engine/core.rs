//! What a step works on.

use std::time::Instant;

use crate::config::Limits;
use crate::engine::forks::ForkRegistry;
use crate::engine::history::History;
use crate::engine::memory::{CopyTime, Memory};
use crate::engine::output::Output;
use crate::engine::prompt_logprob_cache::PromptLogprobCache;
use crate::engine::queue::Queue;
use crate::engine::request_group::RequestGroup;
use crate::engine::runner::Runner;
use crate::engine::running_sequence::n_reserved;
use crate::engine::scheduling_key::SchedulingKey;
use crate::engine::slots::Slots;
use crate::engine::stats::Stats;
use crate::engine::stopwatch::{Stopwatch, TimeField};
use crate::request::{Event, Task};
use crate::sampling::Threads;

/// All that the worker's steps change: each part of it keeps its own rules, and the functions of the step tie them together.
pub(super) struct Core<R> {
    pub(super) limits: Limits,
    pub(super) memory: Memory<R>,
    pub(super) queue: Queue,
    pub(super) slots: Slots,
    pub(super) outbox: Output,
    pub(super) history: History,
    pub(super) forks: ForkRegistry,
    pub(super) recall: PromptLogprobCache,
    pub(super) samplers: Threads,
    /// All but what is only known when they are published.
    pub(super) stats: Stats,
    pub(super) stopwatch: Stopwatch,
    /// Whether this step has changed who runs, or who waits for whom: then the next one finds something to do.
    pub(super) has_changed: bool,
    /// Who found no room last.
    pub(super) refused: Option<RefusedSequence>,
}

/// A sequence that found no room, and how many cells were left for it: until more are, it is not looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RefusedSequence {
    pub(super) seniority: SchedulingKey,
    pub(super) n_left: i64,
}

impl<R: Runner> Core<R> {
    /// What the request of the sequence at `nth` wants with its prompt.
    pub(super) fn task(&self, nth: usize) -> &Task {
        &self.slots.running()[nth].sequence.request().task
    }

    /// Cells that are free or can be evicted, but for those that running sequences will take.
    pub(super) fn n_left(&self) -> i64 {
        let n_promised: i64 = self.slots.running().iter().map(n_reserved).sum();
        let n_there = self.memory.cache().n_free() + self.memory.cache().n_evictable();
        i64::try_from(n_there).expect("a pool has fewer than 2³² cells") - n_promised
    }

    pub(super) fn is_complete(&self, nth: usize) -> bool {
        *self.task(nth) == Task::Complete
    }

    /// Up to which token of its prompt the next branch of a request knows what it is to tell, where it is to tell log-probabilities:
    /// those from there on need the rows of logits before them. At least 1.
    pub(super) fn n_told(&self, job: &RequestGroup) -> Option<u32> {
        let from = job.logprobs_from()?;
        Some(from + if job.uses_logprob_cache() { self.recall.n_known(&job.variants, &job.prompt, from) } else { 0 })
    }

    /// Whether there is anything to do.
    pub(super) fn is_busy(&self) -> bool {
        !self.queue.is_empty() || self.forks.is_building()
    }

    /// Something for the reader of a request, who is told when the step ends.
    pub(super) fn tell(&mut self, request_id: u64, event: Event) {
        if !matches!(&event, Event::Token(token) if token.n_predicted > 1) {
            self.outbox.hurry();
        }
        let job = self.queue.job_mut(request_id);
        if job.events.is_empty() {
            self.outbox.told.push(request_id);
        }
        job.events.push(event);
    }

    /// A step begins: what was copied before it was no part of one. Returns the moment.
    pub(super) fn begin_step(&mut self) -> Instant {
        self.count_copying();
        self.stopwatch.begin()
    }

    /// A part of the step ends; what was copied meanwhile counts on its own.
    pub(super) fn lap(&mut self, part: TimeField) -> Instant {
        self.count_copying();
        self.stopwatch.lap(part)
    }

    fn count_copying(&mut self) {
        let CopyTime { spill, restore } = self.memory.take_copying();
        self.stopwatch.count(|times| &mut times.spill, spill);
        self.stopwatch.count(|times| &mut times.restore, restore);
    }
}
