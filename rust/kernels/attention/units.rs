//! Division of the work over threads, and the memory that it takes.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::AttentionShape;
use super::groups::Groups;
use super::plan::SLOTS;
use super::simd::{MAX_LANES, SCORES_STRIDE};

/// Target for a thread's working memory, so that it stays in the L2 cache together with the streamed cells.
const WORKING_BYTES: usize = 320 << 10;
/// Maximum partial results that wait to be folded, per thread.
const PARTIAL_BYTES: usize = 1 << 20;
/// Maximum elements of a cell's key heads that are processed together, so that the next panel of cells fits in the L2 cache.
const MAX_HEAD_ELEMENTS: usize = 128;
/// Target number of units per thread, so that threads finish at about the same time.
const UNITS_PER_THREAD: usize = 4;
/// Units of fewer products are not split: they take some microseconds.
const MIN_PRODUCTS: usize = 400_000;

#[derive(Debug, Clone)]
pub(super) struct AttentionSizes {
    shape: AttentionShape,
    n_threads: usize,
    /// Parts into which the query heads of a KV head are divided, and the maximum heads of a part.
    n_parts: usize,
    heads_per_part: usize,
    max_rows: usize,
}

impl AttentionSizes {
    pub(super) fn new(shape: &AttentionShape, n_threads: usize) -> Self {
        let per_query = 4 * (SCORES_STRIDE + shape.key_size + 2 * shape.value_size);
        let max_queries = (WORKING_BYTES / per_query).max(MAX_LANES);
        let n_parts = shape.heads_per_kv().div_ceil(max_queries);
        let heads_per_part = shape.heads_per_kv().div_ceil(n_parts);
        let max_rows = (max_queries / heads_per_part).clamp(1, shape.n_rows);
        Self { shape: *shape, n_threads, n_parts, heads_per_part, max_rows }
    }

    /// Rows to process together: as many as fit, but fewer if threads would have no work. The longest row has `n_blocks` blocks.
    pub(super) fn rows_per_group(&self, n_blocks: usize) -> usize {
        let n_wanted = UNITS_PER_THREAD * self.n_threads;
        let units_per_group = self.shape.n_kv_heads * self.n_parts * n_blocks.max(1);
        let enough = (self.shape.n_rows * units_per_group).div_ceil(n_wanted);
        let min_rows = MAX_LANES.div_ceil(self.heads_per_part);
        if self.n_threads == 1 { self.max_rows } else { enough.max(min_rows).min(self.max_rows) }
    }

    pub(super) fn heads(&self, kv_head: usize, part: usize) -> Range<usize> {
        let per_kv = self.shape.heads_per_kv();
        let first = part * per_kv / self.n_parts;
        kv_head * per_kv + first..kv_head * per_kv + (part + 1) * per_kv / self.n_parts
    }

    fn max_queries(&self) -> usize {
        self.max_rows.max(MAX_LANES.div_ceil(self.heads_per_part)) * self.heads_per_part
    }

    /// Maximum KV heads that are processed together, if all groups together have `n_blocks` blocks.
    fn max_kv_heads_per_unit(&self, n_blocks: usize) -> usize {
        let AttentionShape { n_kv_heads, key_size, value_size, .. } = self.shape;
        if self.n_parts > 1 {
            return 1;
        }
        let enough = if self.n_threads == 1 { n_kv_heads } else { n_blocks * n_kv_heads / (2 * self.n_threads) };
        (MAX_HEAD_ELEMENTS / key_size.max(value_size)).min(enough).clamp(1, n_kv_heads)
    }

    pub(super) fn scratch_layout(&self) -> ScratchLayout {
        let AttentionShape { key_size, value_size, .. } = self.shape;
        let n_queries = self.max_queries();
        let mut total = 0;
        let mut take = |n: usize, each: usize| {
            let offset = total;
            total += (n * each).next_multiple_of(MAX_LANES);
            ScratchRegion { offset, each }
        };
        ScratchLayout {
            queries: take(n_queries, key_size),
            scores: take(n_queries, SCORES_STRIDE),
            block_sums: take(n_queries, value_size),
            sums: take(n_queries, value_size),
            block_softmax_states: take(n_queries, 2),
            softmax_states: take(n_queries, 2),
            keys: take(PANEL_CELLS, key_size),
            values: take(PANEL_CELLS, value_size),
            biases: take(self.max_rows, SLOTS),
            total,
        }
    }

    pub(super) fn max_partials(&self) -> usize {
        if self.n_threads == 1 {
            return 0;
        }
        let n_blocks = self.shape.n_cells.div_ceil(SLOTS) + 1;
        let rows = self.shape.n_rows.saturating_mul(self.shape.n_heads);
        let all = rows.saturating_mul(n_blocks).saturating_mul(self.elements_per_query());
        all.min(self.n_threads * PARTIAL_BYTES / 4)
    }

    /// Elements of a query's partial result: sums and a softmax state.
    pub(super) fn elements_per_query(&self) -> usize {
        self.shape.value_size + 2
    }
}

/// A part of a thread's working memory: its offset, and the length of each of its entries, in elements of 4 bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScratchRegion {
    pub(super) offset: usize,
    pub(super) each: usize,
}

/// Layout of a thread's working memory: the first six parts have an entry per query, then come cells and rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScratchLayout {
    pub(super) queries: ScratchRegion,
    pub(super) scores: ScratchRegion,
    pub(super) block_sums: ScratchRegion,
    pub(super) sums: ScratchRegion,
    pub(super) block_softmax_states: ScratchRegion,
    pub(super) softmax_states: ScratchRegion,
    pub(super) keys: ScratchRegion,
    pub(super) values: ScratchRegion,
    pub(super) biases: ScratchRegion,
    pub(super) total: usize,
}

/// Cells that are unpacked at a time.
pub(super) const PANEL_CELLS: usize = 64;

#[derive(Debug, Clone)]
pub(super) struct WorkUnit {
    pub(super) group: usize,
    /// KV heads. Several if there are few queries: cells are then read from memory, which is faster in long runs.
    pub(super) kv_heads: Range<usize>,
    /// Part of the query heads of each KV head.
    pub(super) part: usize,
    pub(super) blocks: Range<usize>,
    /// Index into `WorkUnits::splits`, if the group's blocks are split over several units.
    pub(super) split: Option<usize>,
}

/// State of the units over which a group's blocks are split.
#[derive(Debug)]
pub(super) struct SplitReduction {
    n_units: usize,
    /// Blocks that the first unit folds into one result.
    pub(super) n_first: usize,
    /// Number of results: the first unit's, and one for each other block.
    pub(super) n_results: usize,
    /// Offset of the results among all partial results, in elements.
    pub(super) first: usize,
    /// Number of finished units, over all calls.
    n_finished: AtomicUsize,
}

impl SplitReduction {
    /// Each unit calls it once its results are written. Returns true for the last unit, which then reads all results.
    pub(super) fn finish_unit(&self) -> bool {
        (self.n_finished.fetch_add(1, Ordering::AcqRel) + 1).is_multiple_of(self.n_units)
    }
}

/// All units of a decode, the most expensive first.
#[derive(Debug, Default)]
pub(super) struct WorkUnits {
    pub(super) list: Vec<WorkUnit>,
    pub(super) splits: Vec<SplitReduction>,
    costs: Vec<usize>,
}

impl WorkUnits {
    pub(super) fn rebuild(&mut self, sizes: &AttentionSizes, groups: &Groups) {
        self.list.clear();
        self.splits.clear();
        let shape = &sizes.shape;
        let size = shape.key_size + shape.value_size;
        self.costs.clear();
        self.costs.extend(groups.blocks.iter().map(|block| {
            // A cell costs about as much as 2.5 queries, because it is read and its key is transposed.
            let cost_of = |rows: usize| size * 5 / 2 + rows * (size + 32) * sizes.heads_per_part;
            let segments = groups.segments[block.segments.clone()].iter();
            segments.map(|segment| segment.cells.len() * cost_of(segment.rows.len())).sum::<usize>()
        }));
        let total = self.costs.iter().sum::<usize>() * shape.n_kv_heads * sizes.n_parts;
        let target = (total / (UNITS_PER_THREAD * sizes.n_threads)).max(MIN_PRODUCTS);
        let max_kv_heads = sizes.max_kv_heads_per_unit(groups.blocks.len());
        let mut free = sizes.max_partials();
        let mut used = 0;
        // Rows late in a prompt see the most cells, so they are taken first.
        for (number, group) in groups.list.iter().enumerate().rev() {
            let costs = &self.costs[group.blocks.clone()];
            let cost: usize = costs.iter().sum();
            let n_queries = group.rows.len() * sizes.heads_per_part;
            let n_kv_heads = max_kv_heads.min(sizes.max_queries() / n_queries).max(1);
            let cost = cost * n_kv_heads;
            let per_result = n_queries * n_kv_heads * sizes.elements_per_query();
            for kv_head in (0..shape.n_kv_heads).step_by(n_kv_heads) {
                let kv_heads = kv_head..shape.n_kv_heads.min(kv_head + n_kv_heads);
                for part in 0..sizes.n_parts {
                    let mut n_units = if sizes.n_threads == 1 { 1 } else { (cost / target).clamp(1, group.blocks.len().max(1)) };
                    let n_first = leading_blocks(costs, cost / n_kv_heads / n_units);
                    let n_results = 1 + group.blocks.len() - n_first.min(group.blocks.len());
                    if n_units > 1 && (n_results == 1 || n_results * per_result > free) {
                        n_units = 1;
                    }
                    let unit = |blocks, split| WorkUnit { group: number, kv_heads: kv_heads.clone(), part, blocks, split };
                    if n_units == 1 {
                        self.list.push(unit(group.blocks.clone(), None));
                        continue;
                    }
                    let n_before = self.list.len();
                    let mut first = group.blocks.start;
                    while first < group.blocks.end {
                        let n = leading_blocks(&self.costs[first..group.blocks.end], cost / n_kv_heads / n_units);
                        self.list.push(unit(first..first + n, Some(self.splits.len())));
                        first += n;
                    }
                    let n_units = self.list.len() - n_before;
                    let n_finished = AtomicUsize::new(0);
                    self.splits.push(SplitReduction { n_units, n_first, n_results, first: used, n_finished });
                    used += n_results * per_result;
                    free -= n_results * per_result;
                }
            }
        }
        let costs = &self.costs;
        let cost_of = |unit: &WorkUnit| costs[unit.blocks.clone()].iter().sum::<usize>() * unit.kv_heads.len();
        self.list.sort_by_key(|unit| std::cmp::Reverse(cost_of(unit)));
    }
}

/// Returns the number of leading blocks that together cost about `target`; at least one.
fn leading_blocks(costs: &[usize], target: usize) -> usize {
    let mut sum = 0;
    let n = costs.iter().take_while(|&&cost| {
        let is_in = sum + cost / 2 <= target;
        sum += cost;
        is_in
    });
    n.count().max(1)
}
