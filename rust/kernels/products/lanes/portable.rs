//! Plain Rust: the reference for the other instruction sets.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "rounds like the instructions; lower halves are taken"
)]

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

    primitives! {
        splat(value: i32) -> Ints = [value; 16];
        load(from: *const u8) -> Ints = from.cast::<Ints>().read_unaligned();
        store(ints: Ints, to: *mut u8) = to.cast::<Ints>().write_unaligned(ints);
        and(a: Ints, b: Ints) -> Ints = from_fn(|i| a[i] & b[i]);
        or(a: Ints, b: Ints) -> Ints = from_fn(|i| a[i] | b[i]);
        xor(a: Ints, b: Ints) -> Ints = from_fn(|i| a[i] ^ b[i]);
        shl(a: Ints, n: u32) -> Ints = a.map(|lane| lane << n);
        shr(a: Ints, n: u32) -> Ints = a.map(|lane| (lane.cast_unsigned() >> n).cast_signed());
        shr_signed(a: Ints, n: u32) -> Ints = a.map(|lane| lane >> n);
        sub(a: Ints, b: Ints) -> Ints = from_fn(|i| a[i].wrapping_sub(b[i]));
        look_up(table: &[i8; 16], indices: Ints) -> Ints =
            indices.map(|lane| i32::from_le_bytes(lane.to_le_bytes().map(|index| table[usize::from(index)].cast_unsigned())));
        spread(bits: Ints, j: u32) -> Ints =
            bits.map(|lane| i32::from_le_bytes([0, 1, 2, 3].map(|i| u8::from(lane >> (4 * j + i) & 1 == 1) << 4)));
        transpose_16_bytes(from: *const u8, stride: usize) -> [Ints; 4] =
            from_fn(|j| from_fn(|row| from.add(row * stride + 4 * j).cast::<i32>().read_unaligned()));
        dot_pairs(sums: Ints, halves: Ints, pair: i32) -> Ints = {
            let split = |dword: i32| ((dword << 16) >> 16, dword >> 16);
            let pair = split(pair);
            from_fn(|i| sums[i] + split(halves[i]).0 * pair.0 + split(halves[i]).1 * pair.1)
        };
        splat_float(value: f32) -> Floats = [value; 16];
        load_floats(from: *const f32) -> Floats = from.cast::<Floats>().read_unaligned();
        store_floats(floats: Floats, to: *mut f32) = to.cast::<Floats>().write_unaligned(floats);
        mul(a: Floats, b: Floats) -> Floats = from_fn(|i| a[i] * b[i]);
        fma(a: Floats, b: Floats, c: Floats) -> Floats = from_fn(|i| a[i].mul_add(b[i], c[i]));
        to_floats(ints: Ints) -> Floats = ints.map(|lane| lane as f32);
        as_floats(ints: Ints) -> Floats = ints.map(|lane| f32::from_bits(lane.cast_unsigned()));
        low_halves(ints: Ints) -> Floats = ints.map(|lane| to_single(lane as u16));
        load_halves(from: *const u16) -> Floats = from.cast::<[u16; 16]>().read_unaligned().map(to_single);
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
}

impl RowLanes for Portable {
    type Sixteen = Floats;

    const SUMS: usize = 4;

    primitives! {
        zero() -> Floats = [0.0; 16];
        singles(from: *const f32) -> Floats = Self::load_floats(from);
        halves(from: *const u16) -> Floats = Self::load_halves(from);
        upper_halves(from: *const u16) -> Floats =
            from.cast::<[u16; 16]>().read_unaligned().map(|upper| f32::from_bits(u32::from(upper) << 16));
        add_product(a: Floats, b: Floats, c: Floats) -> Floats = Self::fma(a, b, c);
        sum(floats: Floats) -> f32 = {
            let eight: [f32; 8] = from_fn(|i| floats[i] + floats[i + 8]);
            let four: [f32; 4] = from_fn(|i| eight[i] + eight[i + 4]);
            (four[0] + four[2]) + (four[1] + four[3])
        };
    }
}
