//! Texts that outgrow what a model was trained on: their older tokens take positions in groups, where [`Grouping`] says.
//!
//! A cell has one position for all who hold it. So when tokens of a sequence are grouped for the first time, it takes a copy of what
//! it holds, and shares nothing from then on. What others find, in the tree or in the store, is never grouped: of a prompt that is
//! longer than that they find its beginning.
//!
//! [`Grouping`]: crate::config::Grouping

use crate::engine::core::Core;
use crate::engine::lifecycle::{Urgency, free_cells, free_ids, preempt};
use crate::engine::runner::{KvSeqId, Runner};
use crate::engine::running_sequence::{Phase, RunningSequence};
use crate::engine::tier_moves::count_lost;
use crate::request::{Task, Token};

/// How many of the first tokens of a sequence are to be grouped before its next one is computed.
fn n_due<R: Runner>(core: &Core<R>, running: &RunningSequence) -> u32 {
    let grouping = core.limits.grouping.filter(|_| running.sequence.request().task == Task::Complete);
    grouping.map_or(0, |grouping| grouping.n_grouped(running.n_held, running.sequence.n_prompt))
}

/// How many tokens a sequence may compute until more are grouped; none before what is due is done.
pub(super) fn n_until_grouped<R: Runner>(core: &Core<R>, running: &RunningSequence) -> u32 {
    match core.limits.grouping {
        Some(_) if n_due(core, running) > running.n_grouped.unwrap_or(0) => 0,
        Some(grouping) if running.sequence.request().task == Task::Complete => {
            grouping.n_until_next(running.n_held, running.sequence.n_prompt)
        }
        _ => u32::MAX,
    }
}

/// Groups what is due, the most senior first: junior ones give way for the copies that it takes.
pub(super) fn group<R: Runner>(core: &mut Core<R>) {
    let Some(grouping) = core.limits.grouping else { return };
    let mut nth = 0;
    while nth < core.slots.running().len() {
        let running = &core.slots.running()[nth];
        let is_due = running.n_ready() > 0 && n_due(core, running) > running.n_grouped.unwrap_or(0);
        if is_due && (running.n_grouped.is_some() || take_own(core, nth)) {
            let n_due = n_due(core, &core.slots.running()[nth]);
            let running = &mut core.slots.running_mut()[nth];
            let n_before = running.n_grouped.replace(n_due).unwrap_or(0);
            if n_before < n_due {
                core.memory.group(running.id, n_before..n_due, grouping.n);
            }
        }
        nth += 1;
    }
}

/// The sequence at `nth` takes a copy of its own of what it holds; where there is no room for that, or the memory refuses, it
/// computes all of it again. `false` where there is no sequence id for it in this step.
fn take_own<R: Runner>(core: &mut Core<R>, nth: usize) -> bool {
    while !free_ids(core, 1) {
        let is_junior = core.slots.running().len() > nth + 1;
        if core.memory.is_out_of_time() || !is_junior {
            return false;
        }
        preempt(core, core.slots.running().len() - 1);
    }
    let RunningSequence { id, n_held, .. } = core.slots.running()[nth];
    let has_room = free_cells(core, nth, n_held, Urgency::Now) == n_held;
    let running = &core.slots.running()[nth];
    let (tokens, variants) = (running.held(), running.sequence.variants.clone());
    let own = core.memory.place_private(&variants).expect("an id was freed before");
    let is_copied = has_room && copy(core, id, own, &tokens);
    core.memory.cache_mut().unpin(id);
    core.has_changed = true;
    let running = &mut core.slots.running_mut()[nth];
    (running.id, running.n_grouped) = (own, Some(0));
    if !is_copied {
        (running.n_held, running.phase) = (0, Phase::Prefilling);
        count_lost(core, nth);
    }
    true
}

/// Copies the `tokens` that `from` holds to `to`, which holds nothing. `false` where the memory refuses.
fn copy<R: Runner>(core: &mut Core<R>, from: KvSeqId, to: KvSeqId, tokens: &[Token]) -> bool {
    let copied = core.memory.copy(from, to, tokens);
    if let Err(error) = &copied {
        tracing::warn!("what a sequence holds could not be copied, so it is computed again: {error}");
    }
    copied.is_ok()
}
