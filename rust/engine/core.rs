//! What a step works on.

use crate::config::Limits;
use crate::engine::memory::{Copying, Memory};
use crate::engine::outbox::Outbox;
use crate::engine::queue::Queue;
use crate::engine::runner::Runner;
use crate::engine::slots::Slots;
use crate::engine::stats::Stats;
use crate::engine::stopwatch::{Part, Stopwatch};
use crate::request::{Event, Task};
use crate::sampling::Threads;

/// All that the worker's steps change: each part of it keeps its own rules, and the functions of the step tie them together.
pub(super) struct Core<R> {
    pub(super) limits: Limits,
    pub(super) memory: Memory<R>,
    pub(super) queue: Queue,
    pub(super) slots: Slots,
    pub(super) outbox: Outbox,
    pub(super) samplers: Threads,
    /// All but what is only known when they are published.
    pub(super) stats: Stats,
    pub(super) stopwatch: Stopwatch,
}

impl<R: Runner> Core<R> {
    /// What the request of the sequence at `nth` wants with its prompt.
    pub(super) fn task(&self, nth: usize) -> &Task {
        &self.slots.running[nth].sequence.request().task
    }

    pub(super) fn is_complete(&self, nth: usize) -> bool {
        *self.task(nth) == Task::Complete
    }

    /// Something for the reader of a request, who is told when the step ends.
    pub(super) fn tell(&mut self, request_id: u64, event: Event) {
        let job = self.queue.job_mut(request_id);
        if job.events.is_empty() {
            self.outbox.told.push(request_id);
        }
        job.events.push(event);
    }

    /// A part of the step ends; what was copied meanwhile counts on its own.
    pub(super) fn lap(&mut self, part: Part) -> std::time::Instant {
        let Copying { spill, restore } = self.memory.take_copying();
        self.stopwatch.count(|times| &mut times.spill, spill);
        self.stopwatch.count(|times| &mut times.restore, restore);
        self.stopwatch.lap(part)
    }
}
