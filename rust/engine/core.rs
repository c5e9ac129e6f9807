//! The state that a step changes.

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

/// State of the worker. Each part keeps its own rules; the functions of the step coordinate them.
pub(super) struct Core<R> {
    pub(super) limits: Limits,
    pub(super) memory: Memory<R>,
    pub(super) queue: Queue,
    pub(super) slots: Slots,
    pub(super) output: Output,
    pub(super) history: History,
    pub(super) forks: ForkRegistry,
    pub(super) logprob_cache: PromptLogprobCache,
    pub(super) samplers: Threads,
    /// Metrics, except the ones that are computed when published.
    pub(super) stats: Stats,
    pub(super) stopwatch: Stopwatch,
    /// Whether this step changed which sequences run or wait: then the next step has work.
    pub(super) has_changed: bool,
    /// The sequence that was last refused for lack of cells.
    pub(super) refused: Option<RefusedSequence>,
}

/// A sequence that was refused for lack of cells, and the headroom at that time. It is not tried again until the headroom
/// grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RefusedSequence {
    pub(super) scheduling_key: SchedulingKey,
    pub(super) n_left: i64,
}

impl<R: Runner> Core<R> {
    /// Returns the task of the sequence at `nth`.
    pub(super) fn task(&self, nth: usize) -> &Task {
        &self.slots.running()[nth].sequence.request().task
    }

    /// Returns the headroom: free and evictable cells, minus those reserved for running sequences.
    pub(super) fn n_left(&self) -> i64 {
        let n_reserved_cells: i64 = self.slots.running().iter().map(n_reserved).sum();
        let n_available = self.memory.cache().n_free() + self.memory.cache().n_evictable();
        i64::try_from(n_available).expect("a device cache has fewer than 2³² cells") - n_reserved_cells
    }

    pub(super) fn is_complete(&self, nth: usize) -> bool {
        *self.task(nth) == Task::Complete
    }

    /// Returns the first prompt position whose logits the next branch of a group needs for prompt logprobs; earlier ones
    /// are cached. `None` if the group reports none. At least 1.
    pub(super) fn first_uncached_logprob(&self, group: &RequestGroup) -> Option<u32> {
        let from = group.logprobs_from()?;
        Some(
            from + if group.uses_logprob_cache() {
                self.logprob_cache.n_cached(&group.adapter_schedule, &group.prompt, from)
            } else {
                0
            },
        )
    }

    /// Returns true if there is work.
    pub(super) fn is_busy(&self) -> bool {
        !self.queue.is_empty() || self.forks.is_building()
    }

    /// Queues an event for a stream; it is published when the step ends.
    pub(super) fn emit(&mut self, request_id: u64, event: Event) {
        if !matches!(&event, Event::Token(token) if token.n_predicted > 1) {
            self.output.mark_urgent();
        }
        let group = self.queue.group_mut(request_id);
        if group.events.is_empty() {
            self.output.groups_with_events.push(request_id);
        }
        group.events.push(event);
    }

    /// Starts a step; earlier copying belongs to no step. Returns the current time.
    pub(super) fn begin_step(&mut self) -> Instant {
        self.count_copying();
        self.stopwatch.begin()
    }

    /// Ends a stage of the step. Copying during it is counted separately.
    pub(super) fn lap(&mut self, part: TimeField) -> Instant {
        self.count_copying();
        self.stopwatch.lap(part)
    }

    fn count_copying(&mut self) {
        let CopyTime { offload, reload } = self.memory.take_copy_time();
        self.stopwatch.count(|times| &mut times.offload, offload);
        self.stopwatch.count(|times| &mut times.reload, reload);
    }
}
