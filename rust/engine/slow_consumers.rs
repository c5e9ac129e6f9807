//! Streams whose readers lag, and how long the worker waits for them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::engine::stream::Backlog;
use crate::error::Error;

/// Streams over their limit of unread events. They are not computed further until half of the limit has been read.
#[derive(Debug, Default)]
pub(super) struct SlowConsumers {
    /// By stream id.
    by_stream: HashMap<u64, SlowConsumer>,
}

#[derive(Debug)]
struct SlowConsumer {
    /// Number of events read when it last made progress.
    n_read: u64,
    /// Time at which that was observed.
    since: Instant,
}

impl SlowConsumers {
    /// Adds a stream that is over its limit.
    pub(super) fn add(&mut self, stream_id: u64, backlog: &Backlog, now: Instant) {
        self.by_stream.entry(stream_id).or_insert(SlowConsumer { n_read: backlog.n_read, since: now });
    }

    /// Returns the streams whose readers lag.
    pub(super) fn streams(&self) -> impl Iterator<Item = u64> {
        self.by_stream.keys().copied()
    }

    /// Updates the progress of the readers; `backlog_of` returns `None` for ended streams. Removes readers that have caught up,
    /// and returns those without progress for `patience`, with the error that ends their streams.
    pub(super) fn review(
        &mut self,
        now: Instant,
        patience: Duration,
        backlog_of: impl Fn(u64) -> Option<Backlog>,
    ) -> Vec<(u64, Error)> {
        let mut expired = Vec::new();
        self.by_stream.retain(|&stream_id, consumer| {
            let Some(backlog) = backlog_of(stream_id).filter(|backlog| !backlog.is_caught_up()) else { return false };
            if backlog.n_read != consumer.n_read {
                (consumer.n_read, consumer.since) = (backlog.n_read, now);
            }
            if now.duration_since(consumer.since) >= patience {
                expired.push((stream_id, backlog.error()));
            }
            true
        });
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn backlog(n_events: usize, n_read: u64) -> Backlog {
        Backlog { n_events, n_bytes: 0, n_read, max_events: 1_000 }
    }

    fn with_slow_reader(now: Instant) -> SlowConsumers {
        let mut slow_consumers = SlowConsumers::default();
        slow_consumers.add(7, &backlog(1_001, 0), now);
        slow_consumers
    }

    fn contains(slow_consumers: &SlowConsumers) -> bool {
        slow_consumers.streams().eq([7])
    }

    fn after(now: Instant, s: u64) -> Instant {
        now + Duration::from_secs(s)
    }

    #[test]
    fn a_reader_that_makes_progress_is_kept() {
        let now = Instant::now();
        let mut slow_consumers = with_slow_reader(now);
        for n in 1..10 {
            let expired = slow_consumers.review(after(now, 29 * n), PATIENCE, |_| Some(backlog(1_001, n)));
            assert!(expired.is_empty() && contains(&slow_consumers));
        }
    }

    #[test]
    fn a_reader_without_progress_expires_and_is_held_back_until_its_request_ends() {
        let now = Instant::now();
        let mut slow_consumers = with_slow_reader(now);
        assert!(slow_consumers.review(after(now, 29), PATIENCE, |_| Some(backlog(1_001, 0))).is_empty());
        let expired = slow_consumers.review(after(now, 30), PATIENCE, |_| Some(backlog(1_001, 0)));
        assert_eq!(expired, [(7, backlog(1_001, 0).error())]);
        assert!(contains(&slow_consumers));
        assert!(slow_consumers.review(after(now, 30), PATIENCE, |_| None).is_empty() && !contains(&slow_consumers));
    }

    #[test]
    fn a_reader_that_has_read_half_of_the_limit_is_removed() {
        let now = Instant::now();
        let mut slow_consumers = with_slow_reader(now);
        assert!(slow_consumers.review(now, PATIENCE, |_| Some(backlog(501, 500))).is_empty() && contains(&slow_consumers));
        assert!(slow_consumers.review(now, PATIENCE, |_| Some(backlog(500, 501))).is_empty() && !contains(&slow_consumers));
    }
}
