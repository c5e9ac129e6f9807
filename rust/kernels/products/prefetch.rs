//! Prefetches data that is read next.

use super::form::Form;
use super::lanes::Lanes;
use super::unpack::Unpack;

const LINE: usize = 64;

/// Distance, in cache lines, after which each line is prefetched again: processors drop requests while their queue is full.
const REPEAT_DISTANCE: usize = 64;

const START_BYTES: usize = 16 * 1024;

/// Prefetches a cache line exactly here: if the compiler grouped such requests, the processor would stall until they fit.
#[inline(always)]
fn prefetch_line(at: *const u8) {
    // SAFETY: a prefetch never faults.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags));
    };
    // SAFETY: as above.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags));
    };
    let _ = at;
}

/// A range of bytes to prefetch, spread over the computation: a processor queues some dozens of requests and stalls on more.
#[derive(Debug, Clone, Copy)]
pub(super) struct BytePrefetch {
    /// The next byte to prefetch; may be any address.
    next: *const u8,
    /// In bytes.
    per_unit: usize,
}

impl BytePrefetch {
    pub(super) fn new(next: *const u8, per_unit: usize) -> Self {
        Self { next, per_unit }
    }

    pub(super) fn none() -> Self {
        Self::new(std::ptr::null(), 0)
    }

    /// Issues the next of the `n` equal parts of a unit's prefetches.
    #[inline(always)]
    pub(super) fn issue(&mut self, n: usize) {
        let end = self.next.wrapping_add(self.per_unit / n);
        while self.next.addr() < end.addr() {
            prefetch_line(self.next);
            self.next = self.next.wrapping_add(LINE);
        }
        self.next = end;
    }
}

/// Prefetches the part for word `j` of block `b` of a panel's next unit. The lines are constants: nothing is counted at run time.
#[inline(always)]
pub(super) fn prefetch_word<L: Lanes, U: Unpack>(next: *const u8, b: usize, j: usize) {
    let n_lines = (U::BLOCK * L::ROWS).div_ceil(LINE * U::Form::LEN / 32);
    for line in n_lines * j / 8..n_lines * (j + 1) / 8 {
        let at = next.wrapping_add(LINE * (n_lines * b + line));
        prefetch_line(at);
        prefetch_line(at.wrapping_sub(LINE * REPEAT_DISTANCE));
    }
}

/// Prefetches what a thread reads first.
pub(super) fn prefetch_start(from: *const u8, n_bytes: usize) {
    for at in (0..n_bytes.min(START_BYTES)).step_by(LINE) {
        prefetch_line(from.wrapping_add(at));
    }
}
