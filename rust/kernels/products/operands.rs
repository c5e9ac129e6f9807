//! What is multiplied, and where the products go.

use super::format::Format;
use crate::kernels::Shared;

/// A matrix of weights, as it lies in a file: a row for each number that comes out.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    /// The rows, one after another.
    pub bytes: &'a [u8],
    /// What they are.
    pub format: Format,
    /// How many weights a row has.
    pub n_in: usize,
    /// How many rows there are.
    pub n_out: usize,
    /// Bytes from row to row.
    pub row_stride: usize,
}

/// Matrices of weights, of which each row of activations meets the one that was chosen for it.
#[derive(Debug, Clone, Copy)]
pub struct Experts<'a> {
    /// The matrices: `n_out` is of each, and the bytes begin with the first.
    pub weights: Weights<'a>,
    /// How many matrices there are.
    pub n_experts: usize,
    /// Bytes from matrix to matrix.
    pub expert_stride: usize,
}

/// Which experts each token meets.
#[derive(Debug, Clone, Copy)]
pub struct ExpertChoices<'a> {
    /// The experts of each token.
    pub experts: &'a [i32],
    /// How many tokens there are.
    pub n_tokens: usize,
    /// How many experts each of them meets.
    pub n_used: usize,
    /// Numbers from token to token.
    pub stride: usize,
}

/// Rows of activations.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// The rows, one after another.
    pub values: &'a [f32],
    /// How many rows there are.
    pub n_rows: usize,
    /// Values from row to row.
    pub row_stride: usize,
}

/// Where the products go: a row of `n_out` for each row of activations.
#[derive(Debug, Clone, Copy)]
pub struct ProductOutput<'a> {
    /// The rows, one after another.
    pub values: &'a Shared<'a, f32>,
    /// Values from row to row.
    pub row_stride: usize,
}

/// Whether `n` rows of `len`, `stride` apart, are within `available`.
fn fit(n: usize, len: usize, stride: usize, available: usize) -> bool {
    n == 0 || (n - 1).checked_mul(stride).and_then(|start| start.checked_add(len)).is_some_and(|needed| needed <= available)
}

impl Weights<'_> {
    pub(super) fn check(&self) {
        let Self { bytes, format, n_in, n_out, row_stride } = *self;
        assert!(n_in > 0 && n_out > 0, "{n_out} rows of {n_in} weights");
        assert!(
            fit(n_out, format.row_bytes(n_in), row_stride, bytes.len()),
            "{n_out} rows of {n_in} weights of {format:?}, {row_stride} bytes apart, are more than {} bytes",
            bytes.len()
        );
    }
}

impl Experts<'_> {
    pub(super) fn check(&self) {
        self.weights.check();
        let Weights { bytes, format, n_in, n_out, row_stride } = self.weights;
        let matrix = (n_out - 1) * row_stride + format.row_bytes(n_in);
        assert!(
            self.n_experts > 0 && fit(self.n_experts, matrix, self.expert_stride, bytes.len()),
            "{} matrices of {matrix} bytes, {} bytes apart, are more than {} bytes",
            self.n_experts,
            self.expert_stride,
            bytes.len()
        );
    }
}

impl ExpertChoices<'_> {
    pub(super) fn check(&self, n_experts: usize) {
        let Self { experts, n_tokens, n_used, stride } = *self;
        assert!(
            fit(n_tokens, n_used, stride, experts.len()),
            "{n_tokens} times {n_used} choices are more than {}",
            experts.len()
        );
        for token in 0..n_tokens {
            for &expert in &experts[token * stride..token * stride + n_used] {
                let exists = usize::try_from(expert).is_ok_and(|expert| expert < n_experts);
                assert!(exists, "token {token} asks for expert {expert} of {n_experts}");
            }
        }
    }

    /// How many products there are: one for each token and expert.
    pub(super) fn n_pairs(&self) -> usize {
        self.n_tokens * self.n_used
    }

    /// The expert of a pair, counted token by token.
    pub(super) fn expert(&self, pair: usize) -> usize {
        self.experts[pair / self.n_used * self.stride + pair % self.n_used].cast_unsigned() as usize
    }
}

impl Rows<'_> {
    pub(super) fn check(&self, n_in: usize) {
        assert!(
            fit(self.n_rows, n_in, self.row_stride, self.values.len()),
            "{} rows of {n_in} activations, {} apart, are more than {}",
            self.n_rows,
            self.row_stride,
            self.values.len()
        );
    }
}

impl ProductOutput<'_> {
    pub(super) fn check(&self, n_rows: usize, n_out: usize) {
        assert!(
            n_rows < 2 || n_out <= self.row_stride,
            "rows of {n_out} products overlap where they are {} apart",
            self.row_stride
        );
        assert!(
            fit(n_rows, n_out, self.row_stride, self.values.len()),
            "{n_rows} rows of {n_out} products, {} apart, are more than {}",
            self.row_stride,
            self.values.len()
        );
    }
}
