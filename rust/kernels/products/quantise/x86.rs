//! Quantises activations with AVX2 and F16C, which every x86 level includes.

use std::arch::x86_64::*;

use super::{Quantise, QuantisedBlock, QuantisedSuperBlock};

pub(in crate::kernels::products) struct X86;

primitives! {
    /// Restores the order of the dwords after two packing steps.
    ordered(packed: __m256i) -> __m256i = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));

    sum_of_lanes(lanes: __m256i) -> i32 = {
        let four = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
        let two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b01_00_11_10));
        _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0b10_11_00_01)))
    };

    /// Returns the maximum of eight lanes. The order, which determines the result if some are NaN, is llama.cpp's.
    max_of_lanes(lanes: __m256) -> f32 = {
        let four = _mm_max_ps(_mm256_extractf128_ps(lanes, 1), _mm256_castps256_ps128(lanes));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    };

    absolute(values: __m256) -> __m256 = _mm256_andnot_ps(_mm256_set1_ps(-0.0), values);
}

impl Quantise for X86 {
    primitives! {
        quantise_block(values: *const f32) -> QuantisedBlock = {
            let v: [__m256; 4] = std::array::from_fn(|i| _mm256_loadu_ps(values.add(8 * i)));
            let mut lanes = absolute(v[0]);
            for &eight in &v[1..] {
                lanes = _mm256_max_ps(lanes, absolute(eight));
            }
            let max_abs = max_of_lanes(lanes);
            let factor = _mm256_set1_ps(if max_abs == 0.0 { 0.0 } else { 127.0 / max_abs });
            let rounded = v.map(|eight| _mm256_cvtps_epi32(_mm256_mul_ps(eight, factor)));
            let packed =
                _mm256_packs_epi16(_mm256_packs_epi32(rounded[0], rounded[1]), _mm256_packs_epi32(rounded[2], rounded[3]));
            let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), packed);
            let sum = sum_of_lanes(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            let mut bytes = [0; 32];
            _mm256_storeu_si256(bytes.as_mut_ptr().cast(), ordered(packed));
            QuantisedBlock { bytes, scale: max_abs / 127.0, sum }
        };

        quantise_super_block(values: *const f32) -> QuantisedSuperBlock = {
            let eight = |i: usize| _mm256_loadu_ps(values.add(8 * i));
            // Returns the second operand where the first is NaN, so NaN is skipped.
            let mut lanes = [_mm256_setzero_ps(); 4];
            for i in (0..32).step_by(4) {
                for (j, lane) in lanes.iter_mut().enumerate() {
                    *lane = _mm256_max_ps(absolute(eight(i + j)), *lane);
                }
            }
            let max_abs = max_of_lanes(_mm256_max_ps(_mm256_max_ps(lanes[0], lanes[1]), _mm256_max_ps(lanes[2], lanes[3])));
            let mut block = QuantisedSuperBlock { bytes: [0; 256], scale: 0.0, sums: [0; 16] };
            if max_abs == 0.0 {
                return block;
            }
            // The first value of maximum magnitude determines the sign.
            let mut signed = max_abs;
            for i in 0..32 {
                let equal = _mm256_cmp_ps(absolute(eight(i)), _mm256_set1_ps(max_abs), _CMP_EQ_OQ);
                let equal = _mm256_movemask_ps(equal).cast_unsigned();
                if equal != 0 {
                    signed = values.add(8 * i + equal.trailing_zeros() as usize).read();
                    break;
                }
            }
            let factor = -127.0 / signed;
            // Adding 1.5 * 2^23 leaves the nearest integer in the lower bits.
            let rounded = |i: usize| {
                let sum = _mm256_add_ps(_mm256_mul_ps(_mm256_set1_ps(factor), eight(i)), _mm256_set1_ps(12_582_912.0));
                let bits = _mm256_and_si256(_mm256_castps_si256(sum), _mm256_set1_epi32(0x007f_ffff));
                let rounded = _mm256_sub_epi32(bits, _mm256_set1_epi32(0x0040_0000));
                // Only the lowest byte is kept.
                _mm256_and_si256(_mm256_min_epi32(rounded, _mm256_set1_epi32(127)), _mm256_set1_epi32(0xff))
            };
            for i in 0..8 {
                let low = _mm256_packus_epi32(rounded(4 * i), rounded(4 * i + 1));
                let high = _mm256_packus_epi32(rounded(4 * i + 2), rounded(4 * i + 3));
                let bytes = ordered(_mm256_packus_epi16(low, high));
                _mm256_storeu_si256(block.bytes.as_mut_ptr().add(32 * i).cast(), bytes);
                // Sums of 16 bytes: each byte times one, in pairs, then in fours, then within each half of the register.
                let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
                let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                let two = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0b01_00_11_10));
                let all = _mm256_add_epi32(two, _mm256_shuffle_epi32(two, 0b10_11_00_01));
                let (low, high) = (_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
                #[expect(clippy::cast_possible_truncation, reason = "sums of sixteen bytes fit")]
                let sums = [_mm_cvtsi128_si32(low) as i16, _mm_cvtsi128_si32(high) as i16];
                block.sums[2 * i..2 * i + 2].copy_from_slice(&sums);
            }
            block.scale = 1.0 / factor;
            block
        };

        round_to_half(value: f32) -> f32 = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtps_ph(_mm_set_ss(value), 0)));
    }
}
