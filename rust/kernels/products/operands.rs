//! Operands and output of the products.

use super::format::Format;
use crate::kernels::Shared;

/// A matrix of weights in its on-disk layout: one row per output.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    /// The rows, one after another.
    pub bytes: &'a [u8],
    /// Format of the weights.
    pub format: Format,
    /// Weights per row.
    pub n_in: usize,
    /// Number of rows.
    pub n_out: usize,
    /// Stride between rows, in bytes.
    pub row_stride: usize,
}

/// Matrices of weights, of which each row of activations is multiplied with the chosen ones.
#[derive(Debug, Clone, Copy)]
pub struct Experts<'a> {
    /// The matrices: `n_out` counts the rows of each, and `bytes` starts with the first.
    pub weights: Weights<'a>,
    /// Number of matrices.
    pub n_experts: usize,
    /// Stride between matrices, in bytes.
    pub expert_stride: usize,
}

/// The experts chosen for each token.
#[derive(Debug, Clone, Copy)]
pub struct ExpertChoices<'a> {
    /// Experts of each token.
    pub experts: &'a [i32],
    /// Number of tokens.
    pub n_tokens: usize,
    /// Experts per token.
    pub n_used: usize,
    /// Stride between tokens, in entries.
    pub stride: usize,
}

/// Rows of activations.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// The rows, one after another.
    pub values: &'a [f32],
    /// Number of rows.
    pub n_rows: usize,
    /// Stride between rows, in values.
    pub row_stride: usize,
}

/// Destination of the products: a row of `n_out` values per row of activations.
#[derive(Debug, Clone, Copy)]
pub struct ProductOutput<'a> {
    /// The rows, one after another.
    pub values: &'a Shared<'a, f32>,
    /// Stride between rows, in values.
    pub row_stride: usize,
}

/// Returns whether `n` rows of `len`, `stride` apart, fit in `available`.
fn fit(n: usize, len: usize, stride: usize, available: usize) -> bool {
    n == 0 || (n - 1).checked_mul(stride).and_then(|start| start.checked_add(len)).is_some_and(|needed| needed <= available)
}

impl Weights<'_> {
    pub(super) fn check(&self) {
        let Self { bytes, format, n_in, n_out, row_stride } = *self;
        assert!(n_in > 0 && n_out > 0, "the weights must not be empty: {n_out} rows of {n_in}");
        assert!(
            fit(n_out, format.row_bytes(n_in), row_stride, bytes.len()),
            "{n_out} rows of {n_in} weights of {format:?} with a stride of {row_stride} bytes do not fit in {} bytes",
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
            "{} matrices of {matrix} bytes with a stride of {} bytes do not fit in {} bytes",
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
            "{n_used} choices for each of {n_tokens} tokens do not fit in {} entries",
            experts.len()
        );
        for token in 0..n_tokens {
            for &expert in &experts[token * stride..token * stride + n_used] {
                let exists = usize::try_from(expert).is_ok_and(|expert| expert < n_experts);
                assert!(exists, "token {token} has expert {expert}, which must be below {n_experts}");
            }
        }
    }

    /// Returns the number of pairs of token and expert.
    pub(super) fn n_pairs(&self) -> usize {
        self.n_tokens * self.n_used
    }

    /// Returns the expert of a pair, counted token by token.
    pub(super) fn expert(&self, pair: usize) -> usize {
        self.experts[pair / self.n_used * self.stride + pair % self.n_used].cast_unsigned() as usize
    }
}

impl Rows<'_> {
    pub(super) fn check(&self, n_in: usize) {
        assert!(
            fit(self.n_rows, n_in, self.row_stride, self.values.len()),
            "{} rows of {n_in} activations with a stride of {} do not fit in {} values",
            self.n_rows,
            self.row_stride,
            self.values.len()
        );
    }
}

impl ProductOutput<'_> {
    pub(super) fn check(&self, n_rows: usize, n_out: usize) {
        assert!(n_rows < 2 || n_out <= self.row_stride, "rows of {n_out} products overlap with a stride of {}", self.row_stride);
        assert!(
            fit(n_rows, n_out, self.row_stride, self.values.len()),
            "{n_rows} rows of {n_out} products with a stride of {} do not fit in {} values",
            self.row_stride,
            self.values.len()
        );
    }
}
