//! NEON: four registers of four lanes, with signed bytes.

use std::arch::aarch64::*;
use std::arch::asm;
use std::array::from_fn;

use super::{Lanes, RowLanes, opaque};
use crate::kernels::half::neon::{four_singles, high_singles, low_singles};
use crate::kernels::transpose::transpose_4;

/// NEON, with the dot-product instruction if `DOT`.
pub(in crate::kernels::products) struct Neon<const DOT: bool>;

type Ints = [int32x4_t; 4];
type Floats = [float32x4_t; 4];

/// Adds to each lane the products of its four bytes and of dword `J` of `a`, for processors that support the instruction.
/// Assembly, because the intrinsic is not stable.
#[inline(always)]
unsafe fn add_products<const J: usize>(mut sums: int32x4_t, weights: int32x4_t, a: int32x4_t) -> int32x4_t {
    // SAFETY: the caller guarantees the instruction; no memory is accessed.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{3}]",
            inout(vreg) sums, in(vreg) weights, in(vreg) a, const J,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

primitives! {
    /// Adds products of weights of `bits` bits and activations, in lanes of 32 bits.
    dot_4(sums: int32x4_t, w: [int8x16_t; 4], a: [int8x16_t; 4], bits: u32) -> int32x4_t = {
        // The bits determine how many products fit below 32,767 in 16 bits: 31 * 127 * 8 = 31,496, 63 * 127 * 4 = 32,004,
        // 128 * 127 * 2 = 32,512. The two halves of a row's four bytes are in adjacent lanes.
        let low = |j: usize| vmull_s8(vget_low_s8(w[j]), vget_low_s8(a[j]));
        let high = |j: usize| vmull_high_s8(w[j], a[j]);
        let add_low = |sum, j: usize| vmlal_s8(sum, vget_low_s8(w[j]), vget_low_s8(a[j]));
        let add_high = |sum, j: usize| vmlal_high_s8(sum, w[j], a[j]);
        let two = |first: usize| (add_low(low(first), first + 1), add_high(high(first), first + 1));
        let (first_low, first_high) = two(0);
        let (low, high) = if bits <= 6 {
            let low = add_low(add_low(first_low, 2), 3);
            let high = add_high(add_high(first_high, 2), 3);
            if bits <= 5 {
                return vpadalq_s16(sums, vpaddq_s16(low, high));
            }
            (vpaddlq_s16(low), vpaddlq_s16(high))
        } else {
            let (last_low, last_high) = two(2);
            (vpadalq_s16(vpaddlq_s16(first_low), last_low), vpadalq_s16(vpaddlq_s16(first_high), last_high))
        };
        vaddq_s32(sums, vpaddq_s32(low, high))
    };
}

/// Computes each of the four registers that together form a vector.
#[inline(always)]
fn four<T>(register: impl Fn(usize) -> T) -> [T; 4] {
    [register(0), register(1), register(2), register(3)]
}

impl<const DOT: bool> Lanes for Neon<DOT> {
    type Ints = Ints;
    type Floats = Floats;

    const ROWS: usize = 16;
    const SIGNED: bool = true;
    const COLUMNS: usize = 4;

    primitives! {
        splat(value: i32) -> Ints = [vdupq_n_s32(value); 4];
        load(from: *const u8) -> Ints = four(|i| vreinterpretq_s32_s8(vld1q_s8(from.add(16 * i).cast())));
        store(ints: Ints, to: *mut u8) = {
            for (i, four) in ints.into_iter().enumerate() {
                vst1q_s8(to.add(16 * i).cast(), vreinterpretq_s8_s32(four));
            }
        };
        and(a: Ints, b: Ints) -> Ints = four(|i| vandq_s32(a[i], b[i]));
        or(a: Ints, b: Ints) -> Ints = four(|i| vorrq_s32(a[i], b[i]));
        xor(a: Ints, b: Ints) -> Ints = four(|i| veorq_s32(a[i], b[i]));
        shl(a: Ints, n: u32) -> Ints = four(|i| vshlq_s32(a[i], vdupq_n_s32(n.cast_signed())));
        // A right shift is a left shift by a negative count.
        shr(a: Ints, n: u32) -> Ints =
            four(|i| vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a[i]), vdupq_n_s32(-n.cast_signed()))));
        shr_signed(a: Ints, n: u32) -> Ints = four(|i| vshlq_s32(a[i], vdupq_n_s32(-n.cast_signed())));
        sub(a: Ints, b: Ints) -> Ints = four(|i| vsubq_s32(a[i], b[i]));
        look_up(table: &[i8; 16], indices: Ints) -> Ints = {
            let table = vld1q_s8(table.as_ptr());
            four(|i| vreinterpretq_s32_s8(vqtbl1q_s8(table, vreinterpretq_u8_s32(indices[i]))))
        };
        spread(bits: Ints, j: u32) -> Ints = {
            // Copies the byte with the four bits to all bytes of the lane, then tests one bit in each.
            let byte = vorrq_u32(vreinterpretq_u32_u8(vld1q_u8(FIRST_BYTES.as_ptr())), vdupq_n_u32(0x0101_0101 * (j / 2)));
            let bit = vreinterpretq_u8_u32(vdupq_n_u32(if j.is_multiple_of(2) { 0x0804_0201 } else { 0x8040_2010 }));
            four(|i| {
                let bytes = vqtbl1q_u8(vreinterpretq_u8_s32(bits[i]), vreinterpretq_u8_u32(byte));
                vreinterpretq_s32_u8(vandq_u8(vtstq_u8(bytes, bit), vdupq_n_u8(16)))
            })
        };
        splat_float(value: f32) -> Floats = [vdupq_n_f32(value); 4];
        load_floats(from: *const f32) -> Floats = four(|i| vld1q_f32(from.add(4 * i)));
        store_floats(floats: Floats, to: *mut f32) = {
            for (i, four) in floats.into_iter().enumerate() {
                vst1q_f32(to.add(4 * i), four);
            }
        };
        mul(a: Floats, b: Floats) -> Floats = four(|i| vmulq_f32(a[i], b[i]));
        fma(a: Floats, b: Floats, c: Floats) -> Floats = four(|i| vfmaq_f32(c[i], a[i], b[i]));
        to_floats(ints: Ints) -> Floats = four(|i| vcvtq_f32_s32(ints[i]));
        as_floats(ints: Ints) -> Floats = four(|i| vreinterpretq_f32_s32(ints[i]));
        low_halves(ints: Ints) -> Floats = four(|i| four_singles(vmovn_u32(vreinterpretq_u32_s32(ints[i]))));
        load_halves(from: *const u16) -> Floats = {
            let (a, b) = (vld1q_u16(from), vld1q_u16(from.add(8)));
            [low_singles(a), high_singles(a), low_singles(b), high_singles(b)]
        };
        dot_pairs(sums: Ints, halves: Ints, pair: i32) -> Ints = {
            let pair = vreinterpretq_s16_s32(vdupq_n_s32(pair));
            four(|i| {
                let halves = vreinterpretq_s16_s32(halves[i]);
                let low = vmull_s16(vget_low_s16(halves), vget_low_s16(pair));
                vaddq_s32(sums[i], vpaddq_s32(low, vmull_high_s16(halves, pair)))
            })
        };
        transpose_16_bytes(from: *const u8, stride: usize) -> [Ints; 4] = {
            let rows = |i: usize| {
                let from = opaque(from.add(4 * i * stride));
                transpose_4(four(|row| vreinterpretq_s32_s8(vld1q_s8(from.add(row * stride).cast()))))
            };
            let r = four(rows);
            four(|j| four(|i| r[i][j]))
        };

        dot<const N: usize>(sums: &mut [Ints; N], words: impl Fn(usize) -> Ints, activations: *const u8, bits: u32) = {
            if DOT {
                let a: [int32x4_t; N] = from_fn(|c| vreinterpretq_s32_s8(vld1q_s8(activations.add(32 * c).cast())));
                macro_rules! word {
                    ($($j:literal)*) => {$({
                        let w = words($j);
                        for c in 0..N {
                            sums[c] = four(|i| add_products::<$j>(sums[c][i], w[i], a[c]));
                        }
                    })*};
                }
                word!(0 1 2 3);
                return;
            }
            let words = four(words);
            // One register of each vector at a time: the halves of four vectors and all sums fill the registers.
            for i in 0..4 {
                let w = four(|j| vreinterpretq_s8_s32(words[j][i]));
                for (c, sums) in sums.iter_mut().enumerate() {
                    let dword = |j: usize| activations.add(32 * c + 4 * j).cast::<i32>().read_unaligned();
                    sums[i] = dot_4(sums[i], w, four(|j| vreinterpretq_s8_s32(vdupq_n_s32(dword(j)))), bits);
                }
            }
        };
    }
}

/// For each byte, the index of its lane's first byte.
const FIRST_BYTES: [u8; 16] = [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12];

impl<const DOT: bool> RowLanes for Neon<DOT> {
    type Sixteen = Floats;

    const SUMS: usize = 4;

    primitives! {
        zero() -> Floats = [vdupq_n_f32(0.0); 4];
        singles(from: *const f32) -> Floats = <Self as Lanes>::load_floats(from);
        halves(from: *const u16) -> Floats = <Self as Lanes>::load_halves(from);
        upper_halves(from: *const u16) -> Floats = {
            let (a, b) = (vld1q_u16(from), vld1q_u16(from.add(8)));
            let low = |upper| vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(upper)));
            let high = |upper| vreinterpretq_f32_u32(vshll_high_n_u16::<16>(upper));
            [low(a), high(a), low(b), high(b)]
        };
        add_product(a: Floats, b: Floats, c: Floats) -> Floats = <Self as Lanes>::fma(a, b, c);
        sum(floats: Floats) -> f32 = {
            let four = vaddq_f32(vaddq_f32(floats[0], floats[2]), vaddq_f32(floats[1], floats[3]));
            vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        };
    }
}
