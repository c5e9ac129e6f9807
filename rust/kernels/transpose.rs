//! Transposes 4 × 4 matrices of dwords in registers.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

primitives! {
    /// Transposes one matrix in each half of the registers. Requires AVX2.
    #[cfg(target_arch = "x86_64")]
    pub(super) transpose_halves(r: [__m256i; 4]) -> [__m256i; 4] = {
        let low = (_mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpacklo_epi32(r[2], r[3]));
        let high = (_mm256_unpackhi_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[2], r[3]));
        [
            _mm256_unpacklo_epi64(low.0, low.1),
            _mm256_unpackhi_epi64(low.0, low.1),
            _mm256_unpacklo_epi64(high.0, high.1),
            _mm256_unpackhi_epi64(high.0, high.1),
        ]
    };

    /// Transposes one matrix in each quarter of the registers. Requires AVX-512 F.
    #[cfg(target_arch = "x86_64")]
    pub(super) transpose_quarters(r: [__m512i; 4]) -> [__m512i; 4] = {
        let low = (_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpacklo_epi32(r[2], r[3]));
        let high = (_mm512_unpackhi_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[2], r[3]));
        [
            _mm512_unpacklo_epi64(low.0, low.1),
            _mm512_unpackhi_epi64(low.0, low.1),
            _mm512_unpacklo_epi64(high.0, high.1),
            _mm512_unpackhi_epi64(high.0, high.1),
        ]
    };

    /// Transposes one matrix.
    #[cfg(target_arch = "aarch64")]
    pub(super) transpose_4(r: [int32x4_t; 4]) -> [int32x4_t; 4] = {
        let even = (vtrn1q_s32(r[0], r[1]), vtrn1q_s32(r[2], r[3]));
        let odd = (vtrn2q_s32(r[0], r[1]), vtrn2q_s32(r[2], r[3]));
        let low = |a, b| vreinterpretq_s32_s64(vtrn1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
        let high = |a, b| vreinterpretq_s32_s64(vtrn2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
        [low(even.0, even.1), low(odd.0, odd.1), high(even.0, even.1), high(odd.0, odd.1)]
    };
}
