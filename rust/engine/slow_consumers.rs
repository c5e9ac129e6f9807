//! Readers that are too far behind, and how long they are waited for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::engine::stream::Backlog;
use crate::error::Error;

/// Requests whose readers are too far behind: nothing more is computed for them until half of what waited is read.
#[derive(Debug, Default)]
pub(super) struct SlowConsumers {
    /// By the ids of their requests.
    known: HashMap<u64, SlowConsumer>,
}

#[derive(Debug)]
struct SlowConsumer {
    /// How much its reader had read when it last read something.
    n_read: u64,
    /// When that was seen.
    since: Instant,
}

impl SlowConsumers {
    /// Its reader is too far behind.
    pub(super) fn add(&mut self, request_id: u64, backlog: &Backlog, now: Instant) {
        self.known.entry(request_id).or_insert(SlowConsumer { n_read: backlog.n_read, since: now });
    }

    /// Whether no reader is too far behind.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Whether the branches of a request are held back.
    pub(super) fn holds(&self, request_id: u64) -> bool {
        self.known.contains_key(&request_id)
    }

    /// Looks how far the readers are by now, where `backlog_of` tells of a request that is still there. Lets go of those that have
    /// caught up; returns those that have read nothing for as long as `patience`, with the error that ends their requests.
    pub(super) fn review(
        &mut self,
        now: Instant,
        patience: Duration,
        backlog_of: impl Fn(u64) -> Option<Backlog>,
    ) -> Vec<(u64, Error)> {
        let mut given_up = Vec::new();
        self.known.retain(|&request_id, known| {
            let Some(backlog) = backlog_of(request_id).filter(|backlog| !backlog.is_caught_up()) else { return false };
            if backlog.n_read != known.n_read {
                (known.n_read, known.since) = (backlog.n_read, now);
            }
            if now.duration_since(known.since) >= patience {
                given_up.push((request_id, backlog.error()));
            }
            true
        });
        given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn backlog(n_events: usize, n_read: u64) -> Backlog {
        Backlog { n_events, n_bytes: 0, n_read, max_events: 1_000 }
    }

    fn behind(now: Instant) -> SlowConsumers {
        let mut laggards = SlowConsumers::default();
        laggards.add(7, &backlog(1_001, 0), now);
        laggards
    }

    fn after(now: Instant, s: u64) -> Instant {
        now + Duration::from_secs(s)
    }

    #[test]
    fn whoever_reads_on_is_waited_for() {
        let now = Instant::now();
        let mut laggards = behind(now);
        for n in 1..10 {
            let left = laggards.review(after(now, 29 * n), PATIENCE, |_| Some(backlog(1_001, n)));
            assert!(left.is_empty() && laggards.holds(7));
        }
    }

    #[test]
    fn whoever_reads_nothing_is_given_up_and_held_back_until_the_request_is_gone() {
        let now = Instant::now();
        let mut laggards = behind(now);
        assert!(laggards.review(after(now, 29), PATIENCE, |_| Some(backlog(1_001, 0))).is_empty());
        let given_up = laggards.review(after(now, 30), PATIENCE, |_| Some(backlog(1_001, 0)));
        assert_eq!(given_up, [(7, backlog(1_001, 0).error())]);
        assert!(laggards.holds(7));
        assert!(laggards.review(after(now, 30), PATIENCE, |_| None).is_empty() && !laggards.holds(7));
    }

    #[test]
    fn whoever_has_caught_up_by_half_is_let_go() {
        let now = Instant::now();
        let mut laggards = behind(now);
        assert!(laggards.review(now, PATIENCE, |_| Some(backlog(501, 500))).is_empty() && laggards.holds(7));
        assert!(laggards.review(now, PATIENCE, |_| Some(backlog(500, 501))).is_empty() && !laggards.holds(7));
    }
}
