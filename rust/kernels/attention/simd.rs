//! The few vector operations that the kernels are written in, one implementation per instruction set, and the kernels.

#![allow(clippy::needless_range_loop, reason = "sums that stay in registers are counted, not iterated over")]

use super::Format;
use super::plan::SLOTS;
use super::prefetch::CellPrefetch;

/// Most lanes that a vector of any instruction set has.
pub(super) const MAX_LANES: usize = 16;

/// Vectors of `f32` of one instruction set.
///
/// # Safety
/// Every method may be called only where the processor has the instruction set, and pointers are to be valid for the lanes that are
/// read or written; no alignment is asked for. The methods are inlined into functions that enable the instruction set.
pub(super) trait Simd: Copy {
    /// A vector.
    type V: Copy;
    /// Its lanes.
    const LANES: usize;

    unsafe fn splat(value: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn store(to: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The greater; `b` where one is no number.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The magnitude.
    unsafe fn abs(v: Self::V) -> Self::V;
    /// The magnitude of `v` with the sign of `sign`.
    unsafe fn with_sign(v: Self::V, sign: Self::V) -> Self::V;
    /// `v` times two to the power that the low bits of `shifted` hold: those of a whole number plus 1.5 × 2²³.
    unsafe fn scale_by_power(v: Self::V, shifted: Self::V) -> Self::V;
    /// `v`, but 0 in lanes where `x` is not above `limit`; what is no number counts as above.
    unsafe fn where_above(x: Self::V, limit: Self::V, v: Self::V) -> Self::V;
    /// `v` in lanes whose bit is set, negative infinity in the others.
    unsafe fn hide(v: Self::V, visible: u32) -> Self::V;
    /// The greatest lane.
    unsafe fn greatest(v: Self::V) -> f32;
    /// The sum of the lanes, always in the same order.
    unsafe fn sum(v: Self::V) -> f32;
    /// As many values of a cell of `format`, from element `at` on, which is a multiple of the lanes.
    unsafe fn load_cell(format: Format, cell: *const u8, at: usize) -> Self::V;
    /// Writes the first `size` elements of as many cells as there are lanes transposed: element `d` of all cells goes to
    /// `to + d * stride`.
    unsafe fn transpose(format: Format, cells: &[*const u8; MAX_LANES], size: usize, to: *mut f32, stride: usize);
}

/// 2 to the power of `x`, for `x` not above 0: within 2 units in the last place, and 0 below 2⁻¹²⁶.
#[inline(always)]
pub(super) unsafe fn exp2<S: Simd>(x: S::V) -> S::V {
    const SHIFT: f32 = 12_582_912.0;
    // SAFETY: the caller vouches for the instruction set; no memory is touched.
    unsafe {
        let least = S::splat(-126.0);
        let near = S::max(least, x);
        let shifted = S::add(near, S::splat(SHIFT));
        let f = S::sub(near, S::sub(shifted, S::splat(SHIFT)));
        // The coefficients are those of the Cephes library's exp2f.
        let mut p = S::splat(1.535_336_2e-4);
        p = S::fma(p, f, S::splat(1.339_887_4e-3));
        p = S::fma(p, f, S::splat(9.618_437e-3));
        p = S::fma(p, f, S::splat(5.550_332_5e-2));
        p = S::fma(p, f, S::splat(2.402_264_8e-1));
        p = S::fma(p, f, S::splat(6.931_472e-1));
        p = S::fma(p, f, S::splat(1.0));
        S::where_above(x, least, S::scale_by_power(p, shifted))
    }
}

/// The hyperbolic tangent, within 2e-7.
#[inline(always)]
pub(super) unsafe fn tanh<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller vouches for the instruction set; no memory is touched.
    unsafe {
        let e = exp2::<S>(S::mul(S::abs(x), S::splat(-2.0 * std::f32::consts::LOG2_E)));
        let one = S::splat(1.0);
        S::with_sign(S::div(S::sub(one, e), S::add(one, e)), x)
    }
}

/// How a block's slots lie in a row of scores: a little more than a power of two, so that rows do not compete for the same lines.
pub(super) const SCORES_STRIDE: usize = SLOTS + 2 * MAX_LANES;

/// `scores[m][lane] = sum over d of queries[d][m] * keys[d][lane]`, for `M` rows and `N` vectors of cells. Each sum is one chain
/// along `d`, so it does not depend on `M` and `N`.
#[inline(always)]
pub(super) unsafe fn scores<S: Simd, const M: usize, const N: usize>(
    (mut queries, n_queries): (*const f32, usize),
    (mut keys, keys_stride): (*const f32, usize),
    size: usize,
    ahead: CellPrefetch,
    out: *mut f32,
) {
    // SAFETY: the caller vouches for `size` rows of `M` queries and `N` vectors of keys, and for the rows of scores.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; M];
        for d in 0..size {
            ahead.ask(d);
            let mut k = [S::splat(0.0); N];
            for n in 0..N {
                k[n] = S::load(keys.add(n * S::LANES));
            }
            for m in 0..M {
                let q = S::splat(*queries.add(m));
                for n in 0..N {
                    sums[m][n] = S::fma(q, k[n], sums[m][n]);
                }
            }
            queries = queries.add(n_queries);
            keys = keys.add(keys_stride);
        }
        for m in 0..M {
            for n in 0..N {
                S::store(out.add(m * SCORES_STRIDE + n * S::LANES), sums[m][n]);
            }
        }
    }
}

/// `out[m][j..] += weights[m][c] * values[c][j..]` for `M` rows and `N` vectors of a head, cell by cell.
#[inline(always)]
pub(super) unsafe fn accumulate_values<S: Simd, const M: usize, const N: usize>(
    weights: *const f32,
    (format, cells): (Format, &[*const u8]),
    at: usize,
    ahead: CellPrefetch,
    (out, out_stride): (*mut f32, usize),
) {
    // SAFETY: the caller vouches for the cells, and for `M` rows of weights and of results.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; M];
        for m in 0..M {
            for n in 0..N {
                sums[m][n] = S::load(out.add(m * out_stride + at + n * S::LANES));
            }
        }
        for (c, &cell) in cells.iter().enumerate() {
            ahead.ask(c);
            let mut v = [S::splat(0.0); N];
            for n in 0..N {
                v[n] = S::load_cell(format, cell, at + n * S::LANES);
            }
            for m in 0..M {
                let weight = S::splat(*weights.add(m * SCORES_STRIDE + c));
                for n in 0..N {
                    sums[m][n] = S::fma(weight, v[n], sums[m][n]);
                }
            }
        }
        for m in 0..M {
            for n in 0..N {
                S::store(out.add(m * out_stride + at + n * S::LANES), sums[m][n]);
            }
        }
    }
}

/// What is done to a row's scores before they become weights.
#[derive(Clone, Copy)]
pub(super) struct SoftmaxParams<'a> {
    /// Which slots of the block the row sees.
    pub(super) visible: &'a [u64; SLOTS / 64],
    /// How many slots the weights are needed of; what lies beyond is not seen.
    pub(super) n_slots: usize,
    /// Scores are `cap * tanh(score)`, in base 2; 0 for none.
    pub(super) cap: f32,
    /// What is added to each slot's score, times the factor, in base 2.
    pub(super) bias: Option<(&'a [f32], f32)>,
}

/// Turns a row's scores of one block into weights, 0 where the row does not see; returns the greatest score and the weights' sum.
#[inline(always)]
pub(super) unsafe fn softmax<S: Simd>(row: *mut f32, how: SoftmaxParams) -> (f32, f32) {
    // SAFETY: the caller vouches for the instruction set and for a whole row of scores; slots are fewer than a row has.
    unsafe {
        let lanes_mask = (1_u64 << S::LANES) - 1;
        let visible = |at: usize| u32::try_from(how.visible[at / 64] >> (at % 64) & lanes_mask).unwrap_or(0);
        let whole = u32::try_from(lanes_mask).unwrap_or(0);
        let mut greatest = S::splat(f32::NEG_INFINITY);
        for at in (0..how.n_slots).step_by(S::LANES) {
            let seen = visible(at);
            if seen == 0 {
                continue;
            }
            let mut x = S::load(row.add(at));
            if how.cap != 0.0 {
                x = S::mul(S::splat(how.cap), tanh::<S>(x));
            }
            if let Some((bias, factor)) = how.bias {
                x = S::fma(S::splat(factor), S::load(bias.as_ptr().add(at)), x);
            }
            if seen != whole {
                x = S::hide(x, seen);
            }
            if seen != whole || how.cap != 0.0 || how.bias.is_some() {
                S::store(row.add(at), x);
            }
            greatest = S::max(greatest, x);
        }
        let greatest = S::greatest(greatest);
        // Where nothing is seen every weight is 0, and what is no number stays so.
        let base = S::splat(if greatest == f32::NEG_INFINITY { 0.0 } else { greatest });
        let mut sum = S::splat(0.0);
        for at in (0..how.n_slots).step_by(S::LANES) {
            if visible(at) == 0 {
                S::store(row.add(at), S::splat(0.0));
                continue;
            }
            let weight = exp2::<S>(S::sub(S::load(row.add(at)), base));
            S::store(row.add(at), weight);
            sum = S::add(sum, weight);
        }
        (greatest, S::sum(sum))
    }
}

/// 2 to the power of one number that is not above 0.
#[inline(always)]
unsafe fn exp2_of<S: Simd>(x: f32) -> f32 {
    let mut lanes = [0.0; MAX_LANES];
    // SAFETY: the caller vouches for the instruction set; there are as many lanes as any has.
    unsafe { S::store(lanes.as_mut_ptr(), exp2::<S>(S::splat(x))) };
    lanes[0]
}

/// A row's softmax so far: the greatest score in base 2, and the sum of weights relative to it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub(super) struct OnlineSoftmax {
    pub(super) greatest: f32,
    pub(super) sum: f32,
}

impl OnlineSoftmax {
    /// Of no cell at all.
    pub(super) const NOTHING: Self = Self { greatest: f32::NEG_INFINITY, sum: 0.0 };
}

/// Adds a block's result to what the blocks before it came to.
#[inline(always)]
pub(super) unsafe fn fold<S: Simd>(
    (so_far, sums): (&mut OnlineSoftmax, *mut f32),
    (block, block_sums): (OnlineSoftmax, *const f32),
    size: usize,
) {
    // SAFETY: the caller vouches for `size` sums of both, a multiple of the lanes.
    unsafe {
        if block.sum == 0.0 {
            return;
        }
        if so_far.sum == 0.0 {
            *so_far = block;
            std::ptr::copy_nonoverlapping(block_sums, sums, size);
            return;
        }
        let greatest = so_far.greatest.max(block.greatest);
        let (old, new) = (exp2_of::<S>(so_far.greatest - greatest), exp2_of::<S>(block.greatest - greatest));
        *so_far = OnlineSoftmax { greatest, sum: so_far.sum * old + block.sum * new };
        let (old, new) = (S::splat(old), S::splat(new));
        for at in (0..size).step_by(S::LANES) {
            let sum = S::fma(S::load(block_sums.add(at)), new, S::mul(S::load(sums.add(at)), old));
            S::store(sums.add(at), sum);
        }
    }
}

/// Writes a row's result: its sums over the sum of its weights, to which a sink adds one that has no value. Zeros where the row
/// saw nothing.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>((tally, sums): (OnlineSoftmax, *const f32), sink: Option<f32>, out: *mut f32, size: usize) {
    // SAFETY: the caller vouches for `size` elements of both, a multiple of the lanes.
    unsafe {
        let mut factor = 0.0;
        if tally.sum != 0.0 {
            factor = match sink {
                Some(sink) if sink > tally.greatest => {
                    let old = exp2_of::<S>(tally.greatest - sink);
                    old / (tally.sum * old + 1.0)
                }
                Some(sink) => 1.0 / (tally.sum + exp2_of::<S>(sink - tally.greatest)),
                None => 1.0 / tally.sum,
            };
        }
        for at in (0..size).step_by(S::LANES) {
            // Where nothing was seen the sums were never written. Adding 0 makes a zero's sign the same for every order of cells.
            let v = if tally.sum == 0.0 { S::splat(0.0) } else { S::load(sums.add(at)) };
            S::store(out.add(at), S::fma(v, S::splat(factor), S::splat(0.0)));
        }
    }
}
