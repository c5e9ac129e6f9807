//! From a file's format to units of panels.

mod blocks;
mod super_blocks;

pub(super) use blocks::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(super) use super_blocks::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};

use super::form::{Form, MAX_ROWS};
use super::lanes::Lanes;

/// How a format becomes units.
pub(super) trait Unpack {
    /// The form of its units.
    type Form: Form;
    /// Bytes of a block, which becomes a unit.
    const BLOCK: usize;

    /// How much greater than the weights the bytes are.
    fn offset<L: Lanes>() -> i32;

    /// Unpacks the block at `block` of a panel's rows that are `stride` bytes apart.
    ///
    /// # Safety
    /// The processor has what `L` needs. The blocks may be read, `to` has room for a unit.
    unsafe fn unit<L: Lanes>(block: *const u8, stride: usize, to: *mut u8);
}

/// The blocks of a panel to be unpacked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packed {
    /// The first block of the first row.
    pub(super) first: *const u8,
    /// Bytes from row to row.
    pub(super) stride: usize,
    /// How many blocks of each row are unpacked.
    pub(super) n: usize,
    /// What is read next, to be asked for from memory meanwhile: as many bytes as are unpacked now.
    pub(super) ahead: *const u8,
}

/// Unpacks `packed.n` blocks of a panel's rows.
///
/// # Safety
/// The processor has what `L` needs. The blocks may be read, `to` has room for their units. `packed.ahead` may be anything.
#[inline(always)]
pub(super) unsafe fn span<L: Lanes, U: Unpack>(packed: &Packed, to: *mut u8) {
    const LINE: usize = 64;
    let mut asked = 0;
    for i in 0..packed.n {
        while asked < (i + 1) * U::BLOCK * L::ROWS {
            L::prefetch(packed.ahead.wrapping_add(asked));
            asked += LINE;
        }
        // SAFETY: block `i` is one of those that may be read, and unit `i` one of those that there is room for.
        unsafe { U::unit::<L>(packed.first.add(i * U::BLOCK), packed.stride, to.add(i * U::Form::VECTORS * L::VECTOR)) };
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
