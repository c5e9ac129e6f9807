//! Activations made into bytes, as llama.cpp makes them, and laid out as tiles want them.

#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod portable;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

use super::form::Form;

/// 32 values as bytes. `scale` is before it is rounded to half precision.
pub(super) struct Block {
    pub(super) bytes: [i8; 32],
    pub(super) scale: f32,
    /// The sum of the bytes.
    pub(super) sum: i32,
}

/// 256 values as bytes.
pub(super) struct SuperBlock {
    pub(super) bytes: [i8; 256],
    pub(super) scale: f32,
    /// The sums of sixteen bytes each.
    pub(super) sums: [i16; 16],
}

/// How an instruction set makes values into bytes.
///
/// # Safety
/// Every function: the processor has the instruction set, and as many values may be read as there are bytes.
pub(super) trait Quantise {
    unsafe fn block(values: *const f32) -> Block;
    unsafe fn super_block(values: *const f32) -> SuperBlock;
    /// A value rounded to half precision.
    unsafe fn halved(value: f32) -> f32;
}

/// A stretch of a row of activations, and its place in a tile.
#[derive(Debug, Clone, Copy)]
pub(super) struct ActivationSpan {
    /// The first value.
    pub(super) values: *const f32,
    /// The first unit of the tile.
    pub(super) tile: *mut u8,
    /// How many columns the tile has.
    pub(super) n_columns: usize,
    /// Which of them this row is.
    pub(super) column: usize,
    /// How many units there are.
    pub(super) n: usize,
    /// How much greater than the weights their bytes are.
    pub(super) offset: i32,
}

/// Writes one column of `stretch.n` units.
///
/// # Safety
/// The processor has what `Q` needs. The values may be read; the tile has room for `stretch.n` units of form `F` with
/// `stretch.n_columns` columns, and nobody else uses this column.
#[inline(always)]
pub(super) unsafe fn stretch<Q: Quantise, F: Form>(stretch: &ActivationSpan) {
    let ActivationSpan { values, tile, n_columns, column, n, offset } = *stretch;
    for i in 0..n {
        // SAFETY: the caller vouches for the instruction set, the values and the unit; offsets stay inside of the unit.
        unsafe {
            let values = values.add(F::LEN * i);
            let unit = tile.add(F::COLUMN_BYTES * n_columns * i);
            let scale_at = unit.add(F::LEN * n_columns).cast::<f32>();
            let rest = scale_at.add(n_columns).cast::<i32>();
            if F::LEN == 32 {
                let block = Q::block(values);
                unit.add(32 * column).cast::<[i8; 32]>().write(block.bytes);
                scale_at.add(column).write(Q::halved(block.scale));
                if F::MINS > 0 {
                    #[expect(clippy::cast_precision_loss, reason = "the sum of 32 bytes fits")]
                    rest.cast::<f32>().add(column).write(Q::halved(block.scale * block.sum as f32));
                } else {
                    rest.add(column).write(-offset * block.sum);
                }
                continue;
            }
            let block = Q::super_block(values);
            for b in 0..8 {
                let bytes = block.bytes.as_ptr().add(32 * b).cast::<[i8; 32]>().read();
                unit.add(32 * (n_columns * b + column)).cast::<[i8; 32]>().write(bytes);
            }
            scale_at.add(column).write(block.scale);
            let sum = |from: usize, n: usize| block.sums[from..from + n].iter().map(|&sum| i32::from(sum)).sum::<i32>();
            if F::HAS_OFFSET {
                let each = 16 / F::SCALES;
                for s in 0..F::SCALES {
                    rest.add(F::SCALES * column + s).write(-offset * sum(each * s, each));
                }
            }
            // Eight minima make four pairs, which meet sums of 32; sixteen make eight, which meet sums of 16.
            let each = if F::MINS == 4 { 2 } else { 1 };
            for pair in 0..F::MINS {
                // 32 bytes sum up to 32 * 128 at most: both halves fit.
                let (low, high) = (sum(2 * each * pair, each), sum(each * (2 * pair + 1), each));
                rest.add(F::MINS * column + pair).write((low & 0xffff) | (high << 16));
            }
        }
    }
}
