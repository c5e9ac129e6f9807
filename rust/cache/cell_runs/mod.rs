//! Who holds which cells.
//!
//! A fork gives one id the cells of another, so that the ids that hold cells form a forest: a *strand* is a stretch of cells that
//! the same ids hold, and what goes on after it belongs to some of them. The tree of texts cannot say this, since two ids may have
//! computed the same text in cells of their own. With strands a fork, and an end, cost as many steps as there are strands in a
//! path, however long it is, and a cell names its strand and so all that hold it.

mod forest;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::cache::cells::{CellId, Cells};
use crate::cache::{KvSeqId, length_of, visit_counter};

/// Names a strand until it is cut, joined or given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CellRunId(u32);

impl CellRunId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// A stretch of cells that the same ids hold, for the tokens from `start` on.
#[derive(Debug)]
struct CellRun {
    parent: Option<CellRunId>,
    children: Vec<CellRunId>,
    /// The ids whose cells end with it.
    tips: Vec<KvSeqId>,
    start: u32,
    cells: Vec<CellId>,
    /// Its tips that are pinned, and its children that some pinned id holds.
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

/// What a used cell belongs to.
#[derive(Debug, Clone, Copy)]
struct CellOwner {
    strand: CellRunId,
    /// Of its token in the text.
    position: u32,
}

/// What one id holds.
#[derive(Debug, Clone, Copy, Default)]
struct SequenceCells {
    /// The last strand; `None` where it holds nothing.
    end: Option<CellRunId>,
    /// Whether its cells must stay.
    is_pinned: bool,
}

/// Every cell of the pool: free, evictable (held by idle ids alone) or pinned (held by one that runs).
#[derive(Debug)]
pub(super) struct CellRuns {
    strands: Vec<Option<CellRun>>,
    free: Vec<u32>,
    cells: Cells,
    /// By cell; means nothing for a free one.
    owners: Vec<CellOwner>,
    /// By id.
    holders: Vec<SequenceCells>,
    /// Cells that some pinned id holds.
    n_pinned: usize,
}

impl CellRuns {
    /// So many cells, all free, and ids that hold nothing.
    pub(super) fn new(n_cells: u32, n_ids: u32) -> Self {
        Self {
            strands: Vec::new(),
            free: Vec::new(),
            cells: Cells::new(n_cells),
            owners: vec![CellOwner { strand: CellRunId(0), position: 0 }; n_cells as usize],
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

    /// How many cells `id` holds.
    pub(super) fn n_held(&self, id: KvSeqId) -> u32 {
        self.holders[usize::from(id.0)].end.map_or(0, |end| self.strand(end).end())
    }

    /// How many of the first `n` cells of `id` no pinned id holds.
    pub(super) fn n_evictable_of(&self, id: KvSeqId, n: u32) -> usize {
        // What is above a pinned strand is pinned too.
        let evictable = self.upwards(id).take_while(|&at| self.strand(at).n_pinned == 0).map(|at| self.strand(at));
        evictable.map(|strand| strand.end().min(n).saturating_sub(strand.start) as usize).sum()
    }

    /// How many cells no pinned id holds any more once each of `ids`, which are pinned, is not, one after the other.
    pub(super) fn freed_by(&self, ids: impl Iterator<Item = KvSeqId>) -> Vec<usize> {
        let mut n_pinned: BTreeMap<CellRunId, u32> = BTreeMap::new();
        let mut freed = |id| {
            let mut n_freed = 0;
            for at in self.upwards(id) {
                let n_pinned = n_pinned.entry(at).or_insert(self.strand(at).n_pinned);
                *n_pinned -= 1;
                if *n_pinned > 0 {
                    break;
                }
                n_freed += self.strand(at).cells.len();
            }
            n_freed
        };
        ids.map(&mut freed).collect()
    }

    /// `to`, which holds nothing, is pinned and holds the first `n` cells of `from` as well.
    pub(super) fn share(&mut self, from: KvSeqId, to: KvSeqId, n: u32) {
        let end = self.cut(from, n);
        self.holders[usize::from(to.0)] = SequenceCells { end, is_pinned: false };
        if let Some(end) = end {
            self.strand_mut(end).tips.push(to);
        }
        self.pin(to);
    }

    /// `id` is pinned.
    pub(super) fn pin(&mut self, id: KvSeqId) {
        let holder = &mut self.holders[usize::from(id.0)];
        debug_assert!(!holder.is_pinned, "{id:?} is pinned once");
        holder.is_pinned = true;
        let mut next = holder.end;
        while let Some(at) = next {
            visit_counter::count_visited(1);
            let strand = self.strand_mut(at);
            strand.n_pinned += 1;
            if strand.n_pinned > 1 {
                return;
            }
            next = strand.parent;
            self.n_pinned += self.strand(at).cells.len();
        }
    }

    /// `id` is pinned no more.
    pub(super) fn unpin(&mut self, id: KvSeqId) {
        let holder = &mut self.holders[usize::from(id.0)];
        debug_assert!(holder.is_pinned, "{id:?} was pinned");
        holder.is_pinned = false;
        let mut next = holder.end;
        while let Some(at) = next {
            visit_counter::count_visited(1);
            let strand = self.strand_mut(at);
            strand.n_pinned -= 1;
            if strand.n_pinned > 0 {
                return;
            }
            next = strand.parent;
            self.n_pinned -= self.strand(at).cells.len();
        }
    }

    /// `id`, which is pinned, takes `n` more cells.
    ///
    /// # Panics
    /// If fewer are free.
    pub(super) fn grow(&mut self, id: KvSeqId, n: usize) {
        let taken = self.cells.take_all(n);
        self.append(id, &taken);
    }

    /// A piece of the tokens of `piece` takes a cell for each, and `id`, which is pinned, keeps those of `kept`.
    pub(super) fn grow_by_piece(&mut self, id: KvSeqId, piece: &Range<u32>, kept: &Range<u32>) {
        assert!(piece.start <= kept.start && kept.end <= piece.end, "the piece {piece:?} holds {kept:?}");
        let taken = self.cells.take_all(piece.len());
        let kept = (kept.start - piece.start) as usize..(kept.end - piece.start) as usize;
        self.append(id, &taken[kept.clone()]);
        for &cell in taken[..kept.start].iter().chain(&taken[kept.end..]) {
            self.cells.release(cell);
        }
    }

    /// `id`, which is pinned, holds cells more that were taken.
    fn append(&mut self, id: KvSeqId, taken: &[CellId]) {
        debug_assert!(self.is_pinned(id), "only what runs grows");
        if taken.is_empty() {
            return;
        }
        let end = self.own_end(id);
        let position = self.strand(end).end();
        for (position, cell) in (position..).zip(taken) {
            self.owners[cell.index()] = CellOwner { strand: end, position };
        }
        self.strand_mut(end).cells.extend_from_slice(taken);
        self.n_pinned += taken.len();
    }

    /// The last strand of `id`, which nobody else holds; one that is empty where there was none.
    fn own_end(&mut self, id: KvSeqId) -> CellRunId {
        let parent = self.holders[usize::from(id.0)].end;
        if let Some(end) = parent.filter(|&end| !self.strand(end).is_held_by_others()) {
            return end;
        }
        let start = self.n_held(id);
        let own = self.add(CellRun { parent, children: Vec::new(), tips: vec![id], start, cells: Vec::new(), n_pinned: 1 });
        if let Some(parent) = parent {
            // One pinned tip is one pinned child now.
            let above = self.strand_mut(parent);
            above.tips.retain(|&tip| tip != id);
            above.children.push(own);
        }
        self.holders[usize::from(id.0)].end = Some(own);
        own
    }

    /// Of what `id` holds only the first `n` cells are left to it.
    pub(super) fn shorten(&mut self, id: KvSeqId, n: u32) {
        // A strand that nobody else holds becomes shorter where it is.
        while let Some(end) = self.holders[usize::from(id.0)].end.filter(|&end| self.strand(end).end() > n) {
            let is_shared = self.strand(end).is_held_by_others();
            let start = self.strand(end).start;
            if !is_shared && start < n {
                let strand = self.strand_mut(end);
                let (given_up, is_pinned) = (strand.cells.split_off((n - start) as usize), strand.n_pinned > 0);
                self.n_pinned -= if is_pinned { given_up.len() } else { 0 };
                self.release(&given_up);
                return;
            }
            let left = if start < n { Some(self.split(end, n)) } else { self.strand(end).parent };
            // The cut may have given the lower part another name.
            self.move_end(id, left);
        }
    }

    /// The cells of `id` end with `left`, which is above, from now on.
    fn move_end(&mut self, id: KvSeqId, left: Option<CellRunId>) {
        let was_pinned = self.is_pinned(id);
        if was_pinned {
            self.unpin(id);
        }
        let old = std::mem::replace(&mut self.holders[usize::from(id.0)].end, left);
        if let Some(left) = left {
            self.strand_mut(left).tips.push(id);
        }
        if let Some(old) = old {
            self.strand_mut(old).tips.retain(|&tip| tip != id);
            self.tidy(old);
        }
        if was_pinned {
            self.pin(id);
        }
    }

    /// `id` holds nothing any more, and is not pinned.
    pub(super) fn drop_all(&mut self, id: KvSeqId) {
        debug_assert!(!self.is_pinned(id), "what is pinned is never dropped");
        let end = std::mem::take(&mut self.holders[usize::from(id.0)]).end;
        if let Some(end) = end {
            self.strand_mut(end).tips.retain(|&tip| tip != id);
            self.tidy(end);
        }
    }

    /// The strands of `id`, last first.
    fn upwards(&self, id: KvSeqId) -> impl Iterator<Item = CellRunId> {
        std::iter::successors(self.holders[usize::from(id.0)].end, |&at| self.strand(at).parent)
            .inspect(|_| visit_counter::count_visited(1))
    }

    /// The cells of `id` for the tokens of `range`, last first.
    pub(super) fn cells_reversed(&self, id: KvSeqId, range: Range<u32>) -> impl Iterator<Item = CellId> {
        let strands = self.upwards(id).map(|at| self.strand(at)).take_while(move |strand| strand.end() > range.start);
        let cells = strands.flat_map(move |strand| {
            let from = range.start.max(strand.start).min(strand.end()) - strand.start;
            let to = range.end.clamp(strand.start, strand.end()) - strand.start;
            strand.cells[from.min(to) as usize..to as usize].iter().rev().copied()
        });
        cells.inspect(|_| visit_counter::count_visited(1))
    }

    /// The cells of `id` from its token `start` on, first first.
    pub(super) fn cells_from(&self, id: KvSeqId, start: u32) -> impl Iterator<Item = CellId> {
        let mut strands: Vec<&CellRun> = self.upwards(id).map(|at| self.strand(at)).take_while(|at| at.end() > start).collect();
        strands.reverse();
        let cells = strands.into_iter().flat_map(move |strand| &strand.cells[start.saturating_sub(strand.start) as usize..]);
        cells.copied().inspect(|_| visit_counter::count_visited(1))
    }

    /// The highest used cell: the position of its token, and it and the cells before it that the same ids hold, last first.
    pub(super) fn top(&self) -> Option<(u32, impl Iterator<Item = CellId>)> {
        let CellOwner { strand, position } = self.owners[self.cells.n_reached().checked_sub(1)?];
        let strand = self.strand(strand);
        let cells = &strand.cells[..=(position - strand.start) as usize];
        Some((position, cells.iter().rev().copied().inspect(|_| visit_counter::count_visited(1))))
    }

    /// All who hold the highest used cell, in order.
    pub(super) fn holders_of_top(&self) -> Vec<KvSeqId> {
        let Some(top) = self.cells.n_reached().checked_sub(1) else { return Vec::new() };
        let mut waiting = vec![self.owners[top].strand];
        let mut holders = Vec::new();
        while let Some(at) = waiting.pop() {
            let strand = self.strand(at);
            visit_counter::count_visited(1 + strand.tips.len());
            holders.extend(&strand.tips);
            waiting.extend(&strand.children);
        }
        holders.sort_unstable();
        holders
    }

    /// The cells of `range`, which all who hold one of them hold in common with `id`, are given up and taken anew.
    pub(super) fn retake(&mut self, id: KvSeqId, range: &Range<u32>) {
        let contains = |&at: &CellRunId| self.strand(at).start <= range.start && range.end <= self.strand(at).end();
        let at = self.upwards(id).find(contains).expect("what is moved is held by the same ids");
        let strand = self.strands[at.index()].as_mut().expect("it was found above");
        let moved = &mut strand.cells[(range.start - strand.start) as usize..(range.end - strand.start) as usize];
        for &cell in &*moved {
            self.cells.release(cell);
        }
        for (cell, position) in moved.iter_mut().zip(range.clone()) {
            *cell = self.cells.take();
            self.owners[cell.index()] = CellOwner { strand: at, position };
        }
    }
}
