//! AVX2 with FMA and F16C: 8 lanes, 16 registers.

use std::arch::x86_64::*;

use super::CellFormat;
use super::kernels::{AttentionTable, ScoreBlock, ValueBlock, kernels};
use super::prefetch::CellPrefetch;
use super::simd::{self, MAX_LANES, OnlineSoftmax, Simd, SoftmaxParams};
use super::x86::{IntVectors, elements_per_unit, store_units};
use crate::kernels::transpose::transpose_halves;

const LANES: usize = 8;

#[derive(Clone, Copy)]
pub(super) struct Avx2;

kernels!(
    Avx2, [target_feature(enable = "avx2,fma,f16c")],
    rows: 6 [1 2 3 4 5 6],
    four: [1 2],
    eight: [1]
);

#[target_feature(enable = "avx2")]
unsafe fn read_mask(mask: *const u16) -> (u64, u64) {
    let hidden = _mm256_set1_epi16(super::Mask::HIDDEN.cast_signed());
    let magnitude = _mm256_set1_epi16(0x7fff);
    let (mut visible, mut zero) = (0, 0);
    for half in 0..2 {
        // SAFETY: the caller guarantees 64 elements.
        let (low, high) = unsafe {
            let first = mask.add(32 * half);
            (_mm256_loadu_si256(first.cast()), _mm256_loadu_si256(first.add(16).cast()))
        };
        let bits = |low, high| {
            let bytes = _mm256_permute4x64_epi64::<0xd8>(_mm256_packs_epi16(low, high));
            u64::from(_mm256_movemask_epi8(bytes).cast_unsigned()) << (32 * half)
        };
        visible |= !bits(_mm256_cmpeq_epi16(low, hidden), _mm256_cmpeq_epi16(high, hidden)) & 0xffff_ffff << (32 * half);
        let none = _mm256_setzero_si256();
        let is_zero = |x| _mm256_cmpeq_epi16(_mm256_and_si256(x, magnitude), none);
        zero |= bits(is_zero(low), is_zero(high));
    }
    (visible, zero)
}

primitives! {
    pub(super) half(from: *const u8) -> f32 = _mm_cvtss_f32(_mm_cvtph_ps(_mm_set1_epi16(from.cast::<i16>().read_unaligned())));

    /// Transposes an 8 × 8 matrix of 32-bit units.
    transpose_8(r: [__m256i; 8]) -> [__m256i; 8] = {
        // Vector `j` holds elements `j` and `j + 4` of four vectors.
        let (a, b) = (transpose_halves([r[0], r[1], r[2], r[3]]), transpose_halves([r[4], r[5], r[6], r[7]]));
        let low = |j: usize| _mm256_permute2x128_si256::<0x20>(a[j], b[j]);
        let high = |j: usize| _mm256_permute2x128_si256::<0x31>(a[j], b[j]);
        [low(0), low(1), low(2), low(3), high(0), high(1), high(2), high(3)]
    };
}

impl IntVectors for Avx2 {
    type Unit = __m256i;

    primitives! {
        and(unit: __m256i, mask: u32) -> __m256i = _mm256_and_si256(unit, _mm256_set1_epi32(mask.cast_signed()));
        shift_left(unit: __m256i, n: i32) -> __m256i = _mm256_sll_epi32(unit, _mm_cvtsi32_si128(n));
        shift_right(unit: __m256i, n: i32) -> __m256i = _mm256_sra_epi32(unit, _mm_cvtsi32_si128(n));
        reinterpret(unit: __m256i) -> __m256 = _mm256_castsi256_ps(unit);
        convert(unit: __m256i) -> __m256 = _mm256_cvtepi32_ps(unit);
    }
}

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = LANES;

    primitives! {
        splat(value: f32) -> __m256 = _mm256_set1_ps(value);
        load(from: *const f32) -> __m256 = _mm256_loadu_ps(from);
        store(to: *mut f32, v: __m256) = _mm256_storeu_ps(to, v);
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        abs(v: __m256) -> __m256 = _mm256_andnot_ps(_mm256_set1_ps(-0.0), v);
        with_sign(v: __m256, sign: __m256) -> __m256 = _mm256_or_ps(v, _mm256_and_ps(_mm256_set1_ps(-0.0), sign));
        scale_by_power(v: __m256, shifted: __m256) -> __m256 = {
            let power = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), power))
        };
        where_above(x: __m256, limit: __m256, v: __m256) -> __m256 = _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLE_UQ>(x, limit), v);
        hide(v: __m256, visible: u32) -> __m256 = {
            let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let is_visible = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(visible.cast_signed()), bits), bits);
            _mm256_blendv_ps(_mm256_set1_ps(f32::NEG_INFINITY), v, _mm256_castsi256_ps(is_visible))
        };
        load_cell(format: CellFormat, cell: *const u8, at: usize) -> __m256 = match format {
            CellFormat::F32 => _mm256_loadu_ps(cell.cast::<f32>().add(at)),
            CellFormat::F16 => _mm256_cvtph_ps(_mm_loadu_si128(cell.add(2 * at).cast())),
            CellFormat::Bf16 => {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(cell.add(2 * at).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
            CellFormat::Q8_0 => {
                let block = cell.add(at / 32 * 34);
                let bytes = _mm_loadl_epi64(block.add(2 + at % 32).cast());
                _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_set1_ps(half(block)))
            }
        };

        transpose(format: CellFormat, cells: &[*const u8; MAX_LANES], size: usize, to: *mut f32, stride: usize) = {
            let per_unit = elements_per_unit(format);
            for first in (0..size).step_by(8 * per_unit) {
                let n_units = ((size - first) / per_unit).min(8);
                let mut units = [_mm256_setzero_si256(); 8];
                let mut factors = [0.0_f32; LANES];
                for (lane, &cell) in cells[..LANES].iter().enumerate() {
                    let from = if format == CellFormat::Q8_0 {
                        let block = cell.add(first / 32 * 34);
                        factors[lane] = half(block);
                        block.add(2)
                    } else {
                        cell.add(first * (4 / per_unit))
                    };
                    units[lane] = if n_units == 8 {
                        _mm256_loadu_si256(from.cast())
                    } else {
                        _mm256_castsi128_si256(_mm_loadu_si128(from.cast()))
                    };
                }
                let factors = _mm256_loadu_ps(factors.as_ptr());
                let units = transpose_8(units);
                // Unrolled by hand: a loop would keep the units in memory.
                macro_rules! store {
                    ($($at:literal)*) => {
                        $(if $at < n_units {
                            store_units::<Self>(format, units[$at], factors, to.add((first + $at * per_unit) * stride), stride);
                        })*
                    };
                }
                store!(0 1 2 3 4 5 6 7);
            }
        };
    }
}
