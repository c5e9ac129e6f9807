//! A span of a panel times a tile of activations.
//!
//! Each lane is a row of weights, and its sum grows along the row, unit by unit: the same operations in the same order, however
//! many columns the tile has. A span is unpacked once and meets many tiles, or it goes through registers to a single narrow one.

use std::array::from_fn;
use std::cell::Cell;
use std::marker::PhantomData;

use super::ahead::BytesAhead;
use super::form::Form;
use super::lanes::Lanes;
use super::unpack::{Packed, Sink, Unpack};

/// A span of a panel, and the same span of a tile.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meeting {
    /// Units of the panel.
    pub(super) panel: *const u8,
    /// Units of the tile.
    pub(super) tile: *const u8,
    /// How many units there are.
    pub(super) n: usize,
    /// The sums so far, one for each row and column; null at the beginning.
    pub(super) before: *const f32,
    /// Where the sums go: one for each row and column.
    pub(super) after: *mut f32,
    /// What is read next.
    pub(super) ahead: BytesAhead,
    /// How many floats lie between two columns there.
    pub(super) after_stride: usize,
}

/// Adds the products of a span to the sums of `N` columns.
///
/// # Safety
/// The processor has what `L` needs; `meeting.panel` and `meeting.tile` have `meeting.n` units of form `F` that may be read, the
/// sums before, if any, a vector for each column, and `meeting.after` as many that may be written.
#[inline(always)]
pub(super) unsafe fn tile<L: Lanes, F: Form, const N: usize>(meeting: &Meeting) {
    let Meeting { mut panel, mut tile, n, mut ahead, .. } = *meeting;
    // SAFETY: the caller vouches for the instruction set, the units and the sums; offsets stay inside of a unit.
    unsafe {
        let mut sums = sums_before::<L, N>(meeting);
        for _ in 0..n {
            let mut inner = begin::<L, F, N>(panel, tile, &sums);
            for b in 0..F::LEN / 32 {
                ahead.ask::<L>(F::LEN / 32);
                let words = panel.add(8 * L::VECTOR * b);
                add::<L, F, N>(panel, tile, b, |j| L::load(words.add(L::VECTOR * j)), &mut inner);
            }
            end::<L, F, N>(panel, tile, &inner, &mut sums);
            panel = panel.add(L::VECTOR * F::VECTORS);
            tile = tile.add(N * F::COLUMN_BYTES);
        }
        store_sums::<L, N>(meeting, sums);
    }
}

/// The same for blocks that are not unpacked yet and meet nothing else, so that their bytes stay in registers. `room` is where their
/// scales and minima go.
///
/// # Safety
/// As of [`tile`], but that the panel is not read; the packed blocks may be, and `room` has room for a unit.
#[inline(always)]
pub(super) unsafe fn packed<L: Lanes, U: Unpack, const N: usize>(packed: &Packed, room: *mut u8, meeting: &Meeting) {
    // SAFETY: the caller vouches for the instruction set, the blocks, the units and the sums.
    unsafe {
        let mut sums = sums_before::<L, N>(meeting);
        let (mut block, mut tile, mut ahead) = (packed.first, meeting.tile, packed.ahead);
        for _ in 0..packed.n {
            U::scales::<L>(block, packed.stride, room);
            let inner = begin::<L, U::Form, N>(room, tile, &sums);
            let mut met = Met::<L, U::Form, N> { panel: room, tile, words: [L::splat(0); 8], inner, ahead, form: PhantomData };
            U::words::<L, _>(block, packed.stride, &mut met);
            end::<L, U::Form, N>(room, tile, &met.inner, &mut sums);
            ahead = met.ahead;
            block = block.add(U::BLOCK);
            tile = tile.add(N * U::Form::COLUMN_BYTES);
        }
        store_sums::<L, N>(meeting, sums);
    }
}

/// Multiplies a unit's bytes at once.
struct Met<L: Lanes, F: Form, const N: usize> {
    /// The unit's scales and minima.
    panel: *const u8,
    tile: *const u8,
    /// The block that is being put.
    words: [L::Ints; 8],
    inner: [L::Floats; N],
    ahead: BytesAhead,
    form: PhantomData<F>,
}

impl<L: Lanes, F: Form, const N: usize> Met<L, F, N> {
    /// Between the products, not before them, since memory is the limit and takes few requests at once.
    #[inline(always)]
    unsafe fn add(&mut self, b: usize, words: impl Fn(usize) -> L::Ints) {
        let ahead = Cell::new(self.ahead);
        let asked = |j: usize| {
            // Small blocks of few bits are soon over, so that it is asked for a few lines at a time.
            let every = if F::LEN == 256 || F::BITS == 8 { 1 } else { 4 };
            if j.is_multiple_of(every) {
                let mut now = ahead.get();
                now.ask::<L>(F::LEN / 4 / every);
                ahead.set(now);
            }
            words(j)
        };
        // SAFETY: the caller vouches for the instruction set and the unit.
        unsafe { add::<L, F, N>(self.panel, self.tile, b, asked, &mut self.inner) };
        self.ahead = ahead.get();
    }
}

impl<L: Lanes, F: Form, const N: usize> Sink<L> for Met<L, F, N> {
    #[inline(always)]
    unsafe fn put(&mut self, _b: usize, j: usize, word: L::Ints) {
        self.words[j] = word;
    }

    #[inline(always)]
    unsafe fn complete(&mut self, b: usize) {
        let words = self.words;
        // SAFETY: the caller vouches for the instruction set and the unit.
        unsafe { self.add(b, |j| words[j]) };
    }
}

/// The sums so far.
#[inline(always)]
unsafe fn sums_before<L: Lanes, const N: usize>(meeting: &Meeting) -> [L::Floats; N] {
    let before = meeting.before;
    // SAFETY: the caller vouches for the instruction set and the sums.
    from_fn(|c| unsafe { if before.is_null() { L::splat_float(0.0) } else { L::load_floats(before.add(L::ROWS * c)) } })
}

#[inline(always)]
unsafe fn store_sums<L: Lanes, const N: usize>(meeting: &Meeting, sums: [L::Floats; N]) {
    for (c, sum) in sums.into_iter().enumerate() {
        // SAFETY: the caller vouches for the instruction set and the sums.
        unsafe { L::store_floats(sum, meeting.after.add(meeting.after_stride * c)) };
    }
}

/// What the products of a unit are added to: the sums themselves, or sums of a super-block's own, which begin with its minima.
#[inline(always)]
unsafe fn begin<L: Lanes, F: Form, const N: usize>(panel: *const u8, tile: *const u8, sums: &[L::Floats; N]) -> [L::Floats; N] {
    if F::LEN == 32 {
        return *sums;
    }
    // SAFETY: the caller vouches for the instruction set and the unit.
    unsafe {
        let mut inner = [L::splat_float(0.0); N];
        if F::MINS > 0 {
            let rest = tile.add(F::LEN * N).cast::<i32>().add(N);
            let pairs = panel.add(L::VECTOR * F::MINS_AT);
            let min_scale = L::load_floats(pairs.add(L::VECTOR * F::MINS).cast());
            for (c, sum) in inner.iter_mut().enumerate() {
                let mut whole = L::splat(0);
                for j in 0..F::MINS {
                    whole = L::dot_pairs(whole, L::load(pairs.add(L::VECTOR * j)), rest.add(F::MINS * c + j).read());
                }
                *sum = L::mul(L::to_floats(whole), min_scale);
            }
        }
        inner
    }
}

/// Adds the products of 32 weights of each row, the `b`-th of a unit, whose eight vectors are `words`.
#[inline(always)]
unsafe fn add<L: Lanes, F: Form, const N: usize>(
    panel: *const u8,
    tile: *const u8,
    b: usize,
    words: impl Fn(usize) -> L::Ints,
    inner: &mut [L::Floats; N],
) {
    // SAFETY: the caller vouches for the instruction set and the unit.
    unsafe {
        let scales = tile.add(F::LEN * N).cast::<f32>();
        let starts = scales.add(N).cast::<i32>();
        let bytes = tile.add(32 * N * b);
        let each = 8 * F::LEN / 32 / F::SCALES;
        for at in (0..8).step_by(each) {
            let s = (8 * b + at) / each;
            let mut whole: [L::Ints; N] =
                from_fn(|c| if F::HAS_OFFSET { L::splat(starts.add(F::SCALES * c + s).read()) } else { L::splat(0) });
            for first in (at..at + each).step_by(4) {
                L::dot(&mut whole, |j| words(first + j), bytes.add(4 * first), F::BITS);
            }
            let scale = L::load_floats(panel.add(L::VECTOR * (F::SCALES_AT + s)).cast());
            for c in 0..N {
                let scale = if F::LEN == 32 { L::mul(scale, L::splat_float(scales.add(c).read())) } else { scale };
                inner[c] = L::fma(L::to_floats(whole[c]), scale, inner[c]);
            }
        }
    }
}

/// Adds what a unit's products came to to the sums.
#[inline(always)]
unsafe fn end<L: Lanes, F: Form, const N: usize>(
    panel: *const u8,
    tile: *const u8,
    inner: &[L::Floats; N],
    sums: &mut [L::Floats; N],
) {
    // SAFETY: the caller vouches for the instruction set and the unit.
    unsafe {
        let scales = tile.add(F::LEN * N).cast::<f32>();
        for c in 0..N {
            sums[c] = if F::LEN == 256 {
                L::fma(inner[c], L::splat_float(scales.add(c).read()), sums[c])
            } else if F::MINS > 0 {
                let min = L::load_floats(panel.add(L::VECTOR * F::MINS_AT).cast());
                L::fma(min, L::splat_float(scales.add(N + c).read()), inner[c])
            } else {
                inner[c]
            };
        }
    }
}
