//! Parses and validates saved states of llama.cpp's memory.
//!
//! A saved state is the output of `llama_state_seq_get_data`: a magic number, a sequence id, then one part for each cache of the
//! memory. The state that the probe saves at load time defines the [`StateLayout`] that all others are compared with, so
//! llama.cpp never reads a byte that was not checked. Cells are sorted by position, so that a restored state fills free cells in
//! that order; V is stored in rows with flash attention, in columns without.

mod parts;
mod saved_positions;
mod write;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use parts::{CellsShape, PartShape, PartView, StoredTensor, read_cells, read_parts, read_state};
pub(crate) use saved_positions::SavedPositions;

use crate::llama::context::byte_reader::ByteReader;

/// Time to copy one run of cells, in nanoseconds: two calls, a record of 32 bytes, another cache line. Measured by the `state`
/// bench: 55 if the cells are 30 MB, 17 if they fit into the processor's cache.
const NS_PER_COPY: f64 = 50.0;

/// Time per byte of a long run, in nanoseconds. Measured by the `state` bench: 0.14 to 0.25.
const NS_PER_BYTE: f64 = 0.2;

/// As [`NS_PER_COPY`], from a GPU, where each copy is synchronous. Measured on an H100, with the other costs of a save: 14,600 and
/// 17,400 for models of 1.1 and 8 billion parameters.
const NS_PER_COPY_FROM_GPU: f64 = 15_000.0;

/// As [`NS_PER_BYTE`], from a GPU. Not measured: 10 GB/s is common for copies into pageable memory.
const NS_PER_BYTE_FROM_GPU: f64 = 0.1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateLayout {
    magic: u32,
    parts: Vec<PartShape>,
}

pub(crate) struct CheckedState<'a> {
    pub(crate) range: Range<u32>,
    /// First position from which all caches, including a sliding window's, have every position; `range.end` if a cache is empty.
    pub(crate) whole_from: u32,
    /// The bytes, with V in the layout of the current cache.
    pub(crate) bytes: Cow<'a, [u8]>,
}

impl StateLayout {
    pub(crate) fn read(saved: &[u8], n_cells: usize, ends_in_state: bool) -> Option<Self> {
        let mut reader = ByteReader(saved);
        let magic = reader.u32()?;
        reader.u32()?;
        let parts = read_parts(reader, n_cells, ends_in_state)?;
        (!parts.is_empty()).then_some(Self { magic, parts })
    }

    /// Size of one token in all caches, in bytes; 0 for a memory without cells.
    pub(crate) fn bytes_per_token(&self) -> u64 {
        let cells = self.cells().map(|cells| {
            let tensors: usize = cells.keys.iter().chain(&cells.values).map(|tensor| tensor.n_bytes).sum();
            cells.entry_bytes() + tensors
        });
        cells.sum::<usize>() as u64
    }

    /// Returns the cost of one more run of adjacent cells in a save, in tokens of a long run.
    ///
    /// llama.cpp copies each run separately: one copy per layer for K and for V in rows, but one per layer *and element* for V in
    /// columns. At 24 layers of 128 elements a run costs 1 or 63 tokens of 12 kB (measured: 0.6, and 67 to 86); from a GPU, 600.
    pub(crate) fn tokens_per_run(&self, is_on_gpu: bool) -> u32 {
        let (ns_per_copy, ns_per_byte) =
            if is_on_gpu { (NS_PER_COPY_FROM_GPU, NS_PER_BYTE_FROM_GPU) } else { (NS_PER_COPY, NS_PER_BYTE) };
        let n_copies = self.cells().map(|cells| {
            let columns = |tensor: &StoredTensor| tensor.element().map_or(1, |element| tensor.n_bytes / element);
            let n_value_copies = if cells.in_columns { cells.values.iter().map(columns).sum() } else { cells.values.len() };
            cells.keys.len() + n_value_copies
        });
        let (n_copies, n_bytes) = (n_copies.sum::<usize>(), self.bytes_per_token().max(1));
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let tokens = n_copies as f64 * ns_per_copy / (n_bytes as f64 * ns_per_byte);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number, and the cast saturates")]
        let tokens = tokens.round() as u32;
        tokens
    }

    pub(crate) fn sort(&self, saved: Arc<[u8]>) -> Result<Arc<[u8]>, String> {
        let views = self.view(&saved)?;
        let is_sorted = |view: &PartView| !matches!(view, PartView::Cells(cells) if !cells.positions.is_sorted());
        if views.iter().all(is_sorted) {
            return Ok(saved);
        }
        Ok(self.write(&views)?.into())
    }

    /// Checks everything that llama.cpp relies on, and converts V to the layout of this cache.
    pub(crate) fn check<'a>(&self, saved: &'a [u8]) -> Result<CheckedState<'a>, String> {
        let views = self.view(saved)?;
        // The first part with cells contains the whole text; a window's part follows it.
        let range = views.iter().find_map(|view| view.range().transpose()).ok_or("it contains no cells")??;
        let mut whole_from = range.start;
        for view in &views {
            match view {
                PartView::State(state) if state.position + 1 == range.end => {}
                PartView::State(state) => {
                    return Err(format!(
                        "its recurrent state is at position {}, but its cells end at {}",
                        state.position, range.end
                    ));
                }
                PartView::NoCells => whole_from = range.end,
                PartView::Cells(cells) => whole_from = whole_from.max(cells.whole_from(&range)?),
            }
        }
        Ok(CheckedState { range, whole_from, bytes: self.convert_values(saved, &views)? })
    }

    /// Checks a saved state whose cells must have these `positions`, which may repeat.
    pub(crate) fn check_positions<'a>(&self, saved: &'a [u8], positions: &[u32]) -> Result<Cow<'a, [u8]>, String> {
        let views = self.view(saved)?;
        for view in &views {
            let has_positions = match view {
                PartView::NoCells => false,
                PartView::State(state) => positions.last() == Some(&state.position),
                PartView::Cells(cells) => cells.positions == positions,
            };
            if !has_positions {
                return Err("the positions of its cells do not match its header".to_owned());
            }
        }
        self.convert_values(saved, &views)
    }

    fn convert_values<'a>(&self, saved: &'a [u8], views: &[PartView]) -> Result<Cow<'a, [u8]>, String> {
        let has_other_layout = |(view, part): (&PartView, &PartShape)| match (view, part) {
            (PartView::Cells(view), PartShape::Cells(own)) => view.shape.in_columns != own.in_columns,
            _ => false,
        };
        let needs_conversion = views.iter().zip(&self.parts).any(has_other_layout);
        Ok(if needs_conversion { Cow::Owned(self.write(views)?) } else { Cow::Borrowed(saved) })
    }

    fn cells(&self) -> impl Iterator<Item = &CellsShape> {
        self.parts.iter().filter_map(|part| match part {
            PartShape::Cells(cells) => Some(cells),
            PartShape::State(_) => None,
        })
    }

    fn view<'a>(&self, saved: &'a [u8]) -> Result<Vec<PartView<'a>>, String> {
        let mut reader = ByteReader(saved);
        if reader.u32() != Some(self.magic) || reader.u32().is_none() {
            return Err("it is not a sequence state of llama.cpp".to_owned());
        }
        let mut views = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let truncated = || "it is truncated or damaged".to_owned();
            let view = match part {
                PartShape::Cells(own) => {
                    let view = read_cells(&mut reader, own.n_ext, !own.values.is_empty()).ok_or_else(truncated)?;
                    if let PartView::Cells(view) = &view {
                        own.compare(&view.shape)?;
                    }
                    view
                }
                PartShape::State(own) => {
                    let view = read_state(&mut reader).ok_or_else(truncated)?;
                    if view.shape != *own {
                        return Err("the layers or formats of its recurrent state do not match this memory".to_owned());
                    }
                    PartView::State(view)
                }
            };
            views.push(view);
        }
        if reader.0.is_empty() { Ok(views) } else { Err(format!("it has {} extra bytes at its end", reader.0.len())) }
    }

    fn write(&self, views: &[PartView]) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        out.extend(self.magic.to_le_bytes());
        out.extend(0_u32.to_le_bytes());
        for (view, part) in views.iter().zip(&self.parts) {
            match (view, part) {
                (PartView::Cells(view), PartShape::Cells(own)) => view.write(own.in_columns, &mut out)?,
                (PartView::State(view), _) => out.extend(view.bytes),
                _ => out.extend([1_u32, 0].iter().flat_map(|number| number.to_le_bytes())),
            }
        }
        Ok(out)
    }
}
