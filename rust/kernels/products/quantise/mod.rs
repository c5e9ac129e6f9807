//! Quantises activations to bytes exactly as llama.cpp does, in the layout of tiles.

#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod portable;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

use super::form::Form;

pub(super) struct QuantisedBlock {
    pub(super) bytes: [i8; 32],
    /// Scale, not yet rounded to half precision.
    pub(super) scale: f32,
    pub(super) sum: i32,
}

pub(super) struct QuantisedSuperBlock {
    pub(super) bytes: [i8; 256],
    pub(super) scale: f32,
    /// Sums of sixteen bytes each.
    pub(super) sums: [i16; 16],
}

/// Every function requires the instruction set, and as many readable values as there are bytes.
pub(super) trait Quantise {
    unsafe fn quantise_block(values: *const f32) -> QuantisedBlock;
    unsafe fn quantise_super_block(values: *const f32) -> QuantisedSuperBlock;
    unsafe fn round_to_half(value: f32) -> f32;
}

/// Part of a row of activations, and its destination in a tile.
#[derive(Debug, Clone, Copy)]
pub(super) struct ActivationSpan {
    pub(super) values: *const f32,
    pub(super) tile: *mut u8,
    pub(super) n_columns: usize,
    pub(super) column: usize,
    pub(super) n: usize,
    /// Offset that was added to the weights' bytes.
    pub(super) offset: i32,
}

/// Writes one column of `span.n` units. Callers guarantee `Q`, readable values, and exclusive room in the tile's column.
#[inline(always)]
pub(super) unsafe fn quantise_span<Q: Quantise, F: Form>(span: &ActivationSpan) {
    let ActivationSpan { values, tile, n_columns, column, n, offset } = *span;
    for i in 0..n {
        // SAFETY: the caller guarantees the instruction set, the values and the unit.
        unsafe {
            let values = values.add(F::LEN * i);
            let unit = tile.add(F::COLUMN_BYTES * n_columns * i);
            let scale_at = unit.add(F::LEN * n_columns).cast::<f32>();
            let rest = scale_at.add(n_columns).cast::<i32>();
            if F::LEN == 32 {
                let block = Q::quantise_block(values);
                unit.add(32 * column).cast::<[i8; 32]>().write(block.bytes);
                scale_at.add(column).write(Q::round_to_half(block.scale));
                if F::MINS > 0 {
                    #[expect(clippy::cast_precision_loss, reason = "the sum of 32 bytes fits")]
                    rest.cast::<f32>().add(column).write(Q::round_to_half(block.scale * block.sum as f32));
                } else {
                    rest.add(column).write(-offset * block.sum);
                }
                continue;
            }
            let block = Q::quantise_super_block(values);
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
            // Eight minima make four pairs, multiplied with sums of 32; sixteen make eight, multiplied with sums of 16.
            let each = if F::MINS == 4 { 2 } else { 1 };
            for pair in 0..F::MINS {
                // 32 bytes sum to at most 32 * 128: both halves fit.
                let (low, high) = (sum(2 * each * pair, each), sum(each * (2 * pair + 1), each));
                rest.add(F::MINS * column + pair).write((low & 0xffff) | (high << 16));
            }
        }
    }
}
