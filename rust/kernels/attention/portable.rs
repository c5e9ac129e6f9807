//! Plain Rust: the reference for every other instruction set, and the code that runs under Miri.

use super::Format;
use super::kernels::{ScoreBlock, ValueBlock, kernels};
use super::prefetch::CellPrefetch;
use super::simd::{self, MAX_LANES, OnlineSoftmax, Simd, SoftmaxParams};
use crate::kernels::half::to_single;

const LANES: usize = 8;

#[derive(Clone, Copy)]
pub(super) struct Portable;

kernels!(Portable, [], rows: 4 [1 2 3 4], four: 1 [1], eight: 0 []);

unsafe fn read_mask(mask: *const u16) -> (u64, u64) {
    let (mut visible, mut zero) = (0, 0);
    for bit in 0..64 {
        // SAFETY: the caller guarantees 64 elements.
        let value = unsafe { mask.add(bit).read_unaligned() };
        visible |= u64::from(value != super::Mask::HIDDEN) << bit;
        zero |= u64::from(matches!(value, 0 | 0x8000)) << bit;
    }
    (visible, zero)
}

/// Reads element `at` of a cell.
///
/// # Safety
/// The cell has that element.
unsafe fn element(format: Format, cell: *const u8, at: usize) -> f32 {
    // SAFETY: the caller guarantees the element; no alignment is assumed.
    unsafe {
        match format {
            Format::F32 => cell.cast::<f32>().add(at).read_unaligned(),
            Format::F16 => to_single(cell.cast::<u16>().add(at).read_unaligned()),
            Format::Bf16 => f32::from_bits(u32::from(cell.cast::<u16>().add(at).read_unaligned()) << 16),
            Format::Q8_0 => {
                let block = cell.add(at / 32 * 34);
                to_single(block.cast::<u16>().read_unaligned()) * f32::from(block.add(2 + at % 32).cast::<i8>().read())
            }
        }
    }
}

fn map(a: [f32; LANES], f: impl Fn(f32) -> f32) -> [f32; LANES] {
    a.map(f)
}

fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

impl Simd for Portable {
    type V = [f32; LANES];
    const LANES: usize = LANES;

    unsafe fn splat(value: f32) -> Self::V {
        [value; LANES]
    }

    unsafe fn load(from: *const f32) -> Self::V {
        // SAFETY: the caller guarantees all lanes.
        unsafe { from.cast::<Self::V>().read_unaligned() }
    }

    unsafe fn store(to: *mut f32, v: Self::V) {
        // SAFETY: the caller guarantees all lanes.
        unsafe { to.cast::<Self::V>().write_unaligned(v) };
    }

    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }

    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }

    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }

    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }

    // Rounds twice: without a hardware instruction, a single rounding needs a library call.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|lane| a[lane] * b[lane] + c[lane])
    }

    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    unsafe fn abs(v: Self::V) -> Self::V {
        map(v, f32::abs)
    }

    unsafe fn with_sign(v: Self::V, sign: Self::V) -> Self::V {
        zip(v, sign, f32::copysign)
    }

    unsafe fn scale_by_power(v: Self::V, shifted: Self::V) -> Self::V {
        zip(v, shifted, |v, shifted| f32::from_bits(v.to_bits().wrapping_add(shifted.to_bits() << 23)))
    }

    unsafe fn where_above(x: Self::V, limit: Self::V, v: Self::V) -> Self::V {
        std::array::from_fn(|lane| if x[lane] <= limit[lane] { 0.0 } else { v[lane] })
    }

    unsafe fn hide(v: Self::V, visible: u32) -> Self::V {
        std::array::from_fn(|lane| if visible >> lane & 1 == 1 { v[lane] } else { f32::NEG_INFINITY })
    }

    unsafe fn reduce_max(v: Self::V) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }

    unsafe fn sum(v: Self::V) -> f32 {
        let half: [f32; 4] = std::array::from_fn(|lane| v[lane] + v[lane + 4]);
        (half[0] + half[2]) + (half[1] + half[3])
    }

    unsafe fn load_cell(format: Format, cell: *const u8, at: usize) -> Self::V {
        // SAFETY: the caller guarantees all lanes.
        std::array::from_fn(|lane| unsafe { element(format, cell, at + lane) })
    }

    unsafe fn transpose(format: Format, cells: &[*const u8; MAX_LANES], size: usize, to: *mut f32, stride: usize) {
        for (lane, &cell) in cells[..LANES].iter().enumerate() {
            for d in 0..size {
                // SAFETY: the caller guarantees `size` elements of each cell and as many rows of all lanes.
                unsafe { to.add(d * stride + lane).write(element(format, cell, d)) };
            }
        }
    }
}
