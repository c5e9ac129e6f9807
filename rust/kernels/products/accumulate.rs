//! A span of a panel times a tile of activations.
//!
//! Each lane is a row of weights, and its sum grows along the row, unit by unit: the same operations in the same order, however
//! many columns the tile has.

use std::array::from_fn;

use super::form::Form;
use super::lanes::Lanes;

/// A span of a panel, and the same span of a tile.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meeting {
    /// Units of the panel.
    pub(super) panel: *const u8,
    /// Units of the tile.
    pub(super) tile: *const u8,
    /// How many units there are.
    pub(super) n: usize,
    /// The sums so far, one for each row and column; null at the beginning.
    pub(super) before: *const f32,
    /// Where the sums go: one for each row and column.
    pub(super) after: *mut f32,
    /// How many floats lie between two columns there.
    pub(super) after_stride: usize,
}

/// Adds the products of a span to the sums of `N` columns.
///
/// # Safety
/// The processor has what `L` needs; `meeting.panel` and `meeting.tile` have `meeting.n` units of form `F` that may be read, the
/// sums before, if any, a vector for each column, and `meeting.after` as many that may be written.
#[inline(always)]
pub(super) unsafe fn tile<L: Lanes, F: Form, const N: usize>(meeting: &Meeting) {
    let Meeting { mut panel, mut tile, n, before, after, after_stride } = *meeting;
    // SAFETY: the caller vouches for the instruction set, the units and the sums; offsets stay inside of a unit.
    unsafe {
        let mut sums: [L::Floats; N] =
            if before.is_null() { [L::splat_float(0.0); N] } else { from_fn(|c| L::load_floats(before.add(L::ROWS * c))) };
        for _ in 0..n {
            if F::LEN == 256 {
                super_block::<L, F, N>(panel, tile, &mut sums);
            } else {
                block::<L, F, N>(panel, tile, &mut sums);
            }
            panel = panel.add(L::VECTOR * F::VECTORS);
            tile = tile.add(N * F::COLUMN_BYTES);
        }
        for (c, sum) in sums.into_iter().enumerate() {
            L::store_floats(sum, after.add(after_stride * c));
        }
    }
}

/// The whole products of 16 `PARTS` weights of each row with `N` columns, whose bytes are 32 apart.
#[inline(always)]
unsafe fn products<L: Lanes, F: Form, const N: usize, const PARTS: usize>(
    words: *const u8,
    bytes: *const u8,
    starts: *const i32,
    stride: usize,
) -> [L::Ints; N] {
    // SAFETY: the caller vouches for the instruction set and the unit.
    unsafe {
        let mut sums: [L::Ints; N] =
            from_fn(|c| if F::HAS_OFFSET { L::splat(starts.add(stride * c).read()) } else { L::splat(0) });
        for part in 0..PARTS {
            L::dot(&mut sums, words.add(4 * L::VECTOR * part), bytes.add(16 * part), F::BITS);
        }
        sums
    }
}

/// A unit of 32 weights per row.
#[inline(always)]
unsafe fn block<L: Lanes, F: Form, const N: usize>(panel: *const u8, tile: *const u8, sums: &mut [L::Floats; N]) {
    // SAFETY: the caller vouches for the instruction set and the unit.
    unsafe {
        let scales = tile.add(F::LEN * N).cast::<f32>();
        let rest = scales.add(N);
        let whole = products::<L, F, N, 2>(panel, tile, rest.cast(), 1);
        let scale = L::load_floats(panel.add(L::VECTOR * F::SCALES_AT).cast());
        for c in 0..N {
            sums[c] = L::fma(L::to_floats(whole[c]), L::mul(scale, L::splat_float(scales.add(c).read())), sums[c]);
        }
        if F::MINS > 0 {
            let min = L::load_floats(panel.add(L::VECTOR * F::MINS_AT).cast());
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = L::fma(min, L::splat_float(rest.add(c).read()), *sum);
            }
        }
    }
}

/// A unit of 256 weights per row.
#[inline(always)]
unsafe fn super_block<L: Lanes, F: Form, const N: usize>(panel: *const u8, tile: *const u8, sums: &mut [L::Floats; N]) {
    // SAFETY: the caller vouches for the instruction set and the unit.
    unsafe {
        let scales = tile.add(F::LEN * N).cast::<f32>();
        let rest = scales.add(N).cast::<i32>();
        let mut inner = [L::splat_float(0.0); N];
        if F::MINS > 0 {
            let pairs = panel.add(L::VECTOR * F::MINS_AT);
            let min_scale = L::load_floats(pairs.add(L::VECTOR * F::MINS).cast());
            for (c, sum) in inner.iter_mut().enumerate() {
                let mut whole = L::splat(0);
                for j in 0..F::MINS {
                    whole = L::dot_pairs(whole, L::load(pairs.add(L::VECTOR * j)), rest.add(F::MINS * c + j).read());
                }
                *sum = L::mul(L::to_floats(whole), min_scale);
            }
        }
        for b in 0..8 {
            let words = panel.add(8 * L::VECTOR * b);
            let bytes = tile.add(32 * N * b);
            if F::SCALES == 8 {
                let whole = products::<L, F, N, 2>(words, bytes, rest.add(b), F::SCALES);
                let scale = L::load_floats(panel.add(L::VECTOR * (F::SCALES_AT + b)).cast());
                for c in 0..N {
                    inner[c] = L::fma(L::to_floats(whole[c]), scale, inner[c]);
                }
            } else {
                for half in 0..2 {
                    let at = 2 * b + half;
                    let whole =
                        products::<L, F, N, 1>(words.add(4 * L::VECTOR * half), bytes.add(16 * half), rest.add(at), F::SCALES);
                    let scale = L::load_floats(panel.add(L::VECTOR * (F::SCALES_AT + at)).cast());
                    for c in 0..N {
                        inner[c] = L::fma(L::to_floats(whole[c]), scale, inner[c]);
                    }
                }
            }
        }
        for c in 0..N {
            sums[c] = L::fma(inner[c], L::splat_float(scales.add(c).read()), sums[c]);
        }
    }
}
