//! The worker's end of a stream, and the events between both ends.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

use crate::engine::features::state::StreamFeatures;
use crate::engine::output::slow_consumers::{Backlog, MAX_EVENTS_BEHIND};
use crate::engine::output::wake_handle::WakeHandle;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::request::{Event, MAX_COMPLETIONS};

#[derive(Default)]
pub(super) struct UnreadEvents {
    pub(super) events: VecDeque<Event>,
    pub(super) n_bytes: usize,
    n_read: u64,
    /// End of the stream after `events`; set once.
    pub(super) end: Option<Result<()>>,
    is_cancelled: bool,
    was_abandoned: bool,
    pub(super) n_waiting: usize,
    will_wake: bool,
    pub(super) features: StreamFeatures,
}

impl UnreadEvents {
    fn push(&mut self, event: Event) {
        self.n_bytes += event.n_bytes();
        self.events.push_back(event);
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.n_bytes -= event.n_bytes();
        self.n_read += 1;
        Some(event)
    }

    /// Returns how the stream has ended, an error only once.
    pub(super) fn take_end(&mut self) -> Option<Result<()>> {
        self.end.as_mut().map(|end| std::mem::replace(end, Ok(())))
    }

    /// Ends the stream for a consumer that leaves. Returns true if the worker must be notified.
    pub(super) fn close(&mut self) -> bool {
        let is_early = self.end.is_none();
        self.is_cancelled |= is_early;
        self.was_abandoned |= !self.events.is_empty();
        self.events.clear();
        self.n_bytes = 0;
        self.end = Some(Ok(()));
        is_early
    }
}

/// State of both ends. As a wake handle, it wakes the threads that wait for events.
#[derive(Default)]
pub(super) struct StreamState {
    queue: Mutex<UnreadEvents>,
    pub(super) arrived: Condvar,
}

impl WakeHandle for StreamState {
    fn wake(&self) {
        self.lock().will_wake = false;
        self.arrived.notify_all();
    }
}

impl StreamState {
    pub(super) fn lock(&self) -> MutexGuard<'_, UnreadEvents> {
        lock(&self.queue)
    }
}

/// The worker's end of a stream. Dropped before [`Sender::end`], it ends the stream with [`Error::Stopped`].
pub(crate) struct Sender {
    shared: Arc<StreamState>,
    wake_handle: Option<Arc<dyn WakeHandle>>,
    n_branches: AtomicU32,
    n_own_stream_forks: AtomicU32,
    consumer: Weak<()>,
}

impl Sender {
    /// `consumer` exists until the consumer is dropped.
    pub(super) fn new(shared: Arc<StreamState>, n: u32, wake_handle: Option<Arc<dyn WakeHandle>>, consumer: Weak<()>) -> Self {
        Self { shared, wake_handle, n_branches: AtomicU32::new(n), n_own_stream_forks: AtomicU32::new(0), consumer }
    }

    pub(crate) fn has_consumer(&self) -> bool {
        self.consumer.strong_count() > 0
    }

    pub(crate) fn add_branches(&self, n: u32) -> Option<Range<u32>> {
        let add = |has: u32| has.checked_add(n).filter(|&all| all <= MAX_COMPLETIONS);
        let first = self.n_branches.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).ok()?;
        Some(first..first + n)
    }

    pub(crate) fn add_own_stream_forks(&self, n: u32) -> u32 {
        self.n_own_stream_forks.fetch_add(n, Ordering::AcqRel)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.shared.lock().end.is_some()
    }

    pub(crate) fn change_features(&self, change: impl FnOnce(&mut StreamFeatures)) {
        change(&mut self.shared.lock().features);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.shared.lock().is_cancelled
    }

    pub(crate) fn wake_handle(&self) -> Option<&Arc<dyn WakeHandle>> {
        self.wake_handle.as_ref()
    }

    pub(crate) fn backlog(&self) -> Backlog {
        self.backlog_in(&self.shared.lock())
    }

    fn backlog_in(&self, queue: &UnreadEvents) -> Backlog {
        let &UnreadEvents { ref events, n_bytes, n_read, .. } = queue;
        let max_events = MAX_EVENTS_BEHIND * self.n_branches.load(Ordering::Acquire) as usize;
        Backlog { n_events: events.len(), n_bytes, n_read, max_events }
    }

    /// Empties `events`. Also returns a handle that wakes the waiting threads, if there are any and no wake is pending.
    pub(crate) fn send(&self, events: &mut Vec<Event>) -> (Backlog, Option<Arc<dyn WakeHandle>>) {
        let mut queue = self.shared.lock();
        let mut wake_handle = None;
        if queue.is_cancelled {
            queue.was_abandoned |= !events.is_empty();
            events.clear();
        } else {
            events.drain(..).for_each(|event| queue.push(event));
            if queue.n_waiting > 0 && !std::mem::replace(&mut queue.will_wake, true) {
                wake_handle = Some(Arc::<StreamState>::clone(&self.shared) as Arc<dyn WakeHandle>);
            }
        }
        (self.backlog_in(&queue), wake_handle)
    }

    /// Returns `None` while published events are unread, and `false` if the consumer left with unread events.
    pub(crate) fn was_read(&self) -> Option<bool> {
        let queue = self.shared.lock();
        queue.events.is_empty().then_some(!queue.was_abandoned)
    }

    /// Returns `false` if the stream had ended.
    pub(crate) fn end(&self, outcome: Result<()>) -> bool {
        let mut queue = self.shared.lock();
        let is_open = queue.end.is_none();
        if is_open {
            queue.end = Some(outcome);
        }
        self.shared.arrived.notify_all();
        is_open
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if self.end(Err(Error::Stopped))
            && let Some(wake_handle) = &self.wake_handle
        {
            wake_handle.wake();
        }
    }
}
