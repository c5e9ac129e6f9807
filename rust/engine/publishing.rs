//! What the worker lets others see: events, and what the engine is doing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::cache::Counts;
use crate::engine::job::Job;
use crate::engine::runner::Runner;
use crate::engine::running::Running;
use crate::engine::stats::{MAX_RECENT_STEPS, RecentStep, RunningStats, SlotStats, Stats, StoreStats};
use crate::engine::unread_pins::UnreadPin;
use crate::engine::worker::Worker;
use crate::error::Result;

/// What the worker lets others see, beside the streams.
#[derive(Default)]
pub(crate) struct Published {
    stats: Mutex<Stats>,
    recent: Mutex<VecDeque<RecentStep>>,
    /// Requests that were submitted and have not been in a slot.
    pub(super) n_waiting: Arc<AtomicUsize>,
    pub(super) is_running: AtomicBool,
}

impl Published {
    /// All but the number of requests that wait, as of the last step.
    pub(super) fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().expect("no code that holds the stats can panic")
    }

    /// The last steps, oldest first.
    pub(super) fn recent_steps(&self) -> MutexGuard<'_, VecDeque<RecentStep>> {
        self.recent.lock().expect("no code that holds the last steps can panic")
    }

    /// Takes the newest step in, and forgets the oldest where there are enough.
    pub(super) fn remember(&self, step: RecentStep) {
        let mut recent = self.recent_steps();
        if recent.len() == MAX_RECENT_STEPS {
            recent.pop_front();
        }
        recent.push_back(step);
    }
}

impl<R: Runner> Worker<R> {
    /// Makes the step's events readable, then rings each bell once.
    pub(super) fn publish(&mut self) {
        let mut ended: Vec<(u64, Result<()>)> =
            self.failed.drain(..).map(|(request_id, error)| (request_id, Err(error))).collect();
        for (&request_id, job) in self.jobs.iter().filter(|(_, job)| !job.events.is_empty()) {
            let has_room = job.sender.check_room(job.events.len());
            if has_room.is_err() || job.is_done() {
                ended.push((request_id, has_room));
            }
        }
        let mut leaving: Vec<(Job, Result<()>)> =
            ended.into_iter().filter_map(|(request_id, how)| Some((self.remove(request_id)?, how))).collect();
        self.unread_pins.extend(leaving.iter().filter_map(|(job, _)| UnreadPin::of(job)));
        // First, so that whoever reads the end of a stream finds its slots idle.
        self.show();
        self.admitted.clear();
        let staying = self.jobs.values_mut().filter(|job| !job.events.is_empty());
        for job in staying.chain(leaving.iter_mut().map(|(job, _)| job)) {
            job.sender.send(&mut job.events);
            if let Some(bell) = job.sender.bell()
                && !self.bells.iter().any(|known| Arc::ptr_eq(known, bell))
            {
                self.bells.push(Arc::clone(bell));
            }
        }
        for (job, how) in leaving {
            job.sender.end(how);
        }
        for bell in self.bells.drain(..) {
            bell.ring();
        }
    }

    /// Makes a change visible before anybody is told of it.
    pub(super) fn show(&mut self) {
        self.carry_out();
        self.publish_stats();
    }

    pub(super) fn publish_stats(&self) {
        let mut stats = self.published.stats();
        // The list of slots stays where it is: a step allocates nothing.
        let mut slots = std::mem::take(&mut stats.slots);
        slots.clear();
        slots.resize(self.limits.n_slots as usize, SlotStats::default());
        *stats = Stats { slots, ..self.stats.clone() };
        stats.n_cells_used = self.cache.n_used();
        stats.n_cells_reached = self.cache.n_reached();
        stats.n_cells_idle = self.cache.n_evictable();
        stats.n_ids_used = self.cache.n_ids_used();
        let (n_bytes, max_bytes, n_pieces) = self.cache.store_size();
        let Counts { n_saved, n_restored, n_forgotten, n_relocated } = self.cache.counts();
        stats.store = StoreStats { n_bytes, max_bytes, n_pieces, n_saved, n_restored, n_forgotten, n_relocated };
        for Running { sequence, slot, n_held, .. } in &self.running {
            stats.slots[*slot as usize].running = Some(RunningStats {
                request_id: sequence.request_id,
                index: sequence.index,
                n_prompt: sequence.n_prompt,
                n_computed: (*n_held).min(sequence.n_prompt).saturating_sub(sequence.n_cached()),
                n_cached: sequence.n_cached(),
                n_predicted: sequence.n_predicted(),
                n_remaining: sequence.n_remaining(),
            });
        }
    }
}
