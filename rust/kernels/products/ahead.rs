//! What is read next, asked for from memory while other things are computed.

use super::lanes::Lanes;

const LINE: usize = 64;

/// Bytes to be asked for. A processor has room for some dozens of requests and waits when there are more, so they are spread over all
/// that is computed meanwhile.
#[derive(Debug, Clone, Copy)]
pub(super) struct BytesAhead {
    /// The first of them; it may lie anywhere.
    next: *const u8,
    /// How many are asked for during a unit.
    per_unit: usize,
}

impl BytesAhead {
    /// `per_unit` bytes from `next` on during each unit.
    pub(super) fn new(next: *const u8, per_unit: usize) -> Self {
        Self { next, per_unit }
    }

    /// Nothing.
    pub(super) fn nothing() -> Self {
        Self::new(std::ptr::null(), 0)
    }

    /// Asks for the next of `n` equal parts of what is asked for during a unit.
    #[inline(always)]
    pub(super) fn ask<L: Lanes>(&mut self, n: usize) {
        let end = self.next.wrapping_add(self.per_unit / n);
        while self.next.addr() < end.addr() {
            L::prefetch(self.next);
            self.next = self.next.wrapping_add(LINE);
        }
        self.next = end;
    }
}
