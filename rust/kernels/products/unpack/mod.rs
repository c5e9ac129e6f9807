//! From a file's format to units of panels.

mod blocks;
mod super_blocks;

pub(super) use blocks::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(super) use super_blocks::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};

use super::form::{Form, MAX_ROWS};
use super::lanes::Lanes;
use super::prefetch::BytePrefetch;

/// How a format becomes units.
pub(super) trait Unpack {
    /// The form of its units.
    type Form: Form;
    /// Bytes of a block, which becomes a unit.
    const BLOCK: usize;
    /// Whether one column or two are met as weights are unpacked, which needs registers, and blocks that come one after another. It is
    /// so where it was measured to be faster.
    const IN_REGISTERS: bool;

    /// How much greater than the weights the bytes are.
    fn offset<L: Lanes>() -> i32;

    /// Writes the scales and minima of the block at `block` of a panel's rows that are `stride` bytes apart, to their places in the
    /// unit at `to`.
    ///
    /// # Safety
    /// The processor has what `L` needs. The blocks may be read, `to` has room for a unit.
    unsafe fn scales<L: Lanes>(block: *const u8, stride: usize, to: *mut u8);

    /// Hands the bytes of the weights to a sink, 32 of each row at a time, in order.
    ///
    /// # Safety
    /// The processor has what `L` needs. The blocks may be read, and the sink takes as many as there are.
    unsafe fn words<L: Lanes, S: Sink<L>>(block: *const u8, stride: usize, sink: &mut S);
}

/// Where unpacked weights go. Those of a unit are blocks of 32 of each row: eight vectors of four.
///
/// # Safety
/// Every function: the processor has what `L` needs, and what the sink points to is good for block `b` of a unit.
pub(super) trait Sink<L: Lanes> {
    /// What taking a block leaves to be done.
    type Taken;

    /// Takes block `b`.
    unsafe fn take(&mut self, b: usize, words: [L::Ints; 8]) -> Self::Taken;

    /// Does the rest. Blocks are completed in order, whatever the order in which they are taken.
    unsafe fn complete(&mut self, b: usize, taken: Self::Taken);

    /// Takes block `b` and completes it.
    #[inline(always)]
    unsafe fn put(&mut self, b: usize, words: [L::Ints; 8]) {
        // SAFETY: the caller vouches for all of it.
        unsafe {
            let taken = self.take(b, words);
            self.complete(b, taken);
        }
    }
}

/// Writes a unit's bytes.
struct UnitWriter {
    to: *mut u8,
    /// In how many portions more is asked for during a unit.
    portions: usize,
    ahead: BytePrefetch,
}

impl<L: Lanes> Sink<L> for UnitWriter {
    type Taken = ();

    #[inline(always)]
    unsafe fn take(&mut self, b: usize, words: [L::Ints; 8]) {
        for (j, word) in words.into_iter().enumerate() {
            if j.is_multiple_of(2) {
                self.ahead.ask::<L>(self.portions);
            }
            // SAFETY: the caller has the instruction set, and room for a unit.
            unsafe { L::store(word, self.to.add(L::VECTOR * (8 * b + j))) };
        }
    }

    #[inline(always)]
    unsafe fn complete(&mut self, _b: usize, (): ()) {}
}

/// The blocks of a panel to be unpacked.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackedPanel {
    /// The first block of the first row.
    pub(super) first: *const u8,
    /// Bytes from row to row.
    pub(super) stride: usize,
    /// How many blocks of each row are unpacked.
    pub(super) n: usize,
    /// What is read next, to be asked for while these are written.
    pub(super) ahead: BytePrefetch,
    /// What is read next, to be asked for while these are multiplied instead: as many bytes as they have.
    pub(super) next: *const u8,
}

/// Unpacks `packed.n` blocks of a panel's rows.
///
/// # Safety
/// The processor has what `L` needs. The blocks may be read, `to` has room for their units.
#[inline(always)]
pub(super) unsafe fn span<L: Lanes, U: Unpack>(packed: &PackedPanel, to: *mut u8) {
    let mut sink = UnitWriter { to, portions: U::Form::LEN / 8, ahead: packed.ahead };
    for i in 0..packed.n {
        // SAFETY: block `i` is one of those that may be read, and unit `i` one of those that there is room for.
        unsafe {
            let block = packed.first.add(i * U::BLOCK);
            U::scales::<L>(block, packed.stride, sink.to);
            U::words::<L, UnitWriter>(block, packed.stride, &mut sink);
            sink.to = sink.to.add(U::Form::VECTORS * L::VECTOR);
        };
    }
}

/// A number of each row.
#[inline(always)]
unsafe fn column<L: Lanes, T: Copy + Default>(at: *const u8, stride: usize) -> [T; MAX_ROWS] {
    let mut found = [T::default(); MAX_ROWS];
    let mut first = at;
    for four in found[..L::ROWS].chunks_exact_mut(4) {
        for (row, number) in four.iter_mut().enumerate() {
            // SAFETY: the caller may read a `T` there in each row.
            *number = unsafe { first.add(row * stride).cast::<T>().read_unaligned() };
        }
        first = L::opaque(first.wrapping_add(4 * stride));
    }
    found
}
