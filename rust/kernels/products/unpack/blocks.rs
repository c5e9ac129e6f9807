//! Blocks of 32 weights.

use super::super::form::{Bytes32, Small32, Small32WithMin};
use super::super::lanes::Lanes;
use super::{Sink, Unpack, column, min_at, scale_at};

/// The sixteen values of `IQ4_NL` and `IQ4_XS`.
const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// The sixteen values of `MXFP4`, doubled: one sign bit, two of exponent and one of mantissa.
const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

const fn add_offset(mut table: [i8; 16], offset: i8) -> [i8; 16] {
    let mut i = 0;
    while i < 16 {
        table[i] = table[i].wrapping_add(offset);
        i += 1;
    }
    table
}

primitives! {
    /// The lower four bits of sixteen bytes per row, then the upper four.
    nibbles<L: Lanes>(at: *const u8, stride: usize) -> [L::Ints; 8] = {
        let four = L::splat(0x0f0f_0f0f);
        let [a, b, c, d] = L::transpose_16_bytes(at, stride);
        let low = |v| L::and(v, four);
        let high = |v| L::and(L::shr(v, 4), four);
        [low(a), low(b), low(c), low(d), high(a), high(b), high(c), high(d)]
    };

    /// Nibbles with a fifth bit from another dword of each row.
    five_bits<L: Lanes>(low: *const u8, high: *const u8, stride: usize) -> [L::Ints; 8] = {
        let mut words = nibbles::<L>(low, stride);
        let bits = L::load(column::<L, u32>(high, stride).as_ptr().cast());
        for (j, word) in (0..).zip(&mut words) {
            *word = L::or(*word, L::spread(bits, j));
        }
        words
    };

    /// Replaces the two indices in each of sixteen bytes per row by the table's values.
    pub(super) lookup_nibbles<L: Lanes>(table: &[i8; 16], at: *const u8, stride: usize) -> [L::Ints; 8] = {
        let mut words = nibbles::<L>(at, stride);
        for word in &mut words {
            *word = L::look_up(table, *word);
        }
        words
    };

    store_halves<L: Lanes>(at: *const u8, stride: usize, to: *mut u8) =
        L::store_floats(L::load_halves(column::<L, u16>(at, stride).as_ptr()), to.cast());

    store_halves_with_min<L: Lanes>(at: *const u8, stride: usize, to: *mut u8) = {
        store_halves::<L>(at, stride, scale_at::<L, Small32WithMin>(to, 0));
        store_halves::<L>(at.add(2), stride, min_at::<L, Small32WithMin>(to, 0));
    };
}

/// The values with the offset that 8-bit weights need.
pub(super) const fn iq4_table<L: Lanes>() -> &'static [i8; 16] {
    if L::SIGNED { const { &IQ4_VALUES } } else { const { &add_offset(IQ4_VALUES, -128) } }
}

formats! {
    /// A half, then 32 bytes.
    Q8_0: Bytes32, 34, 128, true;
    scales(at, stride, to) { store_halves::<L>(at, stride, scale_at::<L, Bytes32>(to, 0)) }
    words(at, stride, sink) {
        let mut words = L::transpose_32_bytes(at.add(2), stride);
        if !L::SIGNED {
            let raise = L::splat(0x8080_8080_u32.cast_signed());
            for word in &mut words {
                *word = L::xor(*word, raise);
            }
        }
        sink.put(0, words);
    }

    /// A half, then 16 bytes of two weights each.
    Q4_0: Small32, 18, 8, true;
    scales(at, stride, to) { store_halves::<L>(at, stride, scale_at::<L, Small32>(to, 0)) }
    words(at, stride, sink) { sink.put(0, nibbles::<L>(at.add(2), stride)) }

    /// Two halves, then 16 bytes of two weights each.
    Q4_1: Small32WithMin, 20, 0, true;
    scales(at, stride, to) { store_halves_with_min::<L>(at, stride, to) }
    words(at, stride, sink) { sink.put(0, nibbles::<L>(at.add(4), stride)) }

    /// A half, 32 upper bits, then 16 bytes of two weights each.
    Q5_0: Small32, 22, 16, true;
    scales(at, stride, to) { store_halves::<L>(at, stride, scale_at::<L, Small32>(to, 0)) }
    words(at, stride, sink) { sink.put(0, five_bits::<L>(at.add(6), at.add(2), stride)) }

    /// Two halves, 32 upper bits, then 16 bytes of two weights each.
    Q5_1: Small32WithMin, 24, 0, true;
    scales(at, stride, to) { store_halves_with_min::<L>(at, stride, to) }
    words(at, stride, sink) { sink.put(0, five_bits::<L>(at.add(8), at.add(4), stride)) }

    /// A half, then 16 bytes of two indices each.
    Iq4Nl: Bytes32, 18, 128, true;
    scales(at, stride, to) { store_halves::<L>(at, stride, scale_at::<L, Bytes32>(to, 0)) }
    words(at, stride, sink) { sink.put(0, lookup_nibbles::<L>(iq4_table::<L>(), at.add(2), stride)) }

    /// An exponent byte, then 16 bytes of two indices each.
    Mxfp4: Small32, 17, 12, true;
    scales(at, stride, to) {
        // The values are doubled, so the scale is half of two to the power of the byte less 127. The two smallest are subnormal.
        let scales = column::<L, u8>(at, stride).map(|exponent| match u32::from(exponent) {
            subnormal @ 0..2 => 0x0020_0000 << subnormal,
            normal => (normal - 1) << 23,
        });
        L::store_floats(L::as_floats(L::load(scales.as_ptr().cast())), scale_at::<L, Small32>(to, 0).cast());
    }
    words(at, stride, sink) {
        sink.put(0, lookup_nibbles::<L>(const { &add_offset(MXFP4_VALUES, 12) }, at.add(1), stride));
    }
}
