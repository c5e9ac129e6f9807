//! Asking for cells before they are read, so that memory works while the processor computes.
//!
//! Cells of a stream lie anywhere in the pool, and each head of a cell is read apart from the others, so processors do not guess what
//! comes next: a row over 4,000 cells took twice as long without this where it was measured. What is asked for is one panel of
//! cells ahead: more would push what is needed now out of the first cache.

use super::Cells;
use super::plan::SLOTS;

/// Cells that will be read soon. A product asks for one in each of its steps, so that memory works while it computes.
#[derive(Clone, Copy)]
pub(super) struct CellPrefetch<'a> {
    pub(super) cells: &'a [*const u8],
    /// Bytes of a cell's head.
    pub(super) n_bytes: usize,
}

impl CellPrefetch<'_> {
    /// Nothing.
    pub(super) const NONE: Self = Self { cells: &[], n_bytes: 0 };

    #[inline(always)]
    pub(super) fn ask(&self, step: usize) {
        if let Some(&cell) = self.cells.get(step) {
            prefetch(cell, self.n_bytes);
        }
    }
}

/// Asks for memory that will be read soon: every line of it.
#[inline(always)]
fn prefetch(from: *const u8, n_bytes: usize) {
    let before = from.addr() % 64;
    for at in (0..before + n_bytes).step_by(64) {
        prefetch_line(from.wrapping_sub(before).wrapping_add(at));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch_line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: asking for memory touches none, and every processor of this kind can.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn prefetch_line(at: *const u8) {
    // SAFETY: asking for memory touches none, and every processor of this kind can.
    unsafe { std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, readonly, preserves_flags)) };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn prefetch_line(_at: *const u8) {}

/// Cells that will be read next, to be asked for while others are computed.
#[derive(Clone, Copy)]
pub(super) struct UpcomingCells<'a> {
    /// What is left of the block at hand.
    pub(super) here: &'a [u32],
    pub(super) from: &'a Cells<'a>,
    /// How many heads of a cell are read.
    pub(super) n_heads: usize,
    /// Where it goes on afterwards, and from which head on.
    pub(super) then: (&'a Cells<'a>, &'a [u32], usize),
}

impl UpcomingCells<'_> {
    /// `n` cells are at hand now.
    pub(super) fn pass(&mut self, n: usize) {
        self.here = &self.here[n..];
    }

    /// A part of the next `n` cells, with all heads: there is one part for each head at hand, of which this is number `kv`. `head`
    /// is the first of them.
    pub(super) fn part<'a>(
        &self,
        (head, kv): (usize, usize),
        n: usize,
        pointers: &'a mut [*const u8; SLOTS],
    ) -> CellPrefetch<'a> {
        let (from, cells, head) = if self.here.is_empty() { self.then } else { (self.from, self.here, head) };
        let n = n.min(cells.len());
        let part = &cells[n * kv / self.n_heads..n * (kv + 1) / self.n_heads];
        for (pointer, &cell) in pointers.iter_mut().zip(part) {
            *pointer = cell_of(from, head, cell);
        }
        CellPrefetch { cells: &pointers[..part.len()], n_bytes: bytes_of(from, self.n_heads) }
    }
}

/// How many bytes `n` heads of a cell span.
fn bytes_of(cells: &Cells, n: usize) -> usize {
    (n - 1) * cells.head_stride + cells.format.bytes(cells.head_size)
}

/// Where the numbers of a cell's head begin.
pub(super) fn cell_of(cells: &Cells, head: usize, cell: u32) -> *const u8 {
    cells.bytes.as_ptr().wrapping_add(cell as usize * cells.cell_stride + head * cells.head_stride)
}
