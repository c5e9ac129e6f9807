//! The vector operations that each instruction set implements, and the generic kernels written in them.

#![allow(clippy::needless_range_loop, reason = "indexed loops keep the sums in registers")]

use super::CellFormat;
use super::kernels::ValueBlock;
use super::plan::SLOTS;
use super::prefetch::CellPrefetch;

pub(super) const MAX_LANES: usize = 16;

/// Vectors of `f32` of one instruction set. Every method requires it, and pointers that are valid for the lanes, aligned or not.
/// The methods must be inlined into functions that enable the instruction set.
pub(super) trait Simd: Copy {
    type V: Copy;
    const LANES: usize;

    unsafe fn splat(value: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn store(to: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Lane-wise maximum; `b` where either is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn abs(v: Self::V) -> Self::V;
    /// The magnitude of `v` with the sign of `sign`. `v` must not be negative.
    unsafe fn with_sign(v: Self::V, sign: Self::V) -> Self::V;
    /// Multiplies `v` by two to the power of the integer in the low bits of `shifted`, which is that integer plus 1.5 × 2²³.
    unsafe fn scale_by_power(v: Self::V, shifted: Self::V) -> Self::V;
    /// `v`, but 0 in lanes where `x <= limit`; NaN counts as above.
    unsafe fn where_above(x: Self::V, limit: Self::V, v: Self::V) -> Self::V;
    /// `v` in lanes whose bit is set, negative infinity in the others.
    unsafe fn hide(v: Self::V, visible: u32) -> Self::V;
    /// Loads elements of a cell, from element `at` on, a multiple of the lanes.
    unsafe fn load_cell(format: CellFormat, cell: *const u8, at: usize) -> Self::V;
    /// Writes `size` elements of `LANES` cells transposed: element `d` of all cells goes to `to + d * stride`.
    unsafe fn transpose(format: CellFormat, cells: &[*const u8; MAX_LANES], size: usize, to: *mut f32, stride: usize);

    primitives! {
        /// Returns the lanes, followed by zeros.
        to_array(v: Self::V) -> [f32; MAX_LANES] = {
            let mut lanes = [0.0; MAX_LANES];
            Self::store(lanes.as_mut_ptr(), v);
            lanes
        };
        reduce_max(v: Self::V) -> f32 =
            Self::to_array(v)[..Self::LANES].iter().fold(f32::NEG_INFINITY, |a, &b| if a > b { a } else { b });
        /// Adds halves until one lane is left. The default is for eight lanes.
        sum(v: Self::V) -> f32 = {
            let lanes = Self::to_array(v);
            let half: [f32; 4] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + 4]);
            (half[0] + half[2]) + (half[1] + half[3])
        };
    }
}

primitives! {
    /// Computes 2ˣ for `x <= 0`: within 2 units in the last place, and 0 below 2⁻¹²⁶.
    pub(super) exp2<S: Simd>(x: S::V) -> S::V = {
        const SHIFT: f32 = 12_582_912.0;
        // From the Cephes library's exp2f, highest power first.
        const COEFFICIENTS: [f32; 7] =
            [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_264_8e-1, 6.931_472e-1, 1.0];
        let least = S::splat(-126.0);
        let near = S::max(least, x);
        let shifted = S::add(near, S::splat(SHIFT));
        let f = S::sub(near, S::sub(shifted, S::splat(SHIFT)));
        let mut p = S::splat(COEFFICIENTS[0]);
        for coefficient in &COEFFICIENTS[1..] {
            p = S::fma(p, f, S::splat(*coefficient));
        }
        S::where_above(x, least, S::scale_by_power(p, shifted))
    };

    exp2_of<S: Simd>(x: f32) -> f32 = S::to_array(exp2::<S>(S::splat(x)))[0];

    /// Computes the hyperbolic tangent, within 2e-7.
    pub(super) tanh<S: Simd>(x: S::V) -> S::V = {
        let e = exp2::<S>(S::mul(S::abs(x), S::splat(-2.0 * std::f32::consts::LOG2_E)));
        let one = S::splat(1.0);
        S::with_sign(S::div(S::sub(one, e), S::add(one, e)), x)
    };
}

/// Stride between rows of scores. Not a power of two, so that rows do not compete for the same cache sets.
pub(super) const SCORES_STRIDE: usize = SLOTS + 2 * MAX_LANES;

/// `scores[m][lane] = sum over d of queries[d][m] * keys[d][lane]`, for `M` rows and `N` vectors of cells. Each sum is one
/// chain along `d`, so it does not depend on `M` and `N`.
#[inline(always)]
pub(super) unsafe fn scores<S: Simd, const M: usize, const N: usize>(
    (mut queries, n_queries): (*const f32, usize),
    (mut keys, keys_stride): (*const f32, usize),
    size: usize,
    prefetch: CellPrefetch,
    out: *mut f32,
) {
    // SAFETY: the caller guarantees `size` rows of `M` queries and `N` vectors of keys, and the scores.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; M];
        for d in 0..size {
            prefetch.issue(d);
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

/// `out[m][j..] += weights[m][c] * values[c][j..]` for `M` rows and `N` vectors of a head, from element `at` on, cell by cell.
#[inline(always)]
pub(super) unsafe fn accumulate_values<S: Simd, const M: usize, const N: usize>(
    block: &ValueBlock,
    format: CellFormat,
    at: usize,
) {
    let ValueBlock { weights, cells, size, prefetch, out, .. } = *block;
    // SAFETY: the caller guarantees the cells, and `M` rows of weights and of results.
    unsafe {
        let out = |m: usize, n: usize| out.add(m * size + at + n * S::LANES);
        let mut sums = [[S::splat(0.0); N]; M];
        for m in 0..M {
            for n in 0..N {
                sums[m][n] = S::load(out(m, n));
            }
        }
        for (c, &cell) in cells.iter().enumerate() {
            prefetch.issue(c);
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
                S::store(out(m, n), sums[m][n]);
            }
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct SoftmaxParams<'a> {
    /// Slots that the row sees.
    pub(super) visible: &'a [u64; SLOTS / 64],
    /// Slots whose weights are needed; none beyond is visible.
    pub(super) n_slots: usize,
    /// Scores become `cap * tanh(score)`, in base 2; 0 disables the cap.
    pub(super) cap: f32,
    /// Bias of each slot and its factor, whose product is added in base 2.
    pub(super) bias: Option<(&'a [f32], f32)>,
}

/// Turns a row's scores of one block into weights, 0 in hidden slots. Returns the maximum score and the sum of the weights.
#[inline(always)]
pub(super) unsafe fn softmax<S: Simd>(row: *mut f32, params: SoftmaxParams) -> (f32, f32) {
    // SAFETY: the caller guarantees the instruction set and a whole row of scores, which is longer than the slots.
    unsafe {
        let lanes_mask = (1_u64 << S::LANES) - 1;
        let visible = |at: usize| u32::try_from(params.visible[at / 64] >> (at % 64) & lanes_mask).unwrap_or(0);
        let all_lanes = u32::try_from(lanes_mask).unwrap_or(0);
        let mut max_score = S::splat(f32::NEG_INFINITY);
        for at in (0..params.n_slots).step_by(S::LANES) {
            let bits = visible(at);
            if bits == 0 {
                continue;
            }
            let mut x = S::load(row.add(at));
            if params.cap != 0.0 {
                x = S::mul(S::splat(params.cap), tanh::<S>(x));
            }
            if let Some((bias, factor)) = params.bias {
                x = S::fma(S::splat(factor), S::load(bias.as_ptr().add(at)), x);
            }
            if bits != all_lanes {
                x = S::hide(x, bits);
            }
            if bits != all_lanes || params.cap != 0.0 || params.bias.is_some() {
                S::store(row.add(at), x);
            }
            max_score = S::max(max_score, x);
        }
        let max_score = S::reduce_max(max_score);
        // If no slot is visible every weight is 0; NaN stays NaN.
        let base = S::splat(if max_score == f32::NEG_INFINITY { 0.0 } else { max_score });
        let mut sum = S::splat(0.0);
        for at in (0..params.n_slots).step_by(S::LANES) {
            if visible(at) == 0 {
                S::store(row.add(at), S::splat(0.0));
                continue;
            }
            let weight = exp2::<S>(S::sub(S::load(row.add(at)), base));
            S::store(row.add(at), weight);
            sum = S::add(sum, weight);
        }
        (max_score, S::sum(sum))
    }
}

/// State of a row's online softmax: the maximum score in base 2, and the sum of weights relative to it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub(super) struct OnlineSoftmax {
    pub(super) max_score: f32,
    pub(super) sum: f32,
}

impl OnlineSoftmax {
    pub(super) const EMPTY: Self = Self { max_score: f32::NEG_INFINITY, sum: 0.0 };
}

/// Folds a block's result into the result of the blocks before.
#[inline(always)]
pub(super) unsafe fn fold<S: Simd>(
    (total, sums): (&mut OnlineSoftmax, *mut f32),
    (block, block_sums): (OnlineSoftmax, *const f32),
    size: usize,
) {
    // SAFETY: the caller guarantees `size` elements of both sums, a multiple of the lanes.
    unsafe {
        if block.sum == 0.0 {
            return;
        }
        if total.sum == 0.0 {
            *total = block;
            std::ptr::copy_nonoverlapping(block_sums, sums, size);
            return;
        }
        let max_score = total.max_score.max(block.max_score);
        let (old, new) = (exp2_of::<S>(total.max_score - max_score), exp2_of::<S>(block.max_score - max_score));
        *total = OnlineSoftmax { max_score, sum: total.sum * old + block.sum * new };
        let (old, new) = (S::splat(old), S::splat(new));
        for at in (0..size).step_by(S::LANES) {
            let sum = S::fma(S::load(block_sums.add(at)), new, S::mul(S::load(sums.add(at)), old));
            S::store(sums.add(at), sum);
        }
    }
}

/// Divides a row's sums by the sum of its weights, to which a sink adds its weight. A row that sees no cell gets zeros.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>((state, sums): (OnlineSoftmax, *const f32), sink: Option<f32>, out: *mut f32, size: usize) {
    // SAFETY: the caller guarantees `size` elements of both, a multiple of the lanes.
    unsafe {
        let mut factor = 0.0;
        if state.sum != 0.0 {
            factor = match sink {
                Some(sink) if sink > state.max_score => {
                    let old = exp2_of::<S>(state.max_score - sink);
                    old / (state.sum * old + 1.0)
                }
                Some(sink) => 1.0 / (state.sum + exp2_of::<S>(sink - state.max_score)),
                None => 1.0 / state.sum,
            };
        }
        for at in (0..size).step_by(S::LANES) {
            // Sums without a cell are uninitialised. Adding 0 makes a zero's sign independent of the order of cells.
            let v = if state.sum == 0.0 { S::splat(0.0) } else { S::load(sums.add(at)) };
            S::store(out.add(at), S::fma(v, S::splat(factor), S::splat(0.0)));
        }
    }
}
