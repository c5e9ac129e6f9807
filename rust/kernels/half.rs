//! Conversions between half and single precision that agree bit by bit with the processor's instructions.

pub(super) fn to_single(half: u16) -> f32 {
    const INFINITE: u32 = 0x7c00 << 13;
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff) << 13;
    if magnitude >= INFINITE {
        // A signalling NaN becomes a quiet one.
        let quiet = u32::from(magnitude > INFINITE) << 22;
        return f32::from_bits(sign | 0x7f80_0000 | magnitude | quiet);
    }
    // The exponent's bias differs by 112, and multiplying by a power of two is exact for small numbers too.
    let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(sign | scaled.to_bits())
}

/// Converts to half precision, rounding to nearest, ties to even.
#[expect(clippy::cast_possible_truncation, reason = "the discarded bits are zero")]
pub(super) fn from_single(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | ((magnitude >> 13) & 0x3ff) as u16;
    }
    if magnitude < 0x3880_0000 {
        // Halves below 2^-14 are multiples of 2^-24. In 0.5..1 so are singles, so adding 0.5 rounds to them.
        let rounded = f32::from_bits(magnitude) + 0.5;
        return sign | (rounded.to_bits() - 0.5_f32.to_bits()) as u16;
    }
    let odd = (magnitude >> 13) & 1;
    let rounded = (magnitude + 0xfff + odd) >> 13;
    // 65,520 and above round to infinity.
    sign | (rounded.saturating_sub((127 - 15) << 10)).min(0x7c00) as u16
}

/// The processor's own conversions, in assembly because the oldest supported compiler lacks their intrinsics.
#[cfg(target_arch = "aarch64")]
pub(super) mod neon {
    use std::arch::aarch64::{float32x4_t, uint16x4_t, uint16x8_t};
    use std::arch::asm;

    macro_rules! conversions {
        ($($name:ident($from:ty) -> $to:ty = $instruction:literal;)*) => {$(
            #[inline(always)]
            pub(in super::super) fn $name(from: $from) -> $to {
                let to;
                // SAFETY: every AArch64 processor has the instruction, and it accesses no memory.
                unsafe { asm!($instruction, out(vreg) to, in(vreg) from, options(pure, nomem, nostack, preserves_flags)) }
                to
            }
        )*};
    }

    conversions! {
        four_singles(uint16x4_t) -> float32x4_t = "fcvtl {:v}.4s, {:v}.4h";
        low_singles(uint16x8_t) -> float32x4_t = "fcvtl {:v}.4s, {:v}.4h";
        high_singles(uint16x8_t) -> float32x4_t = "fcvtl2 {:v}.4s, {:v}.8h";
        four_halves(float32x4_t) -> uint16x4_t = "fcvtn {:v}.4h, {:v}.4s";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converting_to_single_and_back_preserves_a_half() {
        for half in 0..=u16::MAX {
            let single = to_single(half);
            if single.is_nan() {
                assert_eq!(from_single(single), half | 0x200);
            } else {
                assert_eq!(from_single(single), half);
            }
        }
    }

    #[test]
    fn values_round_to_nearest_with_ties_to_even() {
        for half in 0..0x7bff_u16 {
            let (low, high) = (to_single(half), to_single(half + 1));
            let middle = f32::midpoint(low, high);
            assert_eq!(from_single(middle), half + (half & 1), "{half:#x}");
            assert_eq!(from_single(f32::from_bits(middle.to_bits() - 1)), half);
            assert_eq!(from_single(f32::from_bits(middle.to_bits() + 1)), half + 1);
        }
        assert_eq!(from_single(65_519.9), 0x7bff);
        assert_eq!(from_single(65_520.0), 0x7c00);
        assert_eq!(from_single(f32::NEG_INFINITY), 0xfc00);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn conversions_agree_with_f16c() {
        use std::arch::x86_64::{_mm_cvtph_ps, _mm_cvtps_ph, _mm_cvtsi32_si128, _mm_cvtsi128_si32, _mm_cvtss_f32, _mm_set_ss};

        #[target_feature(enable = "f16c")]
        fn convert_by_instruction(half: u16, value: f32) -> (u32, u16) {
            let single = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(half)))).to_bits();
            let half = _mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(value), 0)).to_le_bytes();
            (single, u16::from_le_bytes([half[0], half[1]]))
        }

        if !is_x86_feature_detected!("f16c") {
            return;
        }
        for half in 0..=u16::MAX {
            let value = f32::from_bits(u32::from(half).wrapping_mul(0x9e37_79b9));
            // SAFETY: support was just checked.
            let (single, back) = unsafe { convert_by_instruction(half, value) };
            assert_eq!((to_single(half).to_bits(), from_single(value)), (single, back), "{half:#x}, {value}");
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn conversions_agree_with_neon() {
        use std::arch::aarch64::{vdup_n_u16, vdupq_n_f32, vget_lane_u16, vgetq_lane_f32, vld1q_u16};

        for half in 0..=u16::MAX {
            let value = f32::from_bits(u32::from(half).wrapping_mul(0x9e37_79b9));
            let eight = [half, !half, half, 0, half, half, 0, !half];
            // SAFETY: every AArch64 processor has NEON, and the array has eight halves.
            let (single, back, low, high) = unsafe {
                let eight = vld1q_u16(eight.as_ptr());
                (
                    vgetq_lane_f32::<3>(neon::four_singles(vdup_n_u16(half))),
                    vget_lane_u16::<2>(neon::four_halves(vdupq_n_f32(value))),
                    vgetq_lane_f32::<1>(neon::low_singles(eight)),
                    vgetq_lane_f32::<3>(neon::high_singles(eight)),
                )
            };
            assert_eq!((to_single(half).to_bits(), from_single(value)), (single.to_bits(), back), "{half:#x}, {value}");
            let other = to_single(!half).to_bits();
            assert_eq!((low.to_bits(), high.to_bits()), (other, other));
        }
    }
}
