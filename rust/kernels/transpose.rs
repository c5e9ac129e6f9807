//! Transposes 4 × 4 matrices of dwords in registers.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Defines the transposition of a matrix in each 128 bits of the registers.
#[cfg(target_arch = "x86_64")]
macro_rules! transpose {
    ($name:ident, $register:ty, $low_32:ident, $high_32:ident, $low_64:ident, $high_64:ident) => {
        primitives! {
            pub(super) $name(r: [$register; 4]) -> [$register; 4] = {
                let low = ($low_32(r[0], r[1]), $low_32(r[2], r[3]));
                let high = ($high_32(r[0], r[1]), $high_32(r[2], r[3]));
                [$low_64(low.0, low.1), $high_64(low.0, low.1), $low_64(high.0, high.1), $high_64(high.0, high.1)]
            };
        }
    };
}

#[cfg(target_arch = "x86_64")]
transpose! {
    transpose_halves, __m256i,
    _mm256_unpacklo_epi32, _mm256_unpackhi_epi32, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64
}
#[cfg(target_arch = "x86_64")]
transpose! {
    transpose_quarters, __m512i,
    _mm512_unpacklo_epi32, _mm512_unpackhi_epi32, _mm512_unpacklo_epi64, _mm512_unpackhi_epi64
}

primitives! {
    #[cfg(target_arch = "aarch64")]
    pub(super) transpose_4(r: [int32x4_t; 4]) -> [int32x4_t; 4] = {
        let even = (vtrn1q_s32(r[0], r[1]), vtrn1q_s32(r[2], r[3]));
        let odd = (vtrn2q_s32(r[0], r[1]), vtrn2q_s32(r[2], r[3]));
        let low = |a, b| vreinterpretq_s32_s64(vtrn1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
        let high = |a, b| vreinterpretq_s32_s64(vtrn2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
        [low(even.0, even.1), low(odd.0, odd.1), high(even.0, even.1), high(odd.0, odd.1)]
    };
}
