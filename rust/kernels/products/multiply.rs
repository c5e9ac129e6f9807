//! Entry points of the products: checks operands, divides the work, calls the kernels.

use std::ptr::null;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::accumulate::TileProduct;
use super::form::{MAX_COLUMNS, SPAN};
use super::format::WeightFormat;
use super::kernels::{PlainTable, ProductKernels, ProductTable, QuantisedTable};
use super::operands::{ExpertChoices, Experts, ProductOutput, Rows, Weights};
use super::plain::FloatTileProduct;
use super::plan::{Chunk, ChunkPlan, ProductSize, ScratchLayout};
use super::prefetch::{BytePrefetch, prefetch_start};
use super::quantise::ActivationSpan;
use super::unpack::PackedPanel;
use crate::kernels::{Level, SharedSlice, Team};

/// Returns true if there is a kernel for weights of this format and size.
pub fn covers(level: Level, format: WeightFormat, n_in: usize, n_out: usize) -> bool {
    ProductTable::of(level, format).is_some()
        && level.is_available()
        && n_in > 0
        && n_in.is_multiple_of(format.block_len())
        && n_out > 0
}

/// Returns the scratch memory of [`multiply`] in bytes. It needs neither alignment nor initialisation.
pub fn scratch_bytes(level: Level, format: WeightFormat, n_in: usize, n_out: usize, n_rows: usize, n_threads: usize) -> usize {
    bytes_for(level, format, &ProductSize { n_in, n_out, n_columns: n_rows, n_groups: 1, n_threads })
}

/// Returns the scratch memory of [`multiply_by_expert`] in bytes; `n_pairs` is the tokens times the experts per token.
pub fn scratch_bytes_by_expert(level: Level, weights: &Experts, n_pairs: usize, n_threads: usize) -> usize {
    bytes_for(level, weights.weights.format, &size_by_expert(weights, n_pairs, n_threads))
}

fn bytes_for(level: Level, format: WeightFormat, size: &ProductSize) -> usize {
    ProductTable::of(level, format).map_or(0, |kernels| ScratchLayout::of(&kernels, size).bytes(size.n_threads))
}

fn size_by_expert(weights: &Experts, n_pairs: usize, n_threads: usize) -> ProductSize {
    let Weights { n_in, n_out, .. } = weights.weights;
    // At least two groups, so that the layout has room for the order.
    ProductSize { n_in, n_out, n_columns: n_pairs, n_groups: weights.n_experts.max(2), n_threads }
}

/// Multiplies each row of activations with all rows of weights. Results are complete when all threads have returned.
pub fn multiply(level: Level, weights: &Weights, rows: &Rows, out: &ProductOutput, scratch: &SharedSlice<u8>, team: &dyn Team) {
    let n_columns = u32::try_from(rows.n_rows).expect("rows are counted in 32 bits");
    weights.check();
    let Weights { n_in, n_out, .. } = *weights;
    let size = ProductSize { n_in, n_out, n_columns: rows.n_rows, n_groups: 1, n_threads: team.size() };
    let Some(product) = Product::new(level, weights, rows, out, scratch, &size, team) else { return };
    product.run(&[0, n_columns], None, |column| column);
}

/// Multiplies each row of activations with the matrices chosen for its token. Pair `token * n_used + i` is the token and its
/// `i`-th expert; its products go to that row of `out`. Activations have one row per token, or one per pair.
pub fn multiply_by_expert(
    level: Level,
    weights: &Experts,
    choices: &ExpertChoices,
    rows: &Rows,
    out: &ProductOutput,
    scratch: &SharedSlice<u8>,
    team: &dyn Team,
) {
    weights.check();
    choices.check(weights.n_experts);
    let n_pairs = choices.n_pairs();
    let is_shared = rows.n_rows == choices.n_tokens;
    assert!(
        is_shared || rows.n_rows == n_pairs,
        "{} rows of activations; there must be one for each of {} tokens or {n_pairs} pairs",
        rows.n_rows,
        choices.n_tokens
    );
    let size = size_by_expert(weights, n_pairs, team.size());
    let Some(mut product) = Product::new(level, &weights.weights, rows, out, scratch, &size, team) else { return };
    product.group_stride = weights.expert_stride;
    // SAFETY: this thread's part of the scratch memory has room for both slices. Each thread computes the order itself, which is
    // faster than waiting for another.
    let (starts, order) = unsafe {
        let at = product.thread_memory().add(product.layout.order).cast::<u32>();
        at.write_bytes(0, weights.n_experts + 1 + n_pairs);
        let starts = std::slice::from_raw_parts_mut(at, weights.n_experts + 1);
        (starts, std::slice::from_raw_parts_mut(at.add(weights.n_experts + 1), n_pairs))
    };
    sort_by_expert(choices, starts, order);
    let row = |column: usize| {
        let pair = order[column] as usize;
        if is_shared { pair / choices.n_used } else { pair }
    };
    product.run(starts, Some(order), row);
}

/// Writes the pairs to `order`, grouped by expert, and each expert's first index to `starts`, which is zero before.
fn sort_by_expert(choices: &ExpertChoices, starts: &mut [u32], order: &mut [u32]) {
    let n = u32::try_from(choices.n_pairs()).expect("pairs are counted in 32 bits");
    for pair in 0..choices.n_pairs() {
        starts[choices.expert(pair) + 1] += 1;
    }
    for expert in 1..starts.len() {
        starts[expert] += starts[expert - 1];
    }
    for pair in 0..n {
        let next = &mut starts[choices.expert(pair as usize)];
        order[*next as usize] = pair;
        *next += 1;
    }
    // Each start has advanced to the start of the next expert.
    starts.copy_within(..starts.len() - 1, 1);
    starts[0] = 0;
}

struct Product<'a> {
    kernels: ProductTable,
    size: ProductSize,
    layout: ScratchLayout,
    weights: Weights<'a>,
    group_stride: usize,
    rows: Rows<'a>,
    out: *mut f32,
    out_stride: usize,
    scratch: *mut u8,
    team: &'a dyn Team,
}

impl<'a> Product<'a> {
    /// Returns `None` if there is nothing to multiply.
    fn new(
        level: Level,
        weights: &Weights<'a>,
        rows: &Rows<'a>,
        out: &ProductOutput,
        scratch: &SharedSlice<u8>,
        size: &ProductSize,
        team: &'a dyn Team,
    ) -> Option<Self> {
        let is_covered = covers(level, weights.format, weights.n_in, weights.n_out);
        assert!(is_covered, "no kernel of {level} supports {:?} with {} weights per row", weights.format, weights.n_in);
        let kernels = ProductTable::of(level, weights.format).expect("it is covered");
        rows.check(weights.n_in);
        out.check(size.n_columns, weights.n_out);
        let layout = ScratchLayout::of(&kernels, size);
        let needed = layout.bytes(team.size());
        assert!(scratch.len() >= needed, "the scratch memory must have {needed} bytes, not {}", scratch.len());
        (size.n_columns > 0).then(|| Self {
            kernels,
            size: *size,
            layout,
            weights: *weights,
            group_stride: 0,
            rows: *rows,
            out: out.values.as_mut_ptr(),
            out_stride: out.row_stride,
            scratch: ScratchLayout::align(scratch.as_mut_ptr()),
            team,
        })
    }

    fn thread_memory(&self) -> *mut u8 {
        self.scratch.wrapping_add(self.layout.thread_offset(self.team.index()))
    }

    /// `row` maps a column to its row of activations, `order` to its row of results.
    fn run(&self, starts: &[u32], order: Option<&[u32]>, row: impl Fn(usize) -> usize) {
        let team = self.team;
        // SAFETY: the first cache line of the scratch memory is reserved for the counter.
        let counter = unsafe { AtomicUsize::from_ptr(self.scratch.cast()) };
        if team.index() == 0 {
            counter.store(team.size(), Ordering::Relaxed);
        }
        let mut plan = ChunkPlan::of(&self.kernels, &self.size, self.layout.max_columns, starts);
        let mut chunk = plan.chunk(team.index());
        if let ProductKernels::Quantised(quantised) = &self.kernels.kernels {
            // Memory is idle while activations are quantised and threads synchronise.
            if let Some(first) = chunk {
                prefetch_start(self.panel(first.group, first.panels.0), self.weights.row_stride * self.kernels.rows);
            }
            self.quantise(quantised, &plan, &row);
        }
        team.wait();
        while let Some(current) = chunk {
            // Taken early, because the next chunk's first panel is prefetched during the last panel of this one.
            chunk = plan.chunk(counter.fetch_add(1, Ordering::Relaxed));
            let next = chunk.map_or(null(), |next| self.panel(next.group, next.panels.0));
            match &self.kernels.kernels {
                ProductKernels::Quantised(quantised) => self.multiply_chunk(quantised, &current, order, next),
                ProductKernels::Plain(kernels) => self.multiply_plain_chunk(kernels, &current, order, &row),
            }
        }
    }

    fn panel(&self, group: usize, panel: usize) -> *const u8 {
        self.weights.bytes.as_ptr().wrapping_add(self.group_stride * group + self.weights.row_stride * self.kernels.rows * panel)
    }

    fn tile(&self, quantised: &QuantisedTable, first_column: usize) -> *mut u8 {
        let n_units = self.size.n_in / quantised.unit_len;
        self.scratch.wrapping_add(ScratchLayout::ACTIVATIONS + first_column * n_units * quantised.column_bytes)
    }

    fn quantise(&self, quantised: &QuantisedTable, plan: &ChunkPlan, row: impl Fn(usize) -> usize) {
        let ChunkPlan { starts, .. } = *plan;
        let (index, n_threads) = (self.team.index(), self.team.size());
        let n_units = self.size.n_in / quantised.unit_len;
        let total = self.size.n_columns * n_units;
        let (mut at, end) = (total * index / n_threads, total * (index + 1) / n_threads);
        let mut group = 0;
        while at < end {
            let (column, unit) = (at / n_units, at % n_units);
            let n = (n_units - unit).min(end - at);
            while starts[group + 1] as usize <= column {
                group += 1;
            }
            let (start, tiles) = (starts[group] as usize, plan.tiles(group));
            let tile = tiles.of_column(column - start);
            let (first, last) = (tiles.start(tile), tiles.start(tile + 1));
            let values = &self.rows.values[row(column) * self.rows.row_stride..][unit * quantised.unit_len..];
            let span = ActivationSpan {
                values: values[..n * quantised.unit_len].as_ptr(),
                tile: self.tile(quantised, start + first).wrapping_add((last - first) * unit * quantised.column_bytes),
                n_columns: last - first,
                column: column - start - first,
                n,
                offset: quantised.offset,
            };
            // SAFETY: the level is available; the tile is within the scratch memory that was checked, and no other thread writes
            // these units of this column.
            unsafe { (quantised.quantise)(&span) };
            at += n;
        }
    }

    /// `next` is prefetched meanwhile.
    fn multiply_chunk(&self, quantised: &QuantisedTable, chunk: &Chunk, order: Option<&[u32]>, next: *const u8) {
        let memory = self.thread_memory();
        let Chunk { start, columns: tiles, .. } = *chunk;
        let n_units = self.size.n_in / quantised.unit_len;
        // One or two tiles take so little time that shorter spans keep memory busy.
        let n_tiles = chunk.tiles.1 - chunk.tiles.0;
        let usual_units = (if n_tiles <= 2 { SPAN / 2 } else { SPAN }) / quantised.unit_len;
        let n_columns = tiles.start(chunk.tiles.1) - tiles.start(chunk.tiles.0);
        let packed_kernel = quantised.packed.as_ref().filter(|_| n_tiles == 1).and_then(|packed| packed.get(n_columns - 1));
        let (stride, lanes) = (self.weights.row_stride, self.kernels.rows);
        let first_column = tiles.start(chunk.tiles.0);
        let sums_of =
            |column: usize| memory.wrapping_add(self.layout.sums).cast::<f32>().wrapping_add(lanes * (column - first_column));
        for panel in chunk.panels.0..chunk.panels.1 {
            let weights = self.panel(chunk.group, panel);
            let next_panel = if panel + 1 < chunk.panels.1 { self.panel(chunk.group, panel + 1) } else { next };
            let n_rows = lanes.min(self.size.n_out - lanes * panel);
            // Sums go directly to the output if the panel's rows of results are contiguous.
            let is_direct = n_rows == lanes && order.is_none();
            // If the unpacked span is not stored, the whole row is one span.
            let units = if packed_kernel.is_some() && n_rows == lanes { n_units } else { usual_units };
            for unit in (0..n_units).step_by(units) {
                let n = units.min(n_units - unit);
                let first = weights.wrapping_add(unit * quantised.block_bytes);
                // Half of the next panel's span is prefetched during unpacking, the other half during the first tile.
                let per_unit = quantised.block_bytes * lanes;
                let next = next_panel.wrapping_add(unit * per_unit);
                let n_during_unpack = if next_panel.is_null() { 0 } else { per_unit / 2 };
                // Without a next panel this one is prefetched again, which costs nothing.
                let repeat = if next_panel.is_null() { first } else { next };
                let mut packed =
                    PackedPanel { first, stride, n, prefetch: BytePrefetch::new(next, n_during_unpack), next: repeat };
                let mut tile_prefetch = BytePrefetch::new(
                    next.wrapping_add(n * n_during_unpack),
                    if next_panel.is_null() { 0 } else { per_unit - n_during_unpack },
                );
                if n_rows < lanes {
                    self.pad_rows(&mut packed, n_rows, n * quantised.block_bytes, memory.wrapping_add(self.layout.padded));
                }
                if packed_kernel.is_none() {
                    // SAFETY: the level is available; the rows are within the weights, or padded; `memory` has room for a span.
                    unsafe { (quantised.unpack)(&packed, memory) };
                }
                for tile in chunk.tiles.0..chunk.tiles.1 {
                    let (column, end) = (tiles.start(tile), tiles.start(tile + 1));
                    let n_columns = end - column;
                    let is_last = is_direct && unit + n == n_units;
                    let out = self.out.wrapping_add(self.out_stride * column + lanes * panel);
                    let product = TileProduct {
                        panel: memory,
                        tile: self.tile(quantised, start + column).wrapping_add(n_columns * unit * quantised.column_bytes),
                        prefetch: std::mem::replace(&mut tile_prefetch, BytePrefetch::none()),
                        n,
                        before: if unit == 0 { null() } else { sums_of(column) },
                        after: if is_last { out } else { sums_of(column) },
                        after_stride: if is_last { self.out_stride } else { lanes },
                    };
                    // SAFETY: the level is available; the span was unpacked, or may be read as above; the tile was written before
                    // the team synchronised; results are within the output that was checked, and no other thread writes them.
                    unsafe {
                        match packed_kernel {
                            Some(kernel) => kernel(&packed, memory, &product),
                            None => (quantised.tiles[n_columns - 1])(&product),
                        }
                    }
                }
            }
            if !is_direct {
                for column in first_column..tiles.start(chunk.tiles.1) {
                    let row = order.map_or(column, |order| order[start + column] as usize);
                    let out = self.out.wrapping_add(self.out_stride * row + lanes * panel);
                    // SAFETY: the sums were just written; the row is within the output, and no other thread writes this part.
                    unsafe { out.copy_from_nonoverlapping(sums_of(column), n_rows) };
                }
            }
        }
    }

    /// Copies a span of fewer rows than lanes, followed by rows of zeros, which are valid blocks.
    fn pad_rows(&self, packed: &mut PackedPanel, n_rows: usize, bytes: usize, to: *mut u8) {
        for row in 0..self.kernels.rows {
            let to = to.wrapping_add(bytes * row);
            // SAFETY: the rows are within the weights, and `to` has room for a span.
            unsafe {
                if row < n_rows {
                    to.copy_from_nonoverlapping(packed.first.add(packed.stride * row), bytes);
                } else {
                    to.write_bytes(0, bytes);
                }
            }
        }
        (packed.first, packed.stride) = (to, bytes);
    }

    fn multiply_plain_chunk(&self, kernels: &PlainTable, chunk: &Chunk, order: Option<&[u32]>, row: impl Fn(usize) -> usize) {
        let Chunk { start, columns: tiles, .. } = *chunk;
        let lanes = self.kernels.rows;
        for panel in chunk.panels.0..chunk.panels.1 {
            for tile in chunk.tiles.0..chunk.tiles.1 {
                let (first, end) = (start + tiles.start(tile), start + tiles.start(tile + 1));
                let (mut columns, mut out) = ([null(); MAX_COLUMNS], [self.out; MAX_COLUMNS]);
                for (i, column) in (first..end).enumerate() {
                    columns[i] = self.rows.values[row(column) * self.rows.row_stride..][..self.size.n_in].as_ptr();
                    let row = order.map_or(column, |order| order[column] as usize);
                    out[i] = self.out.wrapping_add(self.out_stride * row + lanes * panel);
                }
                let product = FloatTileProduct {
                    weights: self.panel(chunk.group, panel),
                    stride: self.weights.row_stride,
                    n_rows: lanes.min(self.size.n_out - lanes * panel),
                    n_in: self.size.n_in,
                    columns,
                    out,
                };
                // SAFETY: the level is available; the rows are within the weights; results are within the output that was
                // checked, and no other thread writes them.
                unsafe { (kernels[end - first - 1])(&product) };
            }
        }
    }
}
