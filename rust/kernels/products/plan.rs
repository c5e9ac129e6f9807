//! Division of a product into chunks, and the layout of its scratch memory.

use super::form::{MAX_COLUMNS, SPAN};
use super::kernels::{ProductKernels, ProductTable};

/// Activations of this size stay in a core's L2 cache together with the panels that stream through it.
const CACHED_BYTES: usize = 512 * 1024;
/// Chunks per thread, so that a thread that starts late gets less work.
const CHUNKS_PER_THREAD: usize = 4;
const MAX_PANELS: usize = 16;
/// Alignment of parts of the scratch memory: a cache line.
const LINE: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(super) struct ProductSize {
    pub(super) n_in: usize,
    pub(super) n_out: usize,
    /// Rows of activations, counted once per matrix that they are multiplied with.
    pub(super) n_columns: usize,
    /// Matrices over which the columns may be distributed.
    pub(super) n_groups: usize,
    pub(super) n_threads: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Tiles {
    pub(super) n_columns: usize,
    pub(super) n: usize,
}

impl Tiles {
    /// As few tiles as possible, all about equally wide.
    pub(super) fn of(n_columns: usize, widest: usize) -> Self {
        Self { n_columns, n: n_columns.div_ceil(widest) }
    }

    pub(super) fn start(self, tile: usize) -> usize {
        self.n_columns * tile / self.n
    }

    pub(super) fn of_column(self, column: usize) -> usize {
        ((column + 1) * self.n - 1) / self.n_columns
    }
}

/// Offsets in the scratch memory, in bytes from its first cache line.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ScratchLayout {
    /// The first thread's own memory.
    first_thread: usize,
    thread_bytes: usize,
    /// Within a thread's memory, as the next two: the sums of a chunk, after the unpacked span of a panel.
    pub(super) sums: usize,
    /// The padded span of a panel that has fewer rows than lanes.
    pub(super) padded: usize,
    /// The first column of each matrix, and the pair of each column.
    pub(super) order: usize,
    /// Maximum columns of a chunk: whole tiles.
    pub(super) max_columns: usize,
}

impl ScratchLayout {
    /// The tiles, after the cache line of the chunk counter.
    pub(super) const ACTIVATIONS: usize = LINE;

    pub(super) fn of(kernels: &ProductTable, size: &ProductSize) -> Self {
        let lines = |bytes: usize| bytes.next_multiple_of(LINE);
        let order_bytes = if size.n_groups > 1 { lines(4 * (size.n_groups + 1 + size.n_columns)) } else { 0 };
        let ProductKernels::Quantised(quantised) = &kernels.kernels else {
            let max_columns = cached_columns(4 * size.n_in, kernels.columns);
            return Self { first_thread: LINE, thread_bytes: order_bytes, max_columns, ..Self::default() };
        };
        let units = SPAN / quantised.unit_len;
        let column = size.n_in / quantised.unit_len * quantised.column_bytes;
        let max_columns = cached_columns(column, kernels.columns);
        let sums = lines(units * quantised.panel_bytes);
        let padded = sums + 4 * kernels.rows * max_columns.min(size.n_columns);
        let order = lines(padded + units * quantised.block_bytes * kernels.rows);
        let first_thread = LINE + lines(size.n_columns * (size.n_in / quantised.unit_len) * quantised.column_bytes);
        Self { first_thread, thread_bytes: order + order_bytes, sums, padded, order, max_columns }
    }

    pub(super) fn thread_offset(&self, thread: usize) -> usize {
        self.first_thread + self.thread_bytes * thread
    }

    /// Total size, with padding for scratch memory that does not start at a cache line.
    pub(super) fn bytes(&self, n_threads: usize) -> usize {
        self.thread_offset(n_threads) + LINE - 1
    }

    /// Returns the first cache line of the scratch memory.
    pub(super) fn align(scratch: *mut u8) -> *mut u8 {
        scratch.wrapping_add(scratch.addr().next_multiple_of(LINE) - scratch.addr())
    }
}

/// Number of columns of `bytes` bytes that stay in the cache: whole tiles of `widest`.
fn cached_columns(bytes: usize, widest: usize) -> usize {
    (CACHED_BYTES / bytes / widest).max(1) * widest
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    pub(super) group: usize,
    /// The matrix's first column.
    pub(super) start: usize,
    /// All of the matrix.
    pub(super) columns: Tiles,
    pub(super) panels: (usize, usize),
    pub(super) tiles: (usize, usize),
}

/// The chunks of a product. Chunks depend on the number of threads; results do not.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkPlan<'a> {
    /// First column of each matrix, and the end of the last.
    pub(super) starts: &'a [u32],
    widest: usize,
    n_panels: usize,
    panels_per_chunk: usize,
    columns_per_chunk: usize,
    /// Minimum parts into which each matrix's tiles are divided, if it has as many tiles.
    min_parts: usize,
    /// The matrix of the last chunk, and the chunks before that matrix.
    group: usize,
    n_passed: usize,
}

impl<'a> ChunkPlan<'a> {
    pub(super) fn of(kernels: &ProductTable, size: &ProductSize, max_columns: usize, starts: &'a [u32]) -> Self {
        let n_panels = size.n_out.div_ceil(kernels.rows);
        let widest = kernels.columns;
        let n_used_groups = starts.windows(2).filter(|pair| pair[0] < pair[1]).count();
        let n_chunks = size.n_threads * CHUNKS_PER_THREAD;
        let min_parts = if size.n_threads == 1 { 1 } else { (2 * size.n_threads).div_ceil(n_panels * n_used_groups.max(1)) };
        let n_parts = size.n_columns.div_ceil(max_columns.max(1)).max(min_parts).max(n_used_groups);
        let panels_per_chunk = (n_panels * n_parts / n_chunks).clamp(1, MAX_PANELS);
        let columns_per_chunk = max_columns.max(1);
        Self { starts, widest, n_panels, panels_per_chunk, columns_per_chunk, min_parts, group: 0, n_passed: 0 }
    }

    pub(super) fn tiles(&self, group: usize) -> Tiles {
        Tiles::of((self.starts[group + 1] - self.starts[group]) as usize, self.widest)
    }

    fn n_parts(&self, tiles: Tiles) -> usize {
        tiles.n.div_ceil((self.columns_per_chunk / self.widest).max(1)).max(self.min_parts.min(tiles.n))
    }

    /// Returns chunk `number`, if it exists. Numbers must not decrease from call to call.
    pub(super) fn chunk(&mut self, number: usize) -> Option<Chunk> {
        let n_panel_chunks = self.n_panels.div_ceil(self.panels_per_chunk);
        while self.group + 1 < self.starts.len() {
            let tiles = self.tiles(self.group);
            let n_parts = self.n_parts(tiles);
            let offset = number - self.n_passed;
            if offset < n_parts * n_panel_chunks {
                let (part, panels) = (offset / n_panel_chunks, offset % n_panel_chunks);
                let first = panels * self.panels_per_chunk;
                return Some(Chunk {
                    group: self.group,
                    start: self.starts[self.group] as usize,
                    columns: tiles,
                    panels: (first, (first + self.panels_per_chunk).min(self.n_panels)),
                    tiles: (tiles.n * part / n_parts, tiles.n * (part + 1) / n_parts),
                });
            }
            self.n_passed += n_parts * n_panel_chunks;
            self.group += 1;
        }
        None
    }
}

/// The kernels are compiled for tiles of 1 to 8 columns.
const _: () = assert!(MAX_COLUMNS == 8);
