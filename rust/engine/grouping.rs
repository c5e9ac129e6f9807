//! Self-extend: texts longer than the model was trained on, whose older tokens share positions in groups, as configured by
//! [`Grouping`].
//!
//! A cell has one position for all sequences that share it. When tokens of a sequence are grouped for the first time, the
//! sequence therefore copies its cells, and shares none afterwards. Cached cells are never grouped: a longer prompt shares
//! only its beginning.
//!
//! [`Grouping`]: crate::config::Grouping

use crate::engine::core::Core;
use crate::engine::lifecycle::{Urgency, free_cells, free_ids, preempt};
use crate::engine::runner::{KvSeqId, Runner};
use crate::engine::running_sequence::{Phase, RunningSequence};
use crate::engine::tier_moves::lower_n_cached;
use crate::request::{Task, Token};

/// Returns the number of first tokens of a sequence that must be grouped before its next one is computed.
fn n_due<R: Runner>(core: &Core<R>, running: &RunningSequence) -> u32 {
    let grouping = core.limits.grouping.filter(|_| running.sequence.request().task == Task::Complete);
    grouping.map_or(0, |grouping| grouping.n_grouped(running.n_held, running.sequence.n_prompt))
}

/// Returns how many tokens a sequence may compute until more are grouped; 0 if grouping is due.
pub(super) fn n_until_grouped<R: Runner>(core: &Core<R>, running: &RunningSequence) -> u32 {
    match core.limits.grouping {
        Some(_) if n_due(core, running) > running.n_grouped.unwrap_or(0) => 0,
        Some(grouping) if running.sequence.request().task == Task::Complete => {
            grouping.n_until_next(running.n_held, running.sequence.n_prompt)
        }
        _ => u32::MAX,
    }
}

/// Groups due tokens, most senior sequence first; junior ones are preempted for the copies.
pub(super) fn group<R: Runner>(core: &mut Core<R>) {
    let Some(grouping) = core.limits.grouping else { return };
    let mut nth = 0;
    while nth < core.slots.running().len() {
        let running = &core.slots.running()[nth];
        let is_due = running.n_ready() > 0 && n_due(core, running) > running.n_grouped.unwrap_or(0);
        if is_due && (running.n_grouped.is_some() || copy_cells(core, nth)) {
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

/// Gives the sequence at `nth` a copy of its cells. If there is no room, or the memory refuses, it computes all of them again.
/// Returns `false` if no sequence id is available in this step.
fn copy_cells<R: Runner>(core: &mut Core<R>, nth: usize) -> bool {
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
    let (tokens, adapter_schedule) = (running.computed_tokens(), running.sequence.adapter_schedule.clone());
    let own = core.memory.place_private(&adapter_schedule).expect("an id was freed before");
    let is_copied = has_room && copy(core, id, own, &tokens);
    core.memory.cache_mut().unpin(id);
    core.has_changed = true;
    let running = &mut core.slots.running_mut()[nth];
    (running.id, running.n_grouped) = (own, Some(0));
    if !is_copied {
        (running.n_held, running.phase) = (0, Phase::Prefilling);
        lower_n_cached(core, nth);
    }
    true
}

/// Copies the `tokens` of `from` to `to`, which must be empty. Returns `false` if the memory refused.
fn copy<R: Runner>(core: &mut Core<R>, from: KvSeqId, to: KvSeqId, tokens: &[Token]) -> bool {
    let copied = core.memory.copy(from, to, tokens);
    if let Err(error) = &copied {
        tracing::warn!("what a sequence holds could not be copied, so it is computed again: {error}");
    }
    copied.is_ok()
}
