//! The scheduler: all requests and sequences, and what the running step has to publish about them.
//!
//! It decides who waits, runs, is preempted and ends. Cells are the cache manager's: stages that need both receive both, and a
//! sequence holds its cells by a guard.

pub(crate) mod adapter_round_robin;
pub(crate) mod admission;
pub(crate) mod checkpoint_positions;
pub(crate) mod checkpoints;
pub(crate) mod drafting;
pub(crate) mod lifecycle;
pub(crate) mod placement;
pub(crate) mod planning;
pub(crate) mod prefix_match;
pub(crate) mod queue;
pub(crate) mod request_group;
pub(crate) mod resumption;
pub(crate) mod running_sequence;
pub(crate) mod sample;
pub(crate) mod scheduling_key;
pub(crate) mod sequence;
pub(crate) mod slots;
pub(crate) mod step_budget;
pub(crate) mod step_cost;
pub(crate) mod streams;
pub(crate) mod tasks;
pub(crate) mod tier_moves;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use crate::cache::EvictedRun;
use crate::config::Limits;
use crate::engine::cache_manager::CacheManager;
use crate::engine::features::hooks;
use crate::engine::features::state::{SchedulerFeatures, SharedFeatures};
use crate::engine::ids::{GroupId, StreamId};
use crate::engine::numbers::{count_u32, to_u32};
use crate::engine::runner::Runner;
use crate::engine::scheduler::queue::Queue;
use crate::engine::scheduler::request_group::{AwaitedPrefix, BranchSpec, QueuePermit, RequestGroup};
use crate::engine::scheduler::running_sequence::{RunningSequence, n_expected_cells};
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::scheduler::sequence::Sequence;
use crate::engine::scheduler::slots::{ErasedContents, Slots};
use crate::engine::stats::Stats;
use crate::error::Error;
use crate::request::{Event, Finished, SlotContents, Task};

pub(crate) struct Scheduler {
    limits: Limits,
    queue: Queue,
    slots: Slots,
    events: StepEvents,
    features: SchedulerFeatures,
    shared_features: Arc<SharedFeatures>,
    /// Streams that are not computed until their consumers have caught up.
    paused: BTreeSet<StreamId>,
    /// Metrics, except the ones that are computed when published.
    stats: Stats,
    /// True if this step changed which sequences run or wait: then the next step has work.
    has_changed: bool,
    /// The sequence that was last refused for lack of cells, and the spare cells then. It is tried again when there are more.
    refused: Option<(SchedulingKey, i64)>,
}

/// Events and ends of streams of the running step.
#[derive(Default)]
struct StepEvents {
    groups_with_events: Vec<GroupId>,
    failed: Vec<(StreamId, Error)>,
    /// Permits of requests that got their last slot, held until the metrics show them there: each request is always counted.
    admitted: Vec<QueuePermit>,
    /// True if consumers are woken at the end of the step regardless of the rate limit.
    is_urgent: bool,
}

impl StepEvents {
    /// Adds an event of a group. Only tokens after the first one may wait for the rate limit.
    fn add(&mut self, group: &mut RequestGroup, event: Event) {
        self.is_urgent |= !matches!(&event, Event::Token(token) if token.n_predicted > 1);
        if group.events.is_empty() {
            self.groups_with_events.push(group.group_id);
        }
        group.events.push(event);
    }
}

/// A running sequence, with the state of its group and of the features.
pub(crate) struct SequenceParts<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) group: &'a RequestGroup,
    pub(crate) features: &'a mut SchedulerFeatures,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits, shared_features: Arc<SharedFeatures>) -> Self {
        Self {
            queue: Queue::new(limits.n_slots),
            slots: Slots::new(limits.n_slots),
            events: StepEvents::default(),
            features: SchedulerFeatures::default(),
            shared_features,
            paused: BTreeSet::new(),
            stats: Stats { n_cells: limits.n_ctx as usize, n_ids: limits.n_seq_max as usize, ..Stats::default() },
            has_changed: false,
            refused: None,
            limits,
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the running sequences, most senior first.
    pub(crate) fn running(&self) -> &[RunningSequence] {
        self.slots.running()
    }

    pub(crate) fn running_mut(&mut self) -> &mut [RunningSequence] {
        self.slots.running_mut()
    }

    pub(crate) fn running_sequence(&self, key: SchedulingKey) -> &RunningSequence {
        self.slots.running_sequence(key)
    }

    /// Returns a running sequence without its slot, its cells and its phase, which change by methods of the scheduler.
    pub(crate) fn sequence_mut(&mut self, key: SchedulingKey) -> &mut Sequence {
        &mut self.slots.running_sequence_mut(key).sequence
    }

    /// As [`Slots::next_key`].
    pub(crate) fn next_key(&self, cursor: &mut Option<SchedulingKey>) -> Option<SchedulingKey> {
        self.slots.next_key(cursor)
    }

    pub(crate) fn group(&self, group_id: GroupId) -> &RequestGroup {
        self.queue.group(group_id)
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    pub(crate) fn features(&self) -> &SchedulerFeatures {
        &self.features
    }

    pub(crate) fn features_mut(&mut self) -> &mut SchedulerFeatures {
        &mut self.features
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn shared_features(&self) -> &SharedFeatures {
        &self.shared_features
    }

    pub(crate) fn has_paused(&self) -> bool {
        !self.paused.is_empty()
    }

    pub(crate) fn parts_of(&mut self, key: SchedulingKey) -> SequenceParts<'_> {
        let sequence = &mut self.slots.running_sequence_mut(key).sequence;
        let group = self.queue.group(sequence.group_id);
        SequenceParts { sequence, group, features: &mut self.features }
    }

    pub(crate) fn has_changed(&self) -> bool {
        self.has_changed
    }

    pub(crate) fn begin_step(&mut self) {
        self.has_changed = false;
        hooks::before_commands(&mut self.features);
    }

    pub(crate) fn enqueue(&mut self, group: RequestGroup) {
        self.queue.push(group);
    }

    pub(crate) fn block_on_prefix(&mut self, group_id: GroupId, awaited_prefix: AwaitedPrefix) {
        self.has_changed = true;
        self.queue.block_on_prefix(group_id, awaited_prefix);
    }

    pub(crate) fn set_prompt_logits(&mut self, group_id: GroupId, logits: &Arc<[f32]>) {
        self.queue.set_prompt_logits(group_id, logits);
    }

    pub(crate) fn build_forks(&mut self, group_id: GroupId, branch_specs: Vec<BranchSpec>) {
        self.stats.branches.n_forked += branch_specs.iter().map(|spec| u64::from(spec.n)).sum::<u64>();
        self.queue.set_branch_specs(group_id, branch_specs);
    }

    pub(crate) fn record_evictions(&mut self, evicted: impl Iterator<Item = EvictedRun>) {
        hooks::on_eviction(&mut self.features, evicted);
    }

    pub(crate) fn mark_changed(&mut self) {
        self.has_changed = true;
    }

    /// Returns the number of unreserved cells: free and evictable ones, minus the cells that running sequences will take.
    pub(crate) fn n_spare_cells<R: Runner>(&self, cache: &CacheManager<R>) -> i64 {
        let n_expected: i64 = self.slots.running().iter().map(n_expected_cells).sum();
        let kv = cache.kv();
        let n_available = kv.n_free() + kv.n_evictable();
        i64::try_from(n_available).expect("a device cache has fewer than 2³² cells") - n_expected
    }

    pub(crate) fn is_paused(&self, stream_id: StreamId) -> bool {
        self.paused.contains(&stream_id)
    }

    /// Returns true if a sequence of `priority` may wait for tokens that `running` computes or reloads. A sequence of lower priority
    /// may have to yield, which delays the sequences that wait for it.
    fn can_provide(&self, running: &RunningSequence, priority: i32) -> bool {
        let RunningSequence { sequence, shares_cells, .. } = running;
        *shares_cells && !running.is_vacant() && !self.is_paused(sequence.stream_id) && sequence.request.priority >= priority
    }

    /// Returns the number of tokens of a sequence that the next decode could compute: 0 while its consumer lags.
    pub(crate) fn n_ready(&self, running: &RunningSequence) -> u32 {
        if self.is_paused(running.sequence.stream_id) { 0 } else { running.n_ready() }
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.queue.is_empty() || hooks::is_busy(&self.features)
    }

    /// Returns the contents of `slot`: of the sequence that runs there, or else of the last one.
    pub(crate) fn contents_of(&self, slot: u32) -> SlotContents {
        let keeps_contents = |running: &&RunningSequence| self.group(running.sequence.group_id).keeps_contents_of(slot);
        let (adapter_schedule, tokens) = match self.slots.running_in(slot).filter(keeps_contents) {
            Some(running) => (&running.sequence.adapter_schedule, running.computed_tokens()),
            None => self.slots.contents_of(slot),
        };
        let adapter_schedule = adapter_schedule.prefix(to_u32(tokens.len()));
        SlotContents { tokens, adapters: adapter_schedule.adapters().collect(), invoked_at: adapter_schedule.change() }
    }

    /// Takes the contents of `slot`. `None` while a sequence runs there: then the slot is reserved for another attempt.
    pub(crate) fn take_contents(&mut self, slot: u32) -> Option<ErasedContents> {
        if self.slots.running_in(slot).is_some() {
            self.slots.reserve_for_erasing(slot);
            return None;
        }
        Some(self.slots.take_contents(slot))
    }

    /// Queues an event for a stream; it is published when the step ends.
    pub(crate) fn emit(&mut self, group_id: GroupId, event: Event) {
        let group = self.queue.group_mut(group_id);
        if let Event::Finished(Finished { reason, usage, .. }) = &event
            && group.request.task == Task::Complete
        {
            self.stats.histograms.observe_end(group.submitted, reason, usage, Instant::now());
        }
        self.events.add(group, event);
    }

    pub(crate) fn count_decode(&mut self, n_rows: u32) {
        self.stats.n_decodes += 1;
        self.stats.n_busy += self.slots.running().len() as u64;
        let decodes_sampled = |running: &&RunningSequence| running.takes_one_row() && running.sequence.n_predicted > 0;
        self.stats.n_computed += u64::from(n_rows - count_u32(self.slots.running().iter().filter(decodes_sampled)));
    }

    pub(crate) fn count_step(&mut self) {
        self.stats.n_steps += 1;
    }

    pub(crate) fn count_adapter_change(&mut self) {
        self.stats.n_adapter_changes += 1;
    }

    pub(crate) fn count_predicted(&mut self, n: u64) {
        self.stats.n_predicted += n;
    }

    pub(crate) fn observe_token(&mut self, key: SchedulingKey, now: Instant) {
        let clock = &mut self.slots.running_sequence_mut(key).sequence.clock;
        let last = clock.record_token(now);
        self.stats.histograms.observe_token(clock.submitted, last, now);
    }
}
