//! Header of a saved state with two-dimensional positions (M-RoPE): llama.cpp writes positions, of which there are fewer than tokens.

use std::ops::Range;
use std::sync::Arc;

use crate::llama::context::{byte_reader::ByteReader, positions::Positions};

/// llama.cpp's saved states never begin with these bytes.
const MAGIC: u32 = u32::from_le_bytes(*b"WPOS");

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedPositions {
    pub(crate) range: Range<u32>,
    /// Positions of all tokens up to the end of the range.
    pub(crate) positions: Positions,
}

impl SavedPositions {
    pub(crate) fn write(&self, saved: &[u8]) -> Arc<[u8]> {
        let Self { range, positions } = self;
        let dense = positions.dense();
        let n_dense = u32::try_from(dense.len()).expect("a text has few images");
        let numbers = [MAGIC, range.start, range.end, n_dense].into_iter().chain(dense.flatten());
        let mut bytes = Vec::with_capacity(16 + 12 * n_dense as usize + saved.len());
        bytes.extend(numbers.flat_map(u32::to_le_bytes));
        bytes.extend(saved);
        bytes.into()
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Option<(Self, &[u8])>, String> {
        let mut reader = ByteReader(bytes);
        if reader.u32() != Some(MAGIC) {
            return Ok(None);
        }
        let damaged = || "its header of image positions is damaged".to_owned();
        let mut number = || reader.u32().ok_or_else(damaged);
        let (range, n_dense) = (number()?..number()?, number()?);
        let mut dense = Vec::new();
        for _ in 0..n_dense {
            dense.push([number()?, number()?, number()?]);
        }
        let positions = Positions::with_dense(dense.into_iter()).ok_or_else(damaged)?;
        if range.is_empty() || range.end > i32::MAX.unsigned_abs() || positions.prefix(range.end) != positions {
            return Err(damaged());
        }
        if positions.cuts(range.start) || positions.cuts(range.end) {
            return Err("it contains only a part of an image".to_owned());
        }
        Ok(Some((Self { range, positions }, reader.0)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.range.clone().map(|index| self.positions.at(index))
    }

    pub(crate) fn positions_of(&self, range: &Range<u32>) -> Range<u32> {
        self.positions.at(range.start)..self.positions.at(range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> SavedPositions {
        SavedPositions {
            range: 8..40,
            positions: Positions::with_dense([[10, 12, 4], [30, 6, 3]].into_iter()).expect("two images"),
        }
    }

    #[test]
    fn headers_round_trip_and_states_without_one_are_recognized() {
        let bytes = example().write(&[7; 20]);
        assert_eq!(SavedPositions::read(&bytes), Ok(Some((example(), &[7; 20][..]))));
        assert_eq!(SavedPositions::read(&[7; 20]), Ok(None));
        assert_eq!(example().iter().take(5).collect::<Vec<_>>(), [8, 9, 10, 10, 10]);
        assert_eq!([example().positions_of(&(8..22)), example().positions_of(&(22..40))], [8..14, 14..29]);
    }

    #[test]
    fn damaged_headers_are_rejected() {
        let bytes = example().write(&[]);
        for n_kept in 4..bytes.len() {
            assert!(SavedPositions::read(&bytes[..n_kept]).is_err(), "{n_kept} bytes");
        }
        for range in [8..20, 11..40, 8..8, 8..30, 8..u32::MAX] {
            let other = SavedPositions { range, ..example() };
            assert!(SavedPositions::read(&other.write(&[])).is_err(), "{other:?}");
        }
        let mut endless = bytes.to_vec();
        endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(SavedPositions::read(&endless).is_err(), "more images than bytes");
    }
}
