//! Publishes the metrics of a step.

use crate::cache::TierMetrics;
use crate::engine::cache_manager::CacheManager;
use crate::engine::features::hooks;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::engine::stats::{HostCacheStats, RunningStats, SlotStats, Stats, StepTimes};

/// Precedes the events that report a change: a reader that sees the end of a stream sees its slots idle.
pub(super) fn publish_metrics<R: Runner>(scheduler: &Scheduler, cache: &mut CacheManager<R>, times: StepTimes) {
    cache.flush();
    let mut stats = scheduler.shared().stats();
    // Reuses the list of slots: a step allocates nothing.
    let mut slots = std::mem::take(&mut stats.slots);
    slots.clear();
    slots.resize(scheduler.limits().n_slots as usize, SlotStats::default());
    *stats = Stats { slots, times, ..scheduler.stats().clone() };
    hooks::add_metrics(scheduler.features(), &mut stats);
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
            n_predicted: sequence.n_predicted,
            n_remaining: sequence.n_remaining(),
        });
    }
}
