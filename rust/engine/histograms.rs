//! Histograms of requests, in the bucket layout of vLLM's metrics. Counted here because an observation per token would cost the
//! event loop of Python 1.5 µs, and costs this thread a search in about 20 numbers.

use std::time::{Duration, Instant};

use crate::request::{FinishReason, Usage};

/// Buckets of the histogram with the most.
pub const MAX_BUCKETS: usize = 22;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

/// Upper bounds of the time to the first token, in nanoseconds.
const FIRST_TOKEN_NS: [u64; 22] = [
    MS,
    5 * MS,
    10 * MS,
    20 * MS,
    40 * MS,
    60 * MS,
    80 * MS,
    100 * MS,
    250 * MS,
    500 * MS,
    750 * MS,
    S,
    2_500 * MS,
    5 * S,
    7_500 * MS,
    10 * S,
    20 * S,
    40 * S,
    80 * S,
    160 * S,
    640 * S,
    2_560 * S,
];

/// Upper bounds of the time between two tokens of a branch, in nanoseconds. vLLM's begin with 10 ms; small models are faster.
const INTER_TOKEN_NS: [u64; 22] = [
    MS,
    2 * MS,
    5 * MS,
    10 * MS,
    25 * MS,
    50 * MS,
    75 * MS,
    100 * MS,
    150 * MS,
    200 * MS,
    300 * MS,
    400 * MS,
    500 * MS,
    750 * MS,
    S,
    2_500 * MS,
    5 * S,
    7_500 * MS,
    10 * S,
    20 * S,
    40 * S,
    80 * S,
];

/// Upper bounds of the time in the queue and of the whole time of a branch, in nanoseconds.
const REQUEST_NS: [u64; 21] = [
    300 * MS,
    500 * MS,
    800 * MS,
    S,
    1_500 * MS,
    2 * S,
    2_500 * MS,
    5 * S,
    10 * S,
    15 * S,
    20 * S,
    30 * S,
    40 * S,
    50 * S,
    60 * S,
    120 * S,
    240 * S,
    480 * S,
    960 * S,
    1_920 * S,
    7_680 * S,
];

/// Upper bounds of lengths, in tokens.
const N_TOKENS: [u64; 19] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000];

/// Counts of values by range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Histogram {
    bounds: &'static [u64],
    counts: [u64; MAX_BUCKETS],
    n: u64,
    sum: u64,
}

impl Histogram {
    const fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: [0; MAX_BUCKETS], n: 0, sum: 0 }
    }

    fn observe(&mut self, value: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        if let Some(count) = self.counts[..self.bounds.len()].get_mut(bucket) {
            *count += 1;
        }
        self.n += 1;
        self.sum = self.sum.saturating_add(value);
    }

    fn observe_time(&mut self, time: Duration) {
        self.observe(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns the inclusive upper bound of each bucket with the number of its values, in ascending order. Times are in
    /// nanoseconds. Values above the last bound are in no bucket.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.bounds.iter().copied().zip(self.counts)
    }

    /// Returns the number of all values.
    pub const fn n(&self) -> u64 {
        self.n
    }

    /// Returns the sum of all values.
    pub const fn sum(&self) -> u64 {
        self.sum
    }
}

/// Histograms of branches since the start, without prompts that are only computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHistograms {
    /// Time from the submission to the first token of a branch.
    pub time_to_first_token: Histogram,
    /// Time between two tokens of a branch.
    pub inter_token_latency: Histogram,
    /// Time from the submission until a branch is in a slot.
    pub queue_time: Histogram,
    /// Time from the submission to the end of a branch that was not cancelled.
    pub end_to_end_latency: Histogram,
    /// Prompt tokens of such a branch.
    pub prompt_tokens: Histogram,
    /// Tokens that it generated.
    pub generation_tokens: Histogram,
}

impl Default for RequestHistograms {
    fn default() -> Self {
        Self {
            time_to_first_token: Histogram::new(&FIRST_TOKEN_NS),
            inter_token_latency: Histogram::new(&INTER_TOKEN_NS),
            queue_time: Histogram::new(&REQUEST_NS),
            end_to_end_latency: Histogram::new(&REQUEST_NS),
            prompt_tokens: Histogram::new(&N_TOKENS),
            generation_tokens: Histogram::new(&N_TOKENS),
        }
    }
}

impl RequestHistograms {
    /// Counts a token that a branch published at `now`, after the previous one at `last`, or as its first.
    pub(super) fn observe_token(&mut self, submitted: Instant, last: Option<Instant>, now: Instant) {
        match last {
            Some(last) => self.inter_token_latency.observe_time(now - last),
            None => self.time_to_first_token.observe_time(now - submitted),
        }
    }

    /// Counts a branch that got a slot.
    pub(super) fn observe_start(&mut self, submitted: Instant, now: Instant) {
        self.queue_time.observe_time(now - submitted);
    }

    /// Counts a branch that ended, unless it was cancelled.
    pub(super) fn observe_end(&mut self, submitted: Instant, reason: &FinishReason, usage: &Usage, now: Instant) {
        if *reason != FinishReason::Cancelled {
            self.end_to_end_latency.observe_time(now - submitted);
            self.prompt_tokens.observe(u64::from(usage.n_computed + usage.n_cached));
            self.generation_tokens.observe(u64::from(usage.n_predicted));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_is_in_its_bucket_and_one_above_the_last_in_none() {
        let mut histogram = Histogram::new(&N_TOKENS);
        for value in [0, 1, 2, 3, 1_000_000, 1_000_001] {
            histogram.observe(value);
        }
        let filled: Vec<(u64, u64)> = histogram.buckets().filter(|&(_, n)| n > 0).collect();
        assert_eq!(filled, [(1, 2), (2, 1), (5, 1), (1_000_000, 1)]);
        assert_eq!((histogram.n(), histogram.sum()), (6, 2_000_007));
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [&FIRST_TOKEN_NS[..], &INTER_TOKEN_NS, &REQUEST_NS, &N_TOKENS] {
            assert!(bounds.is_sorted() && bounds.len() <= MAX_BUCKETS);
        }
    }
}
