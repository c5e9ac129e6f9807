//! Tracks which sequence ids hold which cells.
//!
//! Since a fork shares cells, the ids' cells form a forest of *cell runs*: cells, in token order, that the same ids hold; the
//! children of a run continue it, each for some of those ids. The prefix tree cannot represent this: two ids may have computed
//! the same text in separate cells. A fork or a removal costs as many steps as the path has runs, independent of its length.

mod forest;
#[cfg(test)]
mod integrity;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::cache::cells::{CellId, Cells};
use crate::cache::{KvSeqId, length_of, visit_counter};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CellRunId(u32);

impl CellRunId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug)]
struct CellRun {
    parent: Option<CellRunId>,
    children: Vec<CellRunId>,
    /// Ids whose cells end with this run.
    tips: Vec<KvSeqId>,
    start: u32,
    cells: Vec<CellId>,
    /// Number of its pinned tips, plus the number of its children that a pinned id holds.
    n_pinned: u32,
}

impl CellRun {
    fn end(&self) -> u32 {
        self.start + length_of(self.cells.len())
    }

    fn is_held_by_others(&self) -> bool {
        self.tips.len() > 1 || !self.children.is_empty()
    }
}

#[derive(Debug, Clone, Copy)]
struct CellOwner {
    run: CellRunId,
    position: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct SequenceCells {
    end: Option<CellRunId>,
    is_pinned: bool,
}

/// All cells of the device cache: each is free, evictable (held by idle ids only) or pinned (held by a running id).
#[derive(Debug)]
pub(super) struct CellRuns {
    runs: Vec<Option<CellRun>>,
    free: Vec<u32>,
    cells: Cells,
    /// Run and position of each cell; meaningless for free cells.
    owners: Vec<CellOwner>,
    holders: Vec<SequenceCells>,
    n_pinned: usize,
}

impl CellRuns {
    pub(super) fn new(n_cells: u32, n_ids: u32) -> Self {
        Self {
            runs: Vec::new(),
            free: Vec::new(),
            cells: Cells::new(n_cells),
            owners: vec![CellOwner { run: CellRunId(0), position: 0 }; n_cells as usize],
            holders: vec![SequenceCells::default(); n_ids as usize],
            n_pinned: 0,
        }
    }

    pub(super) fn cells(&self) -> &Cells {
        &self.cells
    }

    pub(super) fn n_evictable(&self) -> usize {
        self.cells.n_used() - self.n_pinned
    }

    pub(super) fn is_pinned(&self, id: KvSeqId) -> bool {
        self.holders[usize::from(id.0)].is_pinned
    }

    pub(super) fn n_held(&self, id: KvSeqId) -> u32 {
        self.holders[usize::from(id.0)].end.map_or(0, |end| self.run(end).end())
    }

    /// Number of the first `n` cells of `id` that no pinned id holds.
    pub(super) fn n_evictable_of(&self, id: KvSeqId, n: u32) -> u32 {
        // All runs above a pinned run are pinned too.
        let evictable = self.upwards(id).take_while(|&run| self.run(run).n_pinned == 0).map(|run| self.run(run));
        evictable.map(|run| run.end().min(n).saturating_sub(run.start)).sum()
    }

    /// Returns how many cells each of the pinned `ids` releases if they are unpinned one after the other.
    pub(super) fn count_freed(&self, ids: impl Iterator<Item = KvSeqId>) -> Vec<u32> {
        let mut n_pinned: BTreeMap<CellRunId, u32> = BTreeMap::new();
        let mut freed = |id| {
            let mut n_freed = 0;
            for run in self.upwards(id) {
                let n_pinned = n_pinned.entry(run).or_insert(self.run(run).n_pinned);
                *n_pinned -= 1;
                if *n_pinned > 0 {
                    break;
                }
                n_freed += length_of(self.run(run).cells.len());
            }
            n_freed
        };
        ids.map(&mut freed).collect()
    }

    pub(super) fn share(&mut self, from: KvSeqId, to: KvSeqId, n: u32) {
        let end = self.cut(from, n);
        self.holders[usize::from(to.0)] = SequenceCells { end, is_pinned: false };
        if let Some(end) = end {
            self.run_mut(end).tips.push(to);
        }
        self.pin(to);
    }

    pub(super) fn pin(&mut self, id: KvSeqId) {
        let holder = &mut self.holders[usize::from(id.0)];
        debug_assert!(!holder.is_pinned, "{id:?} is pinned once");
        holder.is_pinned = true;
        let mut next = holder.end;
        while let Some(run_id) = next {
            visit_counter::count_visited(1);
            let run = self.run_mut(run_id);
            run.n_pinned += 1;
            if run.n_pinned > 1 {
                return;
            }
            next = run.parent;
            self.n_pinned += self.run(run_id).cells.len();
        }
    }

    pub(super) fn unpin(&mut self, id: KvSeqId) {
        let holder = &mut self.holders[usize::from(id.0)];
        debug_assert!(holder.is_pinned, "{id:?} was pinned");
        holder.is_pinned = false;
        let mut next = holder.end;
        while let Some(run_id) = next {
            visit_counter::count_visited(1);
            let run = self.run_mut(run_id);
            run.n_pinned -= 1;
            if run.n_pinned > 0 {
                return;
            }
            next = run.parent;
            self.n_pinned -= self.run(run_id).cells.len();
        }
    }

    pub(super) fn grow(&mut self, id: KvSeqId, n: usize) {
        let taken = self.cells.take_all(n);
        self.append(id, &taken);
    }

    /// Takes cells for a whole reloaded entry, as llama.cpp does, and frees those outside of `kept`.
    pub(super) fn grow_by_entry(&mut self, id: KvSeqId, entry: &Range<u32>, kept: &Range<u32>) {
        assert!(entry.start <= kept.start && kept.end <= entry.end, "the entry {entry:?} holds {kept:?}");
        let taken = self.cells.take_all(entry.len());
        let kept = (kept.start - entry.start) as usize..(kept.end - entry.start) as usize;
        self.append(id, &taken[kept.clone()]);
        for &cell in taken[..kept.start].iter().chain(&taken[kept.end..]) {
            self.cells.release(cell);
        }
    }

    fn append(&mut self, id: KvSeqId, taken: &[CellId]) {
        debug_assert!(self.is_pinned(id), "only a pinned path grows");
        if taken.is_empty() {
            return;
        }
        let end = self.own_end(id);
        let position = self.run(end).end();
        for (position, cell) in (position..).zip(taken) {
            self.owners[cell.index()] = CellOwner { run: end, position };
        }
        self.run_mut(end).cells.extend_from_slice(taken);
        self.n_pinned += taken.len();
    }

    fn own_end(&mut self, id: KvSeqId) -> CellRunId {
        let parent = self.holders[usize::from(id.0)].end;
        if let Some(end) = parent.filter(|&end| !self.run(end).is_held_by_others()) {
            return end;
        }
        let start = self.n_held(id);
        let own = self.add(CellRun { parent, children: Vec::new(), tips: vec![id], start, cells: Vec::new(), n_pinned: 1 });
        if let Some(parent) = parent {
            // The pinned tip is replaced by a pinned child: `n_pinned` is unchanged.
            let above = self.run_mut(parent);
            above.tips.retain(|&tip| tip != id);
            above.children.push(own);
        }
        self.holders[usize::from(id.0)].end = Some(own);
        own
    }

    pub(super) fn shorten(&mut self, id: KvSeqId, n: u32) {
        // A run that no other id holds is shortened in place.
        while let Some(end) = self.holders[usize::from(id.0)].end.filter(|&end| self.run(end).end() > n) {
            let is_shared = self.run(end).is_held_by_others();
            let start = self.run(end).start;
            if !is_shared && start < n {
                let run = self.run_mut(end);
                let (removed, is_pinned) = (run.cells.split_off((n - start) as usize), run.n_pinned > 0);
                self.n_pinned -= if is_pinned { removed.len() } else { 0 };
                self.release(&removed);
                return;
            }
            let new_end = if start < n { Some(self.split(end, n)) } else { self.run(end).parent };
            // The split may have given the lower part a new id.
            self.move_end(id, new_end);
        }
    }

    /// Makes the cells of `id` end with `new_end`, an ancestor of its last run.
    fn move_end(&mut self, id: KvSeqId, new_end: Option<CellRunId>) {
        let was_pinned = self.is_pinned(id);
        if was_pinned {
            self.unpin(id);
        }
        let old = std::mem::replace(&mut self.holders[usize::from(id.0)].end, new_end);
        if let Some(new_end) = new_end {
            self.run_mut(new_end).tips.push(id);
        }
        if let Some(old) = old {
            self.run_mut(old).tips.retain(|&tip| tip != id);
            self.prune(old);
        }
        if was_pinned {
            self.pin(id);
        }
    }

    pub(super) fn drop_all(&mut self, id: KvSeqId) {
        debug_assert!(!self.is_pinned(id), "a pinned id is never dropped");
        let end = std::mem::take(&mut self.holders[usize::from(id.0)]).end;
        if let Some(end) = end {
            self.run_mut(end).tips.retain(|&tip| tip != id);
            self.prune(end);
        }
    }

    fn upwards(&self, id: KvSeqId) -> impl Iterator<Item = CellRunId> {
        std::iter::successors(self.holders[usize::from(id.0)].end, |&run| self.run(run).parent)
            .inspect(|_| visit_counter::count_visited(1))
    }

    /// The cells of `id` for the tokens of `range`, last first.
    pub(super) fn cells_reversed(&self, id: KvSeqId, range: Range<u32>) -> impl Iterator<Item = CellId> {
        let runs = self.upwards(id).map(|run| self.run(run)).take_while(move |run| run.end() > range.start);
        let cells = runs.flat_map(move |run| {
            let from = range.start.max(run.start).min(run.end()) - run.start;
            let to = range.end.clamp(run.start, run.end()) - run.start;
            run.cells[from.min(to) as usize..to as usize].iter().rev().copied()
        });
        cells.inspect(|_| visit_counter::count_visited(1))
    }

    /// The cells of `id` from its token `start` on, in order.
    pub(super) fn cells_from(&self, id: KvSeqId, start: u32) -> impl Iterator<Item = CellId> {
        let mut runs: Vec<&CellRun> = self.upwards(id).map(|run| self.run(run)).take_while(|run| run.end() > start).collect();
        runs.reverse();
        let cells = runs.into_iter().flat_map(move |run| &run.cells[start.saturating_sub(run.start) as usize..]);
        cells.copied().inspect(|_| visit_counter::count_visited(1))
    }

    /// The position of the token in the highest used cell, and the cells of its run from that cell down to the first.
    pub(super) fn top(&self) -> Option<(u32, impl Iterator<Item = CellId>)> {
        let CellOwner { run, position } = self.owners[self.cells.n_cells_reached().checked_sub(1)?];
        let run = self.run(run);
        let cells = &run.cells[..=(position - run.start) as usize];
        Some((position, cells.iter().rev().copied().inspect(|_| visit_counter::count_visited(1))))
    }

    /// All ids that hold the highest used cell, sorted.
    pub(super) fn holders_of_top(&self) -> Vec<KvSeqId> {
        let Some(top) = self.cells.n_cells_reached().checked_sub(1) else { return Vec::new() };
        let mut pending = vec![self.owners[top].run];
        let mut holders = Vec::new();
        while let Some(id) = pending.pop() {
            let run = self.run(id);
            visit_counter::count_visited(1 + run.tips.len());
            holders.extend(&run.tips);
            pending.extend(&run.children);
        }
        holders.sort_unstable();
        holders
    }

    /// Frees the cells of `range`, which every holder of one of them shares with `id`, and takes new ones for the same tokens.
    pub(super) fn replace_cells(&mut self, id: KvSeqId, range: &Range<u32>) {
        let contains = |&run_id: &CellRunId| self.run(run_id).start <= range.start && range.end <= self.run(run_id).end();
        let run_id = self.upwards(id).find(contains).expect("the moved cells are in one run");
        let run = self.runs[run_id.index()].as_mut().expect("it was found above");
        let moved = &mut run.cells[(range.start - run.start) as usize..(range.end - run.start) as usize];
        for &cell in &*moved {
            self.cells.release(cell);
        }
        for (cell, position) in moved.iter_mut().zip(range.clone()) {
            *cell = self.cells.take();
            self.owners[cell.index()] = CellOwner { run: run_id, position };
        }
    }
}
