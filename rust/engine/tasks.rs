//! Requests whose prompt is all that they want: pins, saves and loads.

use std::sync::Arc;
use std::time::Instant;

use crate::engine::runner::{Runner, StateError};
use crate::engine::running::Running;
use crate::engine::worker::Worker;
use crate::error::{Error, Result};
use crate::request::{FinishReason, Made, SavedPiece, SavedPrefix, Task};

impl<R: Runner> Worker<R> {
    /// Ends the requests whose prompt was all that they wanted, once it is computed or restored.
    pub(super) fn finish_tasks(&mut self) {
        let mut place = 0;
        while place < self.running.len() {
            let running = &self.running[place];
            let task = &self.jobs[&running.sequence.request_id].task;
            if *task == Task::Complete || running.n_uncomputed() > 0 {
                place += 1;
                continue;
            }
            let is_save = matches!(task, Task::Save { .. });
            match if is_save { self.save_more(place) } else { Ok(true) } {
                Ok(true) => self.finish_task(place),
                Ok(false) => place += 1,
                Err(error) => self.end_with(place, error),
            }
        }
    }

    /// Copies the next pieces of what is to be saved. `true` when all of it is copied.
    fn save_more(&mut self, place: usize) -> Result<bool> {
        self.carry_out();
        let is_state = self.runner.memory().is_a_state();
        let n_held = self.running[place].n_held;
        loop {
            let running = &self.running[place];
            let start = running.saved.pieces.last().map_or(0, |piece| piece.range.end);
            if start == n_held {
                return Ok(true);
            }
            if self.movement.is_over() {
                return Ok(false);
            }
            let (n_tokens, n_units) = if is_state {
                (n_held, u64::from(n_held))
            } else {
                self.cache.affordable_from(running.id, start, self.movement.affordable())
            };
            let range = start..n_held.min(start + n_tokens);
            let started = Instant::now();
            let saved = self.runner.save(running.id, range.clone());
            let took = started.elapsed();
            self.stats.times.spill += took;
            self.movement.count(took);
            self.movement.learn_save(n_units, took);
            match saved {
                Ok(bytes) => self.running[place].saved.pieces.push(SavedPiece { range, bytes }),
                Err(StateError { reason }) => return Err(Error::Save { reason }),
            }
        }
    }

    fn finish_task(&mut self, place: usize) {
        let mut running = self.running.remove(place);
        let request_id = running.sequence.request_id;
        let end = running.sequence.end_without_token(Instant::now()).unwrap_or(FinishReason::Length);
        match self.jobs[&request_id].task.clone() {
            Task::Complete => self.finish(&running, end, None),
            Task::Load(saved) => {
                // A state cannot be computed back to its last token: the logits after it come with it.
                if let (Some(logits), [piece]) = (&saved.logits, &saved.pieces[..])
                    && self.runner.memory().is_a_state()
                {
                    let bytes = Arc::clone(&piece.bytes);
                    self.cache.add_snapshot(running.id, running.n_held, bytes, Some(logits[..].into()));
                }
                self.finish(&running, end, None);
            }
            Task::Save { .. } => {
                let tokens = running.held().to_vec();
                let variant = &self.jobs[&request_id].variant;
                let logits = self.cache.snapshot(variant, &tokens).flatten().map(|logits| logits.to_vec());
                let saved = SavedPrefix { tokens, logits, ..std::mem::take(&mut running.saved) };
                self.finish(&running, end, Some(Made::Saved(saved)));
            }
            Task::Pin => {
                self.leave_slot(&running);
                match self.cache.pin(running.id) {
                    Ok(pinned) => self.finish_idle(&running, end, Some(Made::Pinned(pinned))),
                    Err(error) => self.failed.push((request_id, error)),
                }
            }
        }
    }

    /// The request of the sequence at `place` ends with an error, and what it held is forgotten.
    pub(super) fn end_with(&mut self, place: usize, error: Error) {
        let running = Running { n_held: 0, ..self.running.remove(place) };
        self.leave_slot(&running);
        self.cache.forget(running.id);
        self.failed.push((running.sequence.request_id, error));
    }
}
