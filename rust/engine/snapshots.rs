//! What is kept of a prompt that a model's memory will have never again: states, where it cannot be cut, and what a sliding window
//! sees at the prompt's end, which moves on with the answer.

use crate::cache::{MIN_SHARED, Maker, Match};
use crate::engine::core::Core;
use crate::engine::runner::Runner;
use crate::engine::running::Running;
use crate::engine::sequence::Sequence;

/// Whether a state is worth keeping: only a memory that cannot be cut has any use for it.
fn keeps_states<R: Runner>(core: &Core<R>) -> bool {
    core.memory.kind().is_a_state() && core.memory.cache().has_store()
}

/// How many tokens a sequence may compute until its state is to be kept.
pub(super) fn n_to_snapshot<R: Runner>(core: &Core<R>, running: &Running) -> u32 {
    if running.sequence.n_predicted() > 0 || !keeps_states(core) {
        return u32::MAX;
    }
    let places = &running.sequence.request().snapshots_at;
    places.iter().find(|&&at| at > running.n_held).map_or(u32::MAX, |at| at - running.n_held)
}

/// Keeps what this decode has reached and will be gone after the next.
pub(super) fn keep_snapshots<R: Runner>(core: &mut Core<R>) {
    if keeps_states(core) {
        keep_states(core);
    } else if core.memory.kind().n_window > 0 {
        keep_windows(core);
    }
}

/// Keeps the windows at the ends of prompts of which a later one may have no more: a chat's, whose answer may be asked for again or
/// come back otherwise. They take a sequence id that is free, and leave as any path that is idle.
fn keep_windows<R: Runner>(core: &mut Core<R>) {
    for nth in 0..core.slots.running().len() {
        let running = &core.slots.running()[nth];
        let is_new_end = running.n_planned > 0 && running.sequence.n_predicted() == 0 && running.will_draw();
        let is_wanted = !running.sequence.request().snapshots_at.is_empty() && running.n_grouped.is_none();
        let n_tokens = running.n_held + running.n_planned;
        if !(is_new_end && is_wanted && n_tokens >= MIN_SHARED) {
            continue;
        }
        let (id, sequence) = (running.id, &running.sequence);
        let maker = Maker { request_id: sequence.request_id, owner: sequence.request().owner.clone() };
        let variants = sequence.variants.clone();
        // Where the prompt comes again, its last token is computed for the logits after it.
        let Some(n_kept) = [n_tokens - 1, n_tokens].into_iter().find(|&n| core.memory.can_fork(id, n)) else { continue };
        let Some(kept) = core.memory.place(&variants, Some(&Match::in_pool(id, n_kept))) else { return };
        core.memory.cache_mut().name_maker(kept, maker);
        core.memory.cache_mut().unpin(kept);
    }
}

/// Keeps the states at the ends of prompts, with the logits after them, and where requests want them.
fn keep_states<R: Runner>(core: &mut Core<R>) {
    let mut n_rows = 0;
    for nth in 0..core.slots.running().len() {
        let running = &core.slots.running()[nth];
        n_rows += running.n_planned as usize;
        let n_tokens = running.n_held + running.n_planned;
        if running.n_planned == 0 || running.sequence.n_predicted() > 0 || n_tokens < MIN_SHARED {
            continue;
        }
        let (id, is_end) = (running.id, running.will_draw());
        if !is_end && !running.sequence.request().snapshots_at.contains(&n_tokens) {
            continue;
        }
        let Sequence { variants, tokens, .. } = &running.sequence;
        let known = core.memory.cache().snapshot(variants, &tokens.first(n_tokens));
        let is_kept = known.is_some_and(|logits| !is_end || logits.is_some());
        if !is_kept && core.memory.cache().can_keep_snapshot(n_tokens) {
            let logits = is_end.then(|| core.memory.model().logits(n_rows - 1).into());
            core.memory.snapshot(id, n_tokens, logits);
        }
    }
}
