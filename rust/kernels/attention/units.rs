//! How the work is cut over threads, and how much memory that takes.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Shape;
use super::groups::{Groups, weight_of};
use super::plan::SLOTS;
use super::simd::{MAX_LANES, SCORES_STRIDE};

/// What a thread's working memory should stay below, so that it lives in the second cache beside the cells that pass.
const WORKING_BYTES: usize = 320 << 10;
/// Most results of parts that wait to be folded, for each thread.
const PARTIAL_BYTES: usize = 1 << 20;
/// How many numbers of a cell's keys are walked together at most, so that the next panel of cells waits in the second cache.
const SIZE_TOGETHER: usize = 128;
/// Units per thread that are aimed at, so that no thread ends long before another.
const UNITS_PER_THREAD: usize = 4;
/// Products below which a unit is not worth being cut: some microseconds.
const LEAST_PRODUCTS: usize = 400_000;

/// The sizes that work is cut by.
#[derive(Debug, Clone)]
pub(super) struct Sizes {
    shape: Shape,
    n_threads: usize,
    /// How many parts the heads over one head of a cell are cut into, and how many heads a part has at most.
    n_parts: usize,
    heads_per_part: usize,
    /// Most rows that walk together.
    max_rows: usize,
}

impl Sizes {
    pub(super) fn new(shape: &Shape, n_threads: usize) -> Self {
        let per_query = 4 * (SCORES_STRIDE + shape.key_size + 2 * shape.value_size);
        let max_queries = (WORKING_BYTES / per_query).max(MAX_LANES);
        let n_parts = shape.heads_per_kv().div_ceil(max_queries);
        let heads_per_part = shape.heads_per_kv().div_ceil(n_parts);
        let max_rows = (max_queries / heads_per_part).clamp(1, shape.n_rows);
        Self { shape: *shape, n_threads, n_parts, heads_per_part, max_rows }
    }

    /// How many rows should walk together: as many as fit, but fewer where there would be no work for every thread. The longest
    /// row walks over `n_blocks` blocks.
    pub(super) fn rows_per_group(&self, n_blocks: usize) -> usize {
        let wanted = UNITS_PER_THREAD * self.n_threads;
        let units_per_group = self.shape.n_kv_heads * self.n_parts * n_blocks.max(1);
        let enough = (self.shape.n_rows * units_per_group).div_ceil(wanted);
        let least = MAX_LANES.div_ceil(self.heads_per_part);
        if self.n_threads == 1 { self.max_rows } else { enough.max(least).min(self.max_rows) }
    }

    /// The heads of a row that a part of a cell's head meets.
    pub(super) fn heads(&self, kv_head: usize, part: usize) -> Range<usize> {
        let per_kv = self.shape.heads_per_kv();
        let first = part * per_kv / self.n_parts;
        kv_head * per_kv + first..kv_head * per_kv + (part + 1) * per_kv / self.n_parts
    }

    /// Most queries that a thread has room for.
    fn max_queries(&self) -> usize {
        self.max_rows.max(MAX_LANES.div_ceil(self.heads_per_part)) * self.heads_per_part
    }

    /// How many heads of a cell are walked together at most, if all groups together have `n_blocks` blocks.
    fn kv_heads_together(&self, n_blocks: usize) -> usize {
        let Shape { n_kv_heads, key_size, value_size, .. } = self.shape;
        if self.n_parts > 1 {
            return 1;
        }
        let enough = if self.n_threads == 1 { n_kv_heads } else { n_blocks * n_kv_heads / (2 * self.n_threads) };
        (SIZE_TOGETHER / key_size.max(value_size)).min(enough).clamp(1, n_kv_heads)
    }

    /// The memory that a thread works in.
    pub(super) fn area(&self) -> Area {
        Area::new(&self.shape, self.max_rows, self.max_queries())
    }

    /// The most numbers that partial results take.
    pub(super) fn max_partials(&self) -> usize {
        if self.n_threads == 1 {
            return 0;
        }
        let n_blocks = self.shape.n_cells.div_ceil(SLOTS) + 1;
        let rows = self.shape.n_rows.saturating_mul(self.shape.n_heads);
        let all = rows.saturating_mul(n_blocks).saturating_mul(self.per_query());
        all.min(self.n_threads * PARTIAL_BYTES / 4)
    }

    /// Numbers of a query's partial result.
    pub(super) fn per_query(&self) -> usize {
        self.shape.value_size + 2
    }
}

/// Where things lie in a thread's working memory, in numbers of 4 bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area {
    pub(super) queries: usize,
    pub(super) scores: usize,
    pub(super) block_sums: usize,
    pub(super) sums: usize,
    pub(super) block_tallies: usize,
    pub(super) tallies: usize,
    pub(super) keys: usize,
    pub(super) values: usize,
    pub(super) biases: usize,
    pub(super) total: usize,
}

/// Cells whose keys or values are unpacked at a time.
pub(super) const PANEL_CELLS: usize = 64;

impl Area {
    fn new(shape: &Shape, n_rows: usize, n_queries: usize) -> Self {
        let mut total = 0;
        let mut take = |n: usize| {
            let first = total;
            total += n.next_multiple_of(MAX_LANES);
            first
        };
        Self {
            queries: take(n_queries * shape.key_size),
            scores: take(n_queries * SCORES_STRIDE),
            block_sums: take(n_queries * shape.value_size),
            sums: take(n_queries * shape.value_size),
            block_tallies: take(2 * n_queries),
            tallies: take(2 * n_queries),
            keys: take(PANEL_CELLS * shape.key_size),
            values: take(PANEL_CELLS * shape.value_size),
            biases: take(n_rows * SLOTS),
            total,
        }
    }
}

/// A piece of work: some blocks of a group, for some heads over some heads of a cell.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) group: usize,
    /// Heads of a cell. Several where queries are few, since cells then come from memory, which likes long reads.
    pub(super) kv_heads: Range<usize>,
    /// Which part of the heads over each head of a cell.
    pub(super) part: usize,
    /// Of `Groups::blocks`.
    pub(super) blocks: Range<usize>,
    /// Where the group's blocks are cut over several units: of `Units::joints`.
    pub(super) joint: Option<usize>,
}

/// What the units that a group's blocks are cut into have in common.
#[derive(Debug)]
pub(super) struct SplitReduction {
    n_units: usize,
    /// Blocks that the first unit folds itself, so that it leaves one result.
    pub(super) n_first: usize,
    /// How many results there are: the first unit's and one of each other block.
    pub(super) n_results: usize,
    /// Where they lie among all partial results, in numbers.
    pub(super) first: usize,
    /// How many units have ended, in all calls together.
    n_ended: AtomicUsize,
}

impl SplitReduction {
    /// To be called once by each unit when its results are written; true for the last one, which then reads all of them.
    pub(super) fn end(&self) -> bool {
        (self.n_ended.fetch_add(1, Ordering::AcqRel) + 1).is_multiple_of(self.n_units)
    }
}

/// All units of a decode, those that take long first.
#[derive(Debug, Default)]
pub(super) struct Units {
    pub(super) list: Vec<Unit>,
    pub(super) joints: Vec<SplitReduction>,
    costs: Vec<usize>,
}

impl Units {
    /// Cuts the work of all groups.
    pub(super) fn cut(&mut self, sizes: &Sizes, groups: &Groups) {
        self.list.clear();
        self.joints.clear();
        let shape = &sizes.shape;
        let size = shape.key_size + shape.value_size;
        self.costs.clear();
        self.costs.extend(groups.blocks.iter().map(|block| {
            // A cell costs about as much as two and a half queries do, for it is read and its key is transposed.
            let (n_cells, n_pairs) = weight_of(groups, block);
            n_cells * size * 5 / 2 + n_pairs * (size + 32) * sizes.heads_per_part
        }));
        let total = self.costs.iter().sum::<usize>() * shape.n_kv_heads * sizes.n_parts;
        let target = (total / (UNITS_PER_THREAD * sizes.n_threads)).max(LEAST_PRODUCTS);
        let n_together = sizes.kv_heads_together(groups.blocks.len());
        let mut free = sizes.max_partials();
        let mut used = 0;
        // Rows that come late in a prompt see most, so they are first to be taken.
        for (number, group) in groups.list.iter().enumerate().rev() {
            let costs = &self.costs[group.blocks.clone()];
            let cost: usize = costs.iter().sum();
            let n_queries = group.rows.len() * sizes.heads_per_part;
            let n_kv_heads = n_together.min(sizes.max_queries() / n_queries).max(1);
            let cost = cost * n_kv_heads;
            let per_result = n_queries * n_kv_heads * sizes.per_query();
            for kv_head in (0..shape.n_kv_heads).step_by(n_kv_heads) {
                let kv_heads = kv_head..shape.n_kv_heads.min(kv_head + n_kv_heads);
                for part in 0..sizes.n_parts {
                    let mut n_units = if sizes.n_threads == 1 { 1 } else { (cost / target).clamp(1, group.blocks.len().max(1)) };
                    let n_first = first_of(costs, cost / n_kv_heads / n_units);
                    let n_results = 1 + group.blocks.len() - n_first.min(group.blocks.len());
                    if n_units > 1 && (n_results == 1 || n_results * per_result > free) {
                        n_units = 1;
                    }
                    if n_units == 1 {
                        self.list.push(Unit {
                            group: number,
                            kv_heads: kv_heads.clone(),
                            part,
                            blocks: group.blocks.clone(),
                            joint: None,
                        });
                        continue;
                    }
                    let joint = Some(self.joints.len());
                    let n_before = self.list.len();
                    let mut first = group.blocks.start;
                    while first < group.blocks.end {
                        let n = first_of(&self.costs[first..group.blocks.end], cost / n_kv_heads / n_units);
                        let blocks = first..first + n;
                        first += n;
                        self.list.push(Unit { group: number, kv_heads: kv_heads.clone(), part, blocks, joint });
                    }
                    let n_units = self.list.len() - n_before;
                    self.joints.push(SplitReduction { n_units, n_first, n_results, first: used, n_ended: AtomicUsize::new(0) });
                    used += n_results * per_result;
                    free -= n_results * per_result;
                }
            }
        }
        let costs = &self.costs;
        let cost_of = |unit: &Unit| costs[unit.blocks.clone()].iter().sum::<usize>() * unit.kv_heads.len();
        self.list.sort_by_key(|unit| std::cmp::Reverse(cost_of(unit)));
    }
}

/// How many of the first blocks cost about as much as `target`; at least one.
fn first_of(costs: &[usize], target: usize) -> usize {
    let mut sum = 0;
    let n = costs.iter().take_while(|&&cost| {
        let is_in = sum + cost / 2 <= target;
        sum += cost;
        is_in
    });
    n.count().max(1)
}
