//! AVX2: two registers of eight lanes. With AVX-VNNI one instruction computes four byte products per lane.

use std::arch::x86_64::*;

use super::{LanePair, Lanes, RowLanes, opaque};
use crate::kernels::transpose::transpose_halves;

/// AVX2, FMA and F16C, and AVX-VNNI if `VNNI`.
pub(in crate::kernels::products) struct Avx2<const VNNI: bool>;

type Ints = LanePair<__m256i>;
type Floats = LanePair<__m256>;

primitives! {
    /// Transposes eight rows of 16 bytes: vector `j` has dword `j` of each.
    transpose_eight_rows(from: *const u8, stride: usize) -> [__m256i; 4] = {
        let next = opaque(from.add(4 * stride));
        let two = |i: usize| {
            let low = _mm_loadu_si128(from.add(i * stride).cast());
            _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_loadu_si128(next.add(i * stride).cast()), 1)
        };
        transpose_halves([two(0), two(1), two(2), two(3)])
    };

    pub(super) sum_8(eight: __m256) -> f32 = {
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    };

    /// Adds products of weights of `bits` bits and activations, in lanes of 32 bits.
    dot_8(sums: __m256i, w: [__m256i; 4], a: [__m256i; 4], bits: u32) -> __m256i = {
        // Pairs of products are added in 16 bits. The bits determine how many fit below 32,767: 31 * 127 * 2 * 4 = 31,496,
        // 63 * 127 * 2 * 2 = 32,004, 128 * 127 * 2 = 32,512. The last uses absolute values.
        let pair = |j: usize| {
            if bits == 8 {
                _mm256_maddubs_epi16(_mm256_abs_epi8(w[j]), _mm256_sign_epi8(a[j], w[j]))
            } else {
                _mm256_maddubs_epi16(w[j], a[j])
            }
        };
        let wide = |pairs| _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        let four = if bits <= 5 {
            wide(_mm256_add_epi16(_mm256_add_epi16(pair(0), pair(1)), _mm256_add_epi16(pair(2), pair(3))))
        } else if bits <= 6 {
            _mm256_add_epi32(wide(_mm256_add_epi16(pair(0), pair(1))), wide(_mm256_add_epi16(pair(2), pair(3))))
        } else {
            let low = _mm256_add_epi32(wide(pair(0)), wide(pair(1)));
            _mm256_add_epi32(low, _mm256_add_epi32(wide(pair(2)), wide(pair(3))))
        };
        _mm256_add_epi32(sums, four)
    };
}

impl<const VNNI: bool> Lanes for Avx2<VNNI> {
    type Ints = Ints;
    type Floats = Floats;

    const ROWS: usize = 16;
    const SIGNED: bool = !VNNI;
    const COLUMNS: usize = 4;

    primitives! {
        splat(value: i32) -> Ints = LanePair(_mm256_set1_epi32(value), _mm256_set1_epi32(value));
        load(from: *const u8) -> Ints = LanePair(_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast()));
        store(ints: Ints, to: *mut u8) = {
            _mm256_storeu_si256(to.cast(), ints.0);
            _mm256_storeu_si256(to.add(32).cast(), ints.1);
        };
        and(a: Ints, b: Ints) -> Ints = a.zip(b, |a, b| _mm256_and_si256(a, b));
        or(a: Ints, b: Ints) -> Ints = a.zip(b, |a, b| _mm256_or_si256(a, b));
        xor(a: Ints, b: Ints) -> Ints = a.zip(b, |a, b| _mm256_xor_si256(a, b));
        shl(a: Ints, n: u32) -> Ints = a.map(|a| _mm256_sll_epi32(a, _mm_cvtsi32_si128(n.cast_signed())));
        shr(a: Ints, n: u32) -> Ints = a.map(|a| _mm256_srl_epi32(a, _mm_cvtsi32_si128(n.cast_signed())));
        shr_signed(a: Ints, n: u32) -> Ints = a.map(|a| _mm256_sra_epi32(a, _mm_cvtsi32_si128(n.cast_signed())));
        sub(a: Ints, b: Ints) -> Ints = a.zip(b, |a, b| _mm256_sub_epi32(a, b));
        look_up(table: &[i8; 16], indices: Ints) -> Ints = {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            indices.map(|indices| _mm256_shuffle_epi8(table, indices))
        };
        splat_float(value: f32) -> Floats = LanePair(_mm256_set1_ps(value), _mm256_set1_ps(value));
        load_floats(from: *const f32) -> Floats = LanePair(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8)));
        store_floats(floats: Floats, to: *mut f32) = {
            _mm256_storeu_ps(to, floats.0);
            _mm256_storeu_ps(to.add(8), floats.1);
        };
        mul(a: Floats, b: Floats) -> Floats = a.zip(b, |a, b| _mm256_mul_ps(a, b));
        fma(a: Floats, b: Floats, c: Floats) -> Floats =
            LanePair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1));
        to_floats(ints: Ints) -> Floats = ints.map(|ints| _mm256_cvtepi32_ps(ints));
        as_floats(ints: Ints) -> Floats = ints.map(|ints| _mm256_castsi256_ps(ints));
        load_halves(from: *const u16) -> Floats =
            LanePair(_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(8).cast())).map(|halves| _mm256_cvtph_ps(halves));
        low_halves(ints: Ints) -> Floats = {
            let low = _mm256_set1_epi32(0xffff);
            // Each half of the packed register has four of the first eight lanes, then four of the last eight.
            let packed = _mm256_packus_epi32(_mm256_and_si256(ints.0, low), _mm256_and_si256(ints.1, low));
            let ordered = _mm256_permute4x64_epi64(packed, 0b11_01_10_00);
            LanePair(_mm256_cvtph_ps(_mm256_castsi256_si128(ordered)), _mm256_cvtph_ps(_mm256_extracti128_si256(ordered, 1)))
        };
        spread(bits: Ints, j: u32) -> Ints = {
            let byte = (j / 2).cast_signed();
            let four = |lane: i32| (4 * lane + byte) * 0x0101_0101;
            let copies = _mm256_broadcastsi128_si256(_mm_setr_epi32(four(0), four(1), four(2), four(3)));
            let mask = _mm256_set1_epi32(if j.is_multiple_of(2) { 0x0804_0201 } else { 0x8040_2010_u32.cast_signed() });
            bits.map(|bits| {
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(bits, copies), mask), mask);
                _mm256_and_si256(set, _mm256_set1_epi8(16))
            })
        };
        transpose_16_bytes(from: *const u8, stride: usize) -> [Ints; 4] = {
            let (a, b) = (transpose_eight_rows(from, stride), transpose_eight_rows(opaque(from.add(8 * stride)), stride));
            [LanePair(a[0], b[0]), LanePair(a[1], b[1]), LanePair(a[2], b[2]), LanePair(a[3], b[3])]
        };
        dot_pairs(sums: Ints, halves: Ints, pair: i32) -> Ints = {
            let pair = _mm256_set1_epi32(pair);
            sums.zip(halves, |sums, halves| _mm256_add_epi32(sums, _mm256_madd_epi16(halves, pair)))
        };

        dot<const N: usize>(sums: &mut [Ints; N], words: impl Fn(usize) -> Ints, activations: *const u8, bits: u32) = {
            let four = |c: usize, j: usize| _mm256_set1_epi32(activations.add(32 * c + 4 * j).cast::<i32>().read_unaligned());
            if VNNI {
                for j in 0..4 {
                    let weight = words(j);
                    for (c, sum) in sums.iter_mut().enumerate() {
                        let four = four(c, j);
                        *sum = sum.zip(weight, |sum, weight| _mm256_dpbusd_avx_epi32(sum, weight, four));
                    }
                }
                return;
            }
            // One register of each pair after the other: four vectors of weights and their absolute values fill the registers.
            let w = [words(0), words(1), words(2), words(3)];
            for (c, sum) in sums.iter_mut().enumerate() {
                sum.0 = dot_8(sum.0, [w[0].0, w[1].0, w[2].0, w[3].0], [four(c, 0), four(c, 1), four(c, 2), four(c, 3)], bits);
            }
            for (c, sum) in sums.iter_mut().enumerate() {
                sum.1 = dot_8(sum.1, [w[0].1, w[1].1, w[2].1, w[3].1], [four(c, 0), four(c, 1), four(c, 2), four(c, 3)], bits);
            }
        };
    }
}

impl<const VNNI: bool> RowLanes for Avx2<VNNI> {
    type Sixteen = Floats;

    const SUMS: usize = 4;

    primitives! {
        zero() -> Floats = <Self as Lanes>::splat_float(0.0);
        singles(from: *const f32) -> Floats = <Self as Lanes>::load_floats(from);
        halves(from: *const u16) -> Floats = <Self as Lanes>::load_halves(from);
        upper_halves(from: *const u16) -> Floats = {
            let eight = |from: *const u16| _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())));
            LanePair(_mm256_castsi256_ps(eight(from)), _mm256_castsi256_ps(eight(from.add(8))))
        };
        add_product(a: Floats, b: Floats, c: Floats) -> Floats = <Self as Lanes>::fma(a, b, c);
        sum(floats: Floats) -> f32 = sum_8(_mm256_add_ps(floats.0, floats.1));
    }
}
