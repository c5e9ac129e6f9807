//! Operands and output of the products. Strides are in elements, but strides of weights in bytes.

#![allow(missing_docs, reason = "names suffice where there is no comment")]

use std::fmt;

use super::format::WeightFormat;
use crate::kernels::SharedSlice;

/// A matrix of weights in its on-disk layout: one row per output.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    pub bytes: &'a [u8],
    pub format: WeightFormat,
    /// Weights per row.
    pub n_in: usize,
    /// Rows, one per output.
    pub n_out: usize,
    /// In bytes.
    pub row_stride: usize,
}

/// Matrices of weights, of which each row of activations is multiplied with the chosen ones.
#[derive(Debug, Clone, Copy)]
pub struct Experts<'a> {
    /// `n_out` counts the rows of each matrix, and `bytes` starts with the first.
    pub weights: Weights<'a>,
    pub n_experts: usize,
    /// In bytes.
    pub expert_stride: usize,
}

/// The experts chosen for each token.
#[derive(Debug, Clone, Copy)]
pub struct ExpertChoices<'a> {
    pub experts: &'a [i32],
    pub n_tokens: usize,
    /// Experts per token.
    pub n_used: usize,
    /// Stride between tokens.
    pub stride: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    pub values: &'a [f32],
    pub n_rows: usize,
    pub row_stride: usize,
}

/// Destination of the products: a row of `n_out` values per row of activations.
#[derive(Debug, Clone, Copy)]
pub struct ProductOutput<'a> {
    pub values: &'a SharedSlice<'a, f32>,
    pub row_stride: usize,
}

/// Panics unless `n` rows of `len`, `stride` apart, fit in `available`.
fn check_fit(rows: fmt::Arguments, n: usize, len: usize, stride: usize, available: usize) {
    let fit = |start: usize| start.checked_add(len).is_some_and(|needed| needed <= available);
    assert!(n == 0 || (n - 1).checked_mul(stride).is_some_and(fit), "{rows}, {stride} apart, do not fit in {available}");
}

impl Weights<'_> {
    pub(super) fn check(&self) {
        let Self { bytes, format, n_in, n_out, row_stride } = *self;
        assert!(n_in > 0 && n_out > 0, "the weights must not be empty: {n_out} rows of {n_in}");
        let rows = format_args!("{n_out} rows of {n_in} weights of {format:?}");
        check_fit(rows, n_out, format.row_bytes(n_in), row_stride, bytes.len());
    }
}

impl Experts<'_> {
    pub(super) fn check(&self) {
        let Self { weights, n_experts, expert_stride } = *self;
        weights.check();
        assert!(n_experts > 0, "there must be experts");
        let matrix = (weights.n_out - 1) * weights.row_stride + weights.format.row_bytes(weights.n_in);
        let matrices = format_args!("{n_experts} matrices of {matrix} bytes");
        check_fit(matrices, n_experts, matrix, expert_stride, weights.bytes.len());
    }
}

impl Rows<'_> {
    pub(super) fn check(&self, n_in: usize) {
        let Self { values, n_rows, row_stride } = *self;
        check_fit(format_args!("{n_rows} rows of {n_in} activations"), n_rows, n_in, row_stride, values.len());
    }
}

impl ProductOutput<'_> {
    pub(super) fn check(&self, n_rows: usize, n_out: usize) {
        let Self { values, row_stride } = *self;
        assert!(n_rows < 2 || n_out <= row_stride, "rows of {n_out} products, {row_stride} apart, overlap");
        check_fit(format_args!("{n_rows} rows of {n_out} products"), n_rows, n_out, row_stride, values.len());
    }
}

impl ExpertChoices<'_> {
    pub(super) fn check(&self, n_experts: usize) {
        let Self { experts, n_tokens, n_used, stride } = *self;
        check_fit(format_args!("{n_tokens} tokens' choices of {n_used} experts"), n_tokens, n_used, stride, experts.len());
        for token in 0..n_tokens {
            for &expert in &experts[token * stride..][..n_used] {
                let exists = usize::try_from(expert).is_ok_and(|expert| expert < n_experts);
                assert!(exists, "token {token} has expert {expert}, which must be below {n_experts}");
            }
        }
    }

    /// Pairs of a token and one of its experts.
    pub(super) fn n_pairs(&self) -> usize {
        self.n_tokens * self.n_used
    }

    /// The expert of a pair, counted token by token.
    pub(super) fn expert(&self, pair: usize) -> usize {
        self.experts[pair / self.n_used * self.stride + pair % self.n_used].cast_unsigned() as usize
    }
}
