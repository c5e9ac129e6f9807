//! The decode of a step, and its recovery from failures.

use std::time::{Duration, Instant};

use crate::engine::cache_manager::CacheManager;
use crate::engine::runner::{DecodeError, Runner};
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::planning::Planner;
use crate::engine::scheduler::running_sequence::{Draft, RunningSequence, count_u32};
use crate::error::Error;

/// Computes the plan and measures it; the rows of a failed decode are not undone.
pub(super) fn execute<R: Runner>(
    scheduler: &Scheduler,
    cache: &mut CacheManager<R>,
    planner: &mut Planner,
) -> std::result::Result<Duration, DecodeError> {
    let started = Instant::now();
    cache.decode(&planner.plan)?;
    let took = started.elapsed();
    let running = scheduler.running();
    let n_rows = count_u32(planner.plan.rows.iter());
    // A drafted token costs about as much as a token of another stream.
    let n_single = count_u32(running.iter().filter(|running| running.takes_one_row())) + planner.n_drafted;
    if !planner.changes_adapters {
        let n_prefill = n_rows - n_single;
        if planner.n_drafted == 0 {
            planner.budget.observe(n_single, n_prefill, planner.n_cells, took);
        } else {
            planner.budget.observe_drafted(n_single, n_prefill, planner.n_cells, took);
        }
    } else if n_single == n_rows {
        // The excess over the mean is the cost of the change. Steps with prompts vary by more than that.
        let mean_s = planner.budget.mean_s(n_single, planner.n_cells);
        planner.adapters.observe_change(if mean_s > 0.0 { took.as_secs_f64() - mean_s } else { 0.0 });
    }
    Ok(took)
}

/// Recovers from a failed decode: undoes its rows, retries without drafts, then without the rows of prompts, and fails the requests
/// that still cannot be computed. Returns true if a retry succeeded.
pub(super) fn recover<R: Runner>(
    scheduler: &mut Scheduler,
    cache: &mut CacheManager<R>,
    planner: &mut Planner,
    error: DecodeError,
) -> bool {
    let error = Error::Decode { reason: error.reason };
    let groups = |filter: fn(&RunningSequence) -> bool| -> Vec<u64> {
        let planned = scheduler.running().iter().filter(|running| running.n_planned > 0 && filter(running));
        planned.map(|running| running.sequence.group_id).collect()
    };
    let (decoding, prefilling) = (groups(RunningSequence::takes_one_row), groups(|running| !running.takes_one_row()));
    let has_drafts = planner.n_drafted > 0;
    let mut is_undone = undo_rows(scheduler.running_mut(), cache);
    if is_undone && has_drafts {
        if retry(scheduler.running_mut(), cache, planner) {
            return true;
        }
        is_undone = undo_rows(scheduler.running_mut(), cache);
    }
    if is_undone && !decoding.is_empty() && !prefilling.is_empty() {
        scheduler.fail(&prefilling, &error);
        if retry(scheduler.running_mut(), cache, planner) {
            return true;
        }
        undo_rows(scheduler.running_mut(), cache);
    }
    scheduler.fail(&prefilling, &error);
    scheduler.fail(&decoding, &error);
    false
}

/// Decodes the planned rows of all running sequences, without drafts. Returns true if that succeeded.
fn retry<R: Runner>(running: &mut [RunningSequence], cache: &mut CacheManager<R>, planner: &mut Planner) -> bool {
    planner.take_cells(running, cache);
    cache.decode(&planner.plan).is_ok()
}

/// Removes the planned rows from the cache, and drops the drafts. Returns false if the memory cannot.
fn undo_rows<R: Runner>(running: &mut [RunningSequence], cache: &mut CacheManager<R>) -> bool {
    let mut is_undone = true;
    for running in running.iter_mut().filter(|running| running.n_planned > 0) {
        running.draft = Draft::default();
        // A part of an image that can only be cached as a whole is dropped with its request, which is a prefilling one.
        is_undone &= cache.truncate(running.id(), running.n_held) || running.n_cacheable() < running.n_held;
    }
    is_undone
}
