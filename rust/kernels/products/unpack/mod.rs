//! Converts weights from file formats to units of panels.

/// Defines formats: the constants and functions of [`Unpack`], in its order.
macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident: $form:ident, $block:literal, $offset:literal, $in_registers:literal;
        scales($at:ident, $stride:ident, $to:ident) { $($scales:tt)* }
        words($words_at:ident, $words_stride:ident, $sink:ident) { $($words:tt)* })*) => {$(
        $(#[$doc])*
        pub(in super::super) struct $name;

        impl Unpack for $name {
            type Form = $form;
            const BLOCK: usize = $block;
            const OFFSET: i32 = $offset;
            const IN_REGISTERS: bool = $in_registers;

            primitives! {
                scales<L: Lanes>($at: *const u8, $stride: usize, $to: *mut u8) = { $($scales)* };
            }

            #[inline(always)]
            unsafe fn words<L: Lanes, S: Sink<L>>($words_at: *const u8, $words_stride: usize, $sink: &mut S) {
                // SAFETY: guaranteed by the caller.
                unsafe { $($words)* }
            }
        }
    )*};
}

mod blocks;
mod super_blocks;

pub(super) use blocks::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(super) use super_blocks::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};

use super::form::{Form, MAX_ROWS};
use super::lanes::{Lanes, opaque};
use super::prefetch::BytePrefetch;

pub(super) trait Unpack {
    type Form: Form;
    /// Bytes of a block, which becomes a unit.
    const BLOCK: usize;
    /// Offset that makes the weights' bytes unsigned.
    const OFFSET: i32;
    /// True if one or two columns are multiplied while weights are unpacked, which needs registers, and blocks that are produced
    /// one after another. Set where it was measured to be faster.
    const IN_REGISTERS: bool;

    /// The offset that is added: 8-bit weights stay signed if the byte products are.
    fn offset<L: Lanes>() -> i32 {
        if Self::Form::BITS == 8 && L::SIGNED { 0 } else { Self::OFFSET }
    }

    /// Writes the scales and minima of one block per row of a panel, the first at `block`, to the unit at `to`. Callers
    /// guarantee `L`, readable blocks, and room for a unit.
    unsafe fn scales<L: Lanes>(block: *const u8, stride: usize, to: *mut u8);

    /// Passes the weights' bytes to a sink in order. Callers guarantee `L`, readable blocks, and a sink that accepts them.
    unsafe fn words<L: Lanes, S: Sink<L>>(block: *const u8, stride: usize, sink: &mut S);
}

/// Destination of unpacked weights, passed in blocks of 32 of each row: eight vectors of four. Callers guarantee `L`, and that the
/// sink's pointers are valid for block `b` of a unit.
pub(super) trait Sink<L: Lanes> {
    type Taken;

    unsafe fn take(&mut self, b: usize, words: [L::Ints; 8]) -> Self::Taken;

    /// Completes block `b`. Blocks are completed in order, but may be taken in any order.
    unsafe fn complete(&mut self, b: usize, taken: Self::Taken);

    primitives! {
        put(&mut self, b: usize, words: [L::Ints; 8]) = {
            let taken = self.take(b, words);
            self.complete(b, taken);
        };
    }
}

struct UnitWriter {
    to: *mut u8,
    /// In which a unit's prefetches are issued.
    portions: usize,
    prefetch: BytePrefetch,
}

impl<L: Lanes> Sink<L> for UnitWriter {
    type Taken = ();

    primitives! {
        take(&mut self, b: usize, words: [L::Ints; 8]) = for (j, word) in words.into_iter().enumerate() {
            if j.is_multiple_of(2) {
                self.prefetch.issue(self.portions);
            }
            L::store(word, self.to.add(L::VECTOR * (8 * b + j)));
        };
        complete(&mut self, _b: usize, (): ()) = {};
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PackedPanel {
    pub(super) first: *const u8,
    /// In bytes.
    pub(super) stride: usize,
    /// Blocks per row.
    pub(super) n: usize,
    /// Prefetched while the blocks are unpacked to memory.
    pub(super) prefetch: BytePrefetch,
    /// Prefetched instead while the blocks are multiplied in registers: as many bytes as the blocks have.
    pub(super) next: *const u8,
}

/// Callers guarantee `L`, readable blocks, and room for their units.
#[inline(always)]
pub(super) unsafe fn unpack_span<L: Lanes, U: Unpack>(packed: &PackedPanel, to: *mut u8) {
    let mut sink = UnitWriter { to, portions: U::Form::LEN / 8, prefetch: packed.prefetch };
    for i in 0..packed.n {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let block = packed.first.add(i * U::BLOCK);
            U::scales::<L>(block, packed.stride, sink.to);
            U::words::<L, UnitWriter>(block, packed.stride, &mut sink);
            sink.to = sink.to.add(U::Form::VECTORS * L::VECTOR);
        };
    }
}

primitives! {
    scale_at<L: Lanes, F: Form>(to: *mut u8, i: usize) -> *mut u8 = to.add(L::VECTOR * (F::SCALES_AT + i));

    min_at<L: Lanes, F: Form>(to: *mut u8, i: usize) -> *mut u8 = to.add(L::VECTOR * (F::MINS_AT + i));
}

/// Gathers one value of each row.
#[inline(always)]
unsafe fn column<L: Lanes, T: Copy + Default>(at: *const u8, stride: usize) -> [T; MAX_ROWS] {
    let mut values = [T::default(); MAX_ROWS];
    let mut first = at;
    for four in values[..L::ROWS].chunks_exact_mut(4) {
        for (row, number) in four.iter_mut().enumerate() {
            // SAFETY: the caller guarantees a readable `T` in each row.
            *number = unsafe { first.add(row * stride).cast::<T>().read_unaligned() };
        }
        first = opaque(first.wrapping_add(4 * stride));
    }
    values
}
