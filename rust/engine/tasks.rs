//! Requests without completions: pins, saves and loads.

use std::sync::Arc;
use std::time::Instant;

use crate::engine::core::Core;
use crate::engine::lifecycle::{fail_sequence, finish, finish_idle, leave_slot};
use crate::engine::runner::Runner;
use crate::engine::running_sequence::Phase;
use crate::error::{Error, Result};
use crate::request::{FinishReason, SavedPiece, SavedPrefix, Task, TaskResult};

/// Finishes tasks whose prompt is computed or reloaded.
pub(super) fn finish_tasks<R: Runner>(core: &mut Core<R>) {
    let mut nth = 0;
    while nth < core.slots.running().len() {
        if core.is_complete(nth) || core.slots.running()[nth].n_uncomputed() > 0 {
            nth += 1;
            continue;
        }
        let is_save = matches!(core.task(nth), Task::Save { .. });
        match if is_save { save_more(core, nth) } else { Ok(true) } {
            Ok(true) => finish_task(core, nth),
            Ok(false) => nth += 1,
            Err(error) => fail_sequence(core, nth, error),
        }
    }
}

/// Saves further entries of a prefix. Returns true when all of it is saved.
fn save_more<R: Runner>(core: &mut Core<R>, nth: usize) -> Result<bool> {
    let Core { slots, memory, .. } = core;
    let running = &mut slots.running_mut()[nth];
    if !matches!(running.phase, Phase::Copying(_)) {
        running.phase = Phase::Copying(SavedPrefix::default());
    }
    let Phase::Copying(saved) = &mut running.phase else { return Ok(true) };
    loop {
        let start = saved.pieces.last().map_or(0, |piece| piece.range.end);
        if start == running.n_held {
            return Ok(true);
        }
        if memory.is_out_of_time() {
            return Ok(false);
        }
        let (range, n_units) = memory.next_to_save(running.id, start, running.n_held);
        let bytes = memory.save(running.id, range.clone(), Some(n_units));
        let bytes = bytes.map_err(|error| Error::Save { reason: error.to_string() })?;
        saved.pieces.push(SavedPiece { range, bytes });
    }
}

fn finish_task<R: Runner>(core: &mut Core<R>, nth: usize) {
    let mut running = core.slots.take(nth);
    let stream_id = running.sequence.stream_id;
    let reason = running.sequence.end_without_token(Instant::now()).unwrap_or(FinishReason::Length);
    match running.sequence.request().task.clone() {
        Task::Complete => finish(core, running, reason, None),
        Task::Load(saved) => {
            // Recurrent memory cannot recompute the last token: the logits after it are part of the file.
            if let (Some(logits), [piece]) = (&saved.logits, &saved.pieces[..])
                && core.memory.kind().is_a_state()
            {
                let bytes = Arc::clone(&piece.bytes);
                core.memory.cache_mut().add_checkpoint(running.id, running.n_held, bytes, Some(logits[..].into()));
            }
            finish(core, running, reason, None);
        }
        Task::Save { .. } => {
            let tokens = running.computed_tokens();
            let adapter_schedule = running.sequence.adapter_schedule.prefix(running.n_held);
            let logits =
                core.memory.cache().checkpoint_logits(&adapter_schedule, &tokens).flatten().map(|logits| logits.to_vec());
            let Phase::Copying(saved) = &mut running.phase else { unreachable!("what is saved was copied") };
            let (adapters, invoked_at) = (adapter_schedule.adapters().collect(), adapter_schedule.change());
            let saved = SavedPrefix { tokens, logits, adapters, invoked_at, ..std::mem::take(saved) };
            finish(core, running, reason, Some(TaskResult::Saved(saved)));
        }
        Task::Pin => {
            leave_slot(core, &running);
            match core.memory.cache_mut().pin(running.id) {
                Ok(pinned) => finish_idle(core, running, reason, Some(TaskResult::Pinned(pinned))),
                Err(error) => core.output.failed.push((stream_id, error)),
            }
        }
    }
}
