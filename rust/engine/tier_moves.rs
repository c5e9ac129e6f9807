//! Moves between the device cache and the host cache, within the time budget of a step.

use crate::engine::cache_manager::{CacheManager, RelocationOutcome};
use crate::engine::move_budget::MAX_ENTRY_TIME;
use crate::engine::resumption::take_prefix;
use crate::engine::room::{Urgency, free_cells};
use crate::engine::runner::Runner;
use crate::engine::running_sequence::{Phase, RunningSequence};
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduling_key::SchedulingKey;
use crate::engine::tasks::finish_tasks;
use crate::error::Error;
use crate::request::Task;

/// Moves cache entries within the time of this step: first reloads for running sequences, then saves of prefix files, then
/// offloads that reduce the cost of decodes.
pub(super) fn move_between_tiers<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>) {
    let mut next = scheduler.slots.next_key(None);
    while let Some(key) = next {
        take_prefix(scheduler, cache, key);
        while !cache.is_out_of_time() && reload_next(scheduler, cache, key) {}
        next = scheduler.slots.next_key(Some(key));
    }
    finish_tasks(scheduler, cache);
    let is_idle = scheduler.slots.running().is_empty();
    while !cache.is_out_of_time() && cache.offload_early(is_idle) {}
    while !cache.is_out_of_time() && relocate(scheduler, cache) {}
}

/// Runs one move while no sequence is running. Returns `false` if there is nothing to move.
pub(super) fn use_idle_time<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>) -> bool {
    cache.begin_moving(MAX_ENTRY_TIME);
    cache.offload_early(true) || relocate(scheduler, cache)
}

/// Moves cells down if the used ones are scattered. Returns `false` if nothing was moved.
fn relocate<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>) -> bool {
    match cache.relocate() {
        RelocationOutcome::Done => true,
        RelocationOutcome::Unchanged => false,
        RelocationOutcome::Lost { ids, reason } => {
            scheduler.fail_lost(&ids, &reason);
            cache.kv_mut().invalidate(&ids);
            false
        }
    }
}

/// Reloads the next entry of a running sequence. Returns `false` if no entry is left, or it must wait, or it has ended.
fn reload_next<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>, key: SchedulingKey) -> bool {
    let Some(next) = scheduler.slots.at(key).next_reload() else { return false };
    let (n_entry, n_kept) = (length(&next.range), length(&next.kept));
    let must_load = matches!(scheduler.task(key), Task::Load(_));
    // Junior sequences yield cells that this one will keep, as they would if it computed them. For cells that the entry needs
    // only temporarily they yield only if the entry cannot be computed.
    let n_wanted = if must_load { n_entry } else { n_kept };
    if free_cells(scheduler, cache, key, n_wanted, Urgency::WithinMoveTime) < n_wanted {
        // The most senior sequence, or search, gets all cells that are not pinned; if those are not enough, only computing is
        // left.
        if !cache.is_out_of_time() && scheduler.is_most_senior(key) {
            let running = scheduler.slots.at(key);
            let n_ctx = (running.n_held + cache.n_free()) as usize;
            let error = Error::ContextOverflow { n_prompt: running.sequence.tokens.len() as usize, n_ctx };
            scheduler.give_up_reload(cache, key, error);
        }
        return false;
    }
    if cache.free_idle_cells(n_entry) {
        let reloaded = reload_entry(cache, scheduler.slots.at_mut(key));
        let is_reloaded = reloaded.is_ok();
        if let Err(error) = reloaded {
            scheduler.give_up_reload(cache, key, error);
        }
        return is_reloaded;
    }
    if !(cache.has_idle_cells(n_entry) && cache.is_out_of_time()) {
        tracing::debug!("a host cache entry of {n_entry} tokens has no room: {n_kept} of them are computed");
        scheduler.compute_instead(cache, key);
    }
    false
}

/// Reloads the next entry of `running`.
///
/// # Errors
/// [`Error::PrefixRefused`] if the memory refuses it.
fn reload_entry<R: Runner>(cache: &mut CacheManager<R>, running: &mut RunningSequence) -> Result<(), Error> {
    let next = running.next_reload().expect("the caller has seen it");
    let tokens = running.sequence.tokens.slices(next.kept.clone()).concat();
    let reloaded = cache.restore(running.id(), next, &tokens);
    reloaded.map_err(|error| Error::PrefixRefused { reason: error.to_string() })?;
    running.finish_reload();
    Ok(())
}

/// Drops the reloaded cells of `running` if the memory cannot continue where the last reloaded entry ends.
fn keep_extensible<R: Runner>(cache: &mut CacheManager<R>, running: &mut RunningSequence) {
    if running.n_held > 0 && !cache.can_extend(running.id(), running.n_held) {
        running.path.discard_failed();
        running.path = cache.place(&running.sequence.adapter_schedule, None).expect("its own id is free");
        running.n_held = 0;
    }
}

impl Scheduler {
    /// Returns true if no running sequence of another search is senior to that of `key`.
    fn is_most_senior(&self, key: SchedulingKey) -> bool {
        let running = self.slots.at(key);
        self.slots.running().iter().take_while(|senior| senior.key() < key).all(|senior| senior.is_in_same_search(running))
    }

    /// Gives up a reload: the sequence computes the tokens instead, and a load fails.
    fn give_up_reload<R: Runner>(&mut self, cache: &mut CacheManager<R>, key: SchedulingKey, error: Error) {
        if matches!(self.task(key), Task::Load(_)) {
            self.fail_sequence(key, error);
        } else {
            tracing::warn!("a saved prefix cannot be reloaded and is computed again: {error}");
            self.compute_instead(cache, key);
        }
    }

    /// Makes a sequence compute the tokens that were to be reloaded.
    fn compute_instead<R: Runner>(&mut self, cache: &mut CacheManager<R>, key: SchedulingKey) {
        let running = self.slots.at_mut(key);
        running.phase = Phase::Prefilling;
        keep_extensible(cache, running);
        self.lower_n_cached(key);
    }

    /// Lowers the number of cached prompt tokens of a sequence to those it has: the rest is computed.
    pub(super) fn lower_n_cached(&mut self, key: SchedulingKey) {
        let running = self.slots.at_mut(key);
        let n_lost = u64::from(running.sequence.lower_n_cached(running.n_held));
        if *self.task(key) == Task::Complete {
            self.stats.n_cached = self.stats.n_cached.saturating_sub(n_lost);
            self.stats.n_reloaded = self.stats.n_reloaded.saturating_sub(n_lost);
        }
    }
}

fn length(range: &std::ops::Range<u32>) -> u32 {
    range.end - range.start
}
