//! The end of a step: its events and the metrics become visible to their readers.

use crate::cache::TierMetrics;
use crate::engine::cache_manager::CacheManager;
use crate::engine::output::Output;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::request_group::EndedGroup;
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::engine::stats::{HostCacheStats, RunningStats, SlotStats, Stats, StepTimes};

/// Publishes the events of the step, after its metrics, and wakes their readers. `ended` are the requests that end with it.
pub(super) fn publish_events(scheduler: &mut Scheduler, output: &mut Output, mut ended: Vec<EndedGroup>, has_moved: bool) {
    scheduler.outbox_mut().admitted.clear();
    let mut updated = std::mem::take(&mut scheduler.outbox_mut().groups_with_events);
    let n_streams = updated.len();
    for group_id in updated.drain(..) {
        if scheduler.queue().get(group_id).is_some() {
            output.send(scheduler.group_mut(group_id));
        }
    }
    scheduler.outbox_mut().groups_with_events = updated;
    let is_urgent =
        std::mem::take(&mut scheduler.outbox_mut().is_urgent) || has_moved || !ended.is_empty() || !scheduler.only_decodes();
    for (group, _) in &mut ended {
        output.send(group);
    }
    for (group, outcome) in ended {
        // A stream ends with its last group.
        if outcome.is_err() || scheduler.queue().groups_of(group.request_id).is_empty() {
            group.sender.end(outcome);
        }
    }
    output.wake_rate_limited(n_streams, is_urgent);
}

/// Publishes the metrics, with the time per stage. They precede the events that report a change: a reader that sees the end of a
/// stream sees its slots idle.
pub(super) fn publish_metrics<R: Runner>(scheduler: &Scheduler, cache: &mut CacheManager<R>, times: StepTimes) {
    cache.flush();
    let mut stats = scheduler.shared().stats();
    // Reuses the list of slots: a step allocates nothing.
    let mut slots = std::mem::take(&mut stats.slots);
    slots.clear();
    slots.resize(scheduler.limits().n_slots as usize, SlotStats::default());
    *stats = Stats { slots, times, ..scheduler.stats().clone() };
    let cache = cache.kv();
    stats.n_compared += cache.n_compared();
    stats.n_cells_used = cache.n_used();
    stats.n_cells_reached = cache.n_reached();
    stats.n_cells_idle = cache.n_evictable();
    stats.n_ids_used = cache.n_ids_used();
    (stats.n_pinned, stats.n_pinned_bytes) = cache.pinned_size();
    let (n_bytes, max_bytes, n_entries) = cache.host_cache_size();
    let TierMetrics { n_offloaded, n_reloaded, n_evicted, n_relocated } = cache.counts();
    stats.host_cache = HostCacheStats { n_bytes, max_bytes, n_entries, n_offloaded, n_reloaded, n_evicted, n_relocated };
    for RunningSequence { sequence, slot, n_held, .. } in scheduler.running() {
        stats.slots[*slot as usize].running = Some(RunningStats {
            request_id: sequence.request_id,
            index: sequence.branch,
            n_prompt: sequence.n_prompt,
            n_computed: (*n_held).min(sequence.n_prompt).saturating_sub(sequence.n_cached()),
            n_cached: sequence.n_cached(),
            n_predicted: sequence.n_predicted(),
            n_remaining: sequence.n_remaining(),
        });
    }
}
