//! Converts weights from file formats to units of panels.

/// Defines formats: form of the units, bytes of a block, offset, use of registers; and the two functions of [`Unpack`], whose
/// callers guarantee the instruction set, a panel's readable blocks, and room for a unit or a sink that accepts it.
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

            #[inline(always)]
            unsafe fn scales<L: Lanes>($at: *const u8, $stride: usize, $to: *mut u8) {
                // SAFETY: guaranteed by the caller.
                unsafe { $($scales)* }
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

/// Conversion of a format to units.
pub(super) trait Unpack {
    type Form: Form;
    /// Bytes of a block, which becomes a unit.
    const BLOCK: usize;
    /// Offset that makes the weights' bytes unsigned.
    const OFFSET: i32;
    /// True if one or two columns are multiplied while weights are unpacked. This needs registers, and blocks that are produced
    /// one after another. Enabled where it was measured to be faster.
    const IN_REGISTERS: bool;

    /// Returns the offset that is added to the weights' bytes: 8-bit weights stay signed if the byte products are.
    fn offset<L: Lanes>() -> i32 {
        if Self::Form::BITS == 8 && L::SIGNED { 0 } else { Self::OFFSET }
    }

    /// Writes the scales and minima of one block per row of a panel to their positions in the unit at `to`. `block` is the
    /// first row's block; rows are `stride` bytes apart.
    ///
    /// # Safety
    /// The processor supports `L`. The blocks must be readable, and `to` must have room for a unit.
    unsafe fn scales<L: Lanes>(block: *const u8, stride: usize, to: *mut u8);

    /// Passes the bytes of the weights to a sink in order, 32 of each row at a time.
    ///
    /// # Safety
    /// The processor supports `L`. The blocks must be readable, and the sink must accept all of them.
    unsafe fn words<L: Lanes, S: Sink<L>>(block: *const u8, stride: usize, sink: &mut S);
}

/// Destination of unpacked weights. A unit is passed in blocks of 32 weights of each row: eight vectors of four.
///
/// # Safety
/// Every function: the processor supports `L`, and the sink's pointers are valid for block `b` of a unit.
pub(super) trait Sink<L: Lanes> {
    /// Intermediate result of a block.
    type Taken;

    unsafe fn take(&mut self, b: usize, words: [L::Ints; 8]) -> Self::Taken;

    /// Completes block `b`. Blocks are completed in order, but may be taken in any order.
    unsafe fn complete(&mut self, b: usize, taken: Self::Taken);

    #[inline(always)]
    unsafe fn put(&mut self, b: usize, words: [L::Ints; 8]) {
        // SAFETY: the caller guarantees the same.
        unsafe {
            let taken = self.take(b, words);
            self.complete(b, taken);
        }
    }
}

/// Writes a unit's bytes to memory.
struct UnitWriter {
    to: *mut u8,
    /// Number of portions in which a unit's prefetches are issued.
    portions: usize,
    prefetch: BytePrefetch,
}

impl<L: Lanes> Sink<L> for UnitWriter {
    type Taken = ();

    #[inline(always)]
    unsafe fn take(&mut self, b: usize, words: [L::Ints; 8]) {
        for (j, word) in words.into_iter().enumerate() {
            if j.is_multiple_of(2) {
                self.prefetch.issue(self.portions);
            }
            // SAFETY: the caller guarantees the instruction set, and room for a unit.
            unsafe { L::store(word, self.to.add(L::VECTOR * (8 * b + j))) };
        }
    }

    #[inline(always)]
    unsafe fn complete(&mut self, _b: usize, (): ()) {}
}

/// The blocks of a panel to unpack.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackedPanel {
    /// The first block of the first row.
    pub(super) first: *const u8,
    /// Stride between rows, in bytes.
    pub(super) stride: usize,
    /// Blocks per row to unpack.
    pub(super) n: usize,
    /// Prefetched while the blocks are unpacked to memory.
    pub(super) prefetch: BytePrefetch,
    /// Prefetched instead while the blocks are multiplied in registers: as many bytes as the blocks have.
    pub(super) next: *const u8,
}

/// Unpacks `packed.n` blocks of a panel's rows.
///
/// # Safety
/// The processor supports `L`. The blocks must be readable, and `to` must have room for their units.
#[inline(always)]
pub(super) unsafe fn span<L: Lanes, U: Unpack>(packed: &PackedPanel, to: *mut u8) {
    let mut sink = UnitWriter { to, portions: U::Form::LEN / 8, prefetch: packed.prefetch };
    for i in 0..packed.n {
        // SAFETY: the caller guarantees that block `i` is readable and that unit `i` has room.
        unsafe {
            let block = packed.first.add(i * U::BLOCK);
            U::scales::<L>(block, packed.stride, sink.to);
            U::words::<L, UnitWriter>(block, packed.stride, &mut sink);
            sink.to = sink.to.add(U::Form::VECTORS * L::VECTOR);
        };
    }
}

primitives! {
    /// Returns the position of scale `i` of the unit at `to`.
    scale_at<L: Lanes, F: Form>(to: *mut u8, i: usize) -> *mut u8 = to.add(L::VECTOR * (F::SCALES_AT + i));

    /// Returns the position of vector `i` of the minima of the unit at `to`.
    min_at<L: Lanes, F: Form>(to: *mut u8, i: usize) -> *mut u8 = to.add(L::VECTOR * (F::MINS_AT + i));
}

/// Gathers one value of each row.
#[inline(always)]
unsafe fn column<L: Lanes, T: Copy + Default>(at: *const u8, stride: usize) -> [T; MAX_ROWS] {
    let mut values = [T::default(); MAX_ROWS];
    let mut first = at;
    for four in values[..L::ROWS].chunks_exact_mut(4) {
        for (row, number) in four.iter_mut().enumerate() {
            // SAFETY: the caller guarantees a readable `T` there in each row.
            *number = unsafe { first.add(row * stride).cast::<T>().read_unaligned() };
        }
        first = opaque(first.wrapping_add(4 * stride));
    }
    values
}
