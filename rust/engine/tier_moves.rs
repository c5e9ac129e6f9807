//! Moves between the device cache and the host cache, within the time budget of a step.

use crate::engine::core::Core;
use crate::engine::lifecycle::{Urgency, fail_lost, fail_sequence, free_cells};
use crate::engine::memory::RelocationOutcome;
use crate::engine::move_budget::MAX_ENTRY_TIME;
use crate::engine::resumption::take_prefix;
use crate::engine::runner::Runner;
use crate::engine::running_sequence::{Phase, RunningSequence};
use crate::engine::tasks::finish_tasks;
use crate::error::Error;
use crate::request::Task;

/// Moves cache entries within the time of this step: first reloads for running sequences, then saves of prefix files, then
/// offloads that reduce the cost of decodes.
pub(super) fn move_between_tiers<R: Runner>(core: &mut Core<R>) {
    reload_all(core);
    finish_tasks(core);
    let is_idle = core.slots.running().is_empty();
    while !core.memory.is_out_of_time() && core.memory.offload_early(is_idle) {}
    while !core.memory.is_out_of_time() && relocate(core) {}
}

/// Runs one move while no sequence is running. Returns `false` if there is nothing to move.
pub(super) fn use_idle_time<R: Runner>(core: &mut Core<R>) -> bool {
    core.memory.begin_moving(MAX_ENTRY_TIME);
    core.memory.offload_early(true) || relocate(core)
}

/// Moves cells down if the used ones are scattered. Returns `false` if nothing was moved.
fn relocate<R: Runner>(core: &mut Core<R>) -> bool {
    match core.memory.relocate() {
        RelocationOutcome::Done => true,
        RelocationOutcome::Unchanged => false,
        RelocationOutcome::Lost { ids, reason } => {
            fail_lost(core, &ids, &reason);
            false
        }
    }
}

/// Reloads entries for running sequences, most senior first.
fn reload_all<R: Runner>(core: &mut Core<R>) {
    let mut nth = 0;
    while nth < core.slots.running().len() {
        let scheduling_key = core.slots.running()[nth].sequence.scheduling_key();
        let still_runs = |core: &Core<R>| {
            core.slots.running().get(nth).is_some_and(|running| running.sequence.scheduling_key() == scheduling_key)
        };
        take_prefix(core, nth);
        while !core.memory.is_out_of_time() && still_runs(core) && reload_next(core, nth) {}
        // It may have ended with an error.
        nth += usize::from(still_runs(core));
    }
}

/// Reloads the next entry of the sequence at `nth`. Returns `false` if no entry is left, or it must wait, or the sequence has
/// ended.
fn reload_next<R: Runner>(core: &mut Core<R>, nth: usize) -> bool {
    let Some(next) = core.slots.running()[nth].next_reload() else { return false };
    let (n_entry, n_kept) = (length(&next.range), length(&next.kept));
    let must_load = matches!(core.task(nth), Task::Load(_));
    // Junior sequences yield cells that this one will keep, as they would if it computed them. For cells that the entry needs
    // only temporarily they yield only if the entry cannot be computed.
    let n_wanted = if must_load { n_entry } else { n_kept };
    if free_cells(core, nth, n_wanted, Urgency::WithinMoveTime) < n_wanted {
        // The most senior sequence, or search, gets all cells that are not pinned; if those are not enough, only computing is
        // left.
        let running = core.slots.running();
        let is_most_senior = running[..nth].iter().all(|senior| senior.is_in_same_search(&running[nth]));
        if is_most_senior && !core.memory.is_out_of_time() {
            let n_free = core.memory.n_free() as usize;
            give_up_reload(core, nth, |running| Error::ContextOverflow {
                n_prompt: running.sequence.tokens.len() as usize,
                n_ctx: running.n_held as usize + n_free,
            });
        }
        return false;
    }
    if core.memory.free_idle_cells(n_entry) {
        return reload_entry(core, nth);
    }
    if !(core.memory.has_idle_cells(n_entry) && core.memory.is_out_of_time()) {
        tracing::debug!("a saved piece of {n_entry} tokens has no room: {n_kept} of them are computed");
        compute_instead(core, nth);
    }
    false
}

/// Reloads the next entry of the sequence at `nth`. Returns `false` if the memory refused: then the rest is computed.
fn reload_entry<R: Runner>(core: &mut Core<R>, nth: usize) -> bool {
    let Core { slots, memory, .. } = core;
    let running = &mut slots.running_mut()[nth];
    let next = running.next_reload().expect("the caller has seen it");
    let tokens = running.sequence.tokens.slices(next.kept.clone()).concat();
    match memory.restore(running.id, next, &tokens) {
        Ok(()) => {
            running.finish_reload();
            true
        }
        Err(error) => {
            give_up_reload(core, nth, |_| Error::PrefixRefused { reason: error.to_string() });
            false
        }
    }
}

/// Gives up a reload: the sequence at `nth` computes the tokens instead, and a load fails.
fn give_up_reload<R: Runner>(core: &mut Core<R>, nth: usize, error: impl FnOnce(&RunningSequence) -> Error) {
    let error = error(&core.slots.running()[nth]);
    if matches!(core.task(nth), Task::Load(_)) {
        fail_sequence(core, nth, error);
    } else {
        tracing::warn!("a saved prefix cannot be restored and is computed again: {error}");
        compute_instead(core, nth);
    }
}

/// Makes the sequence at `nth` compute the tokens that were to be reloaded.
fn compute_instead<R: Runner>(core: &mut Core<R>, nth: usize) {
    let running = &mut core.slots.running_mut()[nth];
    running.phase = Phase::Prefilling;
    // Entries that were already reloaded may end where the memory cannot continue.
    if running.n_held > 0 && !core.memory.can_extend(running.id, running.n_held) {
        core.memory.cache_mut().discard_failed(running.id);
        running.id = core.memory.place(&running.sequence.adapter_schedule, None).expect("it has just given one back");
        running.n_held = 0;
    }
    lower_n_cached(core, nth);
}

/// Lowers the number of cached prompt tokens of the sequence at `nth` to those it has: the rest is computed.
pub(super) fn lower_n_cached<R: Runner>(core: &mut Core<R>, nth: usize) {
    let running = &mut core.slots.running_mut()[nth];
    let n_lost = u64::from(running.sequence.lower_n_cached(running.n_held));
    if core.is_complete(nth) {
        core.stats.n_cached = core.stats.n_cached.saturating_sub(n_lost);
        core.stats.n_reloaded = core.stats.n_reloaded.saturating_sub(n_lost);
    }
}

fn length(range: &std::ops::Range<u32>) -> u32 {
    range.end - range.start
}
