//! Room for running sequences: free cells and sequence ids. Idle prefixes are evicted first, then held prompts released; for cells,
//! the most junior sequences are preempted too.

use crate::engine::cache_manager::CacheManager;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::scheduling_key::SchedulingKey;

/// Time limit for freeing cells or ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Within this step, however long it takes.
    Now,
    /// Within the time of this step for moves.
    WithinMoveTime,
}

/// Frees `n_wanted` cells for a running sequence without taking from more senior ones; returns how many of them are free.
pub(crate) fn free_cells<R: Runner>(
    scheduler: &mut Scheduler,
    cache: &mut CacheManager<R>,
    key: SchedulingKey,
    n_wanted: u32,
    urgency: Urgency,
) -> u32 {
    while cache.n_free() < n_wanted {
        if urgency == Urgency::WithinMoveTime && cache.is_out_of_time() {
            break;
        }
        if !(cache.evict() || scheduler.release_junior_holder() || scheduler.preempt_most_junior(key)) {
            break;
        }
    }
    n_wanted.min(cache.n_free())
}

/// Frees `n` sequence ids. Returns `false` if they are not available yet, or this step has no time left to save the paths that
/// use them.
///
/// With [`Urgency::Now`] this succeeds for sequences in slots: there are at least as many ids as slots, pinned prefixes leave one for
/// each slot, and held prompts release theirs.
pub(crate) fn free_ids<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>, n: usize, urgency: Urgency) -> bool {
    while cache.n_free_ids() < n {
        let is_over = urgency == Urgency::WithinMoveTime && cache.is_out_of_time();
        if is_over || !(cache.evict() || scheduler.release_junior_holder()) {
            return false;
        }
    }
    true
}
