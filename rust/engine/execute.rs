//! The decode of a step, and its recovery from failures.

use std::time::{Duration, Instant};

use crate::engine::cache_manager::CacheManager;
use crate::engine::ids::GroupId;
use crate::engine::runner::{DecodeError, Runner};
use crate::engine::scheduler::planning::Planner;
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::error::Error;

#[derive(Default)]
pub(super) struct Execution {
    /// Time of the decode; `None` if nothing was computed.
    pub(super) took: Option<Duration>,
    /// Groups that cannot be computed, and the error that their streams end with.
    pub(super) failed: Option<(Vec<GroupId>, Error)>,
}

/// Computes the plan, or as much of it as can be computed.
pub(super) fn execute<R: Runner>(
    running: &mut [RunningSequence],
    cache: &mut CacheManager<R>,
    planner: &mut Planner,
) -> Execution {
    if planner.n_planned_rows() == 0 {
        return Execution::default();
    }
    let started = Instant::now();
    match decode(running, cache, planner) {
        Ok(took) => Execution { took: Some(took), failed: None },
        Err(DecodeError { reason }) => {
            let (is_recovered, failed) = recover(running, cache, planner);
            let took = is_recovered.then(|| started.elapsed());
            Execution { took, failed: Some((failed, Error::Decode { reason })) }
        }
    }
}

/// Computes the plan and measures it; the rows of a failed decode are not undone.
fn decode<R: Runner>(
    running: &[RunningSequence],
    cache: &mut CacheManager<R>,
    planner: &mut Planner,
) -> Result<Duration, DecodeError> {
    let started = Instant::now();
    cache.decode(planner.plan())?;
    let took = started.elapsed();
    planner.observe_decode(running, took);
    Ok(took)
}

/// Recovers from a failed decode: undoes its rows, retries without drafts, then without the rows of prompts. Returns true if a retry
/// succeeded, and the groups that cannot be computed.
fn recover<R: Runner>(
    running: &mut [RunningSequence],
    cache: &mut CacheManager<R>,
    planner: &mut Planner,
) -> (bool, Vec<GroupId>) {
    let groups = |filter: fn(&RunningSequence) -> bool| -> Vec<GroupId> {
        let planned = running.iter().filter(|running| running.is_planned() && filter(running));
        planned.map(|running| running.sequence.group_id).collect()
    };
    let (decoding, mut prefilling) = (groups(RunningSequence::takes_one_row), groups(|running| !running.takes_one_row()));
    let has_drafts = planner.n_drafted() > 0;
    let mut is_undone = undo_rows(running, cache);
    if is_undone && has_drafts {
        if retry(running, cache, planner) {
            return (true, Vec::new());
        }
        is_undone = undo_rows(running, cache);
    }
    if is_undone && !decoding.is_empty() && !prefilling.is_empty() {
        for failed in running.iter_mut().filter(|running| prefilling.contains(&running.sequence.group_id)) {
            failed.unplan();
        }
        if retry(running, cache, planner) {
            return (true, prefilling);
        }
        undo_rows(running, cache);
    }
    prefilling.extend(decoding);
    (false, prefilling)
}

/// Decodes the planned rows of all running sequences, without drafts. Returns true if that succeeded.
fn retry<R: Runner>(running: &mut [RunningSequence], cache: &mut CacheManager<R>, planner: &mut Planner) -> bool {
    planner.take_cells(running, cache);
    cache.decode(planner.plan()).is_ok()
}

/// Removes the planned rows from the cache, and drops the drafts. Returns false if the memory cannot.
fn undo_rows<R: Runner>(running: &mut [RunningSequence], cache: &mut CacheManager<R>) -> bool {
    let mut is_undone = true;
    for running in running.iter_mut().filter(|running| running.is_planned()) {
        running.drop_draft();
        // A part of an image that can only be cached as a whole is dropped with its request, which is a prefilling one.
        is_undone &= cache.truncate(running.id(), running.n_computed) || running.n_cacheable() < running.n_computed;
    }
    is_undone
}
