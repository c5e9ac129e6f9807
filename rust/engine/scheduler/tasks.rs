//! Requests without completions: pins, saves and loads.

use std::sync::Arc;
use std::time::Instant;

use crate::engine::cache_manager::CacheManager;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::running_sequence::{Phase, RunningSequence};
use crate::error::{Error, Result};
use crate::request::{FinishReason, SavedPiece, SavedPrefix, Task, TaskResult};

pub(crate) fn finish_tasks<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>) {
    let mut next = scheduler.slots.next_key(None);
    while let Some(key) = next {
        next = scheduler.slots.next_key(Some(key));
        let running = scheduler.slots.sequence_mut(key);
        let task = &running.sequence.request.task;
        if *task == Task::Complete || running.n_uncomputed() > 0 {
            continue;
        }
        match if matches!(task, Task::Save { .. }) { save_next(cache, running) } else { Ok(true) } {
            Ok(true) => match take_result(cache, running) {
                Ok(result) => {
                    let reason = running.sequence.end_without_token(Instant::now()).unwrap_or(FinishReason::Length);
                    scheduler.finish(key, reason, result);
                }
                Err(error) => scheduler.fail_computed(key, error),
            },
            Ok(false) => {}
            Err(error) => {
                let group_id = running.sequence.group_id;
                scheduler.fail(&[group_id], &error);
            }
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
        let start = saved.pieces.last().map_or(0, |piece| piece.range.end);
        if start == running.n_held {
            return Ok(true);
        }
        if cache.is_out_of_time() {
            return Ok(false);
        }
        let (range, n_units) = cache.next_to_save(id, start, running.n_held);
        let bytes = cache.save(id, range.clone(), Some(n_units));
        let bytes = bytes.map_err(|error| Error::Save { reason: error.to_string() })?;
        saved.pieces.push(SavedPiece { range, bytes });
    }
}

fn take_result<R: Runner>(cache: &mut CacheManager<R>, running: &mut RunningSequence) -> Result<Option<TaskResult>> {
    match &running.sequence.request.task {
        Task::Complete => Ok(None),
        Task::Load(saved) => {
            // Recurrent memory cannot recompute the last token: the logits after it are part of the file.
            if let (Some(logits), [piece]) = (&saved.logits, &saved.pieces[..])
                && cache.kind().is_a_state()
            {
                cache.add_checkpoint(running.id(), running.n_held, Arc::clone(&piece.bytes), logits[..].into());
            }
            Ok(None)
        }
        Task::Save { .. } => {
            let tokens = running.computed_tokens();
            let adapter_schedule = running.sequence.adapter_schedule.prefix(running.n_held);
            cache.settle();
            let checkpoint = cache.kv().find_checkpoint(&adapter_schedule, &tokens);
            let logits = checkpoint.and_then(|checkpoint| checkpoint.logits.as_deref()).map(<[f32]>::to_vec);
            let Phase::Saving(saved) = &mut running.phase else { unreachable!("the phase of a save is Saving") };
            let (adapters, invoked_at) = (adapter_schedule.adapters().collect(), adapter_schedule.change());
            Ok(Some(TaskResult::Saved(SavedPrefix { tokens, logits, adapters, invoked_at, ..std::mem::take(saved) })))
        }
        Task::Pin => Ok(Some(TaskResult::Pinned(cache.pin(&mut running.path)?))),
    }
}
