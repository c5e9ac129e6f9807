//! Self-extend: texts longer than the model was trained on, whose older tokens share positions in groups.
//!
//! A cell has one position for all sequences that share it. When tokens of a sequence are grouped for the first time, the
//! sequence therefore copies its cells, and shares none afterwards. Cached cells are never grouped: a longer prompt shares
//! only its beginning.

use crate::config::{Grouping, Limits};
use crate::engine::cache_manager::CacheManager;
use crate::engine::cache_manager::reclaim::Urgency;
use crate::engine::runner::{KvSeqId, Runner};
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::request_group::RequestGroup;
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::request::Task;

pub(crate) fn on_new_group(limits: &Limits, group: &mut RequestGroup) {
    if let Some(grouping) = limits.grouping.filter(|_| group.request.task == Task::Complete) {
        group.shared_until = grouping.first(group.n_prompt());
    }
}

fn grouping_of(scheduler: &Scheduler, running: &RunningSequence) -> Option<Grouping> {
    scheduler.limits().grouping.filter(|_| running.sequence.request.task == Task::Complete)
}

fn n_grouped(running: &RunningSequence) -> u32 {
    if running.shares_cells { 0 } else { running.sequence.features.self_extend }
}

/// Returns how many tokens a sequence may compute until more are grouped; 0 if grouping is due.
pub(crate) fn n_until_grouped(scheduler: &Scheduler, running: &RunningSequence) -> u32 {
    let Some(grouping) = grouping_of(scheduler, running) else { return u32::MAX };
    if n_due(grouping, running) > n_grouped(running) {
        return 0;
    }
    grouping.n_until_next(running.n_computed, running.sequence.n_prompt)
}

fn n_due(grouping: Grouping, running: &RunningSequence) -> u32 {
    grouping.n_grouped(running.n_computed, running.sequence.n_prompt)
}

/// Groups due tokens, most senior sequence first; junior ones are preempted for the copies.
pub(crate) fn group_due_tokens<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>) {
    if scheduler.limits().grouping.is_none() {
        return;
    }
    let mut cursor = None;
    while let Some(key) = scheduler.next_key(&mut cursor) {
        let running = scheduler.running_sequence(key);
        let is_due = running.n_ready() > 0 && n_until_grouped(scheduler, running) == 0;
        if let Some(grouping) = grouping_of(scheduler, running).filter(|_| is_due) {
            let (n_computed, is_shared) = (running.n_computed, running.shares_cells);
            let needs_id = |cache: &mut CacheManager<R>| is_shared && cache.n_free_ids() == 0;
            while needs_id(cache) && !cache.free_ids(1, Urgency::WithinMoveTime, || scheduler.release_junior_holder()) {
                if cache.is_out_of_time() || !scheduler.preempt_most_junior(key) {
                    break;
                }
            }
            if !needs_id(cache) {
                if is_shared {
                    let has_cells = cache.free_cells(n_computed, Urgency::Now, || scheduler.release_cells(key)) == n_computed;
                    let running = scheduler.running_sequence(key);
                    let own = cache.place_private(&running.sequence.adapter_schedule).expect("an id was freed before");
                    let is_copied = has_cells && copy_cells(cache, running, own.id());
                    scheduler.sequence_mut(key).features.self_extend = 0;
                    scheduler.move_to_private(key, own, if is_copied { n_computed } else { 0 });
                }
                let running = scheduler.running_sequence(key);
                let (id, n_due) = (running.id(), n_due(grouping, running));
                let n_before = std::mem::replace(&mut scheduler.sequence_mut(key).features.self_extend, n_due);
                if n_before < n_due {
                    cache.group_positions(id, n_before..n_due, grouping.n);
                }
            }
        }
    }
}

/// Copies the cells of a sequence, if the memory can. Otherwise they are computed again.
fn copy_cells<R: Runner>(cache: &mut CacheManager<R>, running: &RunningSequence, to: KvSeqId) -> bool {
    let copied = cache.copy(running.id(), to, &running.computed_tokens());
    if let Err(error) = &copied {
        tracing::warn!("the cells of a sequence could not be copied, so they are computed again: {error}");
    }
    copied.is_ok()
}
