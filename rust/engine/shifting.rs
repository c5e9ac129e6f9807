//! A full context is shifted: the sequence drops its middle and computes what follows again.
//!
//! Moving the cells to their new positions instead, as llama-server does, would move those that others share, turn the whole pool
//! at the next decode, and lose precision where the cache is quantised. So the sequence is placed anew, as one that was preempted:
//! over the tokens that it kept, or over what a snapshot has of them; the rest is an ordinary prompt.

use crate::engine::runner::Runner;
use crate::engine::worker::{Preempted, Reserved, Worker};

impl<R: Runner> Worker<R> {
    /// Shifts the contexts that are full.
    pub(super) fn shift_full(&mut self) {
        for place in (0..self.running.len()).rev() {
            if self.running[place].sequence.is_full() {
                self.shift(place);
            }
        }
    }

    /// Shifts the context of the sequence at `place`, which then waits to be placed anew. `false` where nothing can be dropped. What
    /// it has computed stays cached, as that of every branch that ends.
    pub(super) fn shift(&mut self, place: usize) -> bool {
        let held = self.running[place].held().to_vec();
        let Some(n_kept) = self.running[place].sequence.shift() else { return false };
        let mut running = self.running.remove(place);
        self.leave_slot_with(&running, held);
        running.n_held = running.n_held.min(n_kept);
        let job = self.jobs.get_mut(&running.sequence.request_id).expect("a job outlives its sequences");
        job.n_running -= 1;
        let reservation = Reserved { place: self.cache.reserve_first(running.id, running.n_held), slot: running.slot };
        self.wait_to_resume(Preempted { sequence: running.sequence, reservation });
        true
    }
}
