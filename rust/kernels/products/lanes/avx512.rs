//! AVX-512: two registers of sixteen lanes, so that a dword of activations is broadcast once for 32 rows.

use std::arch::x86_64::*;

use super::avx2::sum_8;
use super::{LanePair, Lanes, RowLanes, opaque};
use crate::kernels::transpose::transpose_quarters;

/// Requires AVX-512 F, BW, DQ, VL and VNNI.
pub(in crate::kernels::products) struct Avx512;

type Ints = LanePair<__m512i>;
type Floats = LanePair<__m512>;

/// Sixteen dwords: dword `n` has the four bits of `n`, each as bit 4 of a byte.
const SPREAD: [i32; 16] = {
    const fn bit(n: usize, i: u32) -> u8 {
        if n >> i & 1 == 1 { 16 } else { 0 }
    }

    let mut table = [0; 16];
    let mut n = 0;
    while n < 16 {
        table[n] = i32::from_le_bytes([bit(n, 0), bit(n, 1), bit(n, 2), bit(n, 3)]);
        n += 1;
    }
    table
};

primitives! {
    two_rows(low: *const u8, high: *const u8) -> __m512i =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(low.cast())), _mm256_loadu_si256(high.cast()), 1);

    /// Transposes sixteen rows of 16 bytes: vector `j` has dword `j` of each.
    transpose_16(from: *const u8, stride: usize) -> [__m512i; 4] = {
        let b = opaque(from.add(4 * stride));
        let c = opaque(b.add(4 * stride));
        let d = opaque(c.add(4 * stride));
        let four = |i: usize| {
            let row = |quarter: *const u8| _mm_loadu_si128(quarter.add(i * stride).cast());
            let low = _mm512_inserti32x4(_mm512_castsi128_si512(row(from)), row(b), 1);
            _mm512_inserti32x4(_mm512_inserti32x4(low, row(c), 2), row(d), 3)
        };
        transpose_quarters([four(0), four(1), four(2), four(3)])
    };

    /// Transposes eight rows of 32 bytes: vector `j` has dwords `j` and `j + 4` of four rows, then of the next four.
    transpose_eight_rows(from: *const u8, stride: usize) -> [__m512i; 4] = {
        let next = opaque(from.add(4 * stride));
        let rows = |i: usize| two_rows(from.add(i * stride), next.add(i * stride));
        transpose_quarters([rows(0), rows(1), rows(2), rows(3)])
    };

    /// Transposes sixteen rows of 32 bytes: vector `j` has dword `j` of each.
    transpose_32(from: *const u8, stride: usize) -> [__m512i; 8] = {
        let a = transpose_eight_rows(from, stride);
        let b = transpose_eight_rows(opaque(from.add(8 * stride)), stride);
        let low = |j: usize| _mm512_shuffle_i32x4(a[j], b[j], 0x88);
        let high = |j: usize| _mm512_shuffle_i32x4(a[j], b[j], 0xdd);
        [low(0), low(1), low(2), low(3), high(0), high(1), high(2), high(3)]
    };
}

impl Lanes for Avx512 {
    type Ints = Ints;
    type Floats = Floats;

    const ROWS: usize = 32;
    const SIGNED: bool = false;
    const COLUMNS: usize = 6;

    primitives! {
        splat(value: i32) -> Ints = LanePair(_mm512_set1_epi32(value), _mm512_set1_epi32(value));
        load(from: *const u8) -> Ints = LanePair(_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(64).cast()));
        store(ints: Ints, to: *mut u8) = {
            _mm512_storeu_si512(to.cast(), ints.0);
            _mm512_storeu_si512(to.add(64).cast(), ints.1);
        };
        and(a: Ints, b: Ints) -> Ints = a.zip(b, |a, b| _mm512_and_si512(a, b));
        or(a: Ints, b: Ints) -> Ints = a.zip(b, |a, b| _mm512_or_si512(a, b));
        xor(a: Ints, b: Ints) -> Ints = a.zip(b, |a, b| _mm512_xor_si512(a, b));
        shl(a: Ints, n: u32) -> Ints = a.map(|a| _mm512_sll_epi32(a, _mm_cvtsi32_si128(n.cast_signed())));
        shr(a: Ints, n: u32) -> Ints = a.map(|a| _mm512_srl_epi32(a, _mm_cvtsi32_si128(n.cast_signed())));
        shr_signed(a: Ints, n: u32) -> Ints = a.map(|a| _mm512_sra_epi32(a, _mm_cvtsi32_si128(n.cast_signed())));
        sub(a: Ints, b: Ints) -> Ints = a.zip(b, |a, b| _mm512_sub_epi32(a, b));
        look_up(table: &[i8; 16], indices: Ints) -> Ints = {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            indices.map(|indices| _mm512_shuffle_epi8(table, indices))
        };
        splat_float(value: f32) -> Floats = LanePair(_mm512_set1_ps(value), _mm512_set1_ps(value));
        load_floats(from: *const f32) -> Floats = LanePair(_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(16)));
        store_floats(floats: Floats, to: *mut f32) = {
            _mm512_storeu_ps(to, floats.0);
            _mm512_storeu_ps(to.add(16), floats.1);
        };
        mul(a: Floats, b: Floats) -> Floats = a.zip(b, |a, b| _mm512_mul_ps(a, b));
        fma(a: Floats, b: Floats, c: Floats) -> Floats =
            LanePair(_mm512_fmadd_ps(a.0, b.0, c.0), _mm512_fmadd_ps(a.1, b.1, c.1));
        to_floats(ints: Ints) -> Floats = ints.map(|ints| _mm512_cvtepi32_ps(ints));
        as_floats(ints: Ints) -> Floats = ints.map(|ints| _mm512_castsi512_ps(ints));
        low_halves(ints: Ints) -> Floats = ints.map(|ints| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(ints)));
        load_halves(from: *const u16) -> Floats = LanePair(Self::halves(from), Self::halves(from.add(16)));
        dot_pairs(sums: Ints, halves: Ints, pair: i32) -> Ints = {
            let pair = _mm512_set1_epi32(pair);
            sums.zip(halves, |sums, halves| _mm512_dpwssd_epi32(sums, halves, pair))
        };
        spread(bits: Ints, j: u32) -> Ints = {
            // The permutation uses only the low four bits of each index.
            let (bits, table) = (Self::shr(bits, 4 * j), _mm512_loadu_si512(SPREAD.as_ptr().cast()));
            bits.map(|bits| _mm512_permutexvar_epi32(bits, table))
        };
        transpose_16_bytes(from: *const u8, stride: usize) -> [Ints; 4] = {
            let (a, b) = (transpose_16(from, stride), transpose_16(opaque(from.add(16 * stride)), stride));
            [LanePair(a[0], b[0]), LanePair(a[1], b[1]), LanePair(a[2], b[2]), LanePair(a[3], b[3])]
        };
        transpose_32_bytes(from: *const u8, stride: usize) -> [Ints; 8] = {
            let (a, b) = (transpose_32(from, stride), transpose_32(opaque(from.add(16 * stride)), stride));
            std::array::from_fn(|j| LanePair(a[j], b[j]))
        };
        dot<const N: usize>(sums: &mut [Ints; N], words: impl Fn(usize) -> Ints, activations: *const u8, _bits: u32) = for j in 0..4 {
            let weight = words(j);
            for (c, sum) in sums.iter_mut().enumerate() {
                let four = _mm512_set1_epi32(activations.add(32 * c + 4 * j).cast::<i32>().read_unaligned());
                *sum = sum.zip(weight, |sum, weight| _mm512_dpbusd_epi32(sum, weight, four));
            }
        };
    }
}

impl RowLanes for Avx512 {
    type Sixteen = __m512;

    const SUMS: usize = 24;

    primitives! {
        zero() -> __m512 = _mm512_setzero_ps();
        singles(from: *const f32) -> __m512 = _mm512_loadu_ps(from);
        halves(from: *const u16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        upper_halves(from: *const u16) -> __m512 =
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()))));
        add_product(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        sum(floats: __m512) -> f32 =
            sum_8(_mm256_add_ps(_mm512_castps512_ps256(floats), _mm512_extractf32x8_ps(floats, 1)));
    }
}
