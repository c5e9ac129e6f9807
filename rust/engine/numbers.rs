//! Counts of 32 bits, and running means.

/// Converts a number of tokens, rows or sequences, which the size of a context or a batch bounds.
pub(crate) fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("contexts and batches have fewer than 2³² items")
}

pub(crate) fn count_u32<T>(items: impl Iterator<Item = T>) -> u32 {
    to_u32(items.count())
}

/// An exponential moving average; 0 until the first observation, which is positive.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RunningMean(f64);

impl RunningMean {
    pub(crate) const fn new() -> Self {
        Self(0.0)
    }

    pub(crate) const fn get(self) -> f64 {
        self.0
    }

    /// Adds a `value`, to which the mean moves by the share `weight`.
    pub(crate) fn observe(&mut self, value: f64, weight: f64) {
        self.0 = if self.0 == 0.0 { value } else { self.0 + weight * (value - self.0) };
    }

    /// As [`RunningMean::observe`], with at most twice the mean: a step in which another process took the CPU predicts no other.
    pub(crate) fn observe_capped(&mut self, value: f64, weight: f64) {
        self.observe(if self.0 == 0.0 { value } else { value.min(2.0 * self.0) }, weight);
    }
}
