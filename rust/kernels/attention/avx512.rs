//! AVX-512: 16 lanes, 32 registers.

use std::arch::x86_64::*;

use super::CellFormat;
use super::avx2::{Avx2, half};
use super::kernels::{AttentionTable, ScoreBlock, ValueBlock, kernels};
use super::prefetch::CellPrefetch;
use super::simd::{self, MAX_LANES, OnlineSoftmax, Simd, SoftmaxParams};
use super::x86::{IntVectors, elements_per_unit, store_units};
use crate::kernels::transpose::transpose_quarters;

const LANES: usize = 16;

#[derive(Clone, Copy)]
pub(super) struct Avx512;

kernels!(
    Avx512, [target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")],
    rows: 14 [1 2 3 4 5 6 7 8 9 10 11 12 13 14],
    four: [1 2 3 4 5 6],
    eight: [1 2]
);

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn read_mask(mask: *const u16) -> (u64, u64) {
    // SAFETY: the caller guarantees 64 elements.
    let (low, high) = unsafe { (_mm512_loadu_si512(mask.cast()), _mm512_loadu_si512(mask.add(32).cast())) };
    let hidden = _mm512_set1_epi16(super::Mask::HIDDEN.cast_signed());
    let magnitude = _mm512_set1_epi16(0x7fff);
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let visible = join(_mm512_cmpneq_epi16_mask(low, hidden), _mm512_cmpneq_epi16_mask(high, hidden));
    let zero = join(_mm512_testn_epi16_mask(low, magnitude), _mm512_testn_epi16_mask(high, magnitude));
    (visible, zero)
}

primitives! {
    /// Transposes a 16 × 16 matrix of 32-bit units.
    transpose_16(of: [__m512i; 16]) -> [__m512i; 16] = {
        // Vector `j` holds elements `j`, `j + 4`, `j + 8` and `j + 12` of four vectors.
        let (a, b) = (transpose_quarters([of[0], of[1], of[2], of[3]]), transpose_quarters([of[4], of[5], of[6], of[7]]));
        let (c, d) = (transpose_quarters([of[8], of[9], of[10], of[11]]), transpose_quarters([of[12], of[13], of[14], of[15]]));
        let mut columns = [a[0]; 16];
        for j in 0..4 {
            let even = (_mm512_shuffle_i32x4::<0x88>(a[j], b[j]), _mm512_shuffle_i32x4::<0x88>(c[j], d[j]));
            let odd = (_mm512_shuffle_i32x4::<0xdd>(a[j], b[j]), _mm512_shuffle_i32x4::<0xdd>(c[j], d[j]));
            columns[j] = _mm512_shuffle_i32x4::<0x88>(even.0, even.1);
            columns[j + 4] = _mm512_shuffle_i32x4::<0x88>(odd.0, odd.1);
            columns[j + 8] = _mm512_shuffle_i32x4::<0xdd>(even.0, even.1);
            columns[j + 12] = _mm512_shuffle_i32x4::<0xdd>(odd.0, odd.1);
        }
        columns
    };
}

impl IntVectors for Avx512 {
    type Unit = __m512i;

    primitives! {
        and(unit: __m512i, mask: u32) -> __m512i = _mm512_and_si512(unit, _mm512_set1_epi32(mask.cast_signed()));
        shift_left(unit: __m512i, n: i32) -> __m512i = _mm512_sll_epi32(unit, _mm_cvtsi32_si128(n));
        shift_right(unit: __m512i, n: i32) -> __m512i = _mm512_sra_epi32(unit, _mm_cvtsi32_si128(n));
        reinterpret(unit: __m512i) -> __m512 = _mm512_castsi512_ps(unit);
        convert(unit: __m512i) -> __m512 = _mm512_cvtepi32_ps(unit);
    }
}

impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = LANES;

    primitives! {
        splat(value: f32) -> __m512 = _mm512_set1_ps(value);
        load(from: *const f32) -> __m512 = _mm512_loadu_ps(from);
        store(to: *mut f32, v: __m512) = _mm512_storeu_ps(to, v);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        abs(v: __m512) -> __m512 = _mm512_abs_ps(v);
        with_sign(v: __m512, sign: __m512) -> __m512 = {
            let bit = _mm512_and_si512(_mm512_castps_si512(sign), _mm512_set1_epi32(i32::MIN));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(v), bit))
        };
        scale_by_power(v: __m512, shifted: __m512) -> __m512 = {
            let power = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), power))
        };
        where_above(x: __m512, limit: __m512, v: __m512) -> __m512 =
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLE_UQ>(x, limit), v);
        hide(v: __m512, visible: u32) -> __m512 = {
            #[expect(clippy::cast_possible_truncation, reason = "there are sixteen lanes")]
            let visible = visible as u16;
            _mm512_mask_blend_ps(visible, _mm512_set1_ps(f32::NEG_INFINITY), v)
        };
        reduce_max(v: __m512) -> f32 = _mm512_reduce_max_ps(v);
        sum(v: __m512) -> f32 = Avx2::sum(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
        load_cell(format: CellFormat, cell: *const u8, at: usize) -> __m512 = match format {
            CellFormat::F32 => _mm512_loadu_ps(cell.cast::<f32>().add(at)),
            CellFormat::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(cell.add(2 * at).cast())),
            CellFormat::Bf16 => {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(cell.add(2 * at).cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
            CellFormat::Q8_0 => {
                let block = cell.add(at / 32 * 34);
                let bytes = _mm_loadu_si128(block.add(2 + at % 32).cast());
                _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), _mm512_set1_ps(half(block)))
            }
        };

        transpose(format: CellFormat, cells: &[*const u8; MAX_LANES], size: usize, to: *mut f32, stride: usize) = {
            let per_unit = elements_per_unit(format);
            for first in (0..size).step_by(16 * per_unit) {
                let n_units = ((size - first) / per_unit).min(16);
                let mut units = [_mm512_setzero_si512(); 16];
                let mut factors = [_mm512_set1_ps(0.0); 2];
                if format == CellFormat::Q8_0 {
                    let mut scales = [[0_u16; 16]; 2];
                    for (lane, &cell) in cells.iter().enumerate() {
                        let block = cell.add(first / 32 * 34);
                        let low = _mm256_loadu_si256(block.add(2).cast());
                        scales[0][lane] = block.cast::<u16>().read_unaligned();
                        units[lane] = _mm512_castsi256_si512(low);
                        if n_units == 16 {
                            scales[1][lane] = block.add(34).cast::<u16>().read_unaligned();
                            let high = _mm256_maskz_loadu_epi32(0xff, block.add(36).cast::<i32>());
                            units[lane] = _mm512_inserti64x4::<1>(units[lane], high);
                        }
                    }
                    factors = scales.map(|scales| _mm512_cvtph_ps(_mm256_loadu_si256(scales.as_ptr().cast())));
                } else {
                    let bytes = first * (4 / per_unit);
                    let load_mask = u16::MAX >> (16 - n_units);
                    for (unit, &cell) in units.iter_mut().zip(cells) {
                        *unit = _mm512_maskz_loadu_epi32(load_mask, cell.add(bytes).cast::<i32>());
                    }
                }
                let units = transpose_16(units);
                // Unrolled by hand: a loop would keep the units in memory.
                macro_rules! store {
                    ($($at:literal)*) => {
                        $(if $at < n_units {
                            let to = to.add((first + $at * per_unit) * stride);
                            store_units::<Self>(format, units[$at], factors[$at / 8], to, stride);
                        })*
                    };
                }
                store!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            }
        };
    }
}
