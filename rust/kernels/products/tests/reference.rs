//! Reference decoding of weights and activations, written as plainly as possible.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the values fit")]

use super::Random;
use crate::kernels::half::{from_single, to_single};
use crate::kernels::products::format::WeightFormat;

const IQ4: [i32; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
const FP4: [i32; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// A weight is `scale * whole - min`.
#[derive(Clone, Copy)]
pub(super) struct Weight {
    pub(super) scaled: f64,
    pub(super) min: f64,
}

/// Offsets of a block's halves.
fn halves_at(format: WeightFormat) -> &'static [usize] {
    match format {
        WeightFormat::Q8_0
        | WeightFormat::Q4_0
        | WeightFormat::Q5_0
        | WeightFormat::Iq4Nl
        | WeightFormat::Iq4Xs
        | WeightFormat::F16 => &[0],
        WeightFormat::Q4_1 | WeightFormat::Q5_1 | WeightFormat::Q4K | WeightFormat::Q5K => &[0, 2],
        WeightFormat::Q2K => &[80, 82],
        WeightFormat::Q3K => &[108],
        WeightFormat::Q6K => &[208],
        WeightFormat::Mxfp4 | WeightFormat::Bf16 | WeightFormat::F32 => &[],
    }
}

/// Replaces the scales of a block of random bits by finite ones.
pub(super) fn make_finite(random: &mut Random, format: WeightFormat, block: &mut [u8]) {
    for &at in halves_at(format) {
        let half = match random.below(20) {
            0 => 0,
            1 => u16::try_from(random.below(0x400)).unwrap(),
            _ => from_single(random.value() / 8.0),
        };
        block[at..at + 2].copy_from_slice(&half.to_le_bytes());
    }
    match format {
        WeightFormat::Mxfp4 => block[0] = u8::try_from(random.within(100, 140)).unwrap(),
        WeightFormat::Bf16 => block.copy_from_slice(&random.value().to_bits().to_le_bytes()[2..]),
        WeightFormat::F32 => block.copy_from_slice(&random.value().to_le_bytes()),
        _ => {}
    }
}

/// Extracts the scale and the minimum of 32 weights from the twelve bytes that hold eight of each.
fn scale_and_min(bytes: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (bytes[j] & 63, bytes[j + 4] & 63)
    } else {
        ((bytes[j + 4] & 15) | (bytes[j - 4] >> 6 << 4), (bytes[j + 4] >> 4) | (bytes[j] >> 6 << 4))
    }
}

/// Decodes a block.
#[allow(clippy::too_many_lines, reason = "one arm for each format")]
pub(super) fn weights(format: WeightFormat, block: &[u8]) -> Vec<Weight> {
    let half = |at: usize| f64::from(to_single(u16::from_le_bytes([block[at], block[at + 1]])));
    let dword = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
    let plain = |scaled: f64| Weight { scaled, min: 0.0 };
    // Lower four bits belong to the first half, upper bits to the second.
    let nibble = |at: usize, i: usize| i32::from(if i < 16 { block[at + i] & 15 } else { block[at + i - 16] >> 4 });
    let fifth = |at: usize, i: usize| i32::try_from(dword(at) >> i & 1).unwrap() * 16;
    let k = |i: usize| (i / 64, i / 32 % 2, i % 32);
    let of = |n: usize, weight: &dyn Fn(usize) -> Weight| (0..n).map(weight).collect::<Vec<_>>();
    match format {
        WeightFormat::Q8_0 => of(32, &|i| plain(half(0) * f64::from(block[2 + i].cast_signed()))),
        WeightFormat::Q4_0 => of(32, &|i| plain(half(0) * f64::from(nibble(2, i) - 8))),
        WeightFormat::Q4_1 => of(32, &|i| Weight { scaled: half(0) * f64::from(nibble(4, i)), min: -half(2) }),
        WeightFormat::Q5_0 => of(32, &|i| plain(half(0) * f64::from(nibble(6, i) + fifth(2, i) - 16))),
        WeightFormat::Q5_1 => of(32, &|i| Weight { scaled: half(0) * f64::from(nibble(8, i) + fifth(4, i)), min: -half(2) }),
        WeightFormat::Iq4Nl => of(32, &|i| plain(half(0) * f64::from(IQ4[nibble(2, i) as usize]))),
        WeightFormat::Mxfp4 => {
            of(32, &|i| plain(2.0_f64.powi(i32::from(block[0]) - 128) * f64::from(FP4[nibble(1, i) as usize])))
        }
        WeightFormat::Q2K => of(256, &|i| {
            let whole = block[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
            let byte = block[i / 16];
            Weight { scaled: half(80) * f64::from(byte & 15) * f64::from(whole), min: half(82) * f64::from(byte >> 4) }
        }),
        WeightFormat::Q3K => of(256, &|i| {
            let low = i32::from(block[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3);
            let third = i32::from(block[i % 32] >> (i / 32) & 1);
            let j = i / 16;
            let low_scale = if j < 8 { block[96 + j] & 15 } else { block[96 + j - 8] >> 4 };
            let scale = low_scale | ((block[104 + j % 4] >> (j / 4 * 2) & 3) << 4);
            plain(half(108) * f64::from(i32::from(scale) - 32) * f64::from(low + 4 * third - 4))
        }),
        WeightFormat::Q4K | WeightFormat::Q5K => of(256, &|i| {
            let (at, upper, within) = k(i);
            let (scale, min) = scale_and_min(&block[4..16], i / 32);
            let lower = block[if format == WeightFormat::Q4K { 16 } else { 48 } + 32 * at + within] >> (4 * upper) & 15;
            let fifth = if format == WeightFormat::Q4K { 0 } else { block[16 + within] >> (i / 32) & 1 };
            Weight { scaled: half(0) * f64::from(scale) * f64::from(lower + 16 * fifth), min: half(2) * f64::from(min) }
        }),
        WeightFormat::Q6K => of(256, &|i| {
            let (n, quarter, within) = (i / 128, i / 32 % 4, i % 32);
            let lower = block[64 * n + 32 * (quarter % 2) + within] >> (4 * (quarter / 2)) & 15;
            let upper = block[128 + 32 * n + within] >> (2 * quarter) & 3;
            plain(half(208) * f64::from(block[192 + i / 16].cast_signed()) * f64::from(i32::from(lower | upper << 4) - 32))
        }),
        WeightFormat::Iq4Xs => of(256, &|i| {
            let b = i / 32;
            let low = block[4 + b / 2] >> (4 * (b % 2)) & 15;
            let high = u16::from_le_bytes([block[2], block[3]]) >> (2 * b) & 3;
            let scale = i32::from(low) + 16 * i32::from(high) - 32;
            let byte = block[8 + 16 * b + i % 16];
            plain(half(0) * f64::from(scale) * f64::from(IQ4[usize::from(if i % 32 < 16 { byte & 15 } else { byte >> 4 })]))
        }),
        WeightFormat::F16 => vec![plain(half(0))],
        WeightFormat::Bf16 => vec![plain(f64::from(f32::from_bits(u32::from(u16::from_le_bytes([block[0], block[1]])) << 16)))],
        WeightFormat::F32 => vec![plain(f64::from(f32::from_bits(dword(0))))],
    }
}

/// Activations after quantisation and back.
pub(super) struct Activations {
    pub(super) values: Vec<f64>,
    /// Sums of 32 values that are rounded separately, which minima are multiplied with.
    pub(super) sums: Vec<f64>,
}

/// Quantises 32 values; returns bytes and the scale.
pub(super) fn bytes_32(values: &[f32]) -> (Vec<i8>, f32) {
    let max_abs = values.iter().fold(0.0_f32, |max_abs, value| max_abs.max(value.abs()));
    let factor = if max_abs == 0.0 { 0.0 } else { 127.0 / max_abs };
    (values.iter().map(|value| (value * factor).round_ties_even() as i8).collect(), max_abs / 127.0)
}

/// Quantises 256 values; returns bytes and the scale.
pub(super) fn bytes_256(values: &[f32]) -> (Vec<i8>, f32) {
    let mut max_abs = 0.0;
    for &value in values {
        if value.abs() > f32::abs(max_abs) {
            max_abs = value;
        }
    }
    if max_abs == 0.0 {
        return (vec![0; 256], 0.0);
    }
    let factor = -127.0 / max_abs;
    let nearest = |value: f32| ((value + 12_582_912.0).to_bits() & 0x007f_ffff).cast_signed() - 0x0040_0000;
    (values.iter().map(|value| nearest(factor * value).min(127) as i8).collect(), 1.0 / factor)
}

pub(super) fn activations(format: WeightFormat, values: &[f32]) -> Activations {
    let mut activations = Activations { values: Vec::new(), sums: Vec::new() };
    match format.block_len() {
        1 => activations.values.extend(values.iter().map(|&value| f64::from(value))),
        32 => {
            for block in values.chunks_exact(32) {
                let (bytes, scale) = bytes_32(block);
                let sum: f32 = bytes.iter().map(|&byte| f32::from(byte)).sum();
                activations.sums.push(f64::from(to_single(from_single(scale * sum))));
                let scale = f64::from(to_single(from_single(scale)));
                activations.values.extend(bytes.iter().map(|&byte| scale * f64::from(byte)));
            }
        }
        _ => {
            for block in values.chunks_exact(256) {
                let (bytes, scale) = bytes_256(block);
                activations.values.extend(bytes.iter().map(|&byte| f64::from(scale) * f64::from(byte)));
            }
        }
    }
    activations
}

/// Multiplies a row of weights with one of activations; also returns the sum of the terms' magnitudes.
pub(super) fn product(format: WeightFormat, row: &[u8], activations: &Activations) -> (f64, f64) {
    let (mut sum, mut absolute) = (0.0, 0.0);
    let mut add = |product: f64| {
        sum += product;
        absolute += product.abs();
    };
    let weights = row.chunks_exact(format.block_bytes()).flat_map(|block| weights(format, block));
    for (i, (weight, value)) in weights.zip(&activations.values).enumerate() {
        add(weight.scaled * value);
        // llama.cpp multiplies these minima with the sum of the 32 values.
        match format {
            WeightFormat::Q4_1 | WeightFormat::Q5_1 if i % 32 == 0 => add(-weight.min * activations.sums[i / 32]),
            WeightFormat::Q4_1 | WeightFormat::Q5_1 => {}
            _ => add(-weight.min * value),
        }
    }
    (sum, absolute)
}
