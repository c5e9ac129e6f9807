//! What is read next, asked for from memory while other things are computed.

use super::form::Form;
use super::lanes::Lanes;
use super::unpack::Unpack;

const LINE: usize = 64;

/// So many lines later each is asked for once more: a processor forgets requests that it has no room for, and by then it has.
const AGAIN: usize = 64;

/// How many bytes are asked for before anything is computed.
const FIRST: usize = 16 * 1024;

/// Bytes to be asked for. A processor has room for some dozens of requests and waits when there are more, so they are spread over all
/// that is computed meanwhile.
#[derive(Debug, Clone, Copy)]
pub(super) struct BytePrefetch {
    /// The first of them; it may lie anywhere.
    next: *const u8,
    /// How many are asked for during a unit.
    per_unit: usize,
}

impl BytePrefetch {
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

/// Asks for some of the bytes from `next` on, as many as a panel's unit has: those that fall to word `j` of block `b`. Which they are
/// is known when this is compiled, so that nothing is counted or compared.
#[inline(always)]
pub(super) fn ask_for_word<L: Lanes, U: Unpack>(next: *const u8, b: usize, j: usize) {
    let n_lines = (U::BLOCK * L::ROWS).div_ceil(LINE * U::Form::LEN / 32);
    for line in n_lines * j / 8..n_lines * (j + 1) / 8 {
        let at = next.wrapping_add(LINE * (n_lines * b + line));
        L::prefetch(at);
        L::prefetch(at.wrapping_sub(LINE * AGAIN));
    }
}

/// Asks for the beginning of what a thread reads first.
pub(super) fn ask_for_first<L: Lanes>(from: *const u8, n_bytes: usize) {
    for at in (0..n_bytes.min(FIRST)).step_by(LINE) {
        L::prefetch(from.wrapping_add(at));
    }
}
