//! Activations are quantised as llama.cpp quantises them.

use super::reference::{bytes_32, bytes_256};
use super::*;
#[cfg(target_arch = "aarch64")]
use crate::kernels::products::quantise::neon;
#[cfg(target_arch = "x86_64")]
use crate::kernels::products::quantise::x86;
use crate::kernels::products::quantise::{Quantise, portable};

/// Values of every kind: zeros, outliers, tiny values, and values half-way between two bytes.
fn rows(random: &mut Random) -> Vec<Vec<f32>> {
    let mut rows: Vec<Vec<f32>> = (0..200).map(|_| random.values(256)).collect();
    for (i, row) in rows.iter_mut().enumerate() {
        match i % 8 {
            0 => row.fill(0.0),
            1 => row[random.below(256)] = 1e30,
            2 => row.iter_mut().for_each(|value| *value *= 1e-35),
            3 => row.iter_mut().for_each(|value| *value = (*value * 20.0).round() + 0.5),
            4 => {
                row[17] = -100.0;
                row[33] = 100.0;
                row[32] = -0.0;
            }
            _ => {}
        }
    }
    rows
}

fn assert_matches_reference<Q: Quantise>() {
    for row in rows(&mut Random(21)) {
        // SAFETY: the caller checked the instruction set; 256 values are there.
        let whole = unsafe { Q::quantise_super_block(row.as_ptr()) };
        let (bytes, scale) = bytes_256(&row);
        assert_eq!((&whole.bytes[..], whole.scale.to_bits()), (&bytes[..], scale.to_bits()));
        for (sum, bytes) in whole.sums.iter().zip(bytes.chunks_exact(16)) {
            assert_eq!(*sum, bytes.iter().map(|&byte| i16::from(byte)).sum::<i16>());
        }
        for values in row.chunks_exact(32) {
            // SAFETY: as above, and 32 values.
            let block = unsafe { Q::quantise_block(values.as_ptr()) };
            let (bytes, scale) = bytes_32(values);
            assert_eq!((&block.bytes[..], block.scale.to_bits()), (&bytes[..], scale.to_bits()));
            assert_eq!(block.sum, bytes.iter().map(|&byte| i32::from(byte)).sum::<i32>());
        }
    }
}

#[test]
fn plain_rust_quantises_like_llama_cpp() {
    assert_matches_reference::<portable::Portable>();
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx2_quantises_like_llama_cpp() {
    if Level::Avx2.is_available() {
        assert_matches_reference::<x86::X86>();
    }
}

#[cfg(target_arch = "aarch64")]
#[test]
fn neon_quantises_like_llama_cpp_on_x86() {
    assert_matches_reference::<neon::Neon>();
}

/// Compares with plain Rust on rows that contain NaN or infinities.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn assert_matches_portable_with_nan<Q: Quantise>() {
    let mut random = Random(22);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for _ in 0..100 {
            let mut row = random.values(256);
            for _ in 0..random.within(1, 3) {
                row[random.below(256)] = bad;
            }
            // SAFETY: the caller checked the instruction set; 256 values are there.
            let (a, b) =
                unsafe { (portable::Portable::quantise_super_block(row.as_ptr()), Q::quantise_super_block(row.as_ptr())) };
            assert_eq!(
                (a.bytes, a.sums, a.scale.is_nan(), a.scale.is_sign_negative()),
                (b.bytes, b.sums, b.scale.is_nan(), b.scale.is_sign_negative())
            );
            // SAFETY: as above, and 32 values.
            let (a, b) = unsafe { (portable::Portable::quantise_block(row.as_ptr()), Q::quantise_block(row.as_ptr())) };
            assert_eq!(
                (a.bytes, a.sum, a.scale.is_nan(), a.scale.is_infinite()),
                (b.bytes, b.sum, b.scale.is_nan(), b.scale.is_infinite())
            );
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx2_treats_nan_like_plain_rust() {
    if Level::Avx2.is_available() {
        assert_matches_portable_with_nan::<x86::X86>();
    }
}

#[cfg(target_arch = "aarch64")]
#[test]
fn neon_treats_nan_like_plain_rust() {
    assert_matches_portable_with_nan::<neon::Neon>();
}

#[test]
fn rows_of_zeros_give_zeros_and_nan_stays_in_its_row() {
    let mut random = Random(23);
    for format in WeightFormat::ALL {
        let matrix = Matrix::random(&mut random, format, 512, 20);
        for level in levels() {
            assert!(matrix.times(level, &[0.0; 512], 1).iter().all(|&product| product == 0.0), "{format:?} on {level}");
            let mut values = random.values(2 * 512);
            values[100] = f32::NAN;
            let result = matrix.times(level, &values, 1);
            let expected = matrix.times(level, &values[512..], 1);
            assert_eq!(bits(&result[20..]), bits(&expected), "{format:?} on {level}: the other row is unchanged");
        }
    }
}
