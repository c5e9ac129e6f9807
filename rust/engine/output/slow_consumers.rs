//! Unread events of streams, their limits, and how long the worker waits for consumers that lag.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::engine::ids::StreamId;
use crate::error::Error;

/// Events of one branch that may be unread, one per token. A stream's limit is this times its number of branches. A stream over
/// its limit is not computed further until half of the limit has been read.
pub const MAX_EVENTS_BEHIND: usize = 10_000;

/// Bytes of unread events of a stream, as [`Event::n_bytes`](crate::request::Event::n_bytes) counts them. With hundreds of
/// logprobs per token it is reached long before the limit on events. A single step may exceed it by its own events.
pub const MAX_BYTES_BEHIND: usize = 32 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backlog {
    pub(crate) n_events: usize,
    pub(crate) n_bytes: usize,
    pub(crate) n_read: u64,
    pub(crate) max_events: usize,
}

impl Backlog {
    pub(crate) fn is_over_limit(&self) -> bool {
        self.n_events > self.max_events || self.n_bytes > MAX_BYTES_BEHIND
    }

    fn is_caught_up(&self) -> bool {
        self.n_events <= self.max_events / 2 && self.n_bytes <= MAX_BYTES_BEHIND / 2
    }

    pub(crate) fn error(&self) -> Error {
        if self.n_bytes > MAX_BYTES_BEHIND / 2 {
            return Error::SlowConsumer { n_behind: self.n_bytes, limit: MAX_BYTES_BEHIND, unit: "bytes" };
        }
        Error::SlowConsumer { n_behind: self.n_events, limit: self.max_events, unit: "events" }
    }
}

/// Streams over their limit of unread events. They are not computed further until half of the limit has been read.
#[derive(Debug, Default)]
pub(crate) struct SlowConsumers {
    by_stream: HashMap<StreamId, SlowConsumer>,
}

pub(crate) struct SlowStreams {
    pub(crate) paused: BTreeSet<StreamId>,
    /// Streams whose consumers made no progress for too long, with the error that ends them.
    pub(crate) expired: Vec<(StreamId, Error)>,
}

#[derive(Debug)]
struct SlowConsumer {
    n_read: u64,
    since: Instant,
}

impl SlowConsumers {
    pub(crate) fn add(&mut self, stream_id: StreamId, backlog: &Backlog, now: Instant) {
        self.by_stream.entry(stream_id).or_insert(SlowConsumer { n_read: backlog.n_read, since: now });
    }

    /// Updates the progress of the consumers, and removes consumers that have caught up. `backlog_of` returns `None` for ended
    /// streams.
    pub(crate) fn review(
        &mut self,
        now: Instant,
        timeout: Duration,
        backlog_of: impl Fn(StreamId) -> Option<Backlog>,
    ) -> SlowStreams {
        let mut expired = Vec::new();
        self.by_stream.retain(|&stream_id, consumer| {
            let Some(backlog) = backlog_of(stream_id).filter(|backlog| !backlog.is_caught_up()) else { return false };
            if backlog.n_read != consumer.n_read {
                (consumer.n_read, consumer.since) = (backlog.n_read, now);
            }
            if now.duration_since(consumer.since) >= timeout {
                expired.push((stream_id, backlog.error()));
            }
            true
        });
        SlowStreams { paused: self.by_stream.keys().copied().collect(), expired }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(7);

    const PATIENCE: Duration = Duration::from_secs(30);

    fn backlog(n_events: usize, n_read: u64) -> Backlog {
        Backlog { n_events, n_bytes: 0, n_read, max_events: 1_000 }
    }

    fn with_slow_consumer(now: Instant) -> SlowConsumers {
        let mut slow_consumers = SlowConsumers::default();
        slow_consumers.add(STREAM, &backlog(1_001, 0), now);
        slow_consumers
    }

    fn after(now: Instant, s: u64) -> Instant {
        now + Duration::from_secs(s)
    }

    #[test]
    fn a_consumer_that_makes_progress_is_kept() {
        let now = Instant::now();
        let mut slow_consumers = with_slow_consumer(now);
        for n in 1..10 {
            let slow = slow_consumers.review(after(now, 29 * n), PATIENCE, |_| Some(backlog(1_001, n)));
            assert!(slow.expired.is_empty() && slow.paused.contains(&STREAM));
        }
    }

    #[test]
    fn a_consumer_without_progress_expires_and_is_held_back_until_its_request_ends() {
        let now = Instant::now();
        let mut slow_consumers = with_slow_consumer(now);
        assert!(slow_consumers.review(after(now, 29), PATIENCE, |_| Some(backlog(1_001, 0))).expired.is_empty());
        let slow = slow_consumers.review(after(now, 30), PATIENCE, |_| Some(backlog(1_001, 0)));
        assert_eq!(slow.expired, [(STREAM, backlog(1_001, 0).error())]);
        assert!(slow.paused.contains(&STREAM));
        let slow = slow_consumers.review(after(now, 30), PATIENCE, |_| None);
        assert!(slow.expired.is_empty() && slow.paused.is_empty());
    }

    #[test]
    fn a_consumer_that_has_read_half_of_the_limit_is_removed() {
        let now = Instant::now();
        let mut slow_consumers = with_slow_consumer(now);
        assert!(slow_consumers.review(now, PATIENCE, |_| Some(backlog(501, 500))).paused.contains(&STREAM));
        assert!(slow_consumers.review(now, PATIENCE, |_| Some(backlog(500, 501))).paused.is_empty());
    }
}
