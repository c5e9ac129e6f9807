//! Lanes of AVX-512: one register.

use std::arch::x86_64::*;

use super::Lanes;

/// AVX-512 F, BW, DQ, VL and VNNI.
pub(in crate::kernels::products) struct Avx512;

/// Sixteen dwords, of which dword `n` is the four bits of `n`, each in bit 4 of a byte.
const SPREAD: [i32; 16] = {
    let mut table = [0; 16];
    let mut n = 0;
    while n < 16 {
        table[n] = (((n & 1) << 4) | ((n & 2) << 11) | ((n & 4) << 18) | ((n & 8) << 25)) as i32;
        n += 1;
    }
    table
};

/// Two rows of 32 bytes as one register.
#[inline(always)]
unsafe fn two_rows(low: *const u8, high: *const u8) -> __m512i {
    // SAFETY: the caller has AVX-512, and 32 bytes to be read at both.
    unsafe { _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(low.cast())), _mm256_loadu_si256(high.cast()), 1) }
}

/// A matrix of 4 by 4 dwords in each quarter of the registers, transposed.
#[inline(always)]
unsafe fn transpose_quarters(r: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let (a, b) = (_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
        let (c, d) = (_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));
        [_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d)]
    }
}

macro_rules! simple {
    ($($name:ident ($($arg:ident: $type:ty),*) $(-> $out:ty)? = $value:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $type),*) $(-> $out)? {
            // SAFETY: the caller has AVX-512 with VNNI, and pointers that are good for 16 lanes.
            unsafe { $value }
        }
    )*};
}

impl Lanes for Avx512 {
    type Ints = __m512i;
    type Floats = __m512;

    const SIGNED: bool = false;
    const COLUMNS: usize = 8;

    simple! {
        splat(value: i32) -> __m512i = _mm512_set1_epi32(value);
        load(from: *const u8) -> __m512i = _mm512_loadu_si512(from.cast());
        store(ints: __m512i, to: *mut u8) = _mm512_storeu_si512(to.cast(), ints);
        and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        xor(a: __m512i, b: __m512i) -> __m512i = _mm512_xor_si512(a, b);
        shl(a: __m512i, n: u32) -> __m512i = _mm512_sll_epi32(a, _mm_cvtsi32_si128(n.cast_signed()));
        shr(a: __m512i, n: u32) -> __m512i = _mm512_srl_epi32(a, _mm_cvtsi32_si128(n.cast_signed()));
        shr_signed(a: __m512i, n: u32) -> __m512i = _mm512_sra_epi32(a, _mm_cvtsi32_si128(n.cast_signed()));
        sub(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        look_up(table: &[i8; 16], indices: __m512i) -> __m512i =
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), indices);
        splat_float(value: f32) -> __m512 = _mm512_set1_ps(value);
        load_floats(from: *const f32) -> __m512 = _mm512_loadu_ps(from);
        store_floats(floats: __m512, to: *mut f32) = _mm512_storeu_ps(to, floats);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        to_floats(ints: __m512i) -> __m512 = _mm512_cvtepi32_ps(ints);
        as_floats(ints: __m512i) -> __m512 = _mm512_castsi512_ps(ints);
        low_halves(ints: __m512i) -> __m512 = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(ints));
        load_halves(from: *const u16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        load_upper_halves(from: *const u16) -> __m512 =
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()))));
        dot_pairs(sums: __m512i, halves: __m512i, pair: i32) -> __m512i = _mm512_dpwssd_epi32(sums, halves, _mm512_set1_epi32(pair));
    }

    #[inline(always)]
    unsafe fn spread(bits: __m512i, j: u32) -> __m512i {
        // SAFETY: the caller has AVX-512. The permutation looks at four bits of each lane only.
        unsafe { _mm512_permutexvar_epi32(Self::shr(bits, 4 * j), _mm512_loadu_si512(SPREAD.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn transpose_16_bytes(from: *const u8, stride: usize) -> [__m512i; 4] {
        // SAFETY: the caller has AVX-512, and sixteen rows of 16 bytes.
        unsafe {
            let row = |i: usize| _mm_loadu_si128(from.add(i * stride).cast());
            let four = |i: usize| {
                let low = _mm512_inserti32x4(_mm512_castsi128_si512(row(i)), row(i + 4), 1);
                _mm512_inserti32x4(_mm512_inserti32x4(low, row(i + 8), 2), row(i + 12), 3)
            };
            transpose_quarters([four(0), four(1), four(2), four(3)])
        }
    }

    #[inline(always)]
    unsafe fn transpose_32_bytes(from: *const u8, stride: usize) -> [__m512i; 8] {
        // SAFETY: the caller has AVX-512, and sixteen rows of 32 bytes.
        unsafe {
            let rows = |i: usize| two_rows(from.add(i * stride), from.add((i + 4) * stride));
            let a = transpose_quarters([rows(0), rows(1), rows(2), rows(3)]);
            let b = transpose_quarters([rows(8), rows(9), rows(10), rows(11)]);
            let low = |j: usize| _mm512_shuffle_i32x4(a[j], b[j], 0x88);
            let high = |j: usize| _mm512_shuffle_i32x4(a[j], b[j], 0xdd);
            [low(0), low(1), low(2), low(3), high(0), high(1), high(2), high(3)]
        }
    }

    #[inline(always)]
    unsafe fn dot(mut sums: __m512i, weights: &[__m512i; 4], activations: *const u8, _bits: u32) -> __m512i {
        for (j, &four) in weights.iter().enumerate() {
            // SAFETY: the caller has AVX-512 with VNNI, and 16 bytes of activations.
            sums = unsafe {
                _mm512_dpbusd_epi32(sums, four, _mm512_set1_epi32(activations.add(4 * j).cast::<i32>().read_unaligned()))
            };
        }
        sums
    }

    #[inline(always)]
    unsafe fn sum(floats: __m512) -> f32 {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(floats), _mm512_extractf32x8_ps(floats, 1));
            super::avx2::sum_8(eight)
        }
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch(at.cast(), _MM_HINT_T1) }
    }
}
