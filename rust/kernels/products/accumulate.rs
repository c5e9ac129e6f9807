//! A span of a panel times a tile of activations.
//!
//! Each lane is a row of weights, and its sum grows along the row, unit by unit: the same operations in the same order, however
//! many columns the tile has. A span is unpacked once and meets many tiles, or it goes through registers to a single narrow one.

use std::array::from_fn;
use std::marker::PhantomData;

use super::form::Form;
use super::lanes::Lanes;
use super::prefetch::{BytePrefetch, ask_for_word};
use super::unpack::{PackedPanel, Sink, Unpack};

/// A span of a panel, and the same span of a tile.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileProduct {
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
    pub(super) ahead: BytePrefetch,
    /// How many floats lie between two columns there.
    pub(super) after_stride: usize,
}

/// Adds the products of a span to the sums of `N` columns.
///
/// # Safety
/// The processor has what `L` needs; `meeting.panel` and `meeting.tile` have `meeting.n` units of form `F` that may be read, the
/// sums before, if any, a vector for each column, and `meeting.after` as many that may be written.
#[inline(always)]
pub(super) unsafe fn tile<L: Lanes, F: Form, const N: usize>(meeting: &TileProduct) {
    let TileProduct { mut panel, mut tile, n, mut ahead, .. } = *meeting;
    // SAFETY: the caller vouches for the instruction set, the units and the sums; offsets stay inside of a unit.
    unsafe {
        let mut sums = sums_before::<L, N>(meeting);
        for _ in 0..n {
            let mut inner = begin::<L, F, N>(panel, tile, &sums);
            for b in 0..F::LEN / 32 {
                ahead.ask::<L>(F::LEN / 32);
                let words = panel.add(8 * L::VECTOR * b);
                for i in 0..scales_of_block::<F>() {
                    let whole = whole::<L, F, N>(tile, b, i, |j| L::load(words.add(L::VECTOR * j)));
                    add::<L, F, N>(panel, tile, b, i, whole, &mut inner);
                }
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
pub(super) unsafe fn packed<L: Lanes, U: Unpack, const N: usize>(packed: &PackedPanel, room: *mut u8, meeting: &TileProduct) {
    // SAFETY: the caller vouches for the instruction set, the blocks, the units and the sums.
    unsafe {
        let mut sums = sums_before::<L, N>(meeting);
        let (mut block, mut tile, mut next) = (packed.first, meeting.tile, packed.next);
        for _ in 0..packed.n {
            U::scales::<L>(block, packed.stride, room);
            let inner = begin::<L, U::Form, N>(room, tile, &sums);
            let mut met = UnitProduct::<L, U, N> { panel: room, tile, inner, next, format: PhantomData };
            U::words::<L, _>(block, packed.stride, &mut met);
            end::<L, U::Form, N>(room, tile, &met.inner, &mut sums);
            block = block.add(U::BLOCK);
            tile = tile.add(N * U::Form::COLUMN_BYTES);
            next = next.wrapping_add(U::BLOCK * L::ROWS);
        }
        store_sums::<L, N>(meeting, sums);
    }
}

/// Multiplies a unit's bytes at once.
struct UnitProduct<L: Lanes, U: Unpack, const N: usize> {
    /// The unit's scales and minima.
    panel: *const u8,
    tile: *const u8,
    inner: [L::Floats; N],
    next: *const u8,
    format: PhantomData<U>,
}

impl<L: Lanes, U: Unpack, const N: usize> Sink<L> for UnitProduct<L, U, N> {
    /// The sums of products for each scale of the block, of which there are at most two.
    type Taken = [[L::Ints; N]; 2];

    #[inline(always)]
    unsafe fn take(&mut self, b: usize, words: [L::Ints; 8]) -> Self::Taken {
        let mut taken = [[words[0]; N]; 2];
        for (i, sums) in taken[..scales_of_block::<U::Form>()].iter_mut().enumerate() {
            // SAFETY: the caller vouches for the instruction set and the unit.
            *sums = unsafe {
                whole::<L, U::Form, N>(self.tile, b, i, |j| {
                    ask_for_word::<L, U>(self.next, b, j);
                    words[j]
                })
            };
        }
        taken
    }

    #[inline(always)]
    unsafe fn complete(&mut self, b: usize, taken: Self::Taken) {
        for (i, &sums) in taken[..scales_of_block::<U::Form>()].iter().enumerate() {
            // SAFETY: the caller vouches for the instruction set and the unit.
            unsafe { add::<L, U::Form, N>(self.panel, self.tile, b, i, sums, &mut self.inner) };
        }
    }
}

/// The sums so far.
#[inline(always)]
unsafe fn sums_before<L: Lanes, const N: usize>(meeting: &TileProduct) -> [L::Floats; N] {
    let before = meeting.before;
    // SAFETY: the caller vouches for the instruction set and the sums.
    from_fn(|c| unsafe { if before.is_null() { L::splat_float(0.0) } else { L::load_floats(before.add(L::ROWS * c)) } })
}

#[inline(always)]
unsafe fn store_sums<L: Lanes, const N: usize>(meeting: &TileProduct, sums: [L::Floats; N]) {
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

/// How many scales 32 weights have.
const fn scales_of_block<F: Form>() -> usize {
    F::SCALES * 32 / F::LEN
}

/// The sums of products of the weights that share scale `i` of block `b`, which is 32 weights of each row in eight vectors.
#[inline(always)]
unsafe fn whole<L: Lanes, F: Form, const N: usize>(
    tile: *const u8,
    b: usize,
    i: usize,
    words: impl Fn(usize) -> L::Ints,
) -> [L::Ints; N] {
    // SAFETY: the caller vouches for the instruction set and the unit.
    unsafe {
        let starts = tile.add(F::LEN * N).cast::<i32>().add(N + scales_of_block::<F>() * b + i);
        let bytes = tile.add(32 * N * b);
        let each = 8 / scales_of_block::<F>();
        let mut whole: [L::Ints; N] = from_fn(|c| L::splat(if F::HAS_OFFSET { starts.add(F::SCALES * c).read() } else { 0 }));
        for first in (each * i..each * (i + 1)).step_by(4) {
            L::dot(&mut whole, |j| words(first + j), bytes.add(4 * first), F::BITS);
        }
        whole
    }
}

/// Adds sums of products, times scale `i` of block `b`.
#[inline(always)]
unsafe fn add<L: Lanes, F: Form, const N: usize>(
    panel: *const u8,
    tile: *const u8,
    b: usize,
    i: usize,
    whole: [L::Ints; N],
    inner: &mut [L::Floats; N],
) {
    // SAFETY: the caller vouches for the instruction set and the unit.
    unsafe {
        let scales = tile.add(F::LEN * N).cast::<f32>();
        let scale = L::load_floats(panel.add(L::VECTOR * (F::SCALES_AT + scales_of_block::<F>() * b + i)).cast());
        for c in 0..N {
            let scale = if F::LEN == 32 { L::mul(scale, L::splat_float(scales.add(c).read())) } else { scale };
            inner[c] = L::fma(L::to_floats(whole[c]), scale, inner[c]);
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
