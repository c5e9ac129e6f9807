//! Metrics of the worker: the time of each stage of its steps, and their publication for other threads.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::cache::TierMetrics;
use crate::engine::cache_manager::{CacheManager, CopyTime};
use crate::engine::features::hooks;
use crate::engine::features::state::SharedFeatures;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::engine::stats::{HostCacheStats, MAX_RECENT_STEPS, RecentStep, RunningStats, SlotStats, Stats, StepTimes};
use crate::lock::lock;

/// State that the worker shares with other threads, besides the streams.
#[derive(Default)]
pub(crate) struct SharedState {
    stats: Mutex<Stats>,
    recent: Mutex<VecDeque<RecentStep>>,
    pub(crate) features: Arc<SharedFeatures>,
    pub(crate) n_waiting: Arc<AtomicUsize>,
}

impl SharedState {
    /// Metrics as of the last step, except [`Stats::n_waiting`].
    pub(crate) fn stats(&self) -> MutexGuard<'_, Stats> {
        lock(&self.stats)
    }

    pub(crate) fn recent_steps(&self) -> MutexGuard<'_, VecDeque<RecentStep>> {
        lock(&self.recent)
    }
}

/// Every moment of a step counts for exactly one stage; unattributed time counts for the next one.
pub(super) struct Metrics {
    shared: Arc<SharedState>,
    times: StepTimes,
    last_lap: Instant,
}

impl Metrics {
    pub(super) fn new(shared: Arc<SharedState>) -> Self {
        Self { shared, times: StepTimes::default(), last_lap: Instant::now() }
    }

    pub(super) fn times(&self) -> StepTimes {
        self.times
    }

    /// Starts a step; what was copied before belongs to no step. Returns the current time.
    pub(super) fn begin_step<R: Runner>(&mut self, cache: &mut CacheManager<R>) -> Instant {
        self.count_copies(cache.take_copy_time());
        self.last_lap = Instant::now();
        self.last_lap
    }

    /// Ends a stage. The time of copying counts separately, not for the stage. Returns the current time.
    pub(super) fn lap<R: Runner>(
        &mut self,
        cache: &mut CacheManager<R>,
        stage: impl FnOnce(&mut StepTimes) -> &mut Duration,
    ) -> Instant {
        self.end_stage(cache.take_copy_time(), stage)
    }

    fn end_stage(&mut self, copied: CopyTime, stage: impl FnOnce(&mut StepTimes) -> &mut Duration) -> Instant {
        self.count_copies(copied);
        let now = Instant::now();
        *stage(&mut self.times) += (now - self.last_lap).saturating_sub(copied.offload + copied.reload);
        self.last_lap = now;
        now
    }

    fn count_copies(&mut self, CopyTime { offload, reload }: CopyTime) {
        self.times.offload += offload;
        self.times.reload += reload;
    }

    pub(super) fn record_step(&self, step: RecentStep) {
        let mut recent = self.shared.recent_steps();
        if recent.len() == MAX_RECENT_STEPS {
            recent.pop_front();
        }
        recent.push_back(step);
    }

    /// Precedes the events that report a change: a consumer that receives the end of a stream finds its slots idle.
    pub(super) fn publish<R: Runner>(&self, scheduler: &Scheduler, cache: &mut CacheManager<R>) {
        cache.flush();
        let mut stats = self.shared.stats();
        // Reuses the list of slots: a step allocates nothing.
        let mut slots = std::mem::take(&mut stats.slots);
        slots.clear();
        slots.resize(scheduler.limits().n_slots as usize, SlotStats::default());
        *stats = Stats { slots, times: self.times, ..scheduler.stats().clone() };
        hooks::add_metrics(scheduler.features(), &mut stats);
        let cache = cache.kv();
        stats.n_compared += cache.n_compared();
        stats.n_cells_used = cache.n_used();
        stats.n_cells_reached = cache.n_cells_reached();
        stats.n_cells_idle = cache.n_evictable();
        stats.n_ids_used = cache.n_ids_used();
        (stats.n_pinned, stats.n_pinned_bytes) = cache.pinned_size();
        let (n_bytes, max_bytes, n_entries) = cache.host_cache_size();
        let TierMetrics { n_offloaded, n_reloaded, n_evicted, n_relocated } = cache.counts();
        stats.host_cache = HostCacheStats { n_bytes, max_bytes, n_entries, n_offloaded, n_reloaded, n_evicted, n_relocated };
        for RunningSequence { sequence, slot, n_computed, .. } in scheduler.running() {
            stats.slots[*slot as usize].running = Some(RunningStats {
                request_id: sequence.stream_id.0,
                index: sequence.branch.0,
                n_prompt: sequence.n_prompt,
                n_computed: (*n_computed).min(sequence.n_prompt).saturating_sub(sequence.n_cached()),
                n_cached: sequence.n_cached(),
                n_predicted: sequence.n_predicted,
                n_remaining: sequence.n_remaining(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_to_the_step() {
        let mut metrics = Metrics::new(Arc::default());
        let began = metrics.last_lap;
        std::thread::sleep(Duration::from_millis(3));
        let copied = CopyTime { offload: Duration::from_millis(2), ..CopyTime::default() };
        metrics.end_stage(copied, |times| &mut times.admit);
        let ended = metrics.end_stage(CopyTime::default(), |times| &mut times.publish);
        let times = metrics.times();
        assert_eq!(times.offload, Duration::from_millis(2));
        assert!(times.admit >= Duration::from_millis(1));
        assert_eq!(times.admit + times.offload + times.publish, ended - began);
    }
}
