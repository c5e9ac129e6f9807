//! The end of a step: publishes its events and the metrics.

use std::time::Instant;

use crate::cache::TierMetrics;
use crate::engine::core::Core;
use crate::engine::explanation_builder::record_evictions;
use crate::engine::lifecycle::{fail_stream, remove, remove_stream};
use crate::engine::request_group::RequestGroup;
use crate::engine::runner::Runner;
use crate::engine::running_sequence::{Phase, RunningSequence};
use crate::engine::stats::{HostCacheStats, RunningStats, SlotStats, Stats};
use crate::error::Result;

/// Resumes the streams whose readers have caught up, and fails those without progress for
/// [`Limits::slow_consumer_timeout`](crate::config::Limits::slow_consumer_timeout).
pub(super) fn pause_slow_consumers<R: Runner>(core: &mut Core<R>) {
    let (queue, patience) = (&core.queue, core.limits.slow_consumer_timeout);
    let backlog_of = |stream_id| queue.groups_of(stream_id).first().map(|&request_id| queue.group(request_id).sender.backlog());
    for (stream_id, error) in core.output.slow_consumers.review(Instant::now(), patience, backlog_of) {
        fail_stream(core, stream_id, error);
    }
}

/// Publishes the events of the step and wakes their readers.
pub(super) fn publish<R: Runner>(core: &mut Core<R>) {
    let mut updated = std::mem::take(&mut core.output.groups_with_events);
    let mut ended: Vec<(RequestGroup, Result<()>)> = Vec::new();
    for (stream_id, error) in std::mem::take(&mut core.output.failed) {
        ended.extend(remove_stream(core, stream_id).into_iter().map(|group| (group, Err(error.clone()))));
    }
    for &request_id in &updated {
        if core.queue.get(request_id).is_some_and(RequestGroup::is_done) {
            ended.extend(remove(core, request_id).map(|group| (group, Ok(()))));
        }
    }
    for (group, _) in &ended {
        core.output.watch_pin(group);
    }
    // Before the events, so that a reader that sees the end of a stream sees its slots idle.
    publish_metrics(core);
    core.output.admitted.clear();
    let n_streams = updated.len();
    for request_id in updated.drain(..) {
        if core.queue.get(request_id).is_some() {
            core.output.send(core.queue.group_mut(request_id));
        }
    }
    core.output.groups_with_events = updated;
    for (group, _) in &mut ended {
        core.output.send(group);
    }
    for (group, outcome) in ended {
        // A stream ends with its last group.
        if outcome.is_err() || core.queue.groups_of(group.stream_id).is_empty() {
            group.sender.end(outcome);
        }
        core.output.mark_urgent();
    }
    let only_decodes = core.memory.spent().is_zero()
        && core.slots.running().iter().all(|running| matches!(running.phase, Phase::Decoding | Phase::IdleBeam));
    if !only_decodes {
        core.output.mark_urgent();
    }
    core.output.wake_rate_limited(n_streams);
}

/// Publishes changed metrics before the events that report the change.
pub(super) fn publish_metrics<R: Runner>(core: &mut Core<R>) {
    core.memory.flush();
    record_evictions(core);
    publish_stats(core);
}

fn publish_stats<R: Runner>(core: &Core<R>) {
    let mut stats = core.output.shared.stats();
    // Reuses the list of slots: a step allocates nothing.
    let mut slots = std::mem::take(&mut stats.slots);
    slots.clear();
    slots.resize(core.limits.n_slots as usize, SlotStats::default());
    *stats = Stats { slots, times: core.stopwatch.times(), ..core.stats.clone() };
    let cache = core.memory.cache();
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
    for RunningSequence { sequence, slot, n_held, .. } in core.slots.running() {
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
