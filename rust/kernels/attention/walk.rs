//! What a thread of a team does: takes units of work, walks over their blocks, and folds what others left.

use std::ops::Range;

use super::groups::{Block, Segment};
use super::kernels::{AttentionTable, ScoreBlock, ValueBlock};
use super::plan::SLOTS;
use super::prefetch::{CellPrefetch, UpcomingCells, cell_of};
use super::simd::{MAX_LANES, OnlineSoftmax, SCORES_STRIDE, SoftmaxParams};
use super::task::{Task, tiles};
use super::units::{Area, PANEL_CELLS, Sizes, SplitReduction};
use super::{Attention, AttentionOutput, Format, Plan, Shared};
use crate::kernels::half::to_single;

/// A thread at work on one attention.
pub(super) struct Walk<'a> {
    pub(super) kernels: &'static AttentionTable,
    pub(super) attention: &'a Attention<'a>,
    pub(super) plan: &'a Plan,
    pub(super) out: &'a AttentionOutput<'a>,
    pub(super) sizes: Sizes,
    pub(super) area: Area,
    /// This thread's working memory, as long as `area` says.
    pub(super) memory: *mut f32,
    pub(super) scratch: &'a Shared<'a, u8>,
    /// Where in `scratch` the partial results of all threads begin: a multiple of 64 bytes from its start.
    pub(super) partials: usize,
}

impl Walk<'_> {
    /// Takes units until there is none.
    pub(super) fn run(&self) {
        let units = &self.plan.units.list;
        while let Some(number) = self.plan.next_unit() {
            let unit = &units[number];
            let group = &self.plan.groups.list[unit.group];
            let n_heads = self.sizes.heads(0, unit.part).len();
            // If all threads go on at one pace.
            let after = units.get(number + self.plan.n_threads());
            let task = Task { unit, after, group, kv: 0, n_heads, n_queries: group.rows.len() * n_heads };
            match unit.joint {
                None => self.compute(task),
                Some(joint) => self.compute_part(task, &self.plan.units.joints[joint]),
            }
        }
    }

    /// Computes all blocks of a group.
    fn compute(&self, task: Task) {
        self.begin(task);
        for number in task.unit.blocks.clone() {
            self.compute_block(task, number);
            task.each().for_each(|task| self.fold_block(task));
        }
        task.each().for_each(|task| self.finish(task));
    }

    /// Computes some blocks of a group. The unit that has the first ones folds them, the others leave each for itself, and
    /// whoever ends last folds these in order, so that it does not matter where the cuts are.
    fn compute_part(&self, task: Task, joint: &SplitReduction) {
        self.begin(task);
        let all = &task.group.blocks;
        let is_first = task.unit.blocks.start == all.start;
        for number in task.unit.blocks.clone() {
            self.compute_block(task, number);
            for task in task.each() {
                if is_first {
                    self.fold_block(task);
                } else {
                    let result = 1 + number - all.start - joint.n_first;
                    self.leave(task, joint, result, (self.block_tallies(task), self.block_sums(task)));
                }
            }
        }
        if is_first {
            task.each().for_each(|task| self.leave(task, joint, 0, (self.tallies(task), self.sums(task))));
        }
        if joint.end() {
            for task in task.each() {
                self.tallies(task).fill(OnlineSoftmax::NOTHING);
                (0..joint.n_results).for_each(|result| self.fold_left(task, joint, result));
                self.finish(task);
            }
        }
    }

    fn begin(&self, task: Task) {
        for task in task.each() {
            self.pack_queries(task);
            self.tallies(task).fill(OnlineSoftmax::NOTHING);
        }
    }

    /// The heads of a row that meet the head at hand.
    fn heads(&self, task: Task) -> Range<usize> {
        self.sizes.heads(task.kv_head(), task.unit.part)
    }

    /// Transposes the group's queries, with all factors of a score that are known.
    fn pack_queries(&self, task: Task) {
        let Attention { queries, shape, scale, softcap, .. } = self.attention;
        let factor = if *softcap == 0.0 { scale * std::f32::consts::LOG2_E } else { scale / softcap };
        let query = |query: usize| {
            let row = self.plan.rows()[task.group.rows.start + query / task.n_heads] as usize;
            let head = self.heads(task).start + query % task.n_heads;
            &queries.values[row * queries.row_stride + head * queries.head_stride..][..shape.key_size]
        };
        let to = self.queries(task);
        let lanes = self.kernels.lanes;
        let n_whole = task.n_queries / lanes * lanes;
        for first in (0..n_whole).step_by(lanes) {
            let mut pointers = [query(first).as_ptr().cast(); MAX_LANES];
            for (pointer, lane) in pointers.iter_mut().zip(0..lanes) {
                *pointer = query(first + lane).as_ptr().cast();
            }
            // SAFETY: each query holds that many numbers, and `area` has room for all queries of a unit.
            unsafe { (self.kernels.transpose)(Format::F32, &pointers, shape.key_size, to.add(first), task.n_queries) };
        }
        for last in n_whole..task.n_queries {
            for (d, &value) in query(last).iter().enumerate() {
                // SAFETY: as above.
                unsafe { to.add(d * task.n_queries + last).write(value) };
            }
        }
        // SAFETY: all of them were written above.
        let all = unsafe { std::slice::from_raw_parts_mut(to, task.n_queries * shape.key_size) };
        for value in all {
            *value *= factor;
        }
    }

    /// Computes the weights of one block, and the values summed by them.
    fn compute_block(&self, task: Task, number: usize) {
        let block = &self.plan.groups.blocks[number];
        let segments = &self.plan.groups.segments[block.segments.clone()];
        let here = self.cells_of(block);
        // What is read next: values after keys, then the keys of the next block.
        let after = match task.after {
            _ if number + 1 < task.unit.blocks.end => Some((number + 1, task.unit.kv_heads.start)),
            Some(after) if !after.blocks.is_empty() => Some((after.blocks.start, after.kv_heads.start)),
            _ => None,
        };
        let after = after.map_or((&[][..], 0), |(number, head)| (self.cells_of(&self.plan.groups.blocks[number]), head));
        let n_heads = task.unit.kv_heads.len();
        let mut coming =
            UpcomingCells { here, n_heads, from: &self.attention.keys, then: (&self.attention.values, here, task.kv_head()) };
        for segment in segments {
            self.score(task, segment, &mut coming);
        }
        task.each().for_each(|task| self.softmax(task, block, segments));
        let n_sums = n_heads * task.n_queries * self.attention.shape.value_size;
        // SAFETY: `area` has room for the sums of all queries.
        unsafe { self.block_sums(task).write_bytes(0, n_sums) };
        coming = UpcomingCells { here, n_heads, from: &self.attention.values, then: (&self.attention.keys, after.0, after.1) };
        for segment in segments {
            self.accumulate_values(task, segment, &mut coming);
        }
    }

    /// The cells of all segments of a block.
    fn cells_of(&self, block: &Block) -> &[u32] {
        let segments = &self.plan.groups.segments[block.segments.clone()];
        &self.plan.groups.cells[segments[0].cells.start..segments[segments.len() - 1].cells.end]
    }

    /// Scores of the rows and cells of a segment. A panel of cells meets all heads before the next does, for memory likes to be
    /// read on and on.
    fn score(&self, task: Task, segment: &Segment, coming: &mut UpcomingCells) {
        let cells = &self.plan.groups.cells[segment.cells.clone()];
        let queries = segment.rows.start * task.n_heads..segment.rows.end * task.n_heads;
        let keys = &self.attention.keys;
        let size = keys.head_size;
        let lanes = self.kernels.lanes;
        let mut soon = [std::ptr::null(); SLOTS];
        for (number, panel) in cells.chunks(PANEL_CELLS).enumerate() {
            coming.pass(panel.len());
            let slot = segment.first_slot + PANEL_CELLS * number;
            for task in task.each() {
                let mut ahead = coming.part((task.unit.kv_heads.start, task.kv), panel.len(), &mut soon);
                for (at, some) in panel.chunks(lanes).enumerate() {
                    let mut pointers = [cell_of(keys, task.kv_head(), some[0]); MAX_LANES];
                    for (pointer, &cell) in pointers.iter_mut().zip(some) {
                        *pointer = cell_of(keys, task.kv_head(), cell);
                    }
                    // SAFETY: the cells hold that many numbers, which `check` found, and `area` has room for a panel.
                    unsafe {
                        let to = self.memory.add(self.area.keys + at * lanes);
                        (self.kernels.transpose)(keys.format, &pointers, size, to, PANEL_CELLS);
                    }
                }
                for rows in tiles(queries.clone(), self.kernels.max_rows) {
                    // SAFETY: `area` has room for all queries, a panel of keys, and a block of scores for each query with a
                    // vector more.
                    unsafe {
                        (self.kernels.scores)(ScoreBlock {
                            rows: rows.len(),
                            queries: (self.queries(task).add(rows.start), task.n_queries),
                            keys: (self.memory.add(self.area.keys), PANEL_CELLS),
                            n_cells: panel.len(),
                            size,
                            ahead,
                            out: self.scores(task).add(rows.start * SCORES_STRIDE + slot),
                        });
                    }
                    ahead = CellPrefetch::NONE;
                }
            }
        }
    }

    /// Turns the scores of a block into weights.
    fn softmax(&self, task: Task, block: &Block, segments: &[Segment]) {
        if self.plan.is_biased() {
            self.gather_biases(task, segments);
        }
        for row in 0..task.group.rows.len() {
            let visible = &self.plan.groups.visibility_masks[block.first_sight + row];
            for (head, number_of_head) in self.heads(task).enumerate() {
                let query = row * task.n_heads + head;
                let factor = self.attention.slope(number_of_head) * std::f32::consts::LOG2_E;
                let bias = self.plan.is_biased().then(|| {
                    // SAFETY: `area` has room for a block of biases for each row, and nobody else uses this thread's memory.
                    let bias = unsafe { std::slice::from_raw_parts(self.memory.add(self.area.biases + row * SLOTS), SLOTS) };
                    (bias, factor)
                });
                let cap = self.attention.softcap * std::f32::consts::LOG2_E;
                let how = SoftmaxParams { visible, n_slots: block.n_slots, cap, bias };
                // SAFETY: `area` has room for a block of scores for each query.
                let (greatest, sum) = unsafe { (self.kernels.softmax)(self.scores(task).add(query * SCORES_STRIDE), how) };
                self.block_tallies(task)[query] = OnlineSoftmax { greatest, sum };
            }
        }
    }

    /// What the mask adds for each row and slot.
    fn gather_biases(&self, task: Task, segments: &[Segment]) {
        let Some(mask) = self.attention.mask else { return };
        for segment in segments {
            for row in segment.rows.clone() {
                let number = self.plan.rows()[task.group.rows.start + row] as usize;
                let values = mask.row(number, self.attention.shape.n_cells);
                for (slot, &cell) in (segment.first_slot..).zip(&self.plan.groups.cells[segment.cells.clone()]) {
                    let value = values[cell as usize];
                    // Hidden ones are hidden by the sight; here they must not make a number that is none.
                    let value = if value == super::Mask::HIDDEN { 0.0 } else { to_single(value) };
                    // SAFETY: `area` has room for a block of biases for each row.
                    unsafe { self.memory.add(self.area.biases + row * SLOTS + slot).write(value) };
                }
            }
        }
    }

    /// Adds the values of a segment's cells to the sums of its rows, panel by panel as above.
    fn accumulate_values(&self, task: Task, segment: &Segment, coming: &mut UpcomingCells) {
        let values = &self.attention.values;
        let size = values.head_size;
        let queries = segment.rows.start * task.n_heads..segment.rows.end * task.n_heads;
        let cells = &self.plan.groups.cells[segment.cells.clone()];
        let is_direct = matches!(values.format, Format::F32 | Format::F16);
        let (mut pointers, mut soon) = ([std::ptr::null(); SLOTS], [std::ptr::null(); SLOTS]);
        // With one head a panel takes less time than memory does, so more is asked for at once.
        let at_once = if is_direct && task.unit.kv_heads.len() == 1 { SLOTS } else { PANEL_CELLS };
        for (number, panel) in cells.chunks(at_once).enumerate() {
            coming.pass(panel.len());
            let slot = segment.first_slot + at_once * number;
            for task in task.each() {
                let mut ahead = coming.part((task.unit.kv_heads.start, task.kv), panel.len(), &mut soon);
                for (at, (pointer, &cell)) in pointers.iter_mut().zip(panel).enumerate() {
                    let from = cell_of(values, task.kv_head(), cell);
                    *pointer = from;
                    if !is_direct {
                        // SAFETY: the cell holds that many numbers, which `check` found, and `area` has room for a panel of values.
                        unsafe {
                            let to = self.memory.add(self.area.values + at * size);
                            (self.kernels.unpack)(values.format, from, std::slice::from_raw_parts_mut(to, size));
                            *pointer = to.cast();
                        }
                    }
                }
                for rows in tiles(queries.clone(), self.kernels.max_rows) {
                    // SAFETY: `area` has room for the scores and sums of all queries, and the cells hold `size` numbers.
                    unsafe {
                        (self.kernels.accumulate_values)(ValueBlock {
                            rows: rows.len(),
                            weights: self.scores(task).add(rows.start * SCORES_STRIDE + slot),
                            format: if is_direct { values.format } else { Format::F32 },
                            cells: &pointers[..panel.len()],
                            size,
                            ahead,
                            out: self.block_sums(task).add(rows.start * size),
                        });
                    }
                    ahead = CellPrefetch::NONE;
                }
            }
        }
    }

    /// Adds the block at hand to what the blocks before it came to.
    fn fold_block(&self, task: Task) {
        let size = self.attention.shape.value_size;
        for (query, (tally, block)) in self.tallies(task).iter_mut().zip(self.block_tallies(task)).enumerate() {
            // SAFETY: `area` has room for both sums of each query.
            unsafe {
                let block_sums = self.block_sums(task).add(query * size);
                (self.kernels.fold)((tally, self.sums(task).add(query * size)), (*block, block_sums), size);
            }
        }
    }

    /// Writes the results of all rows of a group.
    fn finish(&self, task: Task) {
        let size = self.attention.shape.value_size;
        for (row, &number) in self.plan.rows()[task.group.rows.clone()].iter().enumerate() {
            for (head, number_of_head) in self.heads(task).enumerate() {
                let query = row * task.n_heads + head;
                let first = number as usize * self.out.row_stride + number_of_head * self.out.head_stride;
                let sink = self.attention.sinks.map(|sinks| sinks[number_of_head] * std::f32::consts::LOG2_E);
                // SAFETY: the results of a row and head are written by the one unit that finishes them, and `check` found that
                // they do not overlap.
                unsafe {
                    let out = self.out.values.part_mut(first..first + size);
                    let sums = self.sums(task).add(query * size);
                    (self.kernels.finish)((self.tallies(task)[query], sums), sink, out.as_mut_ptr(), size);
                }
            }
        }
    }

    /// Where in `scratch` a partial result of a task lies: its tallies, then its sums.
    fn place(&self, task: Task, joint: &SplitReduction, result: usize) -> Range<usize> {
        let n = task.n_queries * self.sizes.per_query();
        let first = self.partials + 4 * (joint.first + (result * task.unit.kv_heads.len() + task.kv) * n);
        first..first + 4 * n
    }

    /// Leaves a result for whoever folds it.
    fn leave(&self, task: Task, joint: &SplitReduction, result: usize, (tallies, sums): (&[OnlineSoftmax], *const f32)) {
        let n_sums = task.n_queries * self.attention.shape.value_size;
        // SAFETY: each result is written by one unit, and read only after `SplitReduction::end` has told that all are written.
        unsafe {
            let place = self.scratch.part_mut(self.place(task, joint, result)).as_mut_ptr().cast::<f32>();
            place.cast::<OnlineSoftmax>().copy_from_nonoverlapping(tallies.as_ptr(), task.n_queries);
            place.add(2 * task.n_queries).copy_from_nonoverlapping(sums, n_sums);
        }
    }

    /// Folds a result that was left.
    fn fold_left(&self, task: Task, joint: &SplitReduction, result: usize) {
        let size = self.attention.shape.value_size;
        // SAFETY: all units of the joint have ended, so nobody writes it any more.
        let place = unsafe { self.scratch.part(self.place(task, joint, result)) }.as_ptr().cast::<f32>();
        for (query, tally) in self.tallies(task).iter_mut().enumerate() {
            // SAFETY: the place has a tally and `size` numbers of each query.
            unsafe {
                let block = place.cast::<OnlineSoftmax>().add(query).read();
                let sums = place.add(2 * task.n_queries + query * size);
                (self.kernels.fold)((tally, self.sums(task).add(query * size)), (block, sums), size);
            }
        }
    }

    #[expect(clippy::mut_from_ref, reason = "it is this thread's own memory, and parts of it do not overlap")]
    fn tallies(&self, task: Task) -> &mut [OnlineSoftmax] {
        // SAFETY: `area` has room for a tally of each query, and nobody else uses this thread's memory.
        unsafe {
            let first = self.memory.add(self.area.tallies).cast::<OnlineSoftmax>().add(task.kv * task.n_queries);
            std::slice::from_raw_parts_mut(first, task.n_queries)
        }
    }

    #[expect(clippy::mut_from_ref, reason = "it is this thread's own memory, and parts of it do not overlap")]
    fn block_tallies(&self, task: Task) -> &mut [OnlineSoftmax] {
        // SAFETY: as above.
        unsafe {
            let first = self.memory.add(self.area.block_tallies).cast::<OnlineSoftmax>().add(task.kv * task.n_queries);
            std::slice::from_raw_parts_mut(first, task.n_queries)
        }
    }

    fn queries(&self, task: Task) -> *mut f32 {
        self.memory.wrapping_add(self.area.queries + task.kv * task.n_queries * self.attention.shape.key_size)
    }

    fn sums(&self, task: Task) -> *mut f32 {
        self.memory.wrapping_add(self.area.sums + task.kv * task.n_queries * self.attention.shape.value_size)
    }

    fn block_sums(&self, task: Task) -> *mut f32 {
        self.memory.wrapping_add(self.area.block_sums + task.kv * task.n_queries * self.attention.shape.value_size)
    }

    fn scores(&self, task: Task) -> *mut f32 {
        self.memory.wrapping_add(self.area.scores + task.kv * task.n_queries * SCORES_STRIDE)
    }
}
