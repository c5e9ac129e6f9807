//! What the worker lets others see, and who is to hear of a step.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::cache::KvCache;
use crate::engine::request_group::{QueuePermit, RequestGroup};
use crate::engine::slow_consumers::SlowConsumers;
use crate::engine::stats::{MAX_RECENT_STEPS, RecentStep, Stats};
use crate::engine::stream::{PublishOutcome, ReadReceipt, WakeHandle};
use crate::engine::transcripts::TranscriptCache;
use crate::error::Error;
use crate::request::{Event, TaskResult};

/// Most pins whose names nobody has read that are looked at per step.
const MAX_RECEIPTS: usize = 16;

/// What the worker lets others see, beside the streams.
#[derive(Default)]
pub(crate) struct SharedState {
    stats: Mutex<Stats>,
    recent: Mutex<VecDeque<RecentStep>>,
    said: Mutex<TranscriptCache>,
    /// Requests of which some branch was never in a slot.
    pub(super) n_waiting: Arc<AtomicUsize>,
    pub(super) is_running: AtomicBool,
}

impl SharedState {
    /// All but the number of requests that wait, as of the last step.
    pub(super) fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().expect("no code that holds the stats can panic")
    }

    /// What was written in chats.
    pub(super) fn said(&self) -> MutexGuard<'_, TranscriptCache> {
        self.said.lock().expect("no code that holds what was said can panic")
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

/// What a step has to tell, until it ends.
pub(super) struct Output {
    pub(super) published: Arc<SharedState>,
    /// Requests that this step gave their last slot: they wait until the snapshot shows them there, so that it never loses one.
    pub(super) admitted: Vec<QueuePermit>,
    /// Jobs that this step has events for.
    pub(super) told: Vec<u64>,
    /// Streams that this step ends with an error.
    pub(super) failed: Vec<(u64, Error)>,
    /// Streams that are held back until their readers have caught up.
    pub(super) laggards: SlowConsumers,
    /// Who is to be told of events that can be read.
    bells: Vec<Arc<dyn WakeHandle>>,
    /// When the last one was rung that rests afterwards.
    rung_at: Instant,
    /// Whether they are to be rung when the step ends, however short the time since.
    is_urgent: bool,
    unread_pins: VecDeque<UnreadPin>,
}

impl Output {
    pub(super) fn new(published: Arc<SharedState>) -> Self {
        Self {
            published,
            admitted: Vec::new(),
            told: Vec::new(),
            failed: Vec::new(),
            laggards: SlowConsumers::default(),
            bells: Vec::new(),
            rung_at: Instant::now(),
            is_urgent: false,
            unread_pins: VecDeque::new(),
        }
    }

    /// Publishes what a request has to tell; its reader is woken by [`Output::ring`].
    pub(super) fn send(&mut self, job: &mut RequestGroup) {
        let PublishOutcome { bell, backlog } = job.sender.send(&mut job.events);
        self.bells.extend(bell);
        if backlog.is_over_limit() {
            self.laggards.add(job.stream_id, &backlog, Instant::now());
        }
        if let Some(bell) = job.sender.bell()
            && !self.bells.iter().any(|known| Arc::ptr_eq(known, bell))
        {
            self.bells.push(Arc::clone(bell));
        }
    }

    /// This step tells more than another token: who waits for it is woken at its end.
    pub(super) fn hurry(&mut self) {
        self.is_urgent = true;
    }

    /// Wakes the readers of what `n_streams` streams were sent, once each, but those whose bell rests. Who calls this must call
    /// [`Output::ring`] before anything that may take long.
    pub(super) fn wake_rate_limited(&mut self, n_streams: usize) {
        let is_urgent = std::mem::take(&mut self.is_urgent);
        self.ring_rested(if is_urgent { Duration::MAX } else { self.rung_at.elapsed() }, n_streams);
    }

    /// Wakes everybody who has something to read. What the running step tells is no less urgent for it.
    pub(super) fn ring(&mut self) {
        self.ring_rested(Duration::MAX, 0);
    }

    /// Rings the bells that have rested so long.
    fn ring_rested(&mut self, rested: Duration, n_streams: usize) {
        let mut has_rung = false;
        self.bells.retain(|bell| {
            let rest = bell.rest(n_streams);
            let is_resting = rested < rest;
            if !is_resting {
                bell.ring();
                has_rung |= !rest.is_zero();
            }
            is_resting
        });
        if has_rung {
            self.rung_at = Instant::now();
        }
    }

    /// Remembers the prefix that `request_group` is about to tell it has pinned.
    pub(super) fn watch_pin(&mut self, job: &RequestGroup) {
        self.unread_pins.extend(UnreadPin::of(job));
    }

    /// Unpins what was pinned for a reader who went before it had read the name: nobody could ever do it.
    pub(super) fn drop_unread_pins(&mut self, cache: &mut KvCache) {
        for _ in 0..self.unread_pins.len().min(MAX_RECEIPTS) {
            let Some(pin) = self.unread_pins.pop_front() else { return };
            match pin.receipt.was_read() {
                None => self.unread_pins.push_back(pin),
                Some(true) => {}
                Some(false) => drop(cache.unpin_prefix(pin.name)),
            }
        }
    }
}

/// A pinned prefix, from the moment it is told until it is known whether its name was read.
struct UnreadPin {
    name: u64,
    receipt: ReadReceipt,
}

impl UnreadPin {
    fn of(job: &RequestGroup) -> Option<Self> {
        let made = |event: &Event| match event {
            Event::Finished(finished) => finished.made.as_deref().and_then(name_of),
            Event::Token(_) | Event::Progress(_) | Event::PromptLogprobs(_) => None,
        };
        Some(Self { name: job.events.iter().find_map(made)?, receipt: job.sender.receipt() })
    }
}

fn name_of(made: &TaskResult) -> Option<u64> {
    match made {
        TaskResult::Pinned(pinned) => Some(pinned.id),
        TaskResult::Saved(_) => None,
    }
}
