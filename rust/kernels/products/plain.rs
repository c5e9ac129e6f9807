//! Weights that are floats, times rows of activations as they are.
//!
//! Lanes run along the row: sixteen sums per weight row and column, which are added up at the end, always in the same order.

use super::form::{MAX_COLUMNS, MAX_ROWS};
use super::lanes::RowLanes;

/// How many weights of a row are met at a time: as many of each column stay in the first cache.
const STRIDE: usize = 256;

/// How many weights of a row meet at once.
const LANES: usize = 16;

/// A format that is converted as it is read.
pub(super) trait FloatFormat {
    /// Bytes of a weight.
    const BYTES: usize;

    /// Sixteen weights.
    ///
    /// # Safety
    /// The processor has what `L` needs, and sixteen weights may be read.
    unsafe fn load<L: RowLanes>(from: *const u8) -> L::Sixteen;
}

/// Half precision.
pub(super) struct F16;
/// The upper half of single precision.
pub(super) struct Bf16;
/// Single precision.
pub(super) struct F32;

macro_rules! plain {
    ($($name:ident, $bytes:literal, $load:ident;)*) => {$(
        impl FloatFormat for $name {
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn load<L: RowLanes>(from: *const u8) -> L::Sixteen {
                // SAFETY: the caller vouches for the instruction set and the weights.
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
    /// Bytes from row to row.
    pub(super) stride: usize,
    /// How many rows of weights there are.
    pub(super) n_rows: usize,
    /// How long rows are.
    pub(super) n_in: usize,
    /// The rows of activations.
    pub(super) columns: [*const f32; MAX_COLUMNS],
    /// Where the results of each go.
    pub(super) out: [*mut f32; MAX_COLUMNS],
}

/// Multiplies `N` rows of activations.
///
/// # Safety
/// The processor has what `L` needs, rows may be read, and results written.
#[inline(always)]
pub(super) unsafe fn multiply<L: RowLanes, P: FloatFormat, const N: usize>(meeting: &FloatTileProduct) {
    // SAFETY: the caller vouches for the instruction set and the rows.
    unsafe {
        let mut sums = [[L::zero(); N]; MAX_ROWS];
        let mut at = 0;
        while at < meeting.n_in {
            let n = STRIDE.min(meeting.n_in - at);
            let mut row = 0;
            // As many rows together as their sums leave registers for.
            if 4 * N <= L::SUMS {
                while row + 4 <= meeting.n_rows {
                    step::<L, P, N, 4>(meeting, row, at, n, &mut sums);
                    row += 4;
                }
            }
            if 2 * N <= L::SUMS {
                while row + 2 <= meeting.n_rows {
                    step::<L, P, N, 2>(meeting, row, at, n, &mut sums);
                    row += 2;
                }
            }
            while row < meeting.n_rows {
                step::<L, P, N, 1>(meeting, row, at, n, &mut sums);
                row += 1;
            }
            at += n;
        }
        for (row, sums) in sums[..meeting.n_rows].iter().enumerate() {
            for (c, &sum) in sums.iter().enumerate() {
                meeting.out[c].add(row).write(L::sum(sum));
            }
        }
    }
}

/// Adds what `n` weights from `at` on of `R` rows make.
#[inline(always)]
unsafe fn step<L: RowLanes, P: FloatFormat, const N: usize, const R: usize>(
    meeting: &FloatTileProduct,
    row: usize,
    at: usize,
    n: usize,
    all: &mut [[L::Sixteen; N]; MAX_ROWS],
) {
    // SAFETY: the caller vouches for the instruction set and the rows. What is left of a row is copied before it is read.
    unsafe {
        let weights: [*const u8; R] = std::array::from_fn(|r| meeting.weights.add(meeting.stride * (row + r) + P::BYTES * at));
        let columns: [*const f32; N] = std::array::from_fn(|c| meeting.columns[c].add(at));
        let mut sums: [[L::Sixteen; N]; R] = std::array::from_fn(|r| all[row + r]);
        let whole = n / LANES * LANES;
        for k in (0..whole).step_by(LANES) {
            let values: [L::Sixteen; N] = std::array::from_fn(|c| L::singles(columns[c].add(k)));
            for r in 0..R {
                let weight = P::load::<L>(weights[r].add(P::BYTES * k));
                for c in 0..N {
                    sums[r][c] = L::add_product(weight, values[c], sums[r][c]);
                }
            }
        }
        if whole < n {
            let values: [L::Sixteen; N] = std::array::from_fn(|c| {
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
}
