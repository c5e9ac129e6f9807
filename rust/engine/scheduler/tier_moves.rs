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
    let mut next = scheduler.slots.next_key(None);
    while let Some(key) = next {
        if let Some(matched) = find_awaited(scheduler, cache, scheduler.slots.sequence(key)) {
            let RunningSequence { path, sequence, n_held, phase, .. } = scheduler.slots.sequence_mut(key);
            cache.replace(path, &sequence.adapter_schedule, Some(&matched), sequence.provenance());
            (*n_held, *phase) = (matched.n_device, Phase::for_match(matched, sequence));
            scheduler.has_changed = true;
        }
        while !cache.is_out_of_time() {
            match reload_next(scheduler, cache, key) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if scheduler.slots.sequence(key).sequence.is_load() => {
                    scheduler.fail(&[scheduler.slots.sequence(key).sequence.group_id], &error);
                    break;
                }
                Err(error) => {
                    tracing::warn!("a saved prefix cannot be reloaded and is computed again: {error}");
                    compute_instead(cache, scheduler.slots.sequence_mut(key));
                    scheduler.lower_n_cached(key);
                    break;
                }
            }
        }
        next = scheduler.slots.next_key(Some(key));
    }
    for (key, result) in run_tasks(scheduler.slots.running_mut(), cache) {
        scheduler.end_task(key, result);
    }
    let is_idle = scheduler.slots.running().is_empty();
    while !cache.is_out_of_time() && cache.offload_early(is_idle) {}
    while !cache.is_out_of_time() && cache.relocate(|ids, reason| scheduler.fail_lost(ids, reason)) {}
    hold_prompts(&mut scheduler.queue, cache);
}

/// Reloads the next entry of a sequence. Returns `false` if none is left, if it must wait, or if its tokens are computed instead.
fn reload_next<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>, key: SchedulingKey) -> Result<bool> {
    let running = scheduler.slots.sequence(key);
    let Some(next) = running.next_reload() else { return Ok(false) };
    let [n_entry, n_kept] = [&next.range, &next.kept].map(|range| range.end - range.start);
    // Junior sequences yield cells that this one will keep, as they would if it computed them. For cells that the entry needs
    // only temporarily they yield only if the entry cannot be computed.
    let n_wanted = if running.sequence.is_load() { n_entry } else { n_kept };
    if cache.free_cells(n_wanted, Urgency::WithinMoveTime, || scheduler.release_cells(key)) < n_wanted {
        if cache.is_out_of_time() || !scheduler.is_most_senior(key) {
            return Ok(false);
        }
        // Even the most senior sequence, or group that runs together, cannot get enough cells: its tokens are computed instead.
        let running = scheduler.slots.sequence(key);
        let n_ctx = (running.n_held + cache.n_free()) as usize;
        return Err(Error::ContextOverflow { n_prompt: running.sequence.tokens.len() as usize, n_ctx });
    }
    if cache.free_idle_cells(n_entry) {
        return reload_entry(cache, scheduler.slots.sequence_mut(key)).map(|()| true);
    }
    if cache.has_idle_cells(n_entry) && cache.is_out_of_time() {
        return Ok(false);
    }
    tracing::debug!("a host cache entry of {n_entry} tokens has no room: {n_kept} of them are computed");
    compute_instead(cache, scheduler.slots.sequence_mut(key));
    scheduler.lower_n_cached(key);
    Ok(false)
}

fn reload_entry<R: Runner>(cache: &mut CacheManager<R>, running: &mut RunningSequence) -> Result<()> {
    let next = running.next_reload().expect("an entry is left to reload");
    let tokens = running.sequence.tokens.slices(next.kept.clone()).concat();
    let reloaded = cache.restore(running.id(), next, &tokens);
    reloaded.map_err(|error| Error::PrefixRefused { reason: error.to_string() })?;
    running.finish_reload();
    Ok(())
}

fn compute_instead<R: Runner>(cache: &mut CacheManager<R>, running: &mut RunningSequence) {
    running.phase = Phase::Prefilling;
    // Entries that were already reloaded may end where the memory cannot continue.
    if running.n_held > 0 && !cache.can_fork(running.id(), running.n_held) {
        running.path.discard_failed();
        running.path = cache.place(None, &running.sequence.adapter_schedule, None).expect("its own id is free");
        running.n_held = 0;
    }
}

impl Scheduler {
    /// Returns true if no running sequence of another search is senior to the search of `key`.
    fn is_most_senior(&self, key: SchedulingKey) -> bool {
        let running = self.slots.sequence(key);
        self.slots.running().iter().take_while(|senior| senior.key() < key).all(|senior| senior.runs_with(running))
    }

    pub(super) fn lower_n_cached(&mut self, key: SchedulingKey) {
        let running = self.slots.sequence_mut(key);
        let n_lost = u64::from(running.sequence.lower_n_cached(running.n_held));
        if running.sequence.request.task == Task::Complete {
            self.stats.n_cached = self.stats.n_cached.saturating_sub(n_lost);
            self.stats.n_reloaded = self.stats.n_reloaded.saturating_sub(n_lost);
        }
    }
}
