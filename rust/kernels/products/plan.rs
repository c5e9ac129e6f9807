//! How a product is cut into chunks, and what its scratch memory is used for.

use super::form::{MAX_COLUMNS, SPAN};
use super::kernels::ProductTable;

/// Activations of this many bytes stay in a core's second cache beside the panels that pass through it.
const CACHED_BYTES: usize = 512 * 1024;
/// Chunks for each thread, so that one that started late has less to do.
const CHUNKS_PER_THREAD: usize = 4;
/// The most panels of a chunk.
const MAX_PANELS: usize = 16;
/// What parts of the scratch memory begin at.
const LINE: usize = 64;

/// The size of a product.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProductSize {
    pub(super) n_in: usize,
    pub(super) n_out: usize,
    /// Rows of activations, each counted as often as it is met.
    pub(super) n_columns: usize,
    /// Matrices that the columns may be divided among.
    pub(super) n_groups: usize,
    pub(super) n_threads: usize,
}

/// How the columns of a matrix are divided into tiles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiles {
    pub(super) n_columns: usize,
    pub(super) n: usize,
}

impl Tiles {
    /// As few tiles as there can be, and all about equally wide.
    pub(super) fn of(n_columns: usize, widest: usize) -> Self {
        Self { n_columns, n: n_columns.div_ceil(widest) }
    }

    /// The first column of a tile.
    pub(super) fn start(self, tile: usize) -> usize {
        let (each, wider) = (self.n_columns / self.n, self.n_columns % self.n);
        each * tile + tile.min(wider)
    }

    /// The tile of a column.
    pub(super) fn of_column(self, column: usize) -> usize {
        let (each, wider) = (self.n_columns / self.n, self.n_columns % self.n);
        if column < wider * (each + 1) { column / (each + 1) } else { wider + (column - wider * (each + 1)) / each }
    }
}

/// Where things are in the scratch memory, in bytes from its first line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Activations as tiles, after the line that has the counter of chunks.
    pub(super) activations: usize,
    /// The first thread's own memory.
    own: usize,
    /// How much each thread has.
    own_bytes: usize,
    /// Within a thread's memory: sums of a chunk, after the span of a panel.
    pub(super) sums: usize,
    /// A span of a panel that has fewer rows than lanes, filled up.
    pub(super) filled: usize,
    /// Where each matrix' columns begin, and the pair that each column is.
    pub(super) order: usize,
    /// The most columns of a chunk: whole tiles.
    pub(super) max_columns: usize,
}

impl Layout {
    pub(super) fn of(kernels: &ProductTable, size: &ProductSize) -> Self {
        let lines = |bytes: usize| bytes.next_multiple_of(LINE);
        let order_bytes = if size.n_groups > 1 { lines(4 * (size.n_groups + 1 + size.n_columns)) } else { 0 };
        let ProductTable::Quantised(quantised) = kernels else {
            let max_columns = cached_columns(4 * size.n_in, kernels.columns());
            return Self { activations: LINE, own: LINE, own_bytes: order_bytes, sums: 0, filled: 0, order: 0, max_columns };
        };
        let units = SPAN / quantised.unit_len;
        let column = size.n_in / quantised.unit_len * quantised.column_bytes;
        let max_columns = cached_columns(column, quantised.columns);
        let sums = lines(units * quantised.panel_bytes);
        let filled = sums + 4 * quantised.rows * max_columns.min(size.n_columns);
        let order = lines(filled + units * quantised.block_bytes * quantised.rows);
        let own = LINE + lines(size.n_columns * (size.n_in / quantised.unit_len) * quantised.column_bytes);
        Self { activations: LINE, own, own_bytes: order + order_bytes, sums, filled, order, max_columns }
    }

    /// Where the memory of a thread is.
    pub(super) fn own(&self, thread: usize) -> usize {
        self.own + self.own_bytes * thread
    }

    /// All of it, with what is lost where the memory does not begin with a line.
    pub(super) fn bytes(&self, n_threads: usize) -> usize {
        self.own(n_threads) + LINE - 1
    }

    /// How far behind `address` the first line is.
    pub(super) fn padding(address: usize) -> usize {
        address.next_multiple_of(LINE) - address
    }
}

/// How many columns of so many bytes stay in the cache: whole tiles of `widest`.
fn cached_columns(bytes: usize, widest: usize) -> usize {
    (CACHED_BYTES / bytes / widest).max(1) * widest
}

/// A few panels of a matrix, and some of its tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    /// The matrix.
    pub(super) group: usize,
    pub(super) panels: (usize, usize),
    pub(super) tiles: (usize, usize),
}

/// The chunks of a product. What a chunk is depends on the threads; what is computed does not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan<'a> {
    /// Where each matrix' columns begin, and where the last ends.
    starts: &'a [u32],
    widest: usize,
    n_panels: usize,
    panels_per_chunk: usize,
    columns_per_chunk: usize,
    /// Each matrix' tiles are cut into this many parts at least, where there are as many.
    min_parts: usize,
    /// The chunk that was looked up last: its matrix, and the number of that matrix' first chunk.
    group: usize,
    passed: usize,
}

impl<'a> Plan<'a> {
    pub(super) fn of(kernels: &ProductTable, size: &ProductSize, max_columns: usize, starts: &'a [u32]) -> Self {
        let n_panels = size.n_out.div_ceil(kernels.rows());
        let widest = kernels.columns();
        let n_met = starts.windows(2).filter(|pair| pair[0] < pair[1]).count();
        let wanted = size.n_threads * CHUNKS_PER_THREAD;
        let min_parts = if size.n_threads == 1 { 1 } else { (2 * size.n_threads).div_ceil(n_panels * n_met.max(1)) };
        let n_parts = size.n_columns.div_ceil(max_columns.max(1)).max(min_parts).max(n_met);
        let panels_per_chunk = (n_panels * n_parts / wanted).clamp(1, MAX_PANELS);
        Self { starts, widest, n_panels, panels_per_chunk, columns_per_chunk: max_columns.max(1), min_parts, group: 0, passed: 0 }
    }

    /// The columns of a matrix, among all.
    pub(super) fn columns(&self, group: usize) -> (usize, usize) {
        (self.starts[group] as usize, self.starts[group + 1] as usize)
    }

    /// The tiles of a matrix.
    pub(super) fn tiles(&self, group: usize) -> Tiles {
        let (start, end) = self.columns(group);
        Tiles::of(end - start, self.widest)
    }

    fn n_parts(&self, tiles: Tiles) -> usize {
        tiles.n.div_ceil((self.columns_per_chunk / self.widest).max(1)).max(self.min_parts.min(tiles.n))
    }

    /// Chunk `number`, if there are as many. Numbers do not decrease from call to call.
    pub(super) fn chunk(&mut self, number: usize) -> Option<Chunk> {
        let n_panel_chunks = self.n_panels.div_ceil(self.panels_per_chunk);
        while self.group + 1 < self.starts.len() {
            let tiles = self.tiles(self.group);
            let n_parts = self.n_parts(tiles);
            let within = number - self.passed;
            if within < n_parts * n_panel_chunks {
                let (part, panels) = (within / n_panel_chunks, within % n_panel_chunks);
                let first = panels * self.panels_per_chunk;
                return Some(Chunk {
                    group: self.group,
                    panels: (first, (first + self.panels_per_chunk).min(self.n_panels)),
                    tiles: (tiles.n * part / n_parts, tiles.n * (part + 1) / n_parts),
                });
            }
            self.passed += n_parts * n_panel_chunks;
            self.group += 1;
        }
        None
    }
}

/// The widest tile any level has is one that the kernels have a function for.
const _: () = assert!(MAX_COLUMNS == 8);
