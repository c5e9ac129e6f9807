//! Alternating measurements of several sides: the drift of a shared machine exceeds the differences of interest.

use std::time::{Duration, Instant};

use super::sides::Side;
use super::spread::Spread;

/// A side of llama.cpp that takes this many times as long as the fastest is not timed again.
const FAR_BEHIND: f64 = 1.5;

/// Duration of the measurements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// A round starts only if it is expected to end within this time; the first always runs.
    pub(crate) time: Duration,
    pub(crate) max_rounds: usize,
}

/// Times of each side, in seconds.
pub(crate) struct Times {
    sides: Vec<Side>,
    /// For each side, one time per round; one for a side that was excluded, none for a side that was never timed.
    pub(crate) seconds: Vec<Vec<f64>>,
}

impl Times {
    pub(crate) fn new(sides: &[Side]) -> Self {
        Self { sides: sides.to_vec(), seconds: vec![Vec::new(); sides.len()] }
    }

    /// Returns true if another side of llama.cpp is much faster than this one with `seconds`.
    pub(crate) fn is_far_behind(&self, side: usize, seconds: f64) -> bool {
        let is_behind = |best: usize| best != side && seconds > FAR_BEHIND * self.median(best);
        self.sides[side].is_llama_cpp() && self.best().is_some_and(is_behind)
    }

    /// Times the included sides alternately; `time` receives the index of a side.
    ///
    /// # Errors
    /// Error of `time`.
    pub(crate) fn take(
        &mut self,
        effort: &Effort,
        is_included: &[bool],
        mut time: impl FnMut(usize) -> Result<f64, String>,
    ) -> Result<(), String> {
        let mut order: Vec<usize> = (0..self.sides.len()).filter(|side| is_included[*side]).collect();
        let started = Instant::now();
        for round in 0..effort.max_rounds {
            if round > 0 && started.elapsed().mul_f64((round + 1) as f64 / round as f64) > effort.time {
                break;
            }
            for &side in &order {
                self.seconds[side].push(time(side)?);
            }
            // In reverse order, so that a steady drift of the machine favours no side.
            order.reverse();
        }
        Ok(())
    }

    /// Returns the median time of a side that was timed.
    pub(crate) fn median(&self, side: usize) -> f64 {
        Spread::of(&self.seconds[side]).median
    }

    /// Returns the fastest side of llama.cpp.
    pub(crate) fn best(&self) -> Option<usize> {
        let timed_sides =
            (0..self.sides.len()).filter(|side| self.sides[*side].is_llama_cpp() && !self.seconds[*side].is_empty());
        timed_sides.min_by(|a, b| self.median(*a).total_cmp(&self.median(*b)))
    }

    /// Returns the speedup of a side over the fastest of llama.cpp: the median over the rounds, because a machine drifts
    /// between them.
    pub(crate) fn ratio(&self, side: usize) -> Option<f64> {
        let best = &self.seconds[self.best()?];
        let ratios: Vec<f64> = best.iter().zip(&self.seconds[side]).map(|(best, side)| best / side).collect();
        (!ratios.is_empty()).then(|| Spread::of(&ratios).median)
    }

    /// Returns the rounds of the side that was timed most often.
    pub(crate) fn n_rounds(&self) -> usize {
        self.seconds.iter().map(Vec::len).max().unwrap_or(0)
    }
}
