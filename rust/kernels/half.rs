//! Floats of half precision, as the processor's instructions convert them.

/// The value of a half.
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

/// The half nearest to a value, the even one of two.
#[expect(clippy::cast_possible_truncation, reason = "what is cut off is known to be zero")]
pub(super) fn from_single(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | ((magnitude >> 13) & 0x3ff) as u16;
    }
    if magnitude < 0x3880_0000 {
        // Below 2^-14 there are units of 2^-24. In 0.5 .. 1 a single has just these, so that adding 0.5 rounds to them.
        let rounded = f32::from_bits(magnitude) + 0.5;
        return sign | (rounded.to_bits() - 0.5_f32.to_bits()) as u16;
    }
    let odd = (magnitude >> 13) & 1;
    let rounded = (magnitude + 0xfff + odd) >> 13;
    // 65,520 and more is nearer to what would be 2^16.
    sign | (rounded.saturating_sub((127 - 15) << 10)).min(0x7c00) as u16
}

/// The processor's own conversions. Their intrinsics came later than the oldest compiler that this crate is for.
#[cfg(target_arch = "aarch64")]
pub(super) mod neon {
    use std::arch::aarch64::{float32x4_t, uint16x4_t, uint16x8_t};
    use std::arch::asm;

    macro_rules! conversions {
        ($($(#[$doc:meta])* $name:ident($from:ty) -> $to:ty = $instruction:literal;)*) => {$(
            $(#[$doc])*
            #[inline(always)]
            pub(in super::super) fn $name(from: $from) -> $to {
                let to;
                // SAFETY: every processor of this kind has the instruction; no memory is touched.
                unsafe { asm!($instruction, out(vreg) to, in(vreg) from, options(pure, nomem, nostack, preserves_flags)) }
                to
            }
        )*};
    }

    conversions! {
        /// Four halves made single.
        four_singles(uint16x4_t) -> float32x4_t = "fcvtl {:v}.4s, {:v}.4h";
        /// The first four of eight halves made single.
        low_singles(uint16x8_t) -> float32x4_t = "fcvtl {:v}.4s, {:v}.4h";
        /// The last four of eight halves made single.
        high_singles(uint16x8_t) -> float32x4_t = "fcvtl2 {:v}.4s, {:v}.8h";
        /// The halves nearest to four values, the even one of two.
        four_halves(float32x4_t) -> uint16x4_t = "fcvtn {:v}.4h, {:v}.4s";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_made_single_and_back_is_the_same() {
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
    fn what_lies_between_goes_to_the_nearer_and_half_way_to_the_even() {
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
    fn they_agree_with_the_processor() {
        use std::arch::x86_64::{_mm_cvtph_ps, _mm_cvtps_ph, _mm_cvtsi32_si128, _mm_cvtsi128_si32, _mm_cvtss_f32, _mm_set_ss};

        #[target_feature(enable = "f16c")]
        fn by_instruction(half: u16, value: f32) -> (u32, u16) {
            let single = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(half)))).to_bits();
            let half = _mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(value), 0)).to_le_bytes();
            (single, u16::from_le_bytes([half[0], half[1]]))
        }

        if !is_x86_feature_detected!("f16c") {
            return;
        }
        for half in 0..=u16::MAX {
            let value = f32::from_bits(u32::from(half).wrapping_mul(0x9e37_79b9));
            // SAFETY: it was just asked for.
            let (single, back) = unsafe { by_instruction(half, value) };
            assert_eq!((to_single(half).to_bits(), from_single(value)), (single, back), "{half:#x}, {value}");
        }
    }
    #[cfg(target_arch = "aarch64")]
    #[test]
    fn they_agree_with_neon() {
        use std::arch::aarch64::{vdup_n_u16, vdupq_n_f32, vget_lane_u16, vgetq_lane_f32, vld1q_u16};

        for half in 0..=u16::MAX {
            let value = f32::from_bits(u32::from(half).wrapping_mul(0x9e37_79b9));
            let eight = [half, !half, half, 0, half, half, 0, !half];
            // SAFETY: every processor of this kind has NEON; eight halves are there.
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
