//! How much may be moved between device and host cache per step, and when an idle prefix has cost more than moving it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::cache::{IdleCost, PathRemoval};
use crate::engine::numbers::RunningMean;

/// Maximum time of offloading, and so of reloading, one entry: bounds the delay of arrivals and streams.
pub(crate) const MAX_ENTRY_TIME: Duration = Duration::from_millis(20);

/// Decodes with [`IdleCost::Scores`] after which an idle prefix of adjacent cells has cost as much as moving it out and in.
///
/// Measured on a CPU, per idle token: a decode of 8 rows takes 2.8 µs longer with a model of 0.5B parameters and 0.25 µs with one
/// of 2M, a decode of 1 row 0.6 µs; offloading and reloading adjacent cells takes 6 to 10 µs and 1.5 µs: 3 to 13 decodes.
/// Scattered cells cost up to 180 µs and 17 µs, and 64 decodes. At break-even the cost is at most about twice the minimum.
const BREAK_EVEN_DECODES: u64 = 6;

/// Maximum number of these decodes, however expensive a prefix is to save.
const MAX_BREAK_EVEN_DECODES: usize = 64;

/// Number of these decodes for idle prefixes that only make the attention mask longer.
///
/// Measured with our attention kernels, per idle token: a decode of 8 rows takes 10 ns longer with any model; offloading and
/// reloading takes 1.5 µs with 2M parameters and 6 to 10 µs with 0.5B: 150 to 1,000 decodes.
const MASK_BREAK_EVEN_DECODES: usize = 256;

/// Units per token up to which a save is always worthwhile: long runs are, and their measured cost must stay current.
const MAX_CHEAP_UNITS: f64 = 3.0;

const MAX_RECORDED: usize = MASK_BREAK_EVEN_DECODES;

fn n_break_even_decodes(removal: &PathRemoval, cost: IdleCost) -> usize {
    if cost == IdleCost::Mask {
        return MASK_BREAK_EVEN_DECODES;
    }
    let n_units = if removal.saves.is_some() { removal.n_units } else { u64::from(removal.n_tokens) };
    let units_per_token = (n_units / u64::from(removal.n_tokens.max(1))).max(1);
    usize::try_from(BREAK_EVEN_DECODES * units_per_token).map_or(MAX_BREAK_EVEN_DECODES, |n| n.min(MAX_BREAK_EVEN_DECODES))
}

#[derive(Debug)]
pub(crate) struct MoveBudget {
    /// Seconds per unit of a save (see [`PathRemoval::n_units`]); 0 until measured.
    save_s: RunningMean,
    /// Seconds to compute a prompt token; 0 until measured.
    compute_s: f64,
    deadline: Instant,
    spent: Duration,
    /// The cache's clock at each of the last decodes, oldest first.
    decoded_at: VecDeque<u64>,
    /// The cache's clock when an early removal was refused: a retry is useless until it changes.
    refused_at: Option<u64>,
}

/// Minimum units of a save, which justify a node in the tree; also used while the cost is unknown.
const MIN_UNITS: u64 = 64;

const NEWEST_WEIGHT: f64 = 0.2;

impl MoveBudget {
    pub(crate) fn new() -> Self {
        Self {
            save_s: RunningMean::new(),
            compute_s: 0.0,
            deadline: Instant::now(),
            spent: Duration::ZERO,
            decoded_at: VecDeque::with_capacity(MAX_RECORDED),
            refused_at: None,
        }
    }

    pub(crate) fn begin(&mut self, time: Duration) {
        (self.deadline, self.spent) = (Instant::now() + time, Duration::ZERO);
    }

    /// Returns true if this step has no time left. Its first entry is always moved, so that slow machines advance too.
    pub(crate) fn is_over(&self) -> bool {
        !self.spent.is_zero() && Instant::now() >= self.deadline
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float too large or negative saturates")]
    pub(crate) fn affordable_units(&self) -> u64 {
        if self.save_s.get() == 0.0 {
            return MIN_UNITS;
        }
        let left = self.deadline.saturating_duration_since(Instant::now()).min(MAX_ENTRY_TIME);
        ((left.as_secs_f64() / self.save_s.get()) as u64).max(MIN_UNITS)
    }

    #[expect(clippy::cast_precision_loss, reason = "a running mean")]
    pub(crate) fn observe_save(&mut self, n_units: u64, took: Duration) {
        self.save_s.observe(took.as_secs_f64() / n_units.max(1) as f64, NEWEST_WEIGHT);
    }

    pub(crate) fn observe_compute(&mut self, seconds: f64) {
        self.compute_s = seconds;
    }

    #[expect(clippy::cast_precision_loss, reason = "a comparison of estimates")]
    pub(crate) fn is_expensive(&self, n_tokens: u32, n_units: u64) -> bool {
        let save_s = self.save_s.get();
        let is_known = save_s > 0.0 && self.compute_s > 0.0;
        let units_per_token = n_units as f64 / f64::from(n_tokens.max(1));
        is_known && units_per_token > MAX_CHEAP_UNITS && 2.0 * units_per_token * save_s > self.compute_s
    }

    pub(crate) fn count(&mut self, took: Duration) {
        self.spent += took;
    }

    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// `now` is the time of the cache's clock, here and below.
    pub(crate) fn record_decode(&mut self, now: u64) {
        if self.decoded_at.len() == MAX_RECORDED {
            self.decoded_at.pop_front();
        }
        self.decoded_at.push_back(now);
    }

    pub(crate) fn record_refusal(&mut self, now: u64, is_refused: bool) {
        self.refused_at = is_refused.then_some(now);
    }

    pub(crate) fn is_refused_at(&self, now: u64) -> bool {
        self.refused_at == Some(now)
    }

    pub(crate) fn has_exceeded_cost(&self, removal: &PathRemoval, cost: IdleCost) -> bool {
        let is_older = |&decoded_at: &u64| removal.last_used <= decoded_at;
        self.decoded_at.iter().nth_back(n_break_even_decodes(removal, cost) - 1).is_some_and(is_older)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit is saved in 2 µs, and a token computed in 40 µs.
    fn measured() -> MoveBudget {
        let mut budget = MoveBudget::new();
        budget.observe_save(100, Duration::from_micros(200));
        budget.observe_compute(40e-6);
        budget
    }

    #[test]
    fn a_prefix_that_is_cheaper_to_compute_than_to_move_is_expensive() {
        // A token of 10 units takes 20 µs to save and as long to reload.
        assert!(!measured().is_expensive(16, 159));
        assert!(measured().is_expensive(16, 161));
    }

    #[test]
    fn long_runs_are_never_expensive() {
        let mut budget = measured();
        budget.observe_compute(1e-9);
        assert!(!budget.is_expensive(16, 48));
        assert!(budget.is_expensive(16, 49));
    }

    #[test]
    fn nothing_is_expensive_before_measurements() {
        assert!(!MoveBudget::new().is_expensive(16, 1_000_000));
    }
}
