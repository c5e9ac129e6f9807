//! Products compared with double precision, and with each other.

mod activations;
mod invariance;
mod preconditions;
mod products;
mod reference;
mod small;

use super::{
    ExpertChoices, Experts, ProductOutput, Rows, WeightFormat, Weights, multiply, multiply_by_expert, scratch_bytes,
    scratch_bytes_by_expert,
};
use crate::kernels::{Level, Random, SharedSlice, ThreadTeam};

impl Random {
    /// Returns a number in `low..=high`.
    fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// Returns a value from an approximate normal distribution with occasional outliers, like activations.
    fn value(&mut self) -> f32 {
        let sum: f32 =
            (0..4).map(|_| f32::from(i16::from_le_bytes([self.word().to_le_bytes()[0], self.word().to_le_bytes()[0]]))).sum();
        sum / 30_000.0 * if self.below(50) == 0 { 20.0 } else { 1.0 }
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

/// Returns the levels that the processor supports, the portable one first.
fn levels() -> Vec<Level> {
    Level::ALL.into_iter().filter(|level| level.is_available()).collect()
}

/// A matrix of valid blocks.
#[derive(Clone)]
struct Matrix {
    format: WeightFormat,
    n_in: usize,
    n_out: usize,
    bytes: Vec<u8>,
}

impl Matrix {
    /// Fills a matrix with random bits and finite scales.
    fn random(random: &mut Random, format: WeightFormat, n_in: usize, n_out: usize) -> Self {
        let mut bytes: Vec<u8> = (0..n_out * format.row_bytes(n_in)).map(|_| random.word().to_le_bytes()[0]).collect();
        for block in bytes.chunks_exact_mut(format.block_bytes()) {
            reference::make_finite(random, format, block);
        }
        Self { format, n_in, n_out, bytes }
    }

    fn weights(&self) -> Weights<'_> {
        let Self { format, n_in, n_out, .. } = *self;
        Weights { bytes: &self.bytes, format, n_in, n_out, row_stride: format.row_bytes(n_in) }
    }

    /// Multiplies contiguous rows.
    fn times(&self, level: Level, values: &[f32], n_threads: usize) -> Vec<f32> {
        let n_rows = values.len() / self.n_in;
        let rows = Rows { values, n_rows, row_stride: self.n_in };
        let mut scratch = vec![0xa5; scratch_bytes(level, self.format, self.n_in, self.n_out, n_rows, n_threads)];
        let mut out = vec![f32::NAN; n_rows * self.n_out];
        let (scratch, shared) = (SharedSlice::from(&mut scratch[..]), SharedSlice::from(&mut out[..]));
        let output = ProductOutput { values: &shared, row_stride: self.n_out };
        ThreadTeam::run(n_threads, |team| multiply(level, &self.weights(), &rows, &output, &scratch, team));
        out
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
