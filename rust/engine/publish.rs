//! The end of a step: its events and the metrics become visible to their readers.

use crate::cache::TierMetrics;
use crate::engine::cache_manager::CacheManager;
use crate::engine::output::Output;
use crate::engine::request_group::{EndedGroup, RequestGroup};
use crate::engine::runner::Runner;
use crate::engine::running_sequence::{Phase, RunningSequence};
use crate::engine::scheduler::Scheduler;
use crate::engine::slow_consumers::SlowStreams;
use crate::engine::stats::{HostCacheStats, RunningStats, SlotStats, Stats, StepTimes};
use crate::engine::stream::Backlog;

impl Scheduler {
    /// Returns the unread events of a stream; `None` if it has ended.
    pub(super) fn backlog_of(&self, stream_id: u64) -> Option<Backlog> {
        self.queue.groups_of(stream_id).first().map(|&request_id| self.queue.group(request_id).sender.backlog())
    }

    /// Pauses the streams whose readers lag, resumes the others, and fails those whose readers made no progress for
    /// [`Limits::slow_consumer_timeout`](crate::config::Limits::slow_consumer_timeout).
    pub(super) fn pause(&mut self, slow: SlowStreams) {
        self.paused = slow.paused;
        for (stream_id, error) in slow.expired {
            self.fail_stream(stream_id, error);
        }
    }

    /// Removes the requests that end with this step.
    pub(super) fn take_ended(&mut self) -> Vec<EndedGroup> {
        let mut ended = Vec::new();
        for (stream_id, error) in std::mem::take(&mut self.outbox.failed) {
            ended.extend(self.remove_stream(stream_id).into_iter().map(|group| (group, Err(error.clone()))));
        }
        let updated = std::mem::take(&mut self.outbox.groups_with_events);
        for &request_id in &updated {
            if self.queue.get(request_id).is_some_and(RequestGroup::is_done) {
                ended.extend(self.remove(request_id).map(|group| (group, Ok(()))));
            }
        }
        self.outbox.groups_with_events = updated;
        ended
    }

    /// Returns true if no sequence did anything but sample one token.
    fn only_decodes(&self) -> bool {
        self.slots.running().iter().all(|running| matches!(running.phase, Phase::Decoding | Phase::IdleBeam))
    }
}

/// Publishes the events of the step, after its metrics, and wakes their readers. `ended` are the requests that end with it.
pub(super) fn publish_events(scheduler: &mut Scheduler, output: &mut Output, mut ended: Vec<EndedGroup>, has_moved: bool) {
    scheduler.outbox.admitted.clear();
    let mut updated = std::mem::take(&mut scheduler.outbox.groups_with_events);
    let n_streams = updated.len();
    for request_id in updated.drain(..) {
        if scheduler.queue.get(request_id).is_some() {
            output.send(scheduler.queue.group_mut(request_id));
        }
    }
    scheduler.outbox.groups_with_events = updated;
    let is_urgent =
        std::mem::take(&mut scheduler.outbox.is_urgent) || has_moved || !ended.is_empty() || !scheduler.only_decodes();
    for (group, _) in &mut ended {
        output.send(group);
    }
    for (group, outcome) in ended {
        // A stream ends with its last group.
        if outcome.is_err() || scheduler.queue.groups_of(group.stream_id).is_empty() {
            group.sender.end(outcome);
        }
    }
    output.wake_rate_limited(n_streams, is_urgent);
}

/// Publishes the metrics, with the time per stage. They precede the events that report a change: a reader that sees the end of a
/// stream sees its slots idle.
pub(super) fn publish_metrics<R: Runner>(scheduler: &Scheduler, cache: &mut CacheManager<R>, times: StepTimes) {
    cache.flush();
    let mut stats = scheduler.shared.stats();
    // Reuses the list of slots: a step allocates nothing.
    let mut slots = std::mem::take(&mut stats.slots);
    slots.clear();
    slots.resize(scheduler.limits.n_slots as usize, SlotStats::default());
    *stats = Stats { slots, times, ..scheduler.stats.clone() };
    let cache = cache.kv();
    stats.n_compared += cache.n_compared();
    stats.n_cells_used = cache.n_used();
    stats.n_cells_reached = cache.n_reached();
    stats.n_cells_idle = cache.n_evictable();
    stats.n_ids_used = cache.n_ids_used();
    (stats.n_pinned, stats.n_pinned_bytes) = cache.pinned_size();
    let (n_bytes, max_bytes, n_entries) = cache.host_cache_size();
    let TierMetrics { n_saved, n_restored, n_forgotten, n_relocated } = cache.counts();
    stats.host_cache = HostCacheStats {
        n_bytes,
        max_bytes,
        n_entries,
        n_offloaded: n_saved,
        n_reloaded: n_restored,
        n_evicted: n_forgotten,
        n_relocated,
    };
    for RunningSequence { sequence, slot, n_held, .. } in scheduler.slots.running() {
        stats.slots[*slot as usize].running = Some(RunningStats {
            request_id: sequence.stream_id,
            index: sequence.branch,
            n_prompt: sequence.n_prompt,
            n_computed: (*n_held).min(sequence.n_prompt).saturating_sub(sequence.n_cached()),
            n_cached: sequence.n_cached(),
            n_predicted: sequence.n_predicted(),
            n_remaining: sequence.n_remaining(),
        });
    }
}
