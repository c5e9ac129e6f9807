//! The transposition of cells by vectors of 32-bit units, each of which holds one, two or four elements of a cell.

use super::CellFormat;
use super::simd::Simd;

/// Integer operations on units, for processors that support the instruction set.
pub(super) trait IntVectors: Simd {
    type Unit: Copy;

    unsafe fn and(unit: Self::Unit, mask: u32) -> Self::Unit;
    unsafe fn shift_left(unit: Self::Unit, n: i32) -> Self::Unit;
    /// Shifts right, filling with the sign.
    unsafe fn shift_right(unit: Self::Unit, n: i32) -> Self::Unit;
    unsafe fn reinterpret(unit: Self::Unit) -> Self::V;
    unsafe fn convert(unit: Self::Unit) -> Self::V;
}

pub(super) const fn elements_per_unit(format: CellFormat) -> usize {
    match format {
        CellFormat::F32 => 1,
        CellFormat::F16 | CellFormat::Bf16 => 2,
        CellFormat::Q8_0 => 4,
    }
}

primitives! {
    /// Converts halves in the upper 16 bits of units whose lower 16 bits are zero.
    spread_half<S: IntVectors>(upper: S::Unit) -> S::V = {
        // The sign keeps its bit, exponent and fraction shift by three; the factor corrects the exponent's bias.
        let moved = S::and(S::shift_right(upper, 3), 0x8fff_e000);
        S::mul(S::reinterpret(moved), S::splat(f32::from_bits((127 + 112) << 23)))
    };

    pub(super) store_units<S: IntVectors>(format: CellFormat, unit: S::Unit, factors: S::V, to: *mut f32, stride: usize) = match format {
        CellFormat::F32 => S::store(to, S::reinterpret(unit)),
        CellFormat::F16 => {
            S::store(to, spread_half::<S>(S::shift_left(unit, 16)));
            S::store(to.add(stride), spread_half::<S>(S::and(unit, 0xffff_0000)));
        }
        CellFormat::Bf16 => {
            S::store(to, S::reinterpret(S::shift_left(unit, 16)));
            S::store(to.add(stride), S::reinterpret(S::and(unit, 0xffff_0000)));
        }
        CellFormat::Q8_0 => {
            // Written out: closures would not be inlined.
            let bytes = [
                S::shift_right(S::shift_left(unit, 24), 24),
                S::shift_right(S::shift_left(unit, 16), 24),
                S::shift_right(S::shift_left(unit, 8), 24),
                S::shift_right(unit, 24),
            ];
            for (i, byte) in bytes.into_iter().enumerate() {
                S::store(to.add(i * stride), S::mul(S::convert(byte), factors));
            }
        }
    };
}
