//! Detects a worker that has requests, but makes no progress with any of them.
//!
//! A step computes, moves or publishes something, or changes which sequences run. If it does none of that, the engine waits for
//! an external event: a consumer that reads, an encoder, a slot that is about to be erased. Any other such step is a fault of the
//! scheduler, after which no request would ever continue.

use std::time::{Duration, Instant};

use crate::engine::cache_manager::CacheManager;
use crate::engine::ids::GroupId;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::error::Error;
use crate::request::Encoding;

/// Consecutive steps without progress after which a request is ended.
const MAX_IDLE_STEPS: u32 = 100;

/// Minimum time of these steps: commands and queries wake the worker between them.
const MIN_STALL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct StallDetector {
    n_idle_steps: u32,
    since: Option<Instant>,
}

impl StallDetector {
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Ends the most senior request after [`MAX_IDLE_STEPS`] in [`MIN_STALL`] or longer; with debug assertions, panics instead.
    pub(super) fn observe_idle_step<R: Runner>(&mut self, scheduler: &mut Scheduler, cache: &CacheManager<R>) {
        if !scheduler.is_busy() || waits_for_external_event(scheduler) {
            return self.reset();
        }
        self.n_idle_steps += 1;
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.n_idle_steps < MAX_IDLE_STEPS || since.elapsed() < MIN_STALL {
            return;
        }
        self.reset();
        let state = describe(scheduler, cache);
        assert!(!is_checked(), "no step makes progress: {state}");
        tracing::error!("the scheduler made no progress in {MAX_IDLE_STEPS} steps, so a request is ended: {state}");
        let Some(group_id) = most_senior(scheduler) else { return };
        let reason = "the scheduler found no way to continue this request; this is a fault of the engine".to_owned();
        scheduler.fail_stream_of(group_id, Error::Decode { reason });
    }
}

fn is_checked() -> bool {
    cfg!(any(test, debug_assertions))
}

fn waits_for_external_event(scheduler: &Scheduler) -> bool {
    let waits_for_encoder = scheduler.running().iter().any(|running| {
        let mut media = running.sequence.media_from(running.n_computed).iter();
        media.any(|placed| matches!(placed.media.encoding(), Encoding::Pending))
    });
    waits_for_encoder || scheduler.has_paused() || scheduler.slots().reserved_for().is_some()
}

fn most_senior(scheduler: &Scheduler) -> Option<GroupId> {
    let running = scheduler.running().first().map(|running| running.sequence.group_id);
    let preempted = || scheduler.queue().preempted().first().map(|preempted| preempted.sequence.group_id);
    running.or_else(preempted).or_else(|| scheduler.queue().next(|_| true))
}

fn describe<R: Runner>(scheduler: &Scheduler, cache: &CacheManager<R>) -> String {
    let running = scheduler.running().iter().map(|running| {
        let (sequence, n_computed) = (&running.sequence, running.n_computed);
        let (group_id, member, n_tokens) = (sequence.group_id.0, sequence.member.0, sequence.n_tokens());
        format!("{group_id}.{member} has computed {n_computed} of {n_tokens} tokens ({})", running.phase_name())
    });
    let running = running.collect::<Vec<_>>().join(", ");
    let cache = cache.kv();
    format!(
        "{} cells and {} sequence ids are free, {} cells can be evicted; running: [{running}]; {} sequences are preempted",
        cache.n_free(),
        cache.n_free_ids(),
        cache.n_evictable(),
        scheduler.queue().preempted().len(),
    )
}
