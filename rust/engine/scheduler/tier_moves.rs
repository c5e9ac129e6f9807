//! Moves between the device cache and the host cache, within the time budget of a step.

use crate::engine::cache_manager::CacheManager;
use crate::engine::cache_manager::reclaim::Urgency;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::prefix_match::hold_prompts;
use crate::engine::scheduler::resumption::find_awaited;
use crate::engine::scheduler::running_sequence::{Phase, RunningSequence};
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::scheduler::tasks::run_tasks;
use crate::error::{Error, Result};
use crate::request::Task;

/// Moves cache entries within the time of this step: first reloads for running sequences, then saves of prefix files, then
/// offloads that reduce the cost of decodes. Holds prompts on the sequence ids that are then free.
pub(crate) fn move_between_tiers<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>) {
    let mut cursor = None;
    while let Some(key) = scheduler.next_key(&mut cursor) {
        if let Some(matched) = find_awaited(scheduler, cache, scheduler.slots.running_sequence(key)) {
            let RunningSequence { path, sequence, n_computed, phase, .. } = scheduler.slots.running_sequence_mut(key);
            cache.replace(path, &sequence.adapter_schedule, Some(&matched), sequence.provenance());
            (*n_computed, *phase) = (matched.n_device, Phase::for_match(matched, sequence));
            scheduler.has_changed = true;
        }
        while !cache.is_out_of_time()
            && let Some(n_wanted) = scheduler.slots.running_sequence(key).n_reload_cells()
        {
            let n_free = cache.free_cells(n_wanted, Urgency::WithinMoveTime, || scheduler.release_cells(key));
            if n_free < n_wanted && (cache.is_out_of_time() || !scheduler.is_most_senior(key)) {
                break;
            }
            let running = scheduler.slots.running_sequence_mut(key);
            match reload_next(cache, running, n_free == n_wanted) {
                Ok(ReloadOutcome::Reloaded) => {}
                Ok(ReloadOutcome::Waits) => break,
                Err(error) if running.sequence.is_load() => {
                    let group_id = running.sequence.group_id;
                    scheduler.fail(&[group_id], &error);
                    break;
                }
                Ok(ReloadOutcome::HasNoRoom) => scheduler.lower_n_cached(key),
                Err(error) => {
                    tracing::warn!("a saved prefix cannot be reloaded and is computed again: {error}");
                    compute_instead(cache, running);
                    scheduler.lower_n_cached(key);
                }
            }
        }
    }
    for (key, result) in run_tasks(scheduler.slots.running_mut(), cache) {
        scheduler.end_task(key, result);
    }
    let is_idle = scheduler.slots.running().is_empty();
    while !cache.is_out_of_time() && cache.offload_early(is_idle) {}
    while !cache.is_out_of_time() && cache.relocate(|ids, reason| scheduler.fail_lost(ids, reason)) {}
    hold_prompts(&mut scheduler.queue, cache);
}

enum ReloadOutcome {
    Reloaded,
    Waits,
    /// There is no room for the entry: its tokens are computed instead.
    HasNoRoom,
}

/// Reloads the next entry of a sequence. If it has too few cells, it is the most senior sequence, or of the most senior group that
/// runs together, and cannot get enough: its tokens are computed instead.
fn reload_next<R: Runner>(cache: &mut CacheManager<R>, running: &mut RunningSequence, has_cells: bool) -> Result<ReloadOutcome> {
    if !has_cells {
        let n_ctx = (running.n_computed + cache.n_free()) as usize;
        return Err(Error::ContextOverflow { n_prompt: running.sequence.tokens.len() as usize, n_ctx });
    }
    let next = running.next_reload().expect("an entry is left to reload");
    let [n_entry, n_kept] = [&next.range, &next.kept].map(|range| range.end - range.start);
    if cache.free_idle_cells(n_entry) {
        let tokens = running.sequence.tokens.slices(next.kept.clone()).concat();
        let reloaded = cache.restore(running.id(), next, &tokens);
        reloaded.map_err(|error| Error::PrefixRefused { reason: error.to_string() })?;
        running.finish_reload();
        return Ok(ReloadOutcome::Reloaded);
    }
    if cache.has_idle_cells(n_entry) && cache.is_out_of_time() {
        return Ok(ReloadOutcome::Waits);
    }
    tracing::debug!("a host cache entry of {n_entry} tokens has no room: {n_kept} of them are computed");
    compute_instead(cache, running);
    Ok(ReloadOutcome::HasNoRoom)
}

fn compute_instead<R: Runner>(cache: &mut CacheManager<R>, running: &mut RunningSequence) {
    running.phase = Phase::Prefilling;
    // Entries that were already reloaded may end where the memory cannot continue.
    if running.n_computed > 0 && !cache.can_fork(running.id(), running.n_computed) {
        running.path.discard_failed();
        running.path = cache.place(None, &running.sequence.adapter_schedule, None).expect("its own id is free");
        running.n_computed = 0;
    }
}

impl Scheduler {
    /// Returns true if no running sequence of another search is senior to the search of `key`.
    fn is_most_senior(&self, key: SchedulingKey) -> bool {
        let running = self.slots.running_sequence(key);
        self.slots.running().iter().take_while(|senior| senior.key() < key).all(|senior| senior.runs_with(running))
    }

    pub(super) fn lower_n_cached(&mut self, key: SchedulingKey) {
        let running = self.slots.running_sequence_mut(key);
        let n_lost = u64::from(running.sequence.lower_n_cached(running.n_computed));
        if running.sequence.request.task == Task::Complete {
            self.stats.n_cached = self.stats.n_cached.saturating_sub(n_lost);
            self.stats.n_reloaded = self.stats.n_reloaded.saturating_sub(n_lost);
        }
    }
}
