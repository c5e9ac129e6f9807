//! NEON: pairs of 4-lane registers as vectors of 8 lanes; 32 registers.

use std::arch::aarch64::*;

use super::CellFormat;
use super::kernels::{AttentionTable, ScoreBlock, ValueBlock, kernels};
use super::prefetch::CellPrefetch;
use super::simd::{self, MAX_LANES, OnlineSoftmax, Simd, SoftmaxParams};
use crate::kernels::half::neon::{four_singles, high_singles, low_singles};
use crate::kernels::transpose::transpose_4;

const LANES: usize = 8;

#[derive(Clone, Copy)]
pub(super) struct Neon;

/// Lanes 0 to 3, and 4 to 7.
#[derive(Clone, Copy)]
pub(super) struct Pair(float32x4_t, float32x4_t);

// 24 registers of sums leave eight for the operands.
kernels!(
    Neon, [target_feature(enable = "neon")],
    rows: 6 [1 2 3 4 5 6],
    four: [1 2],
    eight: [1]
);

unsafe fn read_mask(mask: *const u16) -> (u64, u64) {
    const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: every AArch64 processor has NEON, here and below; the caller guarantees 64 elements.
    unsafe {
        let numbers = |i: usize| vld1q_u16(mask.add(8 * i));
        // Compresses 16-bit comparison masks to one bit each: each byte keeps its bit, then pairwise additions join the bytes.
        let bits = |is_so: &dyn Fn(usize) -> _| {
            let bytes = |i| vandq_u8(vcombine_u8(vmovn_u16(is_so(i)), vmovn_u16(is_so(i + 1))), vld1q_u8(BITS.as_ptr()));
            let fours = vpaddq_u8(vpaddq_u8(bytes(0), bytes(2)), vpaddq_u8(bytes(4), bytes(6)));
            vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(fours, fours)))
        };
        let visible = bits(&|i| vmvnq_u16(vceqq_u16(numbers(i), vdupq_n_u16(super::Mask::HIDDEN))));
        let zero = bits(&|i| vceqzq_u16(vandq_u16(numbers(i), vdupq_n_u16(0x7fff))));
        (visible, zero)
    }
}

#[inline(always)]
fn each(a: Pair, b: Pair, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Pair {
    Pair(f(a.0, b.0), f(a.1, b.1))
}

impl Simd for Neon {
    type V = Pair;
    const LANES: usize = LANES;

    primitives! {
        splat(value: f32) -> Pair = Pair(vdupq_n_f32(value), vdupq_n_f32(value));
        load(from: *const f32) -> Pair = Pair(vld1q_f32(from), vld1q_f32(from.add(4)));
        store(to: *mut f32, v: Pair) = {
            vst1q_f32(to, v.0);
            vst1q_f32(to.add(4), v.1);
        };
        add(a: Pair, b: Pair) -> Pair = each(a, b, |a, b| vaddq_f32(a, b));
        sub(a: Pair, b: Pair) -> Pair = each(a, b, |a, b| vsubq_f32(a, b));
        mul(a: Pair, b: Pair) -> Pair = each(a, b, |a, b| vmulq_f32(a, b));
        div(a: Pair, b: Pair) -> Pair = each(a, b, |a, b| vdivq_f32(a, b));
        fma(a: Pair, b: Pair, c: Pair) -> Pair = Pair(vfmaq_f32(c.0, a.0, b.0), vfmaq_f32(c.1, a.1, b.1));
        // The maximum instruction returns NaN where either operand is NaN; this must return `b`.
        max(a: Pair, b: Pair) -> Pair = each(a, b, |a, b| vbslq_f32(vcgtq_f32(a, b), a, b));
        abs(v: Pair) -> Pair = Pair(vabsq_f32(v.0), vabsq_f32(v.1));
        with_sign(v: Pair, sign: Pair) -> Pair = each(v, sign, |v, sign| vbslq_f32(vdupq_n_u32(1 << 31), sign, v));
        scale_by_power(v: Pair, shifted: Pair) -> Pair = each(v, shifted, |v, shifted| {
            let power = vshlq_n_u32::<23>(vreinterpretq_u32_f32(shifted));
            vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(v), power))
        });
        where_above(x: Pair, limit: Pair, v: Pair) -> Pair = {
            let four = |x, limit, v| vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), vcleq_f32(x, limit)));
            Pair(four(x.0, limit.0, v.0), four(x.1, limit.1, v.1))
        };
        hide(v: Pair, visible: u32) -> Pair = {
            const BITS: [u32; LANES] = [1, 2, 4, 8, 16, 32, 64, 128];
            let four = |v, at| {
                let is_visible = vtstq_u32(vdupq_n_u32(visible), vld1q_u32(BITS.as_ptr().add(at)));
                vbslq_f32(is_visible, v, vdupq_n_f32(f32::NEG_INFINITY))
            };
            Pair(four(v.0, 0), four(v.1, 4))
        };
        load_cell(format: CellFormat, cell: *const u8, at: usize) -> Pair = match format {
            CellFormat::F32 => Self::load(cell.cast::<f32>().add(at)),
            CellFormat::F16 => {
                let halves = vld1q_u16(cell.cast::<u16>().add(at));
                Pair(low_singles(halves), high_singles(halves))
            }
            CellFormat::Bf16 => {
                let upper = vld1q_u16(cell.cast::<u16>().add(at));
                let (low, high) = (vshll_n_u16::<16>(vget_low_u16(upper)), vshll_high_n_u16::<16>(upper));
                Pair(vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high))
            }
            CellFormat::Q8_0 => {
                let block = cell.add(at / 32 * 34);
                let factor = four_singles(vdup_n_u16(block.cast::<u16>().read_unaligned()));
                let bytes = vmovl_s8(vld1_s8(block.add(2 + at % 32).cast()));
                let (low, high) = (vmovl_s16(vget_low_s16(bytes)), vmovl_high_s16(bytes));
                Pair(vmulq_f32(vcvtq_f32_s32(low), factor), vmulq_f32(vcvtq_f32_s32(high), factor))
            }
        };
    }

    #[inline(always)]
    unsafe fn transpose(format: CellFormat, cells: &[*const u8; MAX_LANES], size: usize, to: *mut f32, stride: usize) {
        for first in (0..size).step_by(LANES) {
            // SAFETY: the caller guarantees `size` elements of each cell, a multiple of eight, and as many rows of all lanes.
            unsafe {
                let of = |lane: usize| Self::load_cell(format, cells[lane], first);
                for lane in [0, 4] {
                    let r = [of(lane), of(lane + 1), of(lane + 2), of(lane + 3)];
                    let halves = [r.map(|pair| pair.0), r.map(|pair| pair.1)];
                    let halves = halves.map(|half| transpose_4(half.map(|four| vreinterpretq_s32_f32(four))));
                    for (d, &element) in halves.as_flattened().iter().enumerate() {
                        vst1q_f32(to.add((first + d) * stride + lane), vreinterpretq_f32_s32(element));
                    }
                }
            }
        }
    }
}
