//! Plain Rust: the reference for the other instruction sets.

use std::array::from_fn;

use super::{Lanes, RowLanes};
use crate::kernels::half::to_single;

pub(in crate::kernels::products) struct Portable;

type Ints = [i32; 16];
type Floats = [f32; 16];

impl Lanes for Portable {
    type Ints = Ints;
    type Floats = Floats;

    const ROWS: usize = 16;
    const SIGNED: bool = false;
    const COLUMNS: usize = 2;

    unsafe fn splat(value: i32) -> Ints {
        [value; 16]
    }

    unsafe fn load(from: *const u8) -> Ints {
        // SAFETY: the caller guarantees 64 bytes to read.
        unsafe { from.cast::<Ints>().read_unaligned() }
    }

    unsafe fn store(ints: Ints, to: *mut u8) {
        // SAFETY: the caller guarantees 64 bytes to write.
        unsafe { to.cast::<Ints>().write_unaligned(ints) }
    }

    unsafe fn and(a: Ints, b: Ints) -> Ints {
        from_fn(|i| a[i] & b[i])
    }

    unsafe fn or(a: Ints, b: Ints) -> Ints {
        from_fn(|i| a[i] | b[i])
    }

    unsafe fn xor(a: Ints, b: Ints) -> Ints {
        from_fn(|i| a[i] ^ b[i])
    }

    unsafe fn shl(a: Ints, n: u32) -> Ints {
        a.map(|lane| lane << n)
    }

    unsafe fn shr(a: Ints, n: u32) -> Ints {
        a.map(|lane| (lane.cast_unsigned() >> n).cast_signed())
    }

    unsafe fn shr_signed(a: Ints, n: u32) -> Ints {
        a.map(|lane| lane >> n)
    }

    unsafe fn sub(a: Ints, b: Ints) -> Ints {
        from_fn(|i| a[i].wrapping_sub(b[i]))
    }

    unsafe fn look_up(table: &[i8; 16], indices: Ints) -> Ints {
        indices.map(|lane| i32::from_le_bytes(lane.to_le_bytes().map(|index| table[usize::from(index)].cast_unsigned())))
    }

    unsafe fn spread(bits: Ints, j: u32) -> Ints {
        bits.map(|lane| i32::from_le_bytes([0, 1, 2, 3].map(|i| u8::from(lane >> (4 * j + i) & 1 == 1) << 4)))
    }

    unsafe fn transpose_16_bytes(from: *const u8, stride: usize) -> [Ints; 4] {
        // SAFETY: the caller guarantees sixteen rows of 16 bytes.
        from_fn(|j| from_fn(|row| i32::from_le_bytes(unsafe { from.add(row * stride + 4 * j).cast::<[u8; 4]>().read() })))
    }

    unsafe fn transpose_32_bytes(from: *const u8, stride: usize) -> [Ints; 8] {
        // SAFETY: the caller guarantees sixteen rows of 32 bytes.
        from_fn(|j| from_fn(|row| i32::from_le_bytes(unsafe { from.add(row * stride + 4 * j).cast::<[u8; 4]>().read() })))
    }

    unsafe fn dot<const N: usize>(sums: &mut [Ints; N], words: impl Fn(usize) -> Ints, activations: *const u8, _bits: u32) {
        let weights: [[[u8; 4]; 16]; 4] = from_fn(|j| words(j).map(i32::to_ne_bytes));
        for (c, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller guarantees 16 bytes of each column.
            let activations = unsafe { activations.add(32 * c).cast::<[[i8; 4]; 4]>().read() };
            for (vector, a) in weights.iter().zip(activations) {
                for (sum, lane) in sums.iter_mut().zip(vector) {
                    *sum += lane.iter().zip(a).map(|(&w, a)| i32::from(w) * i32::from(a)).sum::<i32>();
                }
            }
        }
    }

    unsafe fn dot_pairs(sums: Ints, halves: Ints, pair: i32) -> Ints {
        let split = |dword: i32| ((dword << 16) >> 16, dword >> 16);
        let pair = split(pair);
        from_fn(|i| sums[i] + split(halves[i]).0 * pair.0 + split(halves[i]).1 * pair.1)
    }

    unsafe fn splat_float(value: f32) -> Floats {
        [value; 16]
    }

    unsafe fn load_floats(from: *const f32) -> Floats {
        // SAFETY: the caller guarantees 16 floats to read.
        unsafe { from.cast::<Floats>().read_unaligned() }
    }

    unsafe fn store_floats(floats: Floats, to: *mut f32) {
        // SAFETY: the caller guarantees 16 floats to write.
        unsafe { to.cast::<Floats>().write_unaligned(floats) }
    }

    unsafe fn mul(a: Floats, b: Floats) -> Floats {
        from_fn(|i| a[i] * b[i])
    }

    unsafe fn fma(a: Floats, b: Floats, c: Floats) -> Floats {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[expect(clippy::cast_precision_loss, reason = "rounds like the instruction")]
    unsafe fn to_floats(ints: Ints) -> Floats {
        ints.map(|lane| lane as f32)
    }

    unsafe fn as_floats(ints: Ints) -> Floats {
        ints.map(|lane| f32::from_bits(lane.cast_unsigned()))
    }

    unsafe fn low_halves(ints: Ints) -> Floats {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the lower half is the result")]
        ints.map(|lane| to_single(lane as u16))
    }

    unsafe fn load_halves(from: *const u16) -> Floats {
        // SAFETY: the caller guarantees 16 halves to read.
        unsafe { from.cast::<[u16; 16]>().read_unaligned() }.map(to_single)
    }

    fn prefetch(_at: *const u8) {}
}

impl RowLanes for Portable {
    type Sixteen = Floats;

    const SUMS: usize = 4;

    unsafe fn zero() -> Floats {
        [0.0; 16]
    }

    unsafe fn singles(from: *const f32) -> Floats {
        // SAFETY: the caller guarantees 16 floats to read.
        unsafe { Self::load_floats(from) }
    }

    unsafe fn halves(from: *const u16) -> Floats {
        // SAFETY: the caller guarantees 16 halves to read.
        unsafe { Self::load_halves(from) }
    }

    unsafe fn upper_halves(from: *const u16) -> Floats {
        // SAFETY: the caller guarantees 16 halves to read.
        unsafe { from.cast::<[u16; 16]>().read_unaligned() }.map(|upper| f32::from_bits(u32::from(upper) << 16))
    }

    unsafe fn add_product(a: Floats, b: Floats, c: Floats) -> Floats {
        // SAFETY: the function is plain Rust.
        unsafe { Self::fma(a, b, c) }
    }

    unsafe fn sum(floats: Floats) -> f32 {
        let eight: [f32; 8] = from_fn(|i| floats[i] + floats[i + 8]);
        let four: [f32; 4] = from_fn(|i| eight[i] + eight[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }
}
