//! The scheduler: all requests and sequences, and what the running step has to publish about them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::Limits;
use crate::engine::cache_manager::CacheManager;
use crate::engine::forks::ForkRegistry;
use crate::engine::history::History;
use crate::engine::outbox::Outbox;
use crate::engine::output::SharedState;
use crate::engine::prompt_logprob_cache::PromptLogprobCache;
use crate::engine::queue::Queue;
use crate::engine::request_group::RequestGroup;
use crate::engine::runner::Runner;
use crate::engine::running_sequence::{RunningSequence, n_reserved};
use crate::engine::scheduling_key::SchedulingKey;
use crate::engine::slots::Slots;
use crate::engine::stats::Stats;
use crate::request::{Event, Task};

/// Requests, slots and sequences.
pub(super) struct Scheduler {
    pub(super) limits: Limits,
    pub(super) queue: Queue,
    pub(super) slots: Slots,
    pub(super) outbox: Outbox,
    pub(super) history: History,
    pub(super) forks: ForkRegistry,
    pub(super) logprob_cache: PromptLogprobCache,
    pub(super) shared: Arc<SharedState>,
    /// Streams that are not computed until their readers have caught up.
    pub(super) paused: BTreeSet<u64>,
    /// Metrics, except the ones that are computed when published.
    pub(super) stats: Stats,
    /// Whether this step changed which sequences run or wait: then the next step has work.
    pub(super) has_changed: bool,
    /// The sequence that was last refused for lack of cells.
    pub(super) refused: Option<RefusedSequence>,
}

/// A sequence that was refused for lack of cells, and the headroom at that time. It is not tried again until the headroom
/// grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RefusedSequence {
    pub(super) key: SchedulingKey,
    pub(super) n_left: i64,
}

impl Scheduler {
    pub(super) fn new(limits: Limits, shared: Arc<SharedState>) -> Self {
        Self {
            queue: Queue::new(limits.n_slots),
            slots: Slots::new(limits.n_slots),
            outbox: Outbox::default(),
            history: History::default(),
            forks: ForkRegistry::default(),
            logprob_cache: PromptLogprobCache::default(),
            shared,
            paused: BTreeSet::new(),
            stats: Stats { n_cells: limits.n_ctx as usize, n_ids: limits.n_seq_max as usize, ..Stats::default() },
            has_changed: false,
            refused: None,
            limits,
        }
    }

    /// Returns the task of a running sequence.
    pub(super) fn task(&self, key: SchedulingKey) -> &Task {
        &self.slots.at(key).sequence.request().task
    }

    /// Returns the group of a running sequence.
    pub(super) fn group_of(&self, key: SchedulingKey) -> &RequestGroup {
        self.queue.group(self.slots.at(key).sequence.request_id)
    }

    /// Returns the headroom: free and evictable cells, minus those reserved for running sequences.
    pub(super) fn n_left<R: Runner>(&self, cache: &mut CacheManager<R>) -> i64 {
        let n_reserved_cells: i64 = self.slots.running().iter().map(n_reserved).sum();
        let kv = cache.kv_mut();
        let n_available = kv.n_free() + kv.n_evictable();
        i64::try_from(n_available).expect("a device cache has fewer than 2³² cells") - n_reserved_cells
    }

    /// Returns true if a stream is not computed until its reader has caught up.
    pub(super) fn is_paused(&self, stream_id: u64) -> bool {
        self.paused.contains(&stream_id)
    }

    /// Returns the number of tokens of a sequence that the next decode could compute: 0 while its reader lags.
    pub(super) fn n_ready(&self, running: &RunningSequence) -> u32 {
        if self.is_paused(running.sequence.stream_id) { 0 } else { running.n_ready() }
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
        self.outbox.add(self.queue.group_mut(request_id), event);
    }
}
