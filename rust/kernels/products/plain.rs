//! Floating-point weights times rows of unconverted activations.
//!
//! Lanes run along the row: sixteen sums per row of weights and column, which are added up at the end, always in the same
//! order.

use std::array::from_fn;

use super::form::{MAX_COLUMNS, MAX_ROWS};
use super::lanes::RowLanes;

/// Weights of a row that are processed per pass: as many values of each column stay in the L1 cache.
const WEIGHTS_PER_PASS: usize = 256;

/// Weights of a row per vector.
const LANES: usize = 16;

/// A format that is converted while it is read.
pub(super) trait FloatFormat {
    const BYTES: usize;

    /// Loads sixteen weights.
    ///
    /// # Safety
    /// The processor supports `L`, and sixteen weights are readable.
    unsafe fn load<L: RowLanes>(from: *const u8) -> L::Sixteen;
}

pub(super) struct F16;
pub(super) struct Bf16;
pub(super) struct F32;

macro_rules! plain {
    ($($name:ident, $bytes:literal, $load:ident;)*) => {$(
        impl FloatFormat for $name {
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn load<L: RowLanes>(from: *const u8) -> L::Sixteen {
                // SAFETY: the caller guarantees the instruction set and the weights.
                unsafe { L::$load(from.cast()) }
            }
        }
    )*};
}

plain! {
    F16, 2, halves;
    Bf16, 2, upper_halves;
    F32, 4, singles;
}

/// A panel's rows of weights and up to eight rows of activations.
#[derive(Debug, Clone, Copy)]
pub(super) struct FloatTileProduct {
    /// The first row of weights.
    pub(super) weights: *const u8,
    /// Stride between rows, in bytes.
    pub(super) stride: usize,
    pub(super) n_rows: usize,
    pub(super) n_in: usize,
    pub(super) columns: [*const f32; MAX_COLUMNS],
    /// Destination of each row's results.
    pub(super) out: [*mut f32; MAX_COLUMNS],
}

/// Multiplies `N` rows of activations.
///
/// # Safety
/// The processor supports `L`, rows are readable, and results writable.
#[inline(always)]
pub(super) unsafe fn multiply<L: RowLanes, P: FloatFormat, const N: usize>(product: &FloatTileProduct) {
    // SAFETY: the caller guarantees the instruction set and the rows.
    unsafe {
        let mut sums = [[L::zero(); N]; MAX_ROWS];
        let mut at = 0;
        while at < product.n_in {
            let n = WEIGHTS_PER_PASS.min(product.n_in - at);
            let mut row = 0;
            while row < product.n_rows {
                // Processes as many rows together as registers can hold sums for.
                row += match product.n_rows - row {
                    4.. if 4 * N <= L::SUMS => step::<L, P, N, 4>(product, row, at, n, &mut sums),
                    2.. if 2 * N <= L::SUMS => step::<L, P, N, 2>(product, row, at, n, &mut sums),
                    _ => step::<L, P, N, 1>(product, row, at, n, &mut sums),
                };
            }
            at += n;
        }
        for (row, sums) in sums[..product.n_rows].iter().enumerate() {
            for (c, &sum) in sums.iter().enumerate() {
                product.out[c].add(row).write(L::sum(sum));
            }
        }
    }
}

/// Adds the products of `n` weights of `R` rows, from weight `at` on. Returns `R`.
#[inline(always)]
unsafe fn step<L: RowLanes, P: FloatFormat, const N: usize, const R: usize>(
    product: &FloatTileProduct,
    row: usize,
    at: usize,
    n: usize,
    all: &mut [[L::Sixteen; N]; MAX_ROWS],
) -> usize {
    // SAFETY: the caller guarantees the instruction set and the rows; a partial vector is read from a copy.
    unsafe {
        let weights: [*const u8; R] = from_fn(|r| product.weights.add(product.stride * (row + r) + P::BYTES * at));
        let columns: [*const f32; N] = from_fn(|c| product.columns[c].add(at));
        let mut sums: [[L::Sixteen; N]; R] = from_fn(|r| all[row + r]);
        let whole = n / LANES * LANES;
        for k in (0..whole).step_by(LANES) {
            let values: [L::Sixteen; N] = from_fn(|c| L::singles(columns[c].add(k)));
            for r in 0..R {
                let weight = P::load::<L>(weights[r].add(P::BYTES * k));
                for c in 0..N {
                    sums[r][c] = L::add_product(weight, values[c], sums[r][c]);
                }
            }
        }
        if whole < n {
            let values: [L::Sixteen; N] = from_fn(|c| {
                let mut rest = [0.0_f32; LANES];
                rest.as_mut_ptr().copy_from_nonoverlapping(columns[c].add(whole), n - whole);
                L::singles(rest.as_ptr())
            });
            for r in 0..R {
                let mut rest = [0_u8; 4 * LANES];
                rest.as_mut_ptr().copy_from_nonoverlapping(weights[r].add(P::BYTES * whole), P::BYTES * (n - whole));
                let weight = P::load::<L>(rest.as_ptr());
                for c in 0..N {
                    sums[r][c] = L::add_product(weight, values[c], sums[r][c]);
                }
            }
        }
        all[row..row + R].copy_from_slice(&sums);
    }
    R
}
