//! Activations made into bytes by plain Rust, with the oddities of the processor's instructions where numbers are none.

use super::{Block, Quantise, SuperBlock};
use crate::kernels::half::{from_single, to_single};

/// Plain Rust.
pub(in crate::kernels::products) struct Portable;

/// The greater of two; the second where either is no number.
fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The nearest integer, the even one of two; the least there is where the value is no number or too great.
#[expect(clippy::cast_possible_truncation, reason = "what does not fit is looked for")]
fn nearest(value: f32) -> i32 {
    if value.abs() < 2_147_483_648.0 { value.round_ties_even() as i32 } else { i32::MIN }
}

impl Quantise for Portable {
    unsafe fn block(values: *const f32) -> Block {
        // SAFETY: the caller has 32 values.
        let values = unsafe { values.cast::<[f32; 32]>().read() };
        // Lane by lane, then lanes: which value is taken matters where some are no numbers.
        let mut lanes: [f32; 8] = std::array::from_fn(|i| values[i].abs());
        for eight in values[8..].chunks_exact(8) {
            for (lane, value) in lanes.iter_mut().zip(eight) {
                *lane = max(*lane, value.abs());
            }
        }
        let four: [f32; 4] = std::array::from_fn(|i| max(lanes[i + 4], lanes[i]));
        let greatest = max(max(four[0], four[2]), max(four[1], four[3]));
        let factor = if greatest == 0.0 { 0.0 } else { 127.0 / greatest };
        let whole = values.map(|value| nearest(value * factor));
        #[expect(clippy::cast_possible_truncation, reason = "clamped")]
        let bytes = whole.map(|one| one.clamp(-128, 127) as i8);
        Block { bytes, scale: greatest / 127.0, sum: bytes.into_iter().map(i32::from).sum() }
    }

    unsafe fn super_block(values: *const f32) -> SuperBlock {
        // SAFETY: the caller has 256 values.
        let values = unsafe { values.cast::<[f32; 256]>().read() };
        let (mut greatest, mut signed) = (0.0, 0.0);
        for value in values {
            if value.abs() > greatest {
                (greatest, signed) = (value.abs(), value);
            }
        }
        if greatest == 0.0 {
            return SuperBlock { bytes: [0; 256], scale: 0.0, sums: [0; 16] };
        }
        let factor = -127.0 / signed;
        // Adding 1.5 * 2^23 leaves the nearest integer in the lower bits.
        #[expect(clippy::cast_possible_truncation, reason = "the lowest byte is meant")]
        let bytes = values.map(|value| {
            let bits = (factor * value + 12_582_912.0).to_bits().cast_signed();
            ((bits & 0x007f_ffff) - 0x0040_0000).min(127) as i8
        });
        let sums = std::array::from_fn(|i| bytes[16 * i..16 * i + 16].iter().map(|&byte| i16::from(byte)).sum());
        SuperBlock { bytes, scale: 1.0 / factor, sums }
    }

    unsafe fn halved(value: f32) -> f32 {
        to_single(from_single(value))
    }
}
