//! Parts of a saved state: their shapes, and how they are parsed.

use std::ops::Range;

use llama_cpp_sys_2 as sys;

use crate::llama::context::byte_reader::ByteReader;

/// Size of llama.cpp's `llama_kv_cell_ext`, which the cells of some models have: two more coordinates and a token.
const N_EXT: usize = 12;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PartShape {
    Cells(CellsShape),
    State(RecurrentShape),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CellsShape {
    /// Bytes of a cell beyond its position and its owner.
    pub(super) n_ext: usize,
    pub(super) rotations: [u32; 2],
    pub(super) in_columns: bool,
    pub(super) keys: Vec<StoredTensor>,
    pub(super) values: Vec<StoredTensor>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecurrentShape {
    pub(super) n_layer: u32,
    pub(super) rows: Vec<StoredTensor>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredTensor {
    pub(super) format: i32,
    pub(super) n_bytes: usize,
}

impl StoredTensor {
    /// Size of one number in bytes; `None` if numbers share a scale in blocks.
    pub(super) fn element(self) -> Option<usize> {
        let format = u32::try_from(self.format).ok().filter(|&format| format < sys::GGML_TYPE_COUNT)?;
        // SAFETY: two lookups in a constant table, within its bounds.
        let (n_numbers, n_bytes) = unsafe { (sys::ggml_blck_size(format), sys::ggml_type_size(format)) };
        (n_numbers == 1).then_some(n_bytes)
    }
}

pub(super) enum PartView<'a> {
    NoCells,
    Cells(CellsView<'a>),
    State(StateView<'a>),
}

pub(super) struct CellsView<'a> {
    pub(super) shape: CellsShape,
    pub(super) positions: Vec<u32>,
    pub(super) entries: &'a [u8],
    pub(super) keys: Vec<&'a [u8]>,
    pub(super) values: Vec<&'a [u8]>,
}

pub(super) struct StateView<'a> {
    pub(super) shape: RecurrentShape,
    /// Position of the last token that the state includes.
    pub(super) position: u32,
    pub(super) bytes: &'a [u8],
}

impl CellsShape {
    /// Size of a cell's entry in bytes: position, number of owners, extension, owner.
    pub(super) fn entry_bytes(&self) -> usize {
        12 + self.n_ext
    }

    /// Rejects another shape, but not another layout of V, which can be converted.
    pub(super) fn compare(&self, found: &Self) -> Result<(), String> {
        for (what, own, found) in [("K", &self.keys, &found.keys), ("V", &self.values, &found.values)] {
            if own.len() != found.len() {
                return Err(format!("it has {} layers of {what}; this cache has {}", found.len(), own.len()));
            }
            let unequal = own.iter().zip(found).enumerate().find(|(_, (own, found))| own != found);
            if let Some((layer, (own, found))) = unequal {
                let [own, found] = [own, found].map(|tensor| format!("format {}, {} bytes", tensor.format, tensor.n_bytes));
                return Err(format!("the shape of its {what} in layer {layer} ({found}) does not match this cache ({own})"));
            }
        }
        if self.rotations != found.rotations {
            return Err(format!("its K and V are rotated by {:?}; those of this cache by {:?}", found.rotations, self.rotations));
        }
        Ok(())
    }
}

impl PartView<'_> {
    pub(super) fn range(&self) -> Result<Option<Range<u32>>, String> {
        match self {
            PartView::NoCells => Ok(None),
            PartView::State(state) => Ok(Some(0..state.position + 1)),
            PartView::Cells(CellsView { positions, .. }) => {
                let first = positions[0];
                match (first..).zip(positions).find(|(expected, position)| expected != *position) {
                    Some((expected, position)) => Err(format!("it has position {position} where {expected} is expected")),
                    None => Ok(Some(first..positions[positions.len() - 1] + 1)),
                }
            }
        }
    }
}

impl CellsView<'_> {
    /// Returns the first position from which it has all positions up to the end of `range`, which must contain all of its
    /// positions: a window's cache has gaps where cells were reused or never restored.
    pub(super) fn whole_from(&self, range: &Range<u32>) -> Result<u32, String> {
        let mut pairs = self.positions.iter().zip(self.positions.iter().skip(1));
        if let Some((before, after)) = pairs.find(|(before, after)| before >= after) {
            return Err(format!("position {after} follows position {before}"));
        }
        if let Some(position) = self.positions.iter().find(|position| !range.contains(position)) {
            return Err(format!("one of its caches has position {position}, another one the positions {range:?}"));
        }
        let run = range.clone().rev().zip(self.positions.iter().rev()).take_while(|(expected, found)| expected == *found);
        Ok(range.end - u32::try_from(run.count()).expect("a saved state has fewer than 2³² cells"))
    }
}

/// The form of each part is found by trial: only the right forms consume exactly all bytes.
pub(super) fn read_parts(reader: ByteReader, n_cells: usize, ends_in_state: bool) -> Option<Vec<PartShape>> {
    if reader.0.is_empty() {
        return (!ends_in_state).then(Vec::new);
    }
    let mut rest = reader;
    if let Some(state) = read_state(&mut rest).filter(|_| ends_in_state && rest.0.is_empty()) {
        return Some(vec![PartShape::State(state.shape)]);
    }
    let forms = [(0, true), (0, false), (N_EXT, true), (N_EXT, false)];
    forms.into_iter().find_map(|(n_ext, has_values)| {
        let mut rest = reader;
        let PartView::Cells(view) = read_cells(&mut rest, n_ext, has_values)? else { return None };
        let matches = view.positions.len() == n_cells && view.positions.is_sorted();
        let mut parts = read_parts(rest, n_cells, ends_in_state).filter(|_| matches)?;
        parts.insert(0, PartShape::Cells(view.shape));
        Some(parts)
    })
}

/// Parses `llama_kv_cache::state_write`. Never reads beyond the end, whatever the bytes contain.
pub(super) fn read_cells<'a>(reader: &mut ByteReader<'a>, n_ext: usize, has_values: bool) -> Option<PartView<'a>> {
    let (n_streams, n_cells) = (reader.u32()?, reader.size()?);
    if n_streams != 1 {
        return None;
    }
    if n_cells == 0 {
        return Some(PartView::NoCells);
    }
    let entries = reader.take(n_cells.checked_mul(12 + n_ext)?)?;
    let mut positions = Vec::with_capacity(n_cells);
    for entry in entries.chunks_exact(12 + n_ext) {
        let mut entry = ByteReader(entry);
        let position = i32::from_le_bytes(entry.array()?);
        // The maximum would have no successor.
        positions.push(u32::try_from(position).ok().filter(|_| position < i32::MAX)?);
        entry.u32().filter(|&n_owners| n_owners == 1)?;
    }
    let in_columns = match reader.u32()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let n_layer = reader.u32()?;
    let rotations = [reader.u32()?, reader.u32()?];
    let (mut keys, mut values) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for _ in 0..n_layer {
        let tensor = StoredTensor { format: i32::from_le_bytes(reader.array()?), n_bytes: reader.long_size()? };
        keys.0.push(tensor);
        keys.1.push(reader.take(n_cells.checked_mul(tensor.n_bytes)?)?);
    }
    for _ in 0..if has_values { n_layer } else { 0 } {
        let format = i32::from_le_bytes(reader.array()?);
        let (element, n_bytes) = if in_columns { (Some(reader.size()?), reader.size()?) } else { (None, reader.long_size()?) };
        let tensor = StoredTensor { format, n_bytes: n_bytes.checked_mul(element.unwrap_or(1))? };
        if element.is_some() && element != tensor.element() {
            return None;
        }
        values.0.push(tensor);
        values.1.push(reader.take(n_cells.checked_mul(tensor.n_bytes)?)?);
    }
    let shape = CellsShape { n_ext, rotations, in_columns, keys: keys.0, values: values.0 };
    Some(PartView::Cells(CellsView { shape, positions, entries, keys: keys.1, values: values.1 }))
}

/// Parses `llama_memory_recurrent::state_write` for one sequence, which has one cell, up to the end of the bytes.
pub(super) fn read_state<'a>(reader: &mut ByteReader<'a>) -> Option<StateView<'a>> {
    let bytes = reader.0;
    let n_cells = reader.u32()?;
    let position = i32::from_le_bytes(reader.array()?);
    let (n_owners, is_transposed, n_layer) = (reader.u32()?, reader.u32()?, reader.u32()?);
    if (n_cells, n_owners, is_transposed) != (1, 0, 0) || position == i32::MAX {
        return None;
    }
    let mut rows = Vec::new();
    while !reader.0.is_empty() {
        let row = StoredTensor { format: i32::from_le_bytes(reader.array()?), n_bytes: reader.long_size()? };
        reader.take(row.n_bytes)?;
        rows.push(row);
    }
    Some(StateView { shape: RecurrentShape { n_layer, rows }, position: u32::try_from(position).ok()?, bytes })
}
