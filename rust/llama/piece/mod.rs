//! What a saved piece of llama.cpp's memory is made of.
//!
//! A piece is what `llama_state_seq_get_data` writes: a magic number, a sequence id, then one part for each cache of the memory.
//! Nearly everything in it is fixed by model and settings, so the piece that a load-time probe writes is the [`Layout`] that all
//! others are held against: llama.cpp never reads a byte that was not checked. Two things are put in order on the way. The cells of
//! a piece follow each other by position, so that a restored piece fills the free cells in that order; and V lies in rows or in
//! columns, as the cache at hand wants it (rows with flash attention, columns without).

mod parts;
mod placed;
mod write;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use parts::{Cells, Part, Reader, Tensor, View, read_cells, read_parts, read_state};
pub(super) use placed::PiecePositions;

/// A copy of one run of cells, in nanoseconds: two calls, a record of 32 bytes, another cache line. Measured by the `state` bench:
/// 55 where the cells are 30 MB, 17 where they fit into the processor's cache.
const NS_PER_COPY: f64 = 50.0;

/// One byte of a long run, in nanoseconds. Measured by the `state` bench: 0.14 to 0.25.
const NS_PER_BYTE: f64 = 0.2;

/// The same of cells on a GPU, each copy of which is waited for. Measured on an H100, with all else that a save takes: 14,600 and
/// 17,400 for models of 1.1 and 8 billion parameters.
const NS_PER_COPY_FROM_GPU: f64 = 15_000.0;

/// One byte of a long run there. Not measured by itself: 10 GB/s is what copies into memory that is not locked commonly reach.
const NS_PER_BYTE_FROM_GPU: f64 = 0.1;

/// What every piece of one memory has in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    magic: u32,
    parts: Vec<Part>,
}

/// A piece that llama.cpp may read.
pub(super) struct CheckedPiece<'a> {
    /// Which positions it holds.
    pub(super) range: Range<u32>,
    /// All caches, that of a sliding window too, hold the positions from here on; `range.end` if one of them holds none.
    pub(super) whole_from: u32,
    /// As the cache at hand wants it.
    pub(super) bytes: Cow<'a, [u8]>,
}

impl Layout {
    /// Reads the layout off a piece of `n_cells` cells. `None` if the memory is of a kind that is not known here.
    pub(super) fn read(piece: &[u8], n_cells: usize, ends_in_state: bool) -> Option<Self> {
        let mut reader = Reader(piece);
        let magic = reader.u32()?;
        reader.u32()?;
        let parts = read_parts(reader, n_cells, ends_in_state)?;
        (!parts.is_empty()).then_some(Self { magic, parts })
    }

    /// Bytes of one token in all caches; 0 for a memory without cells.
    pub(super) fn bytes_per_token(&self) -> u64 {
        let cells = self.cells().map(|cells| {
            let tensors: usize = cells.keys.iter().chain(&cells.values).map(|tensor| tensor.n_bytes).sum();
            cells.entry_bytes() + tensors
        });
        cells.sum::<usize>() as u64
    }

    /// What one more run of adjacent cells costs in a save, in tokens of a long run.
    ///
    /// llama.cpp copies each run for itself: one copy per layer for K, and for V one per layer where it lies in rows, one per layer
    /// *and element* where it lies in columns. At 24 layers of 128 elements these are 48 copies or 3,096, and a run costs as much as
    /// 1 or 63 tokens of 12 kB more (measured: 0.6, and 67 to 86). From a GPU the 48 copies cost as much as 600 tokens.
    pub(super) fn tokens_per_run(&self, are_on_gpu: bool) -> u32 {
        let (ns_per_copy, ns_per_byte) =
            if are_on_gpu { (NS_PER_COPY_FROM_GPU, NS_PER_BYTE_FROM_GPU) } else { (NS_PER_COPY, NS_PER_BYTE) };
        let n_copies = self.cells().map(|cells| {
            let columns = |tensor: &Tensor| tensor.element().map_or(1, |element| tensor.n_bytes / element);
            let of_values = if cells.in_columns { cells.values.iter().map(columns).sum() } else { cells.values.len() };
            cells.keys.len() + of_values
        });
        let (n_copies, n_bytes) = (n_copies.sum::<usize>(), self.bytes_per_token().max(1));
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let tokens = n_copies as f64 * ns_per_copy / (n_bytes as f64 * ns_per_byte);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number, and the cast saturates")]
        let tokens = tokens.round() as u32;
        tokens
    }

    /// Puts the cells of a piece that llama.cpp has just written in order of position.
    ///
    /// # Errors
    /// Why the piece is not one of this memory.
    pub(super) fn sort(&self, piece: Arc<[u8]>) -> Result<Arc<[u8]>, String> {
        let views = self.view(&piece)?;
        let is_sorted = |view: &View| !matches!(view, View::Cells(cells) if !cells.positions.is_sorted());
        if views.iter().all(is_sorted) {
            return Ok(piece);
        }
        Ok(self.write(&views)?.into())
    }

    /// Checks everything that llama.cpp relies on, and turns V as this cache has it.
    ///
    /// # Errors
    /// What is wrong with the piece.
    pub(super) fn check<'a>(&self, piece: &'a [u8]) -> Result<CheckedPiece<'a>, String> {
        let views = self.view(piece)?;
        // The first part with cells sees all of the text; a window's part comes after it.
        let range = views.iter().find_map(|view| view.range().transpose()).ok_or("it holds no cells")??;
        let mut whole_from = range.start;
        for view in &views {
            match view {
                View::State(state) if state.position + 1 == range.end => {}
                View::State(state) => {
                    return Err(format!("its state is at {}, its cells end at {}", state.position, range.end));
                }
                View::NoCells => whole_from = range.end,
                View::Cells(cells) => whole_from = whole_from.max(cells.whole_from(&range)?),
            }
        }
        Ok(CheckedPiece { range, whole_from, bytes: self.turned(piece, &views)? })
    }

    /// The same of a piece whose cells must have the `positions` of its places, of which several may have the same; returns its bytes
    /// as the cache at hand wants them.
    ///
    /// # Errors
    /// What is wrong with the piece.
    pub(super) fn check_placed<'a>(&self, piece: &'a [u8], positions: &[u32]) -> Result<Cow<'a, [u8]>, String> {
        let views = self.view(piece)?;
        for view in &views {
            let is_right = match view {
                View::NoCells => false,
                View::State(state) => positions.last() == Some(&state.position),
                View::Cells(cells) => cells.positions == positions,
            };
            if !is_right {
                return Err("its cells have other positions than it says".to_owned());
            }
        }
        self.turned(piece, &views)
    }

    /// The bytes of a piece that was checked, its V as this cache has it.
    fn turned<'a>(&self, piece: &'a [u8], views: &[View]) -> Result<Cow<'a, [u8]>, String> {
        let is_turned = |(view, part): (&View, &Part)| match (view, part) {
            (View::Cells(view), Part::Cells(own)) => view.shape.in_columns != own.in_columns,
            _ => false,
        };
        let needs_turning = views.iter().zip(&self.parts).any(is_turned);
        Ok(if needs_turning { Cow::Owned(self.write(views)?) } else { Cow::Borrowed(piece) })
    }

    fn cells(&self) -> impl Iterator<Item = &Cells> {
        self.parts.iter().filter_map(|part| match part {
            Part::Cells(cells) => Some(cells),
            Part::State(_) => None,
        })
    }

    /// Takes a piece apart and holds each part against the layout.
    fn view<'a>(&self, piece: &'a [u8]) -> Result<Vec<View<'a>>, String> {
        let mut reader = Reader(piece);
        if reader.u32() != Some(self.magic) || reader.u32().is_none() {
            return Err("it is no piece of llama.cpp's memory".to_owned());
        }
        let mut views = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let cut = || "it is cut short or damaged".to_owned();
            let view = match part {
                Part::Cells(own) => {
                    let view = read_cells(&mut reader, own.n_ext, !own.values.is_empty()).ok_or_else(cut)?;
                    if let View::Cells(view) = &view {
                        own.compare(&view.shape)?;
                    }
                    view
                }
                Part::State(own) => {
                    let view = read_state(&mut reader).ok_or_else(cut)?;
                    if view.shape != *own {
                        return Err("its state has other layers or formats than this memory".to_owned());
                    }
                    View::State(view)
                }
            };
            views.push(view);
        }
        match reader.0.len() {
            0 => Ok(views),
            n => Err(format!("it has {n} bytes too many")),
        }
    }

    /// The piece made of `views`, its cells in order of position and its V as this layout has it.
    fn write(&self, views: &[View]) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        out.extend(self.magic.to_le_bytes());
        out.extend(0_u32.to_le_bytes());
        for (view, part) in views.iter().zip(&self.parts) {
            match (view, part) {
                (View::Cells(view), Part::Cells(own)) => view.write(own.in_columns, &mut out)?,
                (View::State(view), _) => out.extend(view.bytes),
                _ => out.extend([1_u32, 0].iter().flat_map(|number| number.to_le_bytes())),
            }
        }
        Ok(out)
    }
}
