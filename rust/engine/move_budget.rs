//! How much may move between the pool and the store in one step, and when what is idle has cost more than moving it. Pure but for
//! the clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::cache::{IdleCost, PathRemoval};

/// No piece takes longer to save, and so to restore, so that an arrival never waits long, and no stream for a restore.
pub(super) const LONGEST_PIECE: Duration = Duration::from_millis(20);

/// Decodes after which an idle prefix has cost about as much as its way to the store and back, where its cells lie in one run and
/// decodes compute [`IdleCost::Scores`] of it.
///
/// Measured on a CPU, per idle token: a decode of 8 rows takes 2.8 µs longer with a model of 0.5B parameters and 0.25 µs with one
/// of 2M, one of 1 row 0.6 µs; saving and restoring cells that are adjacent takes 6 to 10 µs and 1.5 µs. So they are even after 3
/// to 13 decodes. Scattered cells are dearer by what [`PathRemoval::n_units`] says: up to 180 µs and 17 µs, and 64 decodes. A prefix
/// that leaves when they are even has cost about twice what it would cost by the better of staying and leaving at once, whenever
/// it is used again.
const PATIENCE: u64 = 6;

/// Decodes after which an idle prefix leaves of which decodes compute scores, however dear that is.
const MAX_PATIENCE: usize = 64;

/// Decodes after which an idle prefix has cost about as much as its way to the store and back where it only makes the mask longer.
///
/// Measured with our attention, per idle token: a decode of 8 rows takes 10 ns longer, whatever the model, which is nothing beside
/// the 20 ms of a model of 0.5B parameters, and a third of a step of one of 2M beside 16,000 idle tokens; saving and restoring
/// takes 1.5 µs with the small one and 6 to 10 µs with the other. So they are even after 150 to 1,000 decodes.
const MASK_PATIENCE: usize = 256;

/// A save of so many units per token is always worth it: long runs are, and what they cost is learned ever anew.
const CHEAP_UNITS: f64 = 3.0;

/// Most decodes that are remembered.
const N_REMEMBERED: usize = MASK_PATIENCE;

/// Decodes after which what departs has cost as much as it will cost to bring it back.
fn patience(departure: &PathRemoval, cost: IdleCost) -> usize {
    if cost == IdleCost::Mask {
        return MASK_PATIENCE;
    }
    let n_units = if departure.saves.is_some() { departure.n_units } else { u64::from(departure.n_tokens) };
    let units_per_token = (n_units / u64::from(departure.n_tokens.max(1))).max(1);
    usize::try_from(PATIENCE * units_per_token).map_or(MAX_PATIENCE, |n| n.min(MAX_PATIENCE))
}

/// What moving takes, learned from what it took, and how long it may take in this step.
#[derive(Debug)]
pub(super) struct MoveBudget {
    /// Seconds per unit of a save (see [`PathRemoval::n_units`]); 0 until one was measured.
    save_s: f64,
    /// Seconds in which a token of a prompt is computed; 0 until one was.
    compute_s: f64,
    /// The end of this step's time for it.
    deadline: Instant,
    /// Time spent on it in this step.
    spent: Duration,
    /// Whether anything moved in this step.
    has_moved: bool,
    /// The cache's time at each of the last decodes, oldest first.
    decoded_at: VecDeque<u64>,
    /// The cache's time when what was to leave early could not be kept: until it changes, trying again is of no use.
    refused_at: Option<u64>,
}

/// A save whose cost is not known yet is given so much, and none less.
const FIRST_UNITS: u64 = 64;

/// Weight of the newest measurement in a running mean.
const NEWEST: f64 = 0.2;

impl MoveBudget {
    pub(super) fn new() -> Self {
        Self {
            save_s: 0.0,
            compute_s: 0.0,
            deadline: Instant::now(),
            spent: Duration::ZERO,
            has_moved: false,
            decoded_at: VecDeque::with_capacity(N_REMEMBERED),
            refused_at: None,
        }
    }

    /// A step begins that has `time` for moving.
    pub(super) fn begin(&mut self, time: Duration) {
        (self.deadline, self.spent, self.has_moved) = (Instant::now() + time, Duration::ZERO, false);
    }

    /// Whether this step has no more time; the first piece of a step is always moved, so that a slow machine gets on too.
    pub(super) fn is_over(&self) -> bool {
        self.has_moved && Instant::now() >= self.deadline
    }

    /// Units that can be saved in what is left of this step's time; at least so many that a piece is worth a place in the tree.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float too large or negative saturates")]
    pub(super) fn affordable(&self) -> u64 {
        if self.save_s == 0.0 {
            return FIRST_UNITS;
        }
        let left = self.deadline.saturating_duration_since(Instant::now()).min(LONGEST_PIECE);
        ((left.as_secs_f64() / self.save_s) as u64).max(FIRST_UNITS)
    }

    #[expect(clippy::cast_precision_loss, reason = "a running mean")]
    pub(super) fn learn_save(&mut self, n_units: u64, took: Duration) {
        let value = took.as_secs_f64() / n_units.max(1) as f64;
        self.save_s = if self.save_s == 0.0 { value } else { self.save_s + NEWEST * (value - self.save_s) };
    }

    /// Computing a token of a prompt takes `seconds`; 0 where that is not known yet.
    pub(super) fn learn_compute(&mut self, seconds: f64) {
        self.compute_s = seconds;
    }

    /// Whether `n_tokens`, which are saved for `n_units`, are sooner computed again than saved and brought back.
    #[expect(clippy::cast_precision_loss, reason = "a comparison of estimates")]
    pub(super) fn is_expensive(&self, n_tokens: u32, n_units: u64) -> bool {
        let is_known = self.save_s > 0.0 && self.compute_s > 0.0;
        let units_per_token = n_units as f64 / f64::from(n_tokens.max(1));
        is_known && units_per_token > CHEAP_UNITS && 2.0 * units_per_token * self.save_s > self.compute_s
    }

    pub(super) fn count(&mut self, took: Duration) {
        self.spent += took;
        self.has_moved = true;
    }

    /// Time spent in this step.
    pub(super) fn spent(&self) -> Duration {
        self.spent
    }

    /// A decode begins at the time `now` of the cache.
    pub(super) fn remember_decode(&mut self, now: u64) {
        if self.decoded_at.len() == N_REMEMBERED {
            self.decoded_at.pop_front();
        }
        self.decoded_at.push_back(now);
    }

    /// What was to leave early at the time `now` of the cache could be kept, or could not.
    pub(super) fn remember_refusal(&mut self, now: u64, is_refused: bool) {
        self.refused_at = is_refused.then_some(now);
    }

    /// Whether nothing has changed since what was to leave early could not be kept.
    pub(super) fn is_refused_at(&self, now: u64) -> bool {
        self.refused_at == Some(now)
    }

    /// Whether so many decodes were made since `departure` was last used that it has cost as much as its way out and back.
    pub(super) fn has_exceeded_cost(&self, departure: &PathRemoval, cost: IdleCost) -> bool {
        let is_older = |&decoded_at: &u64| departure.last_used <= decoded_at;
        self.decoded_at.iter().nth_back(patience(departure, cost) - 1).is_some_and(is_older)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit is saved in 2 µs, and a token computed in 40.
    fn measured() -> MoveBudget {
        let mut movement = MoveBudget::new();
        movement.learn_save(100, Duration::from_micros(200));
        movement.learn_compute(40e-6);
        movement
    }

    #[test]
    fn what_is_sooner_computed_than_saved_and_brought_back_is_dear() {
        // As long to save as a token of 10 units, and as long to bring back.
        assert!(!measured().is_expensive(16, 159));
        assert!(measured().is_expensive(16, 161));
    }

    #[test]
    fn long_runs_are_not_dear_however_fast_the_machine_computes() {
        let mut movement = measured();
        movement.learn_compute(1e-9);
        assert!(!movement.is_expensive(16, 48));
        assert!(movement.is_expensive(16, 49));
    }

    #[test]
    fn nothing_is_dear_before_it_is_known_what_it_takes() {
        assert!(!MoveBudget::new().is_expensive(16, 1_000_000));
    }
}
