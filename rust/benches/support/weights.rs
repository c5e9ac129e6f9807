//! Random weights in the formats of ggml: blocks with random bits and fixed scales.
//!
//! The scales preserve the variance of a product's inputs. Each layer then adds about as much to the residual stream as it
//! contains, attention covers many cells, and the logits have a spread of about 3: the samplers receive neither a flat row nor
//! a single candidate.

use std::io::{self, Write};

use super::gguf::{Tensor, TensorType};

/// Scale, and for [`TensorType::Q4K`] and [`TensorType::Q5K`] minimum, of each group of a block: the scale of the whole block
/// is then a normal 16-bit float for any width of a matrix.
const GROUP: u8 = 8;

/// Twelve bytes that hold eight scales and eight minimums of six bits, all of them [`GROUP`]: the first four of each unchanged
/// (with two bits of the last four above them), then the lower four bits of the last four.
const GROUPS_WITH_MINIMUMS: [u8; 12] = {
    let whole = GROUP | (GROUP >> 4) << 6;
    let low = (GROUP & 15) | (GROUP & 15) << 4;
    [whole, whole, whole, whole, whole, whole, whole, whole, low, low, low, low]
};

/// Fills a matrix with random blocks.
///
/// # Errors
/// Errors of the writer.
pub(crate) fn write(file: &mut impl Write, tensor: &Tensor, random: &mut Random) -> io::Result<()> {
    let n_in = tensor.dims[0];
    let spread = if tensor.name == "token_embd.weight" { 3.0 } else { 1.0 };
    let deviation = spread / (n_in as f32).sqrt();
    let mut row = vec![0_u8; tensor.kind.n_bytes(n_in)];
    let (_, n_bytes) = tensor.kind.block();
    for _ in 0..tensor.n_bytes() / row.len() {
        for eight in row.chunks_mut(8) {
            eight.copy_from_slice(&random.next().to_le_bytes()[..eight.len()]);
        }
        for block in row.chunks_exact_mut(n_bytes) {
            finish(block, tensor.kind, deviation);
        }
        file.write_all(&row)?;
    }
    Ok(())
}

/// Sets the fixed fields of a block of random bits, so that its weights have this standard deviation.
fn finish(block: &mut [u8], kind: TensorType, deviation: f32) {
    // Standard deviation of `n` equally likely integers.
    let uniform = |n: f32| ((n * n - 1.0) / 12.0).sqrt();
    let group = f32::from(GROUP);
    let f16 = |value: f32| f16_bits(value).to_le_bytes();
    match kind {
        TensorType::F32 => unreachable!("only norms are floats, and they are not written by chance"),
        TensorType::Q5_0 => block[..2].copy_from_slice(&f16(deviation / uniform(32.0))),
        TensorType::Q8_0 => {
            block[..2].copy_from_slice(&f16(deviation / uniform(255.0)));
            // llama.cpp's quantizer never writes −128, and its kernels may rely on that.
            for weight in &mut block[2..] {
                *weight = weight.cast_signed().max(-127).cast_unsigned();
            }
        }
        TensorType::Q4K | TensorType::Q5K => {
            let n_values = if kind == TensorType::Q4K { 16.0 } else { 32.0 };
            let scale = deviation / uniform(n_values) / group;
            block[..2].copy_from_slice(&f16(scale));
            // Weights start at 0; the minimum subtracts their mean.
            block[2..4].copy_from_slice(&f16((n_values - 1.0) / 2.0 * scale));
            block[4..16].copy_from_slice(&GROUPS_WITH_MINIMUMS);
        }
        TensorType::Q6K => {
            block[192..208].fill(GROUP);
            block[208..].copy_from_slice(&f16(deviation / uniform(64.0) / group));
        }
    }
}

/// Returns the bits of the 16-bit float below `value`, which must be in the range of its normal numbers (IEEE 754, binary16).
fn f16_bits(value: f32) -> u16 {
    assert!((6.2e-5..6.5e4).contains(&value), "{value} is no normal 16-bit float");
    // The formats differ by 112 in the exponent's bias and by 13 bits in the fraction.
    let bits = (value.to_bits() >> 13) - (112 << 10);
    u16::try_from(bits).expect("the exponent of a normal 16-bit float has five bits")
}

/// `splitmix64` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }
}
