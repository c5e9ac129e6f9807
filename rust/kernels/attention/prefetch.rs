//! Prefetches cells, so that memory transfers overlap with computation.
//!
//! A stream's cells are scattered over the KV cache, and their heads are read separately, so hardware prefetchers do not predict
//! them: without this, a row over 4,000 cells took twice as long. The distance is one panel of cells: more would evict data in
//! use from the L1 cache.

use super::CacheCells;
use super::plan::SLOTS;

/// Cells of which a product prefetches one in each of its steps.
#[derive(Clone, Copy)]
pub(super) struct CellPrefetch<'a> {
    pub(super) cells: &'a [*const u8],
    pub(super) n_bytes: usize,
}

impl CellPrefetch<'_> {
    pub(super) const NONE: Self = Self { cells: &[], n_bytes: 0 };

    #[inline(always)]
    pub(super) fn issue(&self, step: usize) {
        if let Some(&cell) = self.cells.get(step) {
            prefetch(cell, self.n_bytes);
        }
    }
}

#[inline(always)]
fn prefetch(source: *const u8, n_bytes: usize) {
    let before = source.addr() % 64;
    for at in (0..before + n_bytes).step_by(64) {
        prefetch_line(source.wrapping_sub(before).wrapping_add(at));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch_line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch never faults, and every x86-64 processor supports it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn prefetch_line(at: *const u8) {
    // SAFETY: a prefetch never faults, and every AArch64 processor supports it.
    unsafe { std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, readonly, preserves_flags)) };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn prefetch_line(_at: *const u8) {}

/// Cells to prefetch while others are computed.
#[derive(Clone, Copy)]
pub(super) struct UpcomingCells<'a> {
    pub(super) remaining: &'a [u32],
    pub(super) source: &'a CacheCells<'a>,
    pub(super) n_heads: usize,
    /// The cells that follow the current block, and their first head.
    pub(super) next: (&'a CacheCells<'a>, &'a [u32], usize),
}

impl UpcomingCells<'_> {
    pub(super) fn advance(&mut self, n: usize) {
        self.remaining = &self.remaining[n..];
    }

    /// Returns part `kv_index`, of as many as there are heads, of the next `n` cells, with all heads from `head` on.
    pub(super) fn prefetch_part<'a>(
        &self,
        (head, kv_index): (usize, usize),
        n: usize,
        pointers: &'a mut [*const u8; SLOTS],
    ) -> CellPrefetch<'a> {
        let (source, cells, head) = if self.remaining.is_empty() { self.next } else { (self.source, self.remaining, head) };
        let n = n.min(cells.len());
        let part = &cells[n * kv_index / self.n_heads..n * (kv_index + 1) / self.n_heads];
        for (pointer, &cell) in pointers.iter_mut().zip(part) {
            *pointer = cell_pointer(source, head, cell);
        }
        let n_bytes = (self.n_heads - 1) * source.head_stride + source.format.bytes(source.head_size);
        CellPrefetch { cells: &pointers[..part.len()], n_bytes }
    }
}

pub(super) fn cell_pointer(cells: &CacheCells, head: usize, cell: u32) -> *const u8 {
    cells.bytes.as_ptr().wrapping_add(cell as usize * cells.cell_stride + head * cells.head_stride)
}
