//! The form that weights and activations have where they meet, whatever the file's format.
//!
//! As many rows of weights as an instruction set has lanes are a *panel*. Unpacked, a panel is a list of *units* of 32 or 256 weights
//! per row, each a list of vectors with a lane for each row: four bytes per lane first, then a scale for each 16 or 32 weights,
//! then minima. Up to [`MAX_COLUMNS`] rows of activations are a *tile*, since a tile's sums stay in registers. A tile's units lie
//! one after another, each with the bytes of its columns, their scales, and what offsets or minima need.

/// The most rows of weights that a panel has.
pub(super) const MAX_ROWS: usize = 32;

/// The most rows of activations that a tile has.
pub(super) const MAX_COLUMNS: usize = 8;

/// The most columns that weights meet as they are unpacked, if nothing else meets them.
pub(super) const MAX_PACKED_COLUMNS: usize = 2;

/// How many weights per row are unpacked at a time: what a panel makes of them stays in the first cache beside a tile.
pub(super) const SPAN: usize = 512;

/// A form of units.
pub(super) trait Form {
    /// Weights per row in a unit: 32, or 256 where eight blocks of 32 share a scale of the activations.
    const LEN: usize;
    /// Scales of a row in a unit.
    const SCALES: usize;
    /// Dwords for the minima of a row in a unit: none, one float, or pairs of 16 bits that meet sums of activations.
    const MINS: usize;
    /// How many bits the bytes have: up to 5, 6 or 8. Fewer let AVX2 add more products before they overflow.
    const BITS: u32;
    /// Whether bytes are greater than the weights by an offset, so that sums start below zero.
    const HAS_OFFSET: bool;

    /// Vectors of a unit of a panel.
    const VECTORS: usize = Self::MINS_AT + Self::MINS + if Self::LEN == 256 && Self::MINS > 0 { 1 } else { 0 };
    /// Which vector has the first scales.
    const SCALES_AT: usize = Self::LEN / 4;
    /// Which vector has the first minima.
    const MINS_AT: usize = Self::SCALES_AT + Self::SCALES;
    /// Bytes of a unit of one column of a tile.
    const COLUMN_BYTES: usize = Self::LEN + 4 + 4 * Self::MINS + if Self::HAS_OFFSET { 4 * Self::SCALES } else { 0 };
}

macro_rules! forms {
    ($($(#[$doc:meta])* $name:ident: $len:literal, $scales:literal, $mins:literal, $bits:literal, $offset:literal;)*) => {$(
        $(#[$doc])*
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
    /// `Q8_0`, `IQ4_NL`.
    Bytes32: 32, 1, 0, 8, true;
    /// `Q4_0`, `Q5_0`, `MXFP4`.
    Small32: 32, 1, 0, 5, true;
    /// `Q4_1`, `Q5_1`.
    Small32WithMin: 32, 1, 1, 5, false;
    /// `Q4_K`, `Q5_K`.
    Super32WithMins: 256, 8, 4, 5, false;
    /// `IQ4_XS`.
    SuperBytes32: 256, 8, 0, 8, true;
    /// `Q3_K`, `Q6_K`.
    Super16: 256, 16, 0, 6, true;
    /// `Q2_K`.
    Super16WithMins: 256, 16, 8, 5, false;
}
