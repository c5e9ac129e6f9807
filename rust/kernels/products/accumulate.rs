//! Multiplies a span of a panel with a tile of activations.
//!
//! Each lane is a row of weights, and its sum grows along the row: the same operations in the same order for any number of
//! columns. A span is either unpacked once and multiplied with many tiles, or unpacked in registers for a single narrow tile.

use std::array::from_fn;
use std::marker::PhantomData;

use super::form::Form;
use super::lanes::Lanes;
use super::prefetch::{BytePrefetch, prefetch_word};
use super::unpack::{PackedPanel, Sink, Unpack};

#[derive(Debug, Clone, Copy)]
pub(super) struct TileProduct {
    /// The first unit, as in `tile`.
    pub(super) panel: *const u8,
    pub(super) tile: *const u8,
    /// Number of units.
    pub(super) n: usize,
    /// Sums so far, one per row and column; null for the first span.
    pub(super) before: *const f32,
    /// Destination of the sums, one per row and column.
    pub(super) after: *mut f32,
    pub(super) prefetch: BytePrefetch,
    /// Floats from one column to the next.
    pub(super) after_stride: usize,
}

/// Adds the products of a span to the sums of `N` columns. Callers guarantee `L`, `product.n` readable units of form `F` in panel
/// and tile, and for each column a readable vector in `before`, unless it is null, and a writable one in `after`.
#[inline(always)]
pub(super) unsafe fn multiply_tile<L: Lanes, F: Form, const N: usize>(product: &TileProduct) {
    let mut prefetch = product.prefetch;
    // SAFETY: the caller guarantees the instruction set, the units and the sums; offsets stay inside a unit.
    unsafe {
        let mut sums = sums_before::<L, N>(product);
        let mut unit = Unit::<L, F, N>::new(product.panel, product.tile);
        for _ in 0..product.n {
            let mut unit_sums = unit.begin(&sums);
            for b in 0..F::LEN / 32 {
                prefetch.issue(F::LEN / 32);
                let words = unit.panel.add(8 * L::VECTOR * b);
                for i in 0..scales_of_block::<F>() {
                    let int_sums = unit.dot_block(b, i, |j| L::load(words.add(L::VECTOR * j)));
                    unit.add_scaled(b, i, int_sums, &mut unit_sums);
                }
            }
            unit.end(&unit_sums, &mut sums);
            unit.panel = unit.panel.add(L::VECTOR * F::VECTORS);
            unit.tile = unit.tile.add(N * F::COLUMN_BYTES);
        }
        store_sums::<L, N>(product, sums);
    }
}

/// Like [`multiply_tile`], but unpacks blocks in registers: instead of the panel the packed blocks must be readable. `scratch`,
/// which has room for a unit, receives the blocks' scales and minima.
#[inline(always)]
pub(super) unsafe fn multiply_packed<L: Lanes, U: Unpack, const N: usize>(
    packed: &PackedPanel,
    scratch: *mut u8,
    product: &TileProduct,
) {
    // SAFETY: the caller guarantees the instruction set, the blocks, the units and the sums.
    unsafe {
        let mut sums = sums_before::<L, N>(product);
        let (mut block, mut tile, mut next) = (packed.first, product.tile, packed.next);
        for _ in 0..packed.n {
            U::scales::<L>(block, packed.stride, scratch);
            let unit = Unit::<L, U::Form, N>::new(scratch, tile);
            let mut sink = UnitProduct::<L, U, N> { unit_sums: unit.begin(&sums), unit, next };
            U::words::<L, _>(block, packed.stride, &mut sink);
            sink.unit.end(&sink.unit_sums, &mut sums);
            block = block.add(U::BLOCK);
            tile = tile.add(N * U::Form::COLUMN_BYTES);
            next = next.wrapping_add(U::BLOCK * L::ROWS);
        }
        store_sums::<L, N>(product, sums);
    }
}

struct UnitProduct<L: Lanes, U: Unpack, const N: usize> {
    /// Of the panel only scales and minima.
    unit: Unit<L, U::Form, N>,
    unit_sums: [L::Floats; N],
    next: *const u8,
}

impl<L: Lanes, U: Unpack, const N: usize> Sink<L> for UnitProduct<L, U, N> {
    /// Integer sums for each of the block's scales, at most two.
    type Taken = [[L::Ints; N]; 2];

    primitives! {
        take(&mut self, b: usize, words: [L::Ints; 8]) -> Self::Taken = {
            let mut taken = [[words[0]; N]; 2];
            for (i, sums) in taken[..scales_of_block::<U::Form>()].iter_mut().enumerate() {
                let word = |j| {
                    prefetch_word::<L, U>(self.next, b, j);
                    words[j]
                };
                *sums = self.unit.dot_block(b, i, word);
            }
            taken
        };

        complete(&mut self, b: usize, taken: Self::Taken) =
            for (i, &sums) in taken[..scales_of_block::<U::Form>()].iter().enumerate() {
                self.unit.add_scaled(b, i, sums, &mut self.unit_sums);
            };
    }
}

primitives! {
    sums_before<L: Lanes, const N: usize>(product: &TileProduct) -> [L::Floats; N] = {
        let before = product.before;
        from_fn(|c| if before.is_null() { L::splat_float(0.0) } else { L::load_floats(before.add(L::ROWS * c)) })
    };

    store_sums<L: Lanes, const N: usize>(product: &TileProduct, sums: [L::Floats; N]) =
        for (c, sum) in sums.into_iter().enumerate() {
            L::store_floats(sum, product.after.add(product.after_stride * c));
        };
}

/// Scales per 32 weights.
const fn scales_of_block<F: Form>() -> usize {
    F::SCALES * 32 / F::LEN
}

/// Callers of every method guarantee `L`, and pointers that are valid for a unit of form `F`.
struct Unit<L, F, const N: usize> {
    panel: *const u8,
    tile: *const u8,
    layout: PhantomData<(L, F)>,
}

impl<L: Lanes, F: Form, const N: usize> Unit<L, F, N> {
    fn new(panel: *const u8, tile: *const u8) -> Self {
        Self { panel, tile, layout: PhantomData }
    }

    primitives! {
        /// Returns the initial accumulators: the sums, or for a super-block separate sums that begin with its minima.
        begin(&self, sums: &[L::Floats; N]) -> [L::Floats; N] = {
            if F::LEN == 32 {
                return *sums;
            }
            let mut unit_sums = [L::splat_float(0.0); N];
            if F::MINS > 0 {
                let extras = self.tile.add(F::LEN * N).cast::<i32>().add(N);
                let pairs = self.panel.add(L::VECTOR * F::MINS_AT);
                let min_scale = L::load_floats(pairs.add(L::VECTOR * F::MINS).cast());
                for (c, sum) in unit_sums.iter_mut().enumerate() {
                    let mut int_sums = L::splat(0);
                    for j in 0..F::MINS {
                        int_sums = L::dot_pairs(int_sums, L::load(pairs.add(L::VECTOR * j)), extras.add(F::MINS * c + j).read());
                    }
                    *sum = L::mul(L::to_floats(int_sums), min_scale);
                }
            }
            unit_sums
        };

        /// Returns the integer sums for scale `i` of block `b`: 32 weights of each row in eight vectors, `words`.
        dot_block(&self, b: usize, i: usize, words: impl Fn(usize) -> L::Ints) -> [L::Ints; N] = {
            let starts = self.tile.add(F::LEN * N).cast::<i32>().add(N + scales_of_block::<F>() * b + i);
            let bytes = self.tile.add(32 * N * b);
            let each = 8 / scales_of_block::<F>();
            let mut int_sums: [L::Ints; N] =
                from_fn(|c| L::splat(if F::HAS_OFFSET { starts.add(F::SCALES * c).read() } else { 0 }));
            for first in (each * i..each * (i + 1)).step_by(4) {
                L::dot(&mut int_sums, |j| words(first + j), bytes.add(4 * first), F::BITS);
            }
            int_sums
        };

        add_scaled(&self, b: usize, i: usize, int_sums: [L::Ints; N], unit_sums: &mut [L::Floats; N]) = {
            let scales = self.tile.add(F::LEN * N).cast::<f32>();
            let scale = L::load_floats(self.panel.add(L::VECTOR * (F::SCALES_AT + scales_of_block::<F>() * b + i)).cast());
            for c in 0..N {
                let scale = if F::LEN == 32 { L::mul(scale, L::splat_float(scales.add(c).read())) } else { scale };
                unit_sums[c] = L::fma(L::to_floats(int_sums[c]), scale, unit_sums[c]);
            }
        };

        end(&self, unit_sums: &[L::Floats; N], sums: &mut [L::Floats; N]) = {
            let scales = self.tile.add(F::LEN * N).cast::<f32>();
            for c in 0..N {
                sums[c] = if F::LEN == 256 {
                    L::fma(unit_sums[c], L::splat_float(scales.add(c).read()), sums[c])
                } else if F::MINS > 0 {
                    let min = L::load_floats(self.panel.add(L::VECTOR * F::MINS_AT).cast());
                    L::fma(min, L::splat_float(scales.add(N + c).read()), unit_sums[c])
                } else {
                    unit_sums[c]
                };
            }
        };
    }
}
