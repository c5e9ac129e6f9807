//! What is left of a decode that failed.

use crate::engine::runner::{DecodeError, Runner};
use crate::engine::running::Running;
use crate::engine::worker::Worker;
use crate::error::Error;

impl<R: Runner> Worker<R> {
    /// A decode failed: takes its rows back, tries once more without those of prompts, and ends what still fails with an error.
    pub(super) fn recover(&mut self, error: &DecodeError) -> bool {
        let planned = |running: &&Running| running.n_planned > 0;
        let (decoding, prefilling): (Vec<u64>, Vec<u64>) = {
            let (decoding, prefilling): (Vec<&Running>, Vec<&Running>) =
                self.running.iter().filter(planned).partition(|running| running.is_decoding());
            let ids = |of: Vec<&Running>| of.into_iter().map(|running| running.sequence.request_id).collect();
            (ids(decoding), ids(prefilling))
        };
        let is_whole = self.take_back(|_| true);
        if is_whole && !decoding.is_empty() && !prefilling.is_empty() {
            self.fail(&prefilling, error);
            let rows = self.running.iter().filter(|running| running.is_decoding());
            self.cache.extend(rows.map(|running| (running.id, running.planned())));
            self.carry_out();
            self.plan_rows(Running::is_decoding);
            if self.runner.decode(&self.plan).is_ok() {
                self.stats.n_decodes += 1;
                self.stats.n_busy += self.running.len() as u64;
                return true;
            }
            self.take_back(Running::is_decoding);
        }
        self.fail(&prefilling, error);
        self.fail(&decoding, error);
        false
    }

    /// Forgets the planned rows of those that `filter` lets through; `false` where the model's memory cannot.
    fn take_back(&mut self, filter: impl Fn(&Running) -> bool) -> bool {
        let mut is_whole = true;
        for running in self.running.iter().filter(|running| running.n_planned > 0 && filter(running)) {
            self.cache.truncate(running.id, running.n_held);
            is_whole &= self.runner.truncate(running.id, running.n_held);
        }
        is_whole
    }

    pub(super) fn fail(&mut self, request_ids: &[u64], error: &DecodeError) {
        for &request_id in request_ids {
            let ended: Vec<Running> = self.running.extract_if(.., |running| running.sequence.request_id == request_id).collect();
            for running in ended {
                self.leave_slot(&Running { n_held: 0, ..running });
                self.cache.forget(running.id);
            }
            self.failed.push((request_id, Error::Decode { reason: error.reason.clone() }));
        }
    }
}
