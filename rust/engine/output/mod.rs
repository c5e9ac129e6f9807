//! The output: events of streams, and wakes of their consumers. It owns no request: groups carry their events to it.

pub(crate) mod completions;
pub(crate) mod fork;
pub(crate) mod slow_consumers;
pub(crate) mod stream;
pub(crate) mod wake_handle;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::ids::StreamId;
use crate::engine::output::slow_consumers::{Backlog, SlowConsumers, SlowStreams};
use crate::engine::output::stream::Sender;
use crate::engine::output::wake_handle::WakeHandle;
use crate::engine::scheduler::request_group::{EndedGroup, RequestGroup};
use crate::request::{Event, TaskResult};

/// Maximum number of unread pins that are checked per step.
const MAX_CHECKED_PINS: usize = 16;

#[derive(Default)]
pub(crate) struct Output {
    slow_consumers: SlowConsumers,
    wake_handles: Vec<Arc<dyn WakeHandle>>,
    /// Time of the last wake of a rate-limited handle.
    last_wake_at: Option<Instant>,
    unread_pins: VecDeque<UnreadPin>,
}

impl Output {
    /// Publishes the events of a group; [`Output::wake_all`] wakes its consumer.
    pub(crate) fn send(&mut self, group: &mut RequestGroup) {
        let (backlog, wake_handle) = group.sender.send(&mut group.events);
        self.wake_handles.extend(wake_handle);
        if backlog.is_over_limit() {
            self.slow_consumers.add(group.stream_id, &backlog, Instant::now());
        }
        if let Some(wake_handle) = group.sender.wake_handle()
            && !self.wake_handles.iter().any(|other| Arc::ptr_eq(other, wake_handle))
        {
            self.wake_handles.push(Arc::clone(wake_handle));
        }
    }

    pub(crate) fn end(&mut self, mut ended: Vec<EndedGroup>) {
        for (group, _) in &mut ended {
            self.unread_pins.extend(UnreadPin::of(group));
            self.send(group);
        }
        for (group, outcome) in ended {
            if let Some(outcome) = outcome {
                group.sender.end(outcome);
            }
        }
    }

    pub(crate) fn review_slow_consumers(
        &mut self,
        timeout: Duration,
        backlog_of: impl Fn(StreamId) -> Option<Backlog>,
    ) -> SlowStreams {
        self.slow_consumers.review(Instant::now(), timeout, backlog_of)
    }

    /// Wakes each consumer of the events of `n_streams` streams once, except rate-limited ones unless the step `is_urgent`.
    /// [`Output::wake_all`] must then be called before an operation that may take long.
    pub(crate) fn wake_rate_limited(&mut self, n_streams: usize, is_urgent: bool) {
        let last_wake_at = self.last_wake_at.filter(|_| !is_urgent);
        self.wake_waited(last_wake_at.map_or(Duration::MAX, |at| at.elapsed()), n_streams);
    }

    pub(crate) fn wake_all(&mut self) {
        self.wake_waited(Duration::MAX, 0);
    }

    fn wake_waited(&mut self, waited: Duration, n_streams: usize) {
        let mut has_woken = false;
        self.wake_handles.retain(|wake_handle| {
            let interval = wake_handle.min_interval(n_streams);
            let is_too_early = waited < interval;
            if !is_too_early {
                wake_handle.wake();
                has_woken |= !interval.is_zero();
            }
            is_too_early
        });
        if has_woken {
            self.last_wake_at = Some(Instant::now());
        }
    }

    /// Returns the ids of pinned prefixes whose consumers left before they read the id: no client could ever unpin them.
    pub(crate) fn take_unread_pins(&mut self) -> Vec<u64> {
        let mut unread = Vec::new();
        for _ in 0..self.unread_pins.len().min(MAX_CHECKED_PINS) {
            let Some(pin) = self.unread_pins.pop_front() else { break };
            match pin.sender.was_read() {
                None => self.unread_pins.push_back(pin),
                Some(true) => {}
                Some(false) => unread.push(pin.id),
            }
        }
        unread
    }
}

struct UnreadPin {
    id: u64,
    sender: Arc<Sender>,
}

impl UnreadPin {
    fn of(group: &RequestGroup) -> Option<Self> {
        let id_in = |event: &Event| {
            let Event::Finished(finished) = event else { return None };
            let Some(TaskResult::Pinned(pinned)) = finished.result.as_deref() else { return None };
            Some(pinned.id)
        };
        Some(Self { id: group.events.iter().find_map(id_in)?, sender: Arc::clone(&group.sender) })
    }
}
