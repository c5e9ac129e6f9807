//! Quantises activations in plain Rust, and treats NaN as the processor's instructions do.

use super::{Quantise, QuantisedBlock, QuantisedSuperBlock};
use crate::kernels::half::{from_single, to_single};

pub(in crate::kernels::products) struct Portable;

/// Returns the maximum; `b` where either is NaN.
fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Rounds to the nearest integer, ties to even; `i32::MIN` for NaN and values out of range.
#[expect(clippy::cast_possible_truncation, reason = "values that do not fit are handled")]
fn nearest(value: f32) -> i32 {
    if value.abs() < 2_147_483_648.0 { value.round_ties_even() as i32 } else { i32::MIN }
}

impl Quantise for Portable {
    unsafe fn quantise_block(values: *const f32) -> QuantisedBlock {
        // SAFETY: the caller guarantees 32 values.
        let values = unsafe { values.cast::<[f32; 32]>().read() };
        // Lanes first, then across lanes: the order determines the result if some values are NaN.
        let mut lanes: [f32; 8] = std::array::from_fn(|i| values[i].abs());
        for eight in values[8..].chunks_exact(8) {
            for (lane, value) in lanes.iter_mut().zip(eight) {
                *lane = max(*lane, value.abs());
            }
        }
        let four: [f32; 4] = std::array::from_fn(|i| max(lanes[i + 4], lanes[i]));
        let max_abs = max(max(four[0], four[2]), max(four[1], four[3]));
        let factor = if max_abs == 0.0 { 0.0 } else { 127.0 / max_abs };
        let rounded = values.map(|value| nearest(value * factor));
        #[expect(clippy::cast_possible_truncation, reason = "clamped")]
        let bytes = rounded.map(|one| one.clamp(-128, 127) as i8);
        QuantisedBlock { bytes, scale: max_abs / 127.0, sum: bytes.into_iter().map(i32::from).sum() }
    }

    unsafe fn quantise_super_block(values: *const f32) -> QuantisedSuperBlock {
        // SAFETY: the caller guarantees 256 values.
        let values = unsafe { values.cast::<[f32; 256]>().read() };
        let (mut max_abs, mut signed) = (0.0, 0.0);
        for value in values {
            if value.abs() > max_abs {
                (max_abs, signed) = (value.abs(), value);
            }
        }
        if max_abs == 0.0 {
            return QuantisedSuperBlock { bytes: [0; 256], scale: 0.0, sums: [0; 16] };
        }
        let factor = -127.0 / signed;
        // Adding 1.5 * 2^23 leaves the nearest integer in the lower bits.
        #[expect(clippy::cast_possible_truncation, reason = "the lowest byte is the result")]
        let bytes = values.map(|value| {
            let bits = (factor * value + 12_582_912.0).to_bits().cast_signed();
            ((bits & 0x007f_ffff) - 0x0040_0000).min(127) as i8
        });
        let sums = std::array::from_fn(|i| bytes[16 * i..16 * i + 16].iter().map(|&byte| i16::from(byte)).sum());
        QuantisedSuperBlock { bytes, scale: 1.0 / factor, sums }
    }

    primitives! {
        round_to_half(value: f32) -> f32 = to_single(from_single(value));
    }
}
