//! Requests without completions: pins, saves and loads.

use std::sync::Arc;
use std::time::Instant;

use crate::engine::cache_manager::CacheManager;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::running_sequence::{Phase, RunningSequence};
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::error::{Error, Result};
use crate::request::{FinishReason, SavedPrefix, SavedRun, Task, TaskResult};

/// Carries out tasks whose prompts are computed. Returns the sequences of those that have ended, and their results.
pub(crate) fn run_tasks<R: Runner>(
    running: &mut [RunningSequence],
    cache: &mut CacheManager<R>,
) -> Vec<(SchedulingKey, Result<Option<TaskResult>>)> {
    let due = running.iter_mut().filter(|running| running.sequence.request.task != Task::Complete && running.n_uncomputed() == 0);
    let ended = due.filter_map(|running| Some((running.key(), run_task(running, cache)?)));
    ended.collect()
}

/// Returns `None` if further entries of the prefix must be saved in later steps.
fn run_task<R: Runner>(running: &mut RunningSequence, cache: &mut CacheManager<R>) -> Option<Result<Option<TaskResult>>> {
    if matches!(running.sequence.request.task, Task::Save { .. }) {
        match save_next(cache, running) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(Err(error)),
        }
    }
    Some(take_result(cache, running))
}

impl Scheduler {
    pub(crate) fn end_task(&mut self, key: SchedulingKey, result: Result<Option<TaskResult>>) {
        let sequence = &mut self.slots.running_sequence_mut(key).sequence;
        match result {
            Ok(result) => {
                let reason = sequence.end_without_token(Instant::now()).unwrap_or(FinishReason::Length);
                self.finish(key, reason, result);
            }
            Err(error @ Error::Save { .. }) => {
                let group_id = sequence.group_id;
                self.fail(&[group_id], &error);
            }
            Err(error) => self.fail_computed(key, error),
        }
    }
}

/// Saves further entries of a prefix. Returns true when all of it is saved.
fn save_next<R: Runner>(cache: &mut CacheManager<R>, running: &mut RunningSequence) -> Result<bool> {
    if !matches!(running.phase, Phase::Saving(_)) {
        running.phase = Phase::Saving(SavedPrefix::default());
    }
    let id = running.id();
    let Phase::Saving(saved) = &mut running.phase else { return Ok(true) };
    loop {
        let start = saved.runs.last().map_or(0, |run| run.range.end);
        if start == running.n_computed {
            return Ok(true);
        }
        if cache.is_out_of_time() {
            return Ok(false);
        }
        let (range, n_units) = cache.next_to_save(id, start, running.n_computed);
        let bytes = cache.save(id, range.clone(), Some(n_units));
        let bytes = bytes.map_err(|error| Error::Save { reason: error.to_string() })?;
        saved.runs.push(SavedRun { range, bytes });
    }
}

fn take_result<R: Runner>(cache: &mut CacheManager<R>, running: &mut RunningSequence) -> Result<Option<TaskResult>> {
    match &running.sequence.request.task {
        Task::Complete => Ok(None),
        Task::Load(saved) => {
            // Recurrent memory cannot recompute the last token: the logits after it are part of the file.
            if let (Some(logits), [run]) = (&saved.logits, &saved.runs[..])
                && cache.kind().is_a_state()
            {
                cache.add_checkpoint(running.id(), running.n_computed, Arc::clone(&run.bytes), logits[..].into());
            }
            Ok(None)
        }
        Task::Save { .. } => {
            let tokens = running.computed_tokens();
            let adapter_schedule = running.sequence.adapter_schedule.prefix(running.n_computed);
            let kv = cache.kv();
            let checkpoint = kv.find_checkpoint(&adapter_schedule, &tokens);
            let logits = checkpoint.and_then(|checkpoint| checkpoint.logits.as_deref()).map(<[f32]>::to_vec);
            let Phase::Saving(saved) = &mut running.phase else { unreachable!("the phase of a save is Saving") };
            let (adapters, invoked_at) = (adapter_schedule.adapters().collect(), adapter_schedule.change());
            Ok(Some(TaskResult::Saved(SavedPrefix { tokens, logits, adapters, invoked_at, ..std::mem::take(saved) })))
        }
        Task::Pin => Ok(Some(TaskResult::Pinned(cache.pin(&mut running.path)?))),
    }
}
