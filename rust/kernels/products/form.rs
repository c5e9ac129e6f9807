//! The common layouts to which weights and activations are converted for multiplication, whatever the file format.
//!
//! A *panel* has as many rows of weights as an instruction set has lanes. Unpacked, it is a list of *units* of 32 or 256 weights
//! per row: vectors with a lane per row, of four bytes per lane first, then of a scale for each 16 or 32 weights, then of
//! minima. A *tile* is up to [`MAX_COLUMNS`] rows of activations, whose sums stay in registers. Its units are contiguous, each
//! with the bytes of its columns, their scales, and the values that offsets or minima need.

/// Maximum rows of a panel.
pub(super) const MAX_ROWS: usize = 32;

/// Maximum columns of a tile.
pub(super) const MAX_COLUMNS: usize = 8;

/// Columns that can be multiplied with weights as they are unpacked, if there are no others.
pub(super) const MAX_PACKED_COLUMNS: usize = 2;

/// Weights per row that are unpacked at a time: a panel's span stays in the L1 cache together with a tile.
pub(super) const SPAN: usize = 512;

pub(super) trait Form {
    /// Weights per row: 32, or 256 where eight blocks of 32 share a scale of the activations.
    const LEN: usize;
    /// Scales per row.
    const SCALES: usize;
    /// Dwords per row for minima: none, one float, or pairs of 16 bits that are multiplied with sums of activations.
    const MINS: usize;
    /// Significant bits of the bytes: up to 5, 6 or 8. Fewer bits let AVX2 add more products before 16 bits overflow.
    const BITS: u32;
    /// True if an offset is added to the weights' bytes, so that sums start below zero to compensate.
    const HAS_OFFSET: bool;

    /// Vectors of a unit of a panel.
    const VECTORS: usize = Self::MINS_AT + Self::MINS + if Self::LEN == 256 && Self::MINS > 0 { 1 } else { 0 };
    const SCALES_AT: usize = Self::LEN / 4;
    const MINS_AT: usize = Self::SCALES_AT + Self::SCALES;
    /// Bytes of one column's unit in a tile.
    const COLUMN_BYTES: usize = Self::LEN + 4 + 4 * Self::MINS + if Self::HAS_OFFSET { 4 * Self::SCALES } else { 0 };
}

macro_rules! forms {
    ($($name:ident: $len:literal, $scales:literal, $mins:literal, $bits:literal, $offset:literal;)*) => {$(
        pub(super) struct $name;

        impl Form for $name {
            const LEN: usize = $len;
            const SCALES: usize = $scales;
            const MINS: usize = $mins;
            const BITS: u32 = $bits;
            const HAS_OFFSET: bool = $offset;
        }
    )*};
}

forms! {
    Bytes32: 32, 1, 0, 8, true;
    Small32: 32, 1, 0, 5, true;
    Small32WithMin: 32, 1, 1, 5, false;
    Super32WithMins: 256, 8, 4, 5, false;
    SuperBytes32: 256, 8, 0, 8, true;
    Super16: 256, 16, 0, 6, true;
    Super16WithMins: 256, 16, 8, 5, false;
}
