//! What a saved piece of llama.cpp's memory is made of.
//!
//! A piece is what `llama_state_seq_get_data` writes: a magic number, a sequence id, then one part for each cache of the memory.
//! Nearly everything in it is fixed by model and settings, so the piece that a load-time probe writes is the [`Layout`] that all
//! others are held against: llama.cpp never reads a byte that was not checked. Two things are put in order on the way. The cells of
//! a piece follow each other by position, so that a restored piece fills the free cells in that order; and V lies in rows or in
//! columns, as the cache at hand wants it (rows with flash attention, columns without).

use std::borrow::Cow;
use std::ops::Range;

use llama_cpp_sys_2 as sys;

/// llama.cpp's `llama_kv_cell_ext`, which the cells of some models have: two more coordinates and a token.
const N_EXT: usize = 12;

/// A copy of one run of cells, in nanoseconds: a call, a record of 32 bytes, another cache line. Measured: 44 to 60 (`state` bench).
const NS_PER_COPY: f64 = 50.0;

/// One byte of a long run, in nanoseconds. Measured: 0.25 to 0.5.
const NS_PER_BYTE: f64 = 0.3;

/// What every piece of one memory has in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    magic: u32,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// The cells of an attention cache.
    Cells(Cells),
    /// A recurrent state. Always last.
    State(State),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Cells {
    /// Bytes of a cell beyond its position and its owner.
    n_ext: usize,
    /// Sizes of the rotations that K and V went through; 0 is none.
    rotations: [u32; 2],
    /// Whether V lies in columns, one per element, rather than in rows, one per cell.
    in_columns: bool,
    keys: Vec<Tensor>,
    /// One per layer; none where V is a view of K.
    values: Vec<Tensor>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    n_layer: u32,
    rows: Vec<Tensor>,
}

/// A layer's share of one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tensor {
    /// llama.cpp's number of the format.
    format: i32,
    n_bytes: usize,
}

impl Tensor {
    /// Bytes of one number; `None` where several share a scale and none stands alone.
    fn element(self) -> Option<usize> {
        let format = u32::try_from(self.format).ok().filter(|&format| format < sys::GGML_TYPE_COUNT)?;
        // SAFETY: two look-ups in a constant table, within its bounds.
        let (n_numbers, n_bytes) = unsafe { (sys::ggml_blck_size(format), sys::ggml_type_size(format)) };
        (n_numbers == 1).then_some(n_bytes)
    }
}

/// One part of a piece, as it was found.
enum View<'a> {
    /// Without cells a part has no shape.
    NoCells,
    Cells(CellsView<'a>),
    State(StateView<'a>),
}

struct CellsView<'a> {
    shape: Cells,
    positions: Vec<u32>,
    /// An entry for each cell.
    entries: &'a [u8],
    keys: Vec<&'a [u8]>,
    values: Vec<&'a [u8]>,
}

struct StateView<'a> {
    shape: State,
    /// The last token that the state has seen.
    position: u32,
    bytes: &'a [u8],
}

/// A piece that llama.cpp may read.
pub(super) struct Checked<'a> {
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
    /// *and element* where it lies in columns. At 24 layers of 128 elements these are 48 copies or 3,096, worth 0.6 or 42 tokens of
    /// 12 kB.
    pub(super) fn tokens_per_run(&self) -> u32 {
        let n_copies = self.cells().map(|cells| {
            let columns = |tensor: &Tensor| tensor.element().map_or(1, |element| tensor.n_bytes / element);
            let of_values = if cells.in_columns { cells.values.iter().map(columns).sum() } else { cells.values.len() };
            cells.keys.len() + of_values
        });
        let (n_copies, n_bytes) = (n_copies.sum::<usize>(), self.bytes_per_token().max(1));
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let tokens = n_copies as f64 * NS_PER_COPY / (n_bytes as f64 * NS_PER_BYTE);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number, and the cast saturates")]
        let tokens = tokens.round() as u32;
        tokens
    }

    /// Whether V lies in columns.
    #[cfg(test)]
    pub(super) fn in_columns(&self) -> bool {
        self.cells().any(|cells| cells.in_columns)
    }

    /// Puts the cells of a piece that llama.cpp has just written in order of position.
    ///
    /// # Errors
    /// Why the piece is not one of this memory.
    pub(super) fn sort(&self, piece: Vec<u8>) -> Result<Box<[u8]>, String> {
        let views = self.view(&piece)?;
        let is_sorted = |view: &View| !matches!(view, View::Cells(cells) if !cells.positions.is_sorted());
        if views.iter().all(is_sorted) {
            return Ok(piece.into_boxed_slice());
        }
        Ok(self.write(&views)?.into_boxed_slice())
    }

    /// Checks everything that llama.cpp relies on, and turns V as this cache has it.
    ///
    /// # Errors
    /// What is wrong with the piece.
    pub(super) fn check<'a>(&self, piece: &'a [u8]) -> Result<Checked<'a>, String> {
        let views = self.view(piece)?;
        let ranges = views.iter().map(View::range).collect::<Result<Vec<_>, _>>()?;
        // The first part with cells sees all of the text; a window's part comes after it.
        let range = ranges.iter().flatten().next().cloned().ok_or("it holds no cells")?;
        let mut whole_from = range.start;
        for (view, found) in views.iter().zip(&ranges) {
            match (view, found) {
                (View::State(state), _) if state.position + 1 == range.end => {}
                (View::State(state), _) => {
                    return Err(format!("its state is at {}, its cells end at {}", state.position, range.end));
                }
                (_, None) => whole_from = range.end,
                (_, Some(found)) if found.end == range.end && found.start >= range.start => {
                    whole_from = whole_from.max(found.start)
                }
                (_, Some(found)) => return Err(format!("one of its caches holds {found:?}, another one {range:?}")),
            }
        }
        let is_turned = |(view, part): (&View, &Part)| match (view, part) {
            (View::Cells(view), Part::Cells(own)) => view.shape.in_columns != own.in_columns && !own.values.is_empty(),
            _ => false,
        };
        let bytes = match views.iter().zip(&self.parts).any(is_turned) {
            true => Cow::Owned(self.write(&views)?),
            false => Cow::Borrowed(piece),
        };
        Ok(Checked { range, whole_from, bytes })
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

impl Cells {
    /// Bytes of a cell's entry: position, number of owners, what some models add, owner.
    fn entry_bytes(&self) -> usize {
        12 + self.n_ext
    }

    /// Refuses another shape, but for the place of V, which can be changed.
    fn compare(&self, found: &Self) -> Result<(), String> {
        for (what, own, found) in [("K", &self.keys, &found.keys), ("V", &self.values, &found.values)] {
            if own.len() != found.len() {
                return Err(format!("it has {} layers of {what}, this cache {}", found.len(), own.len()));
            }
            if let Some(layer) = (0..own.len()).find(|&layer| own[layer] != found[layer]) {
                let ours = own[layer];
                let Tensor { format, n_bytes } = found[layer];
                let (found, own) =
                    (format!("format {format}, {n_bytes} bytes"), format!("format {}, {} bytes", ours.format, ours.n_bytes));
                return Err(format!("layer {layer} of its {what} has another shape than this cache ({found}; {own})"));
            }
        }
        match self.rotations == found.rotations {
            true => Ok(()),
            false => {
                Err(format!("its K and V are rotated by {:?}, those of this cache by {:?}", found.rotations, self.rotations))
            }
        }
    }
}

impl View<'_> {
    /// The positions of the cells, which must be in order and without a gap; `None` where there are no cells.
    fn range(&self) -> Result<Option<Range<u32>>, String> {
        match self {
            View::NoCells => Ok(None),
            View::State(state) => Ok(Some(0..state.position + 1)),
            View::Cells(CellsView { positions, .. }) => {
                let first = positions[0];
                match (first..).zip(positions).find(|(expected, position)| expected != *position) {
                    Some((expected, position)) => Err(format!("position {position} is where {expected} should be")),
                    None => Ok(Some(first..positions[positions.len() - 1] + 1)),
                }
            }
        }
    }
}

impl CellsView<'_> {
    fn write(&self, in_columns: bool, out: &mut Vec<u8>) -> Result<(), String> {
        let n = self.positions.len();
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by_key(|&cell| self.positions[cell]);
        let put = |out: &mut Vec<u8>, numbers: &[usize]| {
            let numbers = numbers.iter().map(|&number| u32::try_from(number).expect("it was read as one"));
            out.extend(numbers.flat_map(u32::to_le_bytes));
        };
        put(out, &[1, n]);
        let entry_bytes = self.shape.entry_bytes();
        order.iter().for_each(|&cell| out.extend(&self.entries[cell * entry_bytes..][..entry_bytes]));
        put(out, &[usize::from(in_columns), self.shape.keys.len()]);
        out.extend(self.shape.rotations.iter().flat_map(|rotation| rotation.to_le_bytes()));
        for (tensor, bytes) in self.shape.keys.iter().zip(&self.keys) {
            out.extend(tensor.format.to_le_bytes());
            out.extend((tensor.n_bytes as u64).to_le_bytes());
            order.iter().for_each(|&cell| out.extend(&bytes[cell * tensor.n_bytes..][..tensor.n_bytes]));
        }
        for (tensor, bytes) in self.shape.values.iter().zip(&self.values) {
            out.extend(tensor.format.to_le_bytes());
            let row = tensor.n_bytes;
            if !in_columns && !self.shape.in_columns {
                out.extend((row as u64).to_le_bytes());
                order.iter().for_each(|&cell| out.extend(&bytes[cell * row..][..row]));
                continue;
            }
            let element = tensor.element().ok_or("a quantised V lies in rows only")?;
            let width = row / element;
            let number = |cell: usize, column: usize| match self.shape.in_columns {
                true => &bytes[(column * n + cell) * element..][..element],
                false => &bytes[cell * row + column * element..][..element],
            };
            if in_columns {
                put(out, &[element, width]);
                (0..width).for_each(|column| order.iter().for_each(|&cell| out.extend(number(cell, column))));
            } else {
                out.extend((row as u64).to_le_bytes());
                order.iter().for_each(|&cell| (0..width).for_each(|column| out.extend(number(cell, column))));
            }
        }
        Ok(())
    }
}

/// The shapes of the parts up to the end, where each has `n_cells` cells. Which of the possible forms a part has is found by trying:
/// only the right ones meet the end of the piece.
fn read_parts(reader: Reader, n_cells: usize, ends_in_state: bool) -> Option<Vec<Part>> {
    if reader.0.is_empty() {
        return (!ends_in_state).then(Vec::new);
    }
    let mut rest = reader;
    if let Some(state) = read_state(&mut rest).filter(|_| ends_in_state && rest.0.is_empty()) {
        return Some(vec![Part::State(state.shape)]);
    }
    let forms = [(0, true), (0, false), (N_EXT, true), (N_EXT, false)];
    forms.into_iter().find_map(|(n_ext, has_values)| {
        let mut rest = reader;
        let View::Cells(view) = read_cells(&mut rest, n_ext, has_values)? else { return None };
        let is_right = view.positions.len() == n_cells && view.positions.is_sorted();
        let mut parts = read_parts(rest, n_cells, ends_in_state).filter(|_| is_right)?;
        parts.insert(0, Part::Cells(view.shape));
        Some(parts)
    })
}

/// Reads `llama_kv_cache::state_write`. Whatever the bytes say, nothing is taken beyond their end.
fn read_cells<'a>(reader: &mut Reader<'a>, n_ext: usize, has_values: bool) -> Option<View<'a>> {
    let (n_streams, n_cells) = (reader.u32()?, reader.size()?);
    if n_streams != 1 {
        return None;
    }
    if n_cells == 0 {
        return Some(View::NoCells);
    }
    let entries = reader.take(n_cells.checked_mul(12 + n_ext)?)?;
    let mut positions = Vec::with_capacity(n_cells);
    for entry in entries.chunks_exact(12 + n_ext) {
        let mut entry = Reader(entry);
        let position = i32::from_le_bytes(entry.array()?);
        // The highest one would have no successor.
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
        let tensor = Tensor { format: i32::from_le_bytes(reader.array()?), n_bytes: reader.long_size()? };
        keys.0.push(tensor);
        keys.1.push(reader.take(n_cells.checked_mul(tensor.n_bytes)?)?);
    }
    for _ in 0..if has_values { n_layer } else { 0 } {
        let format = i32::from_le_bytes(reader.array()?);
        let (element, n_bytes) = match in_columns {
            true => (Some(reader.size()?), reader.size()?),
            false => (None, reader.long_size()?),
        };
        let tensor = Tensor { format, n_bytes: n_bytes.checked_mul(element.unwrap_or(1))? };
        if element.is_some() && element != tensor.element() {
            return None;
        }
        values.0.push(tensor);
        values.1.push(reader.take(n_cells.checked_mul(tensor.n_bytes)?)?);
    }
    let shape = Cells { n_ext, rotations, in_columns, keys: keys.0, values: values.0 };
    Some(View::Cells(CellsView { shape, positions, entries, keys: keys.1, values: values.1 }))
}

/// Reads `llama_memory_recurrent::state_write` for one sequence, which has one cell, up to the end of the piece.
fn read_state<'a>(reader: &mut Reader<'a>) -> Option<StateView<'a>> {
    let bytes = reader.0;
    let n_cells = reader.u32()?;
    let position = i32::from_le_bytes(reader.array()?);
    let (n_owners, is_transposed, n_layer) = (reader.u32()?, reader.u32()?, reader.u32()?);
    if (n_cells, n_owners, is_transposed) != (1, 0, 0) || position == i32::MAX {
        return None;
    }
    let mut rows = Vec::new();
    while !reader.0.is_empty() {
        let row = Tensor { format: i32::from_le_bytes(reader.array()?), n_bytes: reader.long_size()? };
        reader.take(row.n_bytes)?;
        rows.push(row);
    }
    Some(StateView { shape: State { n_layer, rows }, position: u32::try_from(position).ok()?, bytes })
}

/// The bytes that are still to be read. llama.cpp writes numbers as the machine has them, and it runs on little-endian ones.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn size(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }

    fn long_size(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.array()?)).ok()
    }
}
