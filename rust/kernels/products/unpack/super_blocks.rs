//! Super-blocks of 256 weights.

use std::array::from_fn;

use super::super::form::{Super16, Super16WithMins, Super32WithMins, SuperBytes32};
use super::super::lanes::Lanes;
use super::blocks::{iq4_table, lookup_nibbles};
use super::{Sink, Unpack, column, min_at, scale_at};

const LOW_2: i32 = 0x0303_0303;
const LOW_4: i32 = 0x0f0f_0f0f;
const LOW_6: i32 = 0x3f3f_3f3f;
const BIT_2: i32 = 0x0404_0404;
const BIT_4: i32 = 0x1010_1010;
const BITS_4_5: i32 = 0x3030_3030;

primitives! {
    /// Moves bit `from` of each byte to bit `to`; `mask` keeps only that bit.
    bit<L: Lanes>(bytes: L::Ints, from: u32, to: u32, mask: i32) -> L::Ints = {
        let moved = if from <= to { L::shl(bytes, to - from) } else { L::shr(bytes, from - to) };
        L::and(moved, L::splat(mask))
    };

    /// Writes four scales per row: `scale` times the bytes minus `offset`.
    store_scales<L: Lanes>(scale: L::Floats, bytes: L::Ints, offset: i32, to: *mut u8) = {
        for j in 0..4 {
            let byte = L::and(L::shr(bytes, 8 * j), L::splat(0xff));
            let whole = L::to_floats(L::sub(byte, L::splat(offset)));
            L::store_floats(L::mul(scale, whole), to.add(L::VECTOR * j as usize).cast());
        }
    };

    /// Writes four minima per row, as two pairs.
    store_min_pairs<L: Lanes>(bytes: L::Ints, to: *mut u8) = {
        for (j, two) in [bytes, L::shr(bytes, 16)].into_iter().enumerate() {
            let pair = L::or(L::and(two, L::splat(0xff)), L::and(L::shl(two, 8), L::splat(0x00ff_0000)));
            L::store(pair, to.add(L::VECTOR * j));
        }
    };

    /// Negated, because minima are subtracted.
    store_min_scale<L: Lanes>(scale: L::Floats, to: *mut u8) = L::store_floats(L::mul(scale, L::splat_float(-1.0)), to.cast());

    /// `Q4_K` and `Q5_K`: two halves, then eight scales and eight minima in twelve bytes.
    store_six_bit_scales<L: Lanes>(block: *const u8, stride: usize, to: *mut u8) = {
        let [halves, a, b, c] = L::transpose_16_bytes(block, stride);
        let (low_4, low_6, upper) = (L::splat(LOW_4), L::splat(LOW_6), L::splat(BITS_4_5));
        let scale = L::low_halves(halves);
        store_scales::<L>(scale, L::and(a, low_6), 0, scale_at::<L, Super32WithMins>(to, 0));
        let last = L::or(L::and(c, low_4), L::and(L::shr(a, 2), upper));
        store_scales::<L>(scale, last, 0, scale_at::<L, Super32WithMins>(to, 4));
        store_min_pairs::<L>(L::and(b, low_6), min_at::<L, Super32WithMins>(to, 0));
        let last = L::or(L::and(L::shr(c, 4), low_4), L::and(L::shr(b, 2), upper));
        store_min_pairs::<L>(last, min_at::<L, Super32WithMins>(to, 2));
        store_min_scale::<L>(L::low_halves(L::shr(halves, 16)), min_at::<L, Super32WithMins>(to, 4));
    };
}

formats! {
    /// Two halves, 12 bytes of scales and minima, 4 times 32 bytes: the lower bits are 32 weights, the upper bits the next 32.
    Q4K: Super32WithMins, 144, 0, true;
    scales(block, stride, to) { store_six_bit_scales::<L>(block, stride, to) }
    words(block, stride, sink) {
        let low_4 = L::splat(LOW_4);
        for i in 0..4 {
            let bytes = L::transpose_32_bytes(block.add(16 + 32 * i), stride);
            sink.put(2 * i, bytes.map(|bytes| L::and(bytes, low_4)));
            sink.put(2 * i + 1, bytes.map(|bytes| L::and(L::shr(bytes, 4), low_4)));
        }
    }

    /// Like `Q4_K`, with 32 bytes of fifth bits before the weights: bit `b` of each byte belongs to the `b`-th 32 weights.
    Q5K: Super32WithMins, 176, 0, true;
    scales(block, stride, to) { store_six_bit_scales::<L>(block, stride, to) }
    words(block, stride, sink) {
        let low_4 = L::splat(LOW_4);
        let fifth = L::transpose_32_bytes(block.add(16), stride);
        for (i, first) in (0..4).zip((0..8).step_by(2)) {
            let bytes = L::transpose_32_bytes(block.add(48 + 32 * i), stride);
            sink.put(2 * i, from_fn(|j| L::or(L::and(bytes[j], low_4), bit::<L>(fifth[j], first, 4, BIT_4))));
            let high = |j| L::or(L::and(L::shr(bytes[j], 4), low_4), bit::<L>(fifth[j], first + 1, 4, BIT_4));
            sink.put(2 * i + 1, from_fn(high));
        }
    }

    /// 128 bytes of lower four bits, 64 of upper two bits, 16 scales, a half.
    Q6K: Super16, 210, 32, true;
    scales(block, stride, to) {
        let scale = L::load_halves(column::<L, u16>(block.add(208), stride).as_ptr());
        for (i, four) in L::transpose_16_bytes(block.add(192), stride).into_iter().enumerate() {
            for j in 0..4 {
                let byte = L::shr_signed(L::shl(four, 24 - 8 * j), 24);
                L::store_floats(L::mul(scale, L::to_floats(byte)), scale_at::<L, Super16>(to, 4 * i + j as usize).cast());
            }
        }
    }
    words(block, stride, sink) {
        let (low_4, upper) = (L::splat(LOW_4), L::splat(BITS_4_5));
        let joined = |low, high| L::or(L::and(low, low_4), L::and(high, upper));
        // The order keeps a few sums waiting instead of many words, which would need more registers.
        for half in 0..2 {
            let two = L::transpose_32_bytes(block.add(128 + 32 * half), stride);
            let b = L::transpose_32_bytes(block.add(64 * half + 32), stride);
            let second = sink.take(4 * half + 1, from_fn(|j| joined(b[j], L::shl(two[j], 2))));
            let fourth = sink.take(4 * half + 3, from_fn(|j| joined(L::shr(b[j], 4), L::shr(two[j], 2))));
            let a = L::transpose_32_bytes(block.add(64 * half), stride);
            sink.put(4 * half, from_fn(|j| joined(a[j], L::shl(two[j], 4))));
            sink.complete(4 * half + 1, second);
            sink.put(4 * half + 2, from_fn(|j| joined(L::shr(a[j], 4), two[j])));
            sink.complete(4 * half + 3, fourth);
        }
    }

    /// 32 bytes of third bits, 64 of lower two bits, 16 scales in 12 bytes, a half.
    Q3K: Super16, 110, 4, false;
    scales(block, stride, to) {
        let (low_2, low_4) = (L::splat(LOW_2), L::splat(LOW_4));
        // The last 16 bytes of the block start two bytes before the scales.
        let [a, b, c, d] = L::transpose_16_bytes(block.add(94), stride);
        let next = |low, high| L::or(L::shr(low, 16), L::shl(high, 16));
        let (a, b, c, scale) = (next(a, b), next(b, c), next(c, d), L::low_halves(L::shr(d, 16)));
        let scales = |low, high| L::or(L::and(low, low_4), L::shl(L::and(high, low_2), 4));
        store_scales::<L>(scale, scales(a, c), 32, scale_at::<L, Super16>(to, 0));
        store_scales::<L>(scale, scales(b, L::shr(c, 2)), 32, scale_at::<L, Super16>(to, 4));
        store_scales::<L>(scale, scales(L::shr(a, 4), L::shr(c, 4)), 32, scale_at::<L, Super16>(to, 8));
        store_scales::<L>(scale, scales(L::shr(b, 4), L::shr(c, 6)), 32, scale_at::<L, Super16>(to, 12));
    }
    words(block, stride, sink) {
        let low_2 = L::splat(LOW_2);
        let third = L::transpose_32_bytes(block, stride);
        for (half, first) in [(0, 0), (1, 4)] {
            let words = L::transpose_32_bytes(block.add(32 + 32 * half), stride);
            for i in 0..4 {
                let word = |j| L::or(L::and(L::shr(words[j], 2 * i), low_2), bit::<L>(third[j], first + i, 2, BIT_2));
                sink.put(4 * half + i as usize, from_fn(word));
            }
        }
    }

    /// 16 bytes of a scale and a minimum each, 64 bytes of weights, two halves.
    Q2K: Super16WithMins, 84, 0, false;
    scales(block, stride, to) {
        let low_4 = L::splat(LOW_4);
        let halves = L::load(column::<L, u32>(block.add(80), stride).as_ptr().cast());
        let scale = L::low_halves(halves);
        for (i, bytes) in L::transpose_16_bytes(block, stride).into_iter().enumerate() {
            store_scales::<L>(scale, L::and(bytes, low_4), 0, scale_at::<L, Super16WithMins>(to, 4 * i));
            store_min_pairs::<L>(L::and(L::shr(bytes, 4), low_4), min_at::<L, Super16WithMins>(to, 2 * i));
        }
        store_min_scale::<L>(L::low_halves(L::shr(halves, 16)), min_at::<L, Super16WithMins>(to, 8));
    }
    words(block, stride, sink) {
        let low_2 = L::splat(LOW_2);
        for half in 0..2 {
            let words = L::transpose_32_bytes(block.add(16 + 32 * half), stride);
            for i in 0..4 {
                sink.put(4 * half + i as usize, words.map(|word| L::and(L::shr(word, 2 * i), low_2)));
            }
        }
    }

    /// A half, 8 times two upper bits of scales, 8 times four lower bits, then 8 times 16 bytes of two indices each.
    Iq4Xs: SuperBytes32, 136, 128, false;
    scales(block, stride, to) {
        let [head, low, ..] = L::transpose_16_bytes(block, stride);
        let scale = L::low_halves(head);
        for i in 0..8 {
            let low = L::and(L::shr(low, 4 * i), L::splat(0xf));
            let high = L::and(L::shl(L::shr(head, 16 + 2 * i), 4), L::splat(0x30));
            let whole = L::to_floats(L::sub(L::or(low, high), L::splat(32)));
            L::store_floats(L::mul(scale, whole), scale_at::<L, SuperBytes32>(to, i as usize).cast());
        }
    }
    words(block, stride, sink) {
        for i in 0..8 {
            sink.put(i, lookup_nibbles::<L>(iq4_table::<L>(), block.add(8 + 16 * i), stride));
        }
    }
}
