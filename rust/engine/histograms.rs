//! Histograms of requests, in the bucket layout of vLLM's metrics. Counted here because an observation per token would cost the
//! event loop of Python 1.5 µs, and costs this thread a search in about 20 numbers.

use std::time::{Duration, Instant};

use crate::request::{FinishReason, Usage};

/// Maximum number of buckets of a histogram.
pub const MAX_BUCKETS: usize = 22;

const MS: u64 = 1_000_000;

/// Upper bounds of the time to the first token, in milliseconds.
const FIRST_TOKEN_MS: [u64; 22] = [
    1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1_000, 2_500, 5_000, 7_500, 10_000, 20_000, 40_000, 80_000, 160_000, 640_000,
    2_560_000,
];

/// Upper bounds of the time between two tokens of a branch, in milliseconds. vLLM's begin with 10 ms; small models are faster.
const INTER_TOKEN_MS: [u64; 22] =
    [1, 2, 5, 10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1_000, 2_500, 5_000, 7_500, 10_000, 20_000, 40_000, 80_000];

/// Upper bounds of the time in the queue and of the whole time of a branch, in milliseconds.
const REQUEST_MS: [u64; 21] = [
    300, 500, 800, 1_000, 1_500, 2_000, 2_500, 5_000, 10_000, 15_000, 20_000, 30_000, 40_000, 50_000, 60_000, 120_000, 240_000,
    480_000, 960_000, 1_920_000, 7_680_000,
];

/// Upper bounds of lengths, in tokens.
const N_TOKENS: [u64; 19] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000];

/// Counts of values by range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Histogram {
    /// Upper bounds, in units.
    bounds: &'static [u64],
    /// Nanoseconds or tokens per unit of the bounds.
    unit: u64,
    counts: [u64; MAX_BUCKETS],
    n: u64,
    sum: u64,
}

impl Histogram {
    const fn new(bounds: &'static [u64], unit: u64) -> Self {
        Self { bounds, unit, counts: [0; MAX_BUCKETS], n: 0, sum: 0 }
    }

    fn observe(&mut self, value: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound * self.unit < value);
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
        self.bounds.iter().map(|&bound| bound * self.unit).zip(self.counts)
    }

    pub const fn n(&self) -> u64 {
        self.n
    }

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
    pub generation_tokens: Histogram,
}

impl Default for RequestHistograms {
    fn default() -> Self {
        Self {
            time_to_first_token: Histogram::new(&FIRST_TOKEN_MS, MS),
            inter_token_latency: Histogram::new(&INTER_TOKEN_MS, MS),
            queue_time: Histogram::new(&REQUEST_MS, MS),
            end_to_end_latency: Histogram::new(&REQUEST_MS, MS),
            prompt_tokens: Histogram::new(&N_TOKENS, 1),
            generation_tokens: Histogram::new(&N_TOKENS, 1),
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

    pub(super) fn observe_start(&mut self, submitted: Instant, now: Instant) {
        self.queue_time.observe_time(now - submitted);
    }

    /// Counts a branch that ended, unless it was cancelled.
    pub(super) fn observe_end(&mut self, submitted: Instant, reason: &FinishReason, usage: &Usage, now: Instant) {
        if *reason != FinishReason::Cancelled {
            self.end_to_end_latency.observe_time(now - submitted);
            self.prompt_tokens.observe(u64::from(usage.n_prompt_computed + usage.n_cached));
            self.generation_tokens.observe(u64::from(usage.n_predicted));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_is_in_its_bucket_and_one_above_the_last_in_none() {
        let mut histogram = Histogram::new(&N_TOKENS, 1);
        for value in [0, 1, 2, 3, 1_000_000, 1_000_001] {
            histogram.observe(value);
        }
        let filled: Vec<(u64, u64)> = histogram.buckets().filter(|&(_, n)| n > 0).collect();
        assert_eq!(filled, [(1, 2), (2, 1), (5, 1), (1_000_000, 1)]);
        assert_eq!((histogram.n(), histogram.sum()), (6, 2_000_007));
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [&FIRST_TOKEN_MS[..], &INTER_TOKEN_MS, &REQUEST_MS, &N_TOKENS] {
            assert!(bounds.is_sorted() && bounds.len() <= MAX_BUCKETS);
        }
    }
}
