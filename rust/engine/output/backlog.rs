//! Unread events of a stream, and their limits.

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
    /// Number of events that were read.
    pub(crate) n_read: u64,
    pub(crate) max_events: usize,
}

impl Backlog {
    pub(crate) fn is_over_limit(&self) -> bool {
        self.n_events > self.max_events || self.n_bytes > MAX_BYTES_BEHIND
    }

    /// Returns true if at most half of each limit is unread.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.n_events <= self.max_events / 2 && self.n_bytes <= MAX_BYTES_BEHIND / 2
    }

    pub(crate) fn error(&self) -> Error {
        if self.n_bytes > MAX_BYTES_BEHIND / 2 {
            return Error::SlowConsumer { n_behind: self.n_bytes, limit: MAX_BYTES_BEHIND, unit: "bytes" };
        }
        Error::SlowConsumer { n_behind: self.n_events, limit: self.max_events, unit: "events" }
    }
}
