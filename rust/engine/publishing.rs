//! The end of a step: its events can be read, and the snapshot shows what the engine is doing.

use std::time::Instant;

use crate::cache::TierMetrics;
use crate::engine::core::Core;
use crate::engine::explanation_builder::remember_lost;
use crate::engine::lifecycle::{fail_stream, remove, remove_stream};
use crate::engine::request_group::RequestGroup;
use crate::engine::runner::Runner;
use crate::engine::running_sequence::{Phase, RunningSequence};
use crate::engine::stats::{HostCacheStats, RunningStats, SlotStats, Stats};
use crate::error::Result;

/// Lets go of the streams whose readers have caught up, and ends those of which nothing was read for long.
pub(super) fn pause_slow_consumers<R: Runner>(core: &mut Core<R>) {
    let (queue, patience) = (&core.queue, core.limits.reader_patience);
    let backlog_of = |stream_id| queue.groups_of(stream_id).first().map(|&request_id| queue.job(request_id).sender.backlog());
    for (stream_id, error) in core.outbox.laggards.review(Instant::now(), patience, backlog_of) {
        fail_stream(core, stream_id, error);
    }
}

/// Makes the step's events readable, and wakes those who wait for them.
pub(super) fn publish<R: Runner>(core: &mut Core<R>) {
    let mut told = std::mem::take(&mut core.outbox.told);
    let mut leaving: Vec<(RequestGroup, Result<()>)> = Vec::new();
    for (stream_id, error) in std::mem::take(&mut core.outbox.failed) {
        leaving.extend(remove_stream(core, stream_id).into_iter().map(|job| (job, Err(error.clone()))));
    }
    for &request_id in &told {
        if core.queue.get(request_id).is_some_and(RequestGroup::is_done) {
            leaving.extend(remove(core, request_id).map(|job| (job, Ok(()))));
        }
    }
    for (job, _) in &leaving {
        core.outbox.watch_pin(job);
    }
    // First, so that whoever reads the end of a stream finds its slots idle.
    show(core);
    core.outbox.admitted.clear();
    let n_told = told.len();
    for request_id in told.drain(..) {
        if core.queue.get(request_id).is_some() {
            core.outbox.send(core.queue.job_mut(request_id));
        }
    }
    core.outbox.told = told;
    for (job, _) in &mut leaving {
        core.outbox.send(job);
    }
    for (job, how) in leaving {
        // A stream goes on until its last job is over.
        if how.is_err() || core.queue.groups_of(job.stream_id).is_empty() {
            job.sender.end(how);
        }
        core.outbox.hurry();
    }
    let is_steady = core.memory.spent().is_zero()
        && core.slots.running().iter().all(|running| matches!(running.phase, Phase::Decoding | Phase::Following));
    if !is_steady {
        core.outbox.hurry();
    }
    core.outbox.wake_rate_limited(n_told);
}

/// Makes a change visible before anybody is told of it.
pub(super) fn show<R: Runner>(core: &mut Core<R>) {
    core.memory.flush();
    remember_lost(core);
    publish_stats(core);
}

fn publish_stats<R: Runner>(core: &Core<R>) {
    let mut stats = core.outbox.published.stats();
    // The list of slots stays where it is: a step allocates nothing.
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
    let (n_bytes, max_bytes, n_pieces) = cache.host_cache_size();
    let TierMetrics { n_saved, n_restored, n_forgotten, n_relocated } = cache.counts();
    stats.store = HostCacheStats { n_bytes, max_bytes, n_pieces, n_saved, n_restored, n_forgotten, n_relocated };
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
