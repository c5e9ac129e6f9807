//! Blocks of 32 weights.

use super::super::form::{Bytes32, Form, Small32, Small32WithMin};
use super::super::lanes::Lanes;
use super::{Sink, Unpack, column};

/// The sixteen values of `IQ4_NL` and `IQ4_XS`.
pub(super) const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// The sixteen values of `MXFP4`, doubled: one sign bit, two of exponent and one of mantissa.
const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Returns the table with `offset` added to each value.
pub(super) const fn add_offset(mut table: [i8; 16], offset: i8) -> [i8; 16] {
    let mut i = 0;
    while i < 16 {
        table[i] = table[i].wrapping_add(offset);
        i += 1;
    }
    table
}

/// Unpacks sixteen bytes of each row into their lower four bits, then their upper four.
#[inline(always)]
pub(super) unsafe fn nibbles<L: Lanes>(at: *const u8, stride: usize) -> [L::Ints; 8] {
    // SAFETY: the caller guarantees the instruction set, and a panel's rows of 16 bytes.
    unsafe {
        let four = L::splat(0x0f0f_0f0f);
        let [a, b, c, d] = L::transpose_16_bytes(at, stride);
        let low = |v| L::and(v, four);
        let high = |v| L::and(L::shr(v, 4), four);
        [low(a), low(b), low(c), low(d), high(a), high(b), high(c), high(d)]
    }
}

/// Unpacks nibbles with a fifth bit from a separate dword of each row.
#[inline(always)]
unsafe fn five_bits<L: Lanes>(low: *const u8, high: *const u8, stride: usize) -> [L::Ints; 8] {
    // SAFETY: the caller guarantees the instruction set, and a panel's rows of 16 and of 4 bytes.
    unsafe {
        let mut words = nibbles::<L>(low, stride);
        let bits = L::load(column::<L, u32>(high, stride).as_ptr().cast());
        for (j, word) in (0..).zip(&mut words) {
            *word = L::or(*word, L::spread(bits, j));
        }
        words
    }
}

/// Replaces indices by the table's values.
#[inline(always)]
pub(super) unsafe fn lookup_nibbles<L: Lanes>(table: &[i8; 16], mut words: [L::Ints; 8]) -> [L::Ints; 8] {
    for word in &mut words {
        // SAFETY: the caller guarantees the instruction set, and indices below 16.
        *word = unsafe { L::look_up(table, *word) };
    }
    words
}

/// Converts and stores one half of each row.
#[inline(always)]
unsafe fn store_halves<L: Lanes>(at: *const u8, stride: usize, to: *mut u8) {
    // SAFETY: the caller guarantees the instruction set, a panel's rows of 2 bytes, and room for a vector.
    unsafe { L::store_floats(L::load_halves(column::<L, u16>(at, stride).as_ptr()), to.cast()) };
}

macro_rules! unpack {
    ($($(#[$doc:meta])* $name:ident: $form:ident, $block:literal, $offset:expr,
        |$at:ident, $stride:ident| $words:expr, $($min_at:literal)?;)*) => {$(
        $(#[$doc])*
        pub(in super::super) struct $name;

        impl Unpack for $name {
            type Form = $form;
            const BLOCK: usize = $block;
            const IN_REGISTERS: bool = true;

            fn offset<L: Lanes>() -> i32 {
                $offset
            }

            #[inline(always)]
            unsafe fn scales<L: Lanes>($at: *const u8, $stride: usize, to: *mut u8) {
                // SAFETY: the caller guarantees the instruction set, a panel's blocks, and room for a unit of the form.
                unsafe {
                    store_halves::<L>($at, $stride, to.add(L::VECTOR * $form::SCALES_AT));
                    $(store_halves::<L>($at.add($min_at), $stride, to.add(L::VECTOR * $form::MINS_AT));)?
                }
            }

            #[inline(always)]
            unsafe fn words<L: Lanes, S: Sink<L>>($at: *const u8, $stride: usize, sink: &mut S) {
                // SAFETY: the caller guarantees the instruction set, a panel's blocks, and a sink that takes them.
                unsafe { sink.put(0, $words) };
            }
        }
    )*};
}

unpack! {
    /// A half, then 32 bytes.
    Q8_0: Bytes32, 34, if L::SIGNED { 0 } else { 128 }, |at, stride| {
        let mut words = L::transpose_32_bytes(at.add(2), stride);
        if !L::SIGNED {
            let raise = L::splat(0x8080_8080_u32.cast_signed());
            for word in &mut words {
                *word = L::xor(*word, raise);
            }
        }
        words
    },;
    /// A half, then 16 bytes of two weights each.
    Q4_0: Small32, 18, 8, |at, stride| nibbles::<L>(at.add(2), stride),;
    /// Two halves, then 16 bytes of two weights each.
    Q4_1: Small32WithMin, 20, 0, |at, stride| nibbles::<L>(at.add(4), stride), 2;
    /// A half, 32 upper bits, then 16 bytes of two weights each.
    Q5_0: Small32, 22, 16, |at, stride| five_bits::<L>(at.add(6), at.add(2), stride),;
    /// Two halves, 32 upper bits, then 16 bytes of two weights each.
    Q5_1: Small32WithMin, 24, 0, |at, stride| five_bits::<L>(at.add(8), at.add(4), stride), 2;
    /// A half, then 16 bytes of two indices each.
    Iq4Nl: Bytes32, 18, if L::SIGNED { 0 } else { 128 }, |at, stride| {
        let table = if L::SIGNED { const { &IQ4_VALUES } } else { const { &add_offset(IQ4_VALUES, -128) } };
        lookup_nibbles::<L>(table, nibbles::<L>(at.add(2), stride))
    },;
}

/// An exponent byte, then 16 bytes of two indices each.
pub(in super::super) struct Mxfp4;

impl Unpack for Mxfp4 {
    type Form = Small32;
    const BLOCK: usize = 17;
    const IN_REGISTERS: bool = true;

    fn offset<L: Lanes>() -> i32 {
        12
    }

    #[inline(always)]
    unsafe fn words<L: Lanes, S: Sink<L>>(block: *const u8, stride: usize, sink: &mut S) {
        // SAFETY: the caller guarantees the instruction set, a panel's blocks, and a sink that takes them.
        unsafe { sink.put(0, lookup_nibbles::<L>(const { &add_offset(MXFP4_VALUES, 12) }, nibbles::<L>(block.add(1), stride))) };
    }

    #[inline(always)]
    unsafe fn scales<L: Lanes>(block: *const u8, stride: usize, to: *mut u8) {
        // SAFETY: the caller guarantees the instruction set, a panel's blocks, and room for a unit of the form.
        unsafe {
            // The values are doubled, so the scale is half of two to the power of the byte less 127. The two smallest are
            // subnormal.
            let scales = column::<L, u8>(block, stride).map(|exponent| match u32::from(exponent) {
                subnormal @ 0..2 => 0x0020_0000 << subnormal,
                normal => (normal - 1) << 23,
            });
            L::store_floats(L::as_floats(L::load(scales.as_ptr().cast())), to.add(L::VECTOR * Small32::SCALES_AT).cast());
        }
    }
}
