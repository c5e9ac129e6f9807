//! A piece of a sequence with pictures whose rows and columns are counted (M-RoPE): llama.cpp writes positions, of which there are
//! fewer than places. So before what llama.cpp wrote stands which places it was saved of, and which pictures come before its end.

use std::ops::Range;
use std::sync::Arc;

use crate::llama::piece::parts::Reader;
use crate::llama::positions::Positions;

/// No piece of llama.cpp's begins so.
const MAGIC: u32 = u32::from_le_bytes(*b"WPOS");

/// Which places a piece holds, and their positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::llama) struct PiecePositions {
    /// The places.
    pub(in crate::llama) range: Range<u32>,
    /// The positions of all places up to the last of them.
    pub(in crate::llama) positions: Positions,
}

impl PiecePositions {
    /// What stands before what llama.cpp wrote, and that.
    pub(in crate::llama) fn write(&self, piece: &[u8]) -> Arc<[u8]> {
        let Self { range, positions } = self;
        let dense = positions.dense();
        let n_dense = u32::try_from(dense.len()).expect("a text has few pictures");
        let numbers = [MAGIC, range.start, range.end, n_dense].into_iter().chain(dense.flatten());
        let mut bytes = Vec::with_capacity(16 + 12 * n_dense as usize + piece.len());
        bytes.extend(numbers.flat_map(u32::to_le_bytes));
        bytes.extend(piece);
        bytes.into()
    }

    /// The same of a piece that begins so, and what llama.cpp wrote. `None` for every other piece.
    ///
    /// # Errors
    /// If it is damaged.
    pub(in crate::llama) fn read(bytes: &[u8]) -> Result<Option<(Self, &[u8])>, String> {
        let mut reader = Reader(bytes);
        if reader.u32() != Some(MAGIC) {
            return Ok(None);
        }
        let damaged = || "what it says of its pictures is damaged".to_owned();
        let mut number = || reader.u32().ok_or_else(damaged);
        let (range, n_dense) = (number()?..number()?, number()?);
        // What is not there cannot be read, so no number here asks for more memory than the piece has.
        let mut dense = Vec::new();
        for _ in 0..n_dense {
            dense.push([number()?, number()?, number()?]);
        }
        let positions = Positions::with_dense(dense.into_iter()).ok_or_else(damaged)?;
        if range.is_empty() || range.end > i32::MAX.unsigned_abs() || positions.of_first(range.end) != positions {
            return Err(damaged());
        }
        if positions.cuts(range.start) || positions.cuts(range.end) {
            return Err("it holds a part of a picture".to_owned());
        }
        Ok(Some((Self { range, positions }, reader.0)))
    }

    /// The positions of its places, in order.
    pub(in crate::llama) fn in_order(&self) -> impl Iterator<Item = u32> {
        self.range.clone().map(|place| self.positions.at(place))
    }

    /// The positions of the cells of the places of `range`, which cuts no picture.
    pub(in crate::llama) fn positions_of(&self, range: &Range<u32>) -> Range<u32> {
        self.positions.at(range.start)..self.positions.at(range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed() -> PiecePositions {
        PiecePositions {
            range: 8..40,
            positions: Positions::with_dense([[10, 12, 4], [30, 6, 3]].into_iter()).expect("two pictures"),
        }
    }

    #[test]
    fn what_is_written_is_read_and_other_pieces_are_not() {
        let bytes = placed().write(&[7; 20]);
        assert_eq!(PiecePositions::read(&bytes), Ok(Some((placed(), &[7; 20][..]))));
        assert_eq!(PiecePositions::read(&[7; 20]), Ok(None));
        assert_eq!(placed().in_order().take(5).collect::<Vec<_>>(), [8, 9, 10, 10, 10]);
        assert_eq!([placed().positions_of(&(8..22)), placed().positions_of(&(22..40))], [8..14, 14..29]);
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let bytes = placed().write(&[]);
        for n_kept in 4..bytes.len() {
            assert!(PiecePositions::read(&bytes[..n_kept]).is_err(), "{n_kept} bytes");
        }
        for range in [8..20, 11..40, 8..8, 8..30, 8..u32::MAX] {
            let other = PiecePositions { range, ..placed() };
            assert!(PiecePositions::read(&other.write(&[])).is_err(), "{other:?}");
        }
        let mut endless = bytes.to_vec();
        endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(PiecePositions::read(&endless).is_err(), "more pictures than bytes");
    }
}
