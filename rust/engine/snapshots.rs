//! States that are kept of a prompt, of a model whose memory cannot be cut: it will be at these points never again.

use crate::cache::MIN_SHARED;
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

/// Keeps the states that this decode has reached: at the ends of prompts, with the logits after them, and where requests want them.
pub(super) fn keep_snapshots<R: Runner>(core: &mut Core<R>) {
    if !keeps_states(core) {
        return;
    }
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
