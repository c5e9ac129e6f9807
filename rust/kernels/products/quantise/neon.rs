//! Activations made into bytes by NEON: the same bytes as on every other processor. llama.cpp's own code for ARM divides once more
//! before it multiplies, so that there a byte may differ by one.

use std::arch::aarch64::*;

use super::{Block, Quantise, SuperBlock};
use crate::kernels::half::neon::{four_halves, four_singles};

/// NEON.
pub(in crate::kernels::products) struct Neon;

/// The greater of two; the second where either is no number.
#[inline(always)]
unsafe fn greater(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: every processor of this kind has NEON, here and below; no memory is touched.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// The nearest integer, the even one of two; the least there is where the value is no number or too great.
#[inline(always)]
unsafe fn nearest(values: float32x4_t) -> int32x4_t {
    // SAFETY: as above.
    unsafe { vbslq_s32(vcaltq_f32(values, vdupq_n_f32(2_147_483_648.0)), vcvtnq_s32_f32(values), vdupq_n_s32(i32::MIN)) }
}

impl Quantise for Neon {
    #[inline(always)]
    unsafe fn block(values: *const f32) -> Block {
        // SAFETY: the caller has 32 values.
        unsafe {
            let v: [float32x4_t; 8] = std::array::from_fn(|i| vld1q_f32(values.add(4 * i)));
            // Eight lanes, then halves of them. Which value is taken matters where some are no numbers.
            let (mut low, mut high) = (vabsq_f32(v[0]), vabsq_f32(v[1]));
            for i in (2..8).step_by(2) {
                low = greater(low, vabsq_f32(v[i]));
                high = greater(high, vabsq_f32(v[i + 1]));
            }
            let four = greater(high, low);
            let two = greater(four, vextq_f32::<2>(four, four));
            let greatest = vgetq_lane_f32::<0>(greater(two, vdupq_laneq_f32::<1>(two)));
            let factor = vdupq_n_f32(if greatest == 0.0 { 0.0 } else { 127.0 / greatest });
            let whole = |i: usize| vqmovn_s32(nearest(vmulq_f32(v[i], factor)));
            let eight = |i: usize| vqmovn_s16(vcombine_s16(whole(i), whole(i + 1)));
            let (first, last) = (vcombine_s8(eight(0), eight(2)), vcombine_s8(eight(4), eight(6)));
            let mut bytes = [0; 32];
            vst1q_s8(bytes.as_mut_ptr(), first);
            vst1q_s8(bytes.as_mut_ptr().add(16), last);
            let sum = i32::from(vaddlvq_s8(first)) + i32::from(vaddlvq_s8(last));
            Block { bytes, scale: greatest / 127.0, sum }
        }
    }

    #[inline(always)]
    unsafe fn super_block(values: *const f32) -> SuperBlock {
        // SAFETY: the caller has 256 values.
        unsafe {
            let four = |i: usize| vld1q_f32(values.add(4 * i));
            // The second is taken where the first is no number: such are passed over.
            let mut lanes = [vdupq_n_f32(0.0); 4];
            for i in (0..64).step_by(4) {
                for (j, lane) in lanes.iter_mut().enumerate() {
                    *lane = greater(vabsq_f32(four(i + j)), *lane);
                }
            }
            let greatest = vmaxvq_f32(vmaxq_f32(vmaxq_f32(lanes[0], lanes[1]), vmaxq_f32(lanes[2], lanes[3])));
            let mut found = SuperBlock { bytes: [0; 256], scale: 0.0, sums: [0; 16] };
            if greatest == 0.0 {
                return found;
            }
            // The first that is as great has the sign.
            let mut signed = greatest;
            for i in 0..64 {
                let is_equal = vceqq_f32(vabsq_f32(four(i)), vdupq_n_f32(greatest));
                if vmaxvq_u32(is_equal) != 0 {
                    let values = values.add(4 * i).cast::<[f32; 4]>().read_unaligned();
                    signed = values.into_iter().find(|value| value.abs() >= greatest).unwrap_or(greatest);
                    break;
                }
            }
            let factor = -127.0 / signed;
            // Adding 1.5 * 2^23 leaves the nearest integer in the lower bits, of which the lowest byte is kept.
            let whole = |i: usize| {
                let sum = vaddq_f32(vmulq_f32(vdupq_n_f32(factor), four(i)), vdupq_n_f32(12_582_912.0));
                let bits = vandq_s32(vreinterpretq_s32_f32(sum), vdupq_n_s32(0x007f_ffff));
                vmovn_s32(vminq_s32(vsubq_s32(bits, vdupq_n_s32(0x0040_0000)), vdupq_n_s32(127)))
            };
            let eight = |i: usize| vmovn_s16(vcombine_s16(whole(i), whole(i + 1)));
            for (i, sum) in found.sums.iter_mut().enumerate() {
                let bytes = vcombine_s8(eight(4 * i), eight(4 * i + 2));
                vst1q_s8(found.bytes.as_mut_ptr().add(16 * i), bytes);
                *sum = vaddlvq_s8(bytes);
            }
            found.scale = 1.0 / factor;
            found
        }
    }

    #[inline(always)]
    unsafe fn halved(value: f32) -> f32 {
        // SAFETY: as above.
        unsafe { vgetq_lane_f32::<0>(four_singles(four_halves(vdupq_n_f32(value)))) }
    }
}
