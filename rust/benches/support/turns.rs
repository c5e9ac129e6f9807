//! Several sides that are timed by turns: a shared machine drifts by more than what is looked for.

use std::time::{Duration, Instant};

use super::sides::Side;
use super::spread::Spread;

/// A side of llama.cpp's that takes so many times as long as the best of them is not timed again.
const FAR_BEHIND: f64 = 1.5;

/// How long sides take turns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// No round begins that is not expected to end in this time; one is always measured.
    pub(crate) time: Duration,
    pub(crate) max_rounds: usize,
}

/// What each side took, in seconds.
pub(crate) struct Times {
    sides: Vec<Side>,
    /// By side, one for each round; one for a side that was given up, none for one that was never timed.
    pub(crate) seconds: Vec<Vec<f64>>,
}

impl Times {
    pub(crate) fn new(sides: &[Side]) -> Self {
        Self { sides: sides.to_vec(), seconds: vec![Vec::new(); sides.len()] }
    }

    /// Whether llama.cpp has faster sides by far than one that took so long.
    pub(crate) fn is_far_behind(&self, side: usize, seconds: f64) -> bool {
        let is_behind = |best: usize| best != side && seconds > FAR_BEHIND * self.median(best);
        self.sides[side].is_llama_cpp() && self.best().is_some_and(is_behind)
    }

    /// Times those that `are_in` by turns; `time` is given the place of a side.
    ///
    /// # Errors
    /// What `time` answers.
    pub(crate) fn take(
        &mut self,
        effort: &Effort,
        are_in: &[bool],
        mut time: impl FnMut(usize) -> Result<f64, String>,
    ) -> Result<(), String> {
        let mut order: Vec<usize> = (0..self.sides.len()).filter(|side| are_in[*side]).collect();
        let started = Instant::now();
        for round in 0..effort.max_rounds {
            if round > 0 && started.elapsed().mul_f64((round + 1) as f64 / round as f64) > effort.time {
                break;
            }
            for &side in &order {
                self.seconds[side].push(time(side)?);
            }
            // The other way around, so that a steady drift of the machine favours no side.
            order.reverse();
        }
        Ok(())
    }

    /// What a side took that was timed.
    pub(crate) fn median(&self, side: usize) -> f64 {
        Spread::of(&self.seconds[side]).median
    }

    /// The fastest of llama.cpp's own.
    pub(crate) fn best(&self) -> Option<usize> {
        let of_llama_cpp =
            (0..self.sides.len()).filter(|side| self.sides[*side].is_llama_cpp() && !self.seconds[*side].is_empty());
        of_llama_cpp.min_by(|a, b| self.median(*a).total_cmp(&self.median(*b)))
    }

    /// How many times as fast a side is as the best of llama.cpp's: the median over the rounds, since a machine drifts between them.
    pub(crate) fn ratio(&self, side: usize) -> Option<f64> {
        let best = &self.seconds[self.best()?];
        let ratios: Vec<f64> = best.iter().zip(&self.seconds[side]).map(|(best, side)| best / side).collect();
        (!ratios.is_empty()).then(|| Spread::of(&ratios).median)
    }

    /// Rounds of the side that was timed most often.
    pub(crate) fn n_rounds(&self) -> usize {
        self.seconds.iter().map(Vec::len).max().unwrap_or(0)
    }
}
