//! The work of one thread: takes units, computes their blocks, and folds partial results.

use std::ops::Range;

use super::groups::{CellBlock, Segment};
use super::kernels::{AttentionTable, ScoreBlock, ValueBlock};
use super::plan::SLOTS;
use super::prefetch::{CellPrefetch, UpcomingCells, cell_pointer};
use super::simd::{MAX_LANES, OnlineSoftmax, SCORES_STRIDE, SoftmaxParams};
use super::task::UnitTask;
use super::units::{AttentionSizes, PANEL_CELLS, ScratchLayout, ScratchRegion, SplitReduction};
use super::{Attention, AttentionOutput, AttentionPlan, CellFormat, SharedSlice};
use crate::kernels::half::to_single;

pub(super) struct AttentionWorker<'a> {
    pub(super) kernels: &'static AttentionTable,
    pub(super) attention: &'a Attention<'a>,
    pub(super) plan: &'a AttentionPlan,
    pub(super) out: &'a AttentionOutput<'a>,
    pub(super) sizes: AttentionSizes,
    pub(super) area: ScratchLayout,
    /// This thread's working memory, laid out by `area`.
    pub(super) memory: *mut f32,
    pub(super) scratch: &'a SharedSlice<'a, u8>,
    /// Offset of all threads' partial results in `scratch`: a multiple of 64 bytes from its aligned start.
    pub(super) partials: usize,
}

impl AttentionWorker<'_> {
    pub(super) fn run(&self) {
        let units = &self.plan.units.list;
        while let Some(number) = self.plan.next_unit() {
            let unit = &units[number];
            let group = &self.plan.groups.list[unit.group];
            let n_heads = self.sizes.heads(0, unit.part).len();
            // A guess, exact if all threads proceed at the same pace.
            let next_unit = units.get(number + self.plan.key().n_threads);
            let task = UnitTask { unit, next_unit, group, kv_index: 0, n_heads, n_queries: group.rows.len() * n_heads };
            self.compute(task, unit.split.map(|split| &self.plan.units.splits[split]));
        }
    }

    /// Computes a unit's blocks. If a group's blocks are split, the unit with the first blocks folds them, the others store each
    /// block's result, and the unit that finishes last folds these in order, so the result does not depend on the cuts.
    fn compute(&self, task: UnitTask, split: Option<&SplitReduction>) {
        for task in task.per_kv_head() {
            self.pack_queries(task);
            self.softmax_states(self.area.softmax_states, task).fill(OnlineSoftmax::EMPTY);
        }
        let all = &task.group.blocks;
        let is_first = task.unit.blocks.start == all.start;
        for number in task.unit.blocks.clone() {
            self.compute_block(task, number);
            for task in task.per_kv_head() {
                let (states, sums) = (self.area.block_softmax_states, self.area.block_sums);
                match split {
                    Some(split) if !is_first => {
                        let result = 1 + number - all.start - split.n_first;
                        self.store_partial(task, split, result, (states, sums));
                    }
                    _ => self.fold(task, self.softmax_states(states, task).as_ptr(), self.region(sums, task)),
                }
            }
        }
        let Some(split) = split else { return task.per_kv_head().for_each(|task| self.finish(task)) };
        if is_first {
            let results = (self.area.softmax_states, self.area.sums);
            task.per_kv_head().for_each(|task| self.store_partial(task, split, 0, results));
        }
        if split.finish_unit() {
            for task in task.per_kv_head() {
                self.softmax_states(self.area.softmax_states, task).fill(OnlineSoftmax::EMPTY);
                (0..split.n_results).for_each(|result| self.fold_partial(task, split, result));
                self.finish(task);
            }
        }
    }

    fn heads(&self, task: UnitTask) -> Range<usize> {
        self.sizes.heads(task.kv_head(), task.unit.part)
    }

    /// Transposes the group's queries, multiplied by a score's constant factors.
    fn pack_queries(&self, task: UnitTask) {
        let Attention { queries, shape, scale, softcap, .. } = self.attention;
        let factor = if *softcap == 0.0 { scale * std::f32::consts::LOG2_E } else { scale / softcap };
        let query = |query: usize| {
            let row = self.plan.groups.rows[task.group.rows.start + query / task.n_heads] as usize;
            let head = self.heads(task).start + query % task.n_heads;
            &queries.values[row * queries.row_stride + head * queries.head_stride..][..shape.key_size]
        };
        let to = self.region(self.area.queries, task);
        let lanes = self.kernels.lanes;
        let n_whole = task.n_queries / lanes * lanes;
        for first in (0..n_whole).step_by(lanes) {
            let mut pointers = [query(first).as_ptr().cast(); MAX_LANES];
            for (pointer, lane) in pointers.iter_mut().zip(0..lanes) {
                *pointer = query(first + lane).as_ptr().cast();
            }
            // SAFETY: each query has that many elements, and `area` has room for all queries of a unit.
            unsafe { (self.kernels.transpose)(CellFormat::F32, &pointers, shape.key_size, to.add(first), task.n_queries) };
        }
        for last in n_whole..task.n_queries {
            for (d, &value) in query(last).iter().enumerate() {
                // SAFETY: as above.
                unsafe { to.add(d * task.n_queries + last).write(value) };
            }
        }
        // SAFETY: all elements were written above.
        let all = unsafe { std::slice::from_raw_parts_mut(to, task.n_queries * shape.key_size) };
        for value in all {
            *value *= factor;
        }
    }

    fn compute_block(&self, task: UnitTask, number: usize) {
        let block = &self.plan.groups.blocks[number];
        let segments = &self.plan.groups.segments[block.segments.clone()];
        let cells = self.cells_of(block);
        // Values are read after keys, then the keys of the next block.
        let next_block = match task.next_unit {
            _ if number + 1 < task.unit.blocks.end => Some((number + 1, task.unit.kv_heads.start)),
            Some(next) if !next.blocks.is_empty() => Some((next.blocks.start, next.kv_heads.start)),
            _ => None,
        };
        let cells_of = |number: usize| self.cells_of(&self.plan.groups.blocks[number]);
        let (next_cells, next_head) = next_block.map_or((&[][..], 0), |(number, head)| (cells_of(number), head));
        let n_heads = task.unit.kv_heads.len();
        let Attention { keys, values, shape, .. } = self.attention;
        let mut upcoming = UpcomingCells { remaining: cells, n_heads, source: keys, next: (values, cells, task.kv_head()) };
        for segment in segments {
            self.score(task, segment, &mut upcoming);
        }
        task.per_kv_head().for_each(|task| self.softmax(task, block, segments));
        let n_sums = n_heads * task.n_queries * shape.value_size;
        // SAFETY: `area` has room for the sums of all queries.
        unsafe { self.region(self.area.block_sums, task).write_bytes(0, n_sums) };
        upcoming = UpcomingCells { remaining: cells, n_heads, source: values, next: (keys, next_cells, next_head) };
        for segment in segments {
            self.accumulate_values(task, segment, &mut upcoming);
        }
    }

    fn cells_of(&self, block: &CellBlock) -> &[u32] {
        let segments = &self.plan.groups.segments[block.segments.clone()];
        &self.plan.groups.cells[segments[0].cells.start..segments[segments.len() - 1].cells.end]
    }

    /// Each panel of cells is multiplied with all heads before the next panel, because memory reads are faster in long runs.
    fn score(&self, task: UnitTask, segment: &Segment, upcoming: &mut UpcomingCells) {
        let cells = &self.plan.groups.cells[segment.cells.clone()];
        let keys = &self.attention.keys;
        let size = keys.head_size;
        let lanes = self.kernels.lanes;
        let mut pointers_ahead = [std::ptr::null(); SLOTS];
        for (number, panel) in cells.chunks(PANEL_CELLS).enumerate() {
            upcoming.advance(panel.len());
            let slot = segment.first_slot + PANEL_CELLS * number;
            for task in task.per_kv_head() {
                let mut prefetch =
                    upcoming.prefetch_part((task.unit.kv_heads.start, task.kv_index), panel.len(), &mut pointers_ahead);
                for (at, some) in panel.chunks(lanes).enumerate() {
                    let mut pointers = [cell_pointer(keys, task.kv_head(), some[0]); MAX_LANES];
                    for (pointer, &cell) in pointers.iter_mut().zip(some) {
                        *pointer = cell_pointer(keys, task.kv_head(), cell);
                    }
                    // SAFETY: `check` verified the size of the cells, and `area` has room for a panel.
                    unsafe {
                        let to = self.memory.add(self.area.keys.offset + at * lanes);
                        (self.kernels.transpose)(keys.format, &pointers, size, to, PANEL_CELLS);
                    }
                }
                for rows in task.tiles(&segment.rows, self.kernels.max_rows) {
                    // SAFETY: `area` has room for the queries, a panel, and a block of scores plus one vector for each query.
                    unsafe {
                        (self.kernels.scores)(ScoreBlock {
                            rows: rows.len(),
                            queries: (self.region(self.area.queries, task).add(rows.start), task.n_queries),
                            keys: (self.memory.add(self.area.keys.offset), PANEL_CELLS),
                            n_cells: panel.len(),
                            size,
                            prefetch,
                            out: self.region(self.area.scores, task).add(rows.start * SCORES_STRIDE + slot),
                        });
                    }
                    prefetch = CellPrefetch::NONE;
                }
            }
        }
    }

    fn softmax(&self, task: UnitTask, block: &CellBlock, segments: &[Segment]) {
        if self.plan.streams.is_biased {
            self.gather_biases(task, segments);
        }
        for row in 0..task.group.rows.len() {
            let visible = &self.plan.groups.visibility_masks[block.first_visibility + row];
            for (head, head_index) in self.heads(task).enumerate() {
                let query = row * task.n_heads + head;
                let factor = self.attention.slope(head_index) * std::f32::consts::LOG2_E;
                // SAFETY: `area` has room for a block of biases for each row, and only this thread uses its memory.
                let biases = || unsafe { std::slice::from_raw_parts(self.biases(row), SLOTS) };
                let bias = self.plan.streams.is_biased.then(|| (biases(), factor));
                let cap = self.attention.softcap * std::f32::consts::LOG2_E;
                let params = SoftmaxParams { visible, n_slots: block.n_slots, cap, bias };
                let scores = self.region(self.area.scores, task).wrapping_add(query * SCORES_STRIDE);
                // SAFETY: `area` has room for a block of scores for each query.
                let (max_score, sum) = unsafe { (self.kernels.softmax)(scores, params) };
                self.softmax_states(self.area.block_softmax_states, task)[query] = OnlineSoftmax { max_score, sum };
            }
        }
    }

    fn gather_biases(&self, task: UnitTask, segments: &[Segment]) {
        let Some(mask) = self.attention.mask else { return };
        for segment in segments {
            for row in segment.rows.clone() {
                let number = self.plan.groups.rows[task.group.rows.start + row] as usize;
                let values = mask.row(number, self.attention.shape.n_cells);
                for (slot, &cell) in (segment.first_slot..).zip(&self.plan.groups.cells[segment.cells.clone()]) {
                    let value = values[cell as usize];
                    // Visibility masks hidden slots; here they must not produce NaN.
                    let value = if value == super::Mask::HIDDEN { 0.0 } else { to_single(value) };
                    // SAFETY: `area` has room for a block of biases for each row.
                    unsafe { self.biases(row).add(slot).write(value) };
                }
            }
        }
    }

    /// Adds the weighted values to the sums, panel by panel like `score`.
    fn accumulate_values(&self, task: UnitTask, segment: &Segment, upcoming: &mut UpcomingCells) {
        let values = &self.attention.values;
        let size = values.head_size;
        let cells = &self.plan.groups.cells[segment.cells.clone()];
        let is_direct = matches!(values.format, CellFormat::F32 | CellFormat::F16);
        let (mut pointers, mut pointers_ahead) = ([std::ptr::null(); SLOTS], [std::ptr::null(); SLOTS]);
        // With one head, a panel computes faster than memory delivers the next, so longer chunks are prefetched.
        let chunk_len = if is_direct && task.unit.kv_heads.len() == 1 { SLOTS } else { PANEL_CELLS };
        for (number, panel) in cells.chunks(chunk_len).enumerate() {
            upcoming.advance(panel.len());
            let slot = segment.first_slot + chunk_len * number;
            for task in task.per_kv_head() {
                let mut prefetch =
                    upcoming.prefetch_part((task.unit.kv_heads.start, task.kv_index), panel.len(), &mut pointers_ahead);
                for (at, (pointer, &cell)) in pointers.iter_mut().zip(panel).enumerate() {
                    let from = cell_pointer(values, task.kv_head(), cell);
                    *pointer = from;
                    if !is_direct {
                        // SAFETY: `check` verified the size of the cell, and `area` has room for a panel of values.
                        unsafe {
                            let to = self.memory.add(self.area.values.offset + at * size);
                            (self.kernels.unpack)(values.format, from, std::slice::from_raw_parts_mut(to, size));
                            *pointer = to.cast();
                        }
                    }
                }
                for rows in task.tiles(&segment.rows, self.kernels.max_rows) {
                    // SAFETY: `area` has room for the scores and sums of all queries, and the cells have `size` elements.
                    unsafe {
                        (self.kernels.accumulate_values)(ValueBlock {
                            rows: rows.len(),
                            weights: self.region(self.area.scores, task).add(rows.start * SCORES_STRIDE + slot),
                            format: if is_direct { values.format } else { CellFormat::F32 },
                            cells: &pointers[..panel.len()],
                            size,
                            prefetch,
                            out: self.region(self.area.block_sums, task).add(rows.start * size),
                        });
                    }
                    prefetch = CellPrefetch::NONE;
                }
            }
        }
    }

    /// Folds results into the results of the blocks before.
    fn fold(&self, task: UnitTask, block_states: *const OnlineSoftmax, block_sums: *const f32) {
        let size = self.attention.shape.value_size;
        for (query, state) in self.softmax_states(self.area.softmax_states, task).iter_mut().enumerate() {
            // SAFETY: callers pass a softmax state and `size` sums of each query, and `area` has room for the total sums.
            unsafe {
                let block = (block_states.add(query).read(), block_sums.add(query * size));
                (self.kernels.fold)((state, self.region(self.area.sums, task).add(query * size)), block, size);
            }
        }
    }

    fn finish(&self, task: UnitTask) {
        let size = self.attention.shape.value_size;
        for (row, &number) in self.plan.groups.rows[task.group.rows.clone()].iter().enumerate() {
            for (head, head_index) in self.heads(task).enumerate() {
                let query = row * task.n_heads + head;
                let first = number as usize * self.out.row_stride + head_index * self.out.head_stride;
                let sink = self.attention.sinks.map(|sinks| sinks[head_index] * std::f32::consts::LOG2_E);
                // SAFETY: one unit writes the results of a row and head, and `check` verified that results do not overlap.
                unsafe {
                    let out = self.out.values.part_mut(first..first + size);
                    let sums = self.region(self.area.sums, task).add(query * size);
                    (self.kernels.finish)(
                        (self.softmax_states(self.area.softmax_states, task)[query], sums),
                        sink,
                        out.as_mut_ptr(),
                        size,
                    );
                }
            }
        }
    }

    /// Returns the range of a partial result in `scratch`: softmax states, then sums.
    fn partial_range(&self, task: UnitTask, split: &SplitReduction, result: usize) -> Range<usize> {
        let n = task.n_queries * self.sizes.elements_per_query();
        let first = self.partials + 4 * (split.first + (result * task.unit.kv_heads.len() + task.kv_index) * n);
        first..first + 4 * n
    }

    fn store_partial(
        &self,
        task: UnitTask,
        split: &SplitReduction,
        result: usize,
        (states, sums): (ScratchRegion, ScratchRegion),
    ) {
        let n_sums = task.n_queries * self.attention.shape.value_size;
        // SAFETY: one unit writes each result, and it is read only after `SplitReduction::finish_unit` returned true.
        unsafe {
            let partial = self.scratch.part_mut(self.partial_range(task, split, result)).as_mut_ptr().cast::<f32>();
            partial.cast::<OnlineSoftmax>().copy_from_nonoverlapping(self.softmax_states(states, task).as_ptr(), task.n_queries);
            partial.add(2 * task.n_queries).copy_from_nonoverlapping(self.region(sums, task), n_sums);
        }
    }

    fn fold_partial(&self, task: UnitTask, split: &SplitReduction, result: usize) {
        // SAFETY: all units of the split have finished, so no thread writes it.
        let partial = unsafe { self.scratch.part(self.partial_range(task, split, result)) }.as_ptr().cast::<f32>();
        self.fold(task, partial.cast(), partial.wrapping_add(2 * task.n_queries));
    }

    /// Returns the entries of `part` for the queries of the current KV head.
    fn region(&self, part: ScratchRegion, task: UnitTask) -> *mut f32 {
        self.memory.wrapping_add(part.offset + task.kv_index * task.n_queries * part.each)
    }

    fn biases(&self, row: usize) -> *mut f32 {
        self.memory.wrapping_add(self.area.biases.offset + row * SLOTS)
    }

    #[expect(clippy::mut_from_ref, reason = "the memory belongs to this thread, and its parts do not overlap")]
    fn softmax_states(&self, part: ScratchRegion, task: UnitTask) -> &mut [OnlineSoftmax] {
        // SAFETY: `area` has room for a softmax state of each query, and only this thread uses its memory.
        unsafe { std::slice::from_raw_parts_mut(self.region(part, task).cast(), task.n_queries) }
    }
}
