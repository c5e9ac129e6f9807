//! Plain Rust: the reference for every other instruction set, and the code that runs under Miri.

use std::array::from_fn;

use super::CellFormat;
use super::kernels::{AttentionTable, ScoreBlock, ValueBlock, kernels};
use super::prefetch::CellPrefetch;
use super::simd::{self, MAX_LANES, OnlineSoftmax, Simd, SoftmaxParams};
use crate::kernels::half::to_single;

const LANES: usize = 8;

#[derive(Clone, Copy)]
pub(super) struct Portable;

kernels!(Portable, [inline], rows: 4 [1 2 3 4], four: [1], eight: []);

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

/// Reads element `at` of a cell, which must have it.
unsafe fn element(format: CellFormat, cell: *const u8, at: usize) -> f32 {
    // SAFETY: the caller guarantees the element; no alignment is assumed.
    unsafe {
        match format {
            CellFormat::F32 => cell.cast::<f32>().add(at).read_unaligned(),
            CellFormat::F16 => to_single(cell.cast::<u16>().add(at).read_unaligned()),
            CellFormat::Bf16 => f32::from_bits(u32::from(cell.cast::<u16>().add(at).read_unaligned()) << 16),
            CellFormat::Q8_0 => {
                let block = cell.add(at / 32 * 34);
                to_single(block.cast::<u16>().read_unaligned()) * f32::from(block.add(2 + at % 32).cast::<i8>().read())
            }
        }
    }
}

type Lanes = [f32; LANES];

fn zip(a: Lanes, b: Lanes, f: impl Fn(f32, f32) -> f32) -> Lanes {
    from_fn(|lane| f(a[lane], b[lane]))
}

impl Simd for Portable {
    type V = Lanes;
    const LANES: usize = LANES;

    primitives! {
        splat(value: f32) -> Lanes = [value; LANES];
        load(from: *const f32) -> Lanes = from.cast::<Lanes>().read_unaligned();
        store(to: *mut f32, v: Lanes) = to.cast::<Lanes>().write_unaligned(v);
        add(a: Lanes, b: Lanes) -> Lanes = zip(a, b, |a, b| a + b);
        sub(a: Lanes, b: Lanes) -> Lanes = zip(a, b, |a, b| a - b);
        mul(a: Lanes, b: Lanes) -> Lanes = zip(a, b, |a, b| a * b);
        div(a: Lanes, b: Lanes) -> Lanes = zip(a, b, |a, b| a / b);
        // Rounds twice: without a hardware instruction, a single rounding needs a library call.
        fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes = from_fn(|lane| a[lane] * b[lane] + c[lane]);
        max(a: Lanes, b: Lanes) -> Lanes = zip(a, b, |a, b| if a > b { a } else { b });
        abs(v: Lanes) -> Lanes = v.map(f32::abs);
        with_sign(v: Lanes, sign: Lanes) -> Lanes = zip(v, sign, f32::copysign);
        scale_by_power(v: Lanes, shifted: Lanes) -> Lanes =
            zip(v, shifted, |v, shifted| f32::from_bits(v.to_bits().wrapping_add(shifted.to_bits() << 23)));
        where_above(x: Lanes, limit: Lanes, v: Lanes) -> Lanes =
            from_fn(|lane| if x[lane] <= limit[lane] { 0.0 } else { v[lane] });
        hide(v: Lanes, visible: u32) -> Lanes =
            from_fn(|lane| if visible >> lane & 1 == 1 { v[lane] } else { f32::NEG_INFINITY });
        load_cell(format: CellFormat, cell: *const u8, at: usize) -> Lanes = from_fn(|lane| element(format, cell, at + lane));
    }

    unsafe fn transpose(format: CellFormat, cells: &[*const u8; MAX_LANES], size: usize, to: *mut f32, stride: usize) {
        for (lane, &cell) in cells[..LANES].iter().enumerate() {
            for d in 0..size {
                // SAFETY: the caller guarantees `size` elements of each cell and as many rows of all lanes.
                unsafe { to.add(d * stride + lane).write(element(format, cell, d)) };
            }
        }
    }
}
