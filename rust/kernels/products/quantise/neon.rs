//! Quantises activations with NEON, to the same bytes as elsewhere; llama.cpp's ARM code divides once more and may be off by one.

use std::arch::aarch64::*;

use super::{Quantise, QuantisedBlock, QuantisedSuperBlock};
use crate::kernels::half::neon::{four_halves, four_singles};

pub(in crate::kernels::products) struct Neon;

primitives! {
    /// Returns the lane-wise maximum; `b` where either is NaN.
    max(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcgtq_f32(a, b), a, b);

    /// Rounds to the nearest integer, ties to even; `i32::MIN` for NaN and values of 2³¹ or more.
    nearest(values: float32x4_t) -> int32x4_t =
        vbslq_s32(vcaltq_f32(values, vdupq_n_f32(2_147_483_648.0)), vcvtnq_s32_f32(values), vdupq_n_s32(i32::MIN));
}

impl Quantise for Neon {
    primitives! {
        quantise_block(values: *const f32) -> QuantisedBlock = {
            let v: [float32x4_t; 8] = std::array::from_fn(|i| vld1q_f32(values.add(4 * i)));
            // Lanes first, then halves of the vector: the order determines the result if some values are NaN.
            let (mut low, mut high) = (vabsq_f32(v[0]), vabsq_f32(v[1]));
            for i in (2..8).step_by(2) {
                low = max(low, vabsq_f32(v[i]));
                high = max(high, vabsq_f32(v[i + 1]));
            }
            let four = max(high, low);
            let two = max(four, vextq_f32::<2>(four, four));
            let max_abs = vgetq_lane_f32::<0>(max(two, vdupq_laneq_f32::<1>(two)));
            let factor = vdupq_n_f32(if max_abs == 0.0 { 0.0 } else { 127.0 / max_abs });
            let rounded = |i: usize| vqmovn_s32(nearest(vmulq_f32(v[i], factor)));
            let eight = |i: usize| vqmovn_s16(vcombine_s16(rounded(i), rounded(i + 1)));
            let (first, last) = (vcombine_s8(eight(0), eight(2)), vcombine_s8(eight(4), eight(6)));
            let mut bytes = [0; 32];
            vst1q_s8(bytes.as_mut_ptr(), first);
            vst1q_s8(bytes.as_mut_ptr().add(16), last);
            let sum = i32::from(vaddlvq_s8(first)) + i32::from(vaddlvq_s8(last));
            QuantisedBlock { bytes, scale: max_abs / 127.0, sum }
        };

        quantise_super_block(values: *const f32) -> QuantisedSuperBlock = {
            let four = |i: usize| vld1q_f32(values.add(4 * i));
            // Returns the second operand where the first is NaN, so NaN is skipped.
            let mut lanes = [vdupq_n_f32(0.0); 4];
            for i in (0..64).step_by(4) {
                for (j, lane) in lanes.iter_mut().enumerate() {
                    *lane = max(vabsq_f32(four(i + j)), *lane);
                }
            }
            let max_abs = vmaxvq_f32(vmaxq_f32(vmaxq_f32(lanes[0], lanes[1]), vmaxq_f32(lanes[2], lanes[3])));
            let mut block = QuantisedSuperBlock { bytes: [0; 256], scale: 0.0, sums: [0; 16] };
            if max_abs == 0.0 {
                return block;
            }
            // The first value of maximum magnitude determines the sign.
            let mut signed = max_abs;
            for i in 0..64 {
                let is_equal = vceqq_f32(vabsq_f32(four(i)), vdupq_n_f32(max_abs));
                if vmaxvq_u32(is_equal) != 0 {
                    let values = values.add(4 * i).cast::<[f32; 4]>().read_unaligned();
                    signed = values.into_iter().find(|value| value.abs() >= max_abs).unwrap_or(max_abs);
                    break;
                }
            }
            let factor = -127.0 / signed;
            // Adding 1.5 * 2^23 leaves the nearest integer in the lower bits.
            let rounded = |i: usize| {
                let sum = vaddq_f32(vmulq_f32(vdupq_n_f32(factor), four(i)), vdupq_n_f32(12_582_912.0));
                let bits = vandq_s32(vreinterpretq_s32_f32(sum), vdupq_n_s32(0x007f_ffff));
                vmovn_s32(vminq_s32(vsubq_s32(bits, vdupq_n_s32(0x0040_0000)), vdupq_n_s32(127)))
            };
            let eight = |i: usize| vmovn_s16(vcombine_s16(rounded(i), rounded(i + 1)));
            for (i, sum) in block.sums.iter_mut().enumerate() {
                let bytes = vcombine_s8(eight(4 * i), eight(4 * i + 2));
                vst1q_s8(block.bytes.as_mut_ptr().add(16 * i), bytes);
                *sum = vaddlvq_s8(bytes);
            }
            block.scale = 1.0 / factor;
            block
        };

        round_to_half(value: f32) -> f32 = vgetq_lane_f32::<0>(four_singles(four_halves(vdupq_n_f32(value))));
    }
}
