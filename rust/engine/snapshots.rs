//! States that are kept of a prompt, of a model whose memory cannot be cut: it will be at these points never again.

use std::time::Instant;

use crate::cache::MIN_SHARED;
use crate::engine::movement::warn_unsaved;
use crate::engine::runner::{Runner, StateError};
use crate::engine::running::Running;
use crate::engine::worker::Worker;

impl<R: Runner> Worker<R> {
    /// Whether a state is worth keeping: only a memory that cannot be cut has any use for it.
    fn keeps_states(&self) -> bool {
        self.runner.memory().is_a_state() && self.cache.has_store()
    }

    /// How many tokens the sequence at `place` may compute until its state is to be kept.
    pub(super) fn n_to_snapshot(&self, running: &Running) -> u32 {
        if running.sequence.n_predicted() > 0 || !self.keeps_states() {
            return u32::MAX;
        }
        let places = &self.jobs[&running.sequence.request_id].snapshots_at;
        places.iter().find(|&&at| at > running.n_held).map_or(u32::MAX, |at| at - running.n_held)
    }

    /// Keeps the states that this decode has reached: at the ends of prompts, with the logits after them, and where requests want
    /// them.
    pub(super) fn keep_snapshots(&mut self) {
        if !self.keeps_states() {
            return;
        }
        let mut n_rows = 0;
        for place in 0..self.running.len() {
            let running = &self.running[place];
            n_rows += running.n_planned as usize;
            let n_tokens = running.n_held + running.n_planned;
            if running.n_planned == 0 || running.sequence.n_predicted() > 0 || n_tokens < MIN_SHARED {
                continue;
            }
            let job = &self.jobs[&running.sequence.request_id];
            let is_end = running.will_draw();
            if !is_end && !job.snapshots_at.contains(&n_tokens) {
                continue;
            }
            let tokens = &running.sequence.tokens[..n_tokens as usize];
            let is_kept = self.cache.snapshot(&job.variant, tokens).is_some_and(|logits| !is_end || logits.is_some());
            if is_kept || !self.cache.can_keep_snapshot(n_tokens) {
                continue;
            }
            let id = running.id;
            let logits = is_end.then(|| self.runner.logits(n_rows - 1).into());
            let started = Instant::now();
            match self.runner.save(id, 0..n_tokens) {
                Ok(bytes) => drop(self.cache.add_snapshot(id, n_tokens, bytes, logits)),
                Err(StateError { reason }) => warn_unsaved(&reason),
            }
            let took = started.elapsed();
            self.stats.times.spill += took;
            self.movement.count(took);
        }
    }
}
