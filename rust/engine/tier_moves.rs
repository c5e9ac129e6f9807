//! What moves between the pool and the store, and when: never for longer than a step has time for.

use crate::engine::core::Core;
use crate::engine::lifecycle::{Urgency, end_with, free_cells, lose};
use crate::engine::memory::RelocationOutcome;
use crate::engine::move_budget::LONGEST_PIECE;
use crate::engine::resumption::take_prefix;
use crate::engine::runner::Runner;
use crate::engine::running_sequence::{Phase, RunningSequence};
use crate::engine::sampling_step::sample_first_token;
use crate::engine::tasks::finish_tasks;
use crate::error::Error;
use crate::request::Task;

/// Moves what this step has time for: first what running sequences wait for, then what is to be saved for good, then what costs
/// more than it saves.
pub(super) fn move_between_tiers<R: Runner>(core: &mut Core<R>) {
    restore(core);
    finish_tasks(core);
    let nobody_runs = core.slots.running().is_empty();
    while !core.memory.is_out_of_time() && core.memory.offload_early(nobody_runs) {}
    while !core.memory.is_out_of_time() && relocate(core) {}
}

/// With nobody running: does one piece of what is better done now than later. `false` where nothing is left to do.
pub(super) fn use_idle_time<R: Runner>(core: &mut Core<R>) -> bool {
    core.memory.begin_moving(LONGEST_PIECE);
    core.memory.offload_early(true) || relocate(core)
}

/// Moves cells down where what is used lies far apart. `false` where it does not.
fn relocate<R: Runner>(core: &mut Core<R>) -> bool {
    match core.memory.relocate() {
        RelocationOutcome::Done => true,
        RelocationOutcome::Nothing => false,
        RelocationOutcome::Lost { ids, reason } => {
            lose(core, &ids, &reason);
            false
        }
    }
}

/// Restores what running sequences wait for, most senior first.
fn restore<R: Runner>(core: &mut Core<R>) {
    let mut nth = 0;
    while nth < core.slots.running().len() {
        let seniority = core.slots.running()[nth].sequence.seniority();
        let is_here =
            |core: &Core<R>| core.slots.running().get(nth).is_some_and(|running| running.sequence.seniority() == seniority);
        take_prefix(core, nth);
        while !core.memory.is_out_of_time() && is_here(core) && restore_next(core, nth) {}
        // It may have ended with an error, or with its first token.
        nth += usize::from(is_here(core));
    }
}

/// Restores the next piece of the sequence at `nth`. `false` where there is none, or it must wait, or has ended.
fn restore_next<R: Runner>(core: &mut Core<R>, nth: usize) -> bool {
    let Some(next) = core.slots.running()[nth].next_restore() else { return false };
    let (n_piece, n_kept) = (length(&next.piece), length(&next.kept));
    let must_load = matches!(core.task(nth), Task::Load(_));
    // More junior ones give way for what it will hold, as they would where that is computed; for cells that a piece takes and gives
    // up again at once, only where it cannot be computed.
    let n_wanted = if must_load { n_piece } else { n_kept };
    if free_cells(core, nth, n_wanted, Urgency::WhenThereIsTime) < n_wanted {
        // The most senior one gets everything that others do not keep for good, as the most senior search does; what is less can only
        // be computed.
        let running = core.slots.running();
        let is_most_senior = running[..nth].iter().all(|senior| senior.is_together_with(&running[nth]));
        if is_most_senior && !core.memory.is_out_of_time() {
            let n_free = core.memory.n_free() as usize;
            give_up_restore(core, nth, |running| Error::ContextOverflow {
                n_prompt: running.sequence.tokens.len() as usize,
                n_ctx: running.n_held as usize + n_free,
            });
        }
        return false;
    }
    if core.memory.free_idle_cells(n_piece) {
        return restore_piece(core, nth);
    }
    if !(core.memory.has_idle_cells(n_piece) && core.memory.is_out_of_time()) {
        tracing::debug!("a saved piece of {n_piece} tokens has no room: {n_kept} of them are computed");
        compute_instead(core, nth);
    }
    false
}

/// Restores the next piece of the sequence at `nth`. `false` where the memory refused it: then the rest is computed.
fn restore_piece<R: Runner>(core: &mut Core<R>, nth: usize) -> bool {
    let Core { slots, memory, .. } = core;
    let running = &mut slots.running_mut()[nth];
    let next = running.next_restore().expect("the caller has seen it");
    let tokens = running.sequence.tokens.slices(next.kept.clone()).concat();
    match memory.restore(running.id, next, &tokens) {
        Ok(()) => {
            let logits = running.was_restored();
            if let Some(logits) = logits
                && core.is_complete(nth)
            {
                sample_first_token(core, nth, &logits);
            }
            true
        }
        Err(error) => {
            give_up_restore(core, nth, |_| Error::PrefixRefused { reason: error.to_string() });
            false
        }
    }
}

/// What the sequence at `nth` was to be given back is computed; where it was to be loaded, its request ends with an error.
fn give_up_restore<R: Runner>(core: &mut Core<R>, nth: usize, error: impl FnOnce(&RunningSequence) -> Error) {
    let error = error(&core.slots.running()[nth]);
    if matches!(core.task(nth), Task::Load(_)) {
        end_with(core, nth, error);
    } else {
        tracing::warn!("a saved prefix cannot be restored and is computed again: {error}");
        compute_instead(core, nth);
    }
}

/// The sequence at `nth` computes what was to be restored.
fn compute_instead<R: Runner>(core: &mut Core<R>, nth: usize) {
    let running = &mut core.slots.running_mut()[nth];
    running.phase = Phase::Prefilling;
    // What was restored before may end where nothing can go on.
    if running.n_held > 0 && !core.memory.can_extend(running.id, running.n_held) {
        core.memory.cache_mut().forget(running.id);
        running.id = core.memory.place(&running.sequence.variants, None).expect("it has just given one back");
        running.n_held = 0;
    }
    count_lost(core, nth);
}

/// Of what the sequence at `nth` found of its prompt, only what it holds counts: the rest is computed after all.
pub(super) fn count_lost<R: Runner>(core: &mut Core<R>, nth: usize) {
    let running = &mut core.slots.running_mut()[nth];
    let n_lost = u64::from(running.sequence.lower_n_cached(running.n_held));
    if core.is_complete(nth) {
        core.stats.n_cached = core.stats.n_cached.saturating_sub(n_lost);
        core.stats.n_restored = core.stats.n_restored.saturating_sub(n_lost);
    }
}

fn length(range: &std::ops::Range<u32>) -> u32 {
    range.end - range.start
}
