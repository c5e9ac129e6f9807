//! Floating-point weights times rows of unconverted activations.
//!
//! Lanes run along the row: sixteen sums per row of weights and column, which are added up at the end, in a fixed order.

use std::array::from_fn;

use super::form::{MAX_COLUMNS, MAX_ROWS};
use super::lanes::RowLanes;

/// Weights of a row per pass: as many values of each column stay in the L1 cache.
const WEIGHTS_PER_PASS: usize = 256;

const LANES: usize = 16;

pub(super) trait FloatFormat {
    const BYTES: usize;

    /// Loads sixteen weights, for processors that support `L`.
    unsafe fn load<L: RowLanes>(from: *const u8) -> L::Sixteen;
}

macro_rules! formats {
    ($($name:ident, $bytes:literal, $load:ident;)*) => {$(
        pub(super) struct $name;

        impl FloatFormat for $name {
            const BYTES: usize = $bytes;

            primitives! {
                load<L: RowLanes>(from: *const u8) -> L::Sixteen = L::$load(from.cast());
            }
        }
    )*};
}

formats! {
    F16, 2, halves;
    Bf16, 2, upper_halves;
    F32, 4, singles;
}

#[derive(Debug, Clone, Copy)]
pub(super) struct FloatTileProduct {
    pub(super) weights: *const u8,
    /// Stride of the weights, in bytes.
    pub(super) stride: usize,
    pub(super) n_rows: usize,
    pub(super) n_in: usize,
    pub(super) columns: [*const f32; MAX_COLUMNS],
    pub(super) out: [*mut f32; MAX_COLUMNS],
}

/// Multiplies `N` rows of activations. Callers guarantee `L`, readable rows and writable results.
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
                // As many rows as registers can hold sums for.
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
