//! Callbacks that wake the consumers of streams.

use std::time::Duration;

/// Minimum time between wakes that report only further tokens, with few active streams. A small model makes thousands of steps
/// per second, and a consumer that wakes for each takes a core from the decode.
pub const WAKE_INTERVAL: Duration = Duration::from_millis(4);

/// Number of streams whose consumers cost about a tenth of [`WAKE_INTERVAL`]. With more active streams the interval grows in
/// proportion, up to [`MAX_WAKE_INTERVAL`].
const STREAMS_PER_INTERVAL: usize = 8;

/// One frame of a display: events within it appear simultaneously.
pub const MAX_WAKE_INTERVAL: Duration = Duration::from_millis(16);

/// Callback of the worker, for streams with new events. A step calls each handle (each `Arc`) once, after all events of its
/// streams are readable.
pub trait WakeHandle: Send + Sync {
    /// Wakes the consumers. Must not block: the worker calls it between two decodes.
    fn wake(&self);

    /// Returns the minimum time between two wakes that report only further tokens of `n_streams` streams; shorter steps share a
    /// wake. First tokens, ends and errors wake immediately, and all pending events are reported before the worker computes a
    /// prompt, answers a query or waits, and after it moved cells.
    fn min_interval(&self, n_streams: usize) -> Duration {
        let n_times = u32::try_from(n_streams.div_ceil(STREAMS_PER_INTERVAL)).unwrap_or(u32::MAX);
        WAKE_INTERVAL.saturating_mul(n_times.max(1)).min(MAX_WAKE_INTERVAL)
    }
}
