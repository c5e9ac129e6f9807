//! How strands are cut, joined and given up.

use std::ops::Range;

use crate::cache::cell_runs::{CellRun, CellRunId, CellRuns};
use crate::cache::cells::CellId;
use crate::cache::{KvSeqId, length_of, visit_counter};

impl CellRuns {
    /// Gives up `strand` and what is above it, as far as nobody holds it, and joins what is held by the same ids.
    pub(super) fn tidy(&mut self, strand: CellRunId) {
        let mut at = Some(strand);
        while let Some(id) = at {
            visit_counter::count_visited(1);
            let strand = self.strand(id);
            match strand.children[..] {
                _ if !strand.tips.is_empty() => return,
                [] => {
                    let strand = self.remove(id);
                    debug_assert!(strand.n_pinned == 0, "what nobody holds is not pinned");
                    self.release(&strand.cells);
                    if let Some(parent) = strand.parent {
                        self.strand_mut(parent).children.retain(|&child| child != id);
                    }
                    at = strand.parent;
                }
                [child] => return self.join(id, child),
                [..] => return,
            }
        }
    }

    pub(super) fn release(&mut self, cells: &[CellId]) {
        for &cell in cells {
            self.cells.release(cell);
        }
    }

    /// The strand that ends after the first `n` cells of `id`, which is cut there; `None` for none of them.
    pub(super) fn cut(&mut self, id: KvSeqId, n: u32) -> Option<CellRunId> {
        let at = self.upwards(id).find(|&at| self.strand(at).start < n)?;
        let end = self.strand(at).end();
        debug_assert!(n <= end, "{n} cells of {id:?}, which holds {end}");
        Some(if end == n { at } else { self.split(at, n) })
    }

    /// Cuts a strand before position `n` and returns the upper part. The shorter part gets a new name, so that few cells must
    /// learn it.
    pub(super) fn split(&mut self, id: CellRunId, n: u32) -> CellRunId {
        let strand = self.strand_mut(id);
        let (parent, start, n_upper) = (strand.parent, strand.start, (n - strand.start) as usize);
        debug_assert!(n_upper > 0 && n_upper < strand.cells.len(), "both parts hold something");
        let upper_pinned = u32::from(strand.n_pinned > 0);
        if n_upper <= strand.cells.len() / 2 {
            let cells: Vec<CellId> = strand.cells.drain(..n_upper).collect();
            strand.start = n;
            let upper = CellRun { parent, children: vec![id], tips: Vec::new(), start, cells, n_pinned: upper_pinned };
            let upper = self.add(upper);
            self.strand_mut(id).parent = Some(upper);
            self.replace_child(parent, id, upper);
            self.rename_cells(upper, 0..n_upper);
            return upper;
        }
        let cells = strand.cells.split_off(n_upper);
        let (children, tips) = (std::mem::take(&mut strand.children), std::mem::take(&mut strand.tips));
        let n_pinned = std::mem::replace(&mut strand.n_pinned, upper_pinned);
        let lower = self.add(CellRun { parent: Some(id), children, tips, start: n, cells, n_pinned });
        self.strand_mut(id).children.push(lower);
        self.rename_cells(lower, 0..usize::MAX);
        self.rename_links(lower);
        id
    }

    /// Joins a strand that is no id's last with its only child. The longer part keeps its name.
    fn join(&mut self, upper: CellRunId, lower: CellRunId) {
        let n_upper = self.strand(upper).cells.len();
        if n_upper < self.strand(lower).cells.len() {
            let above = self.remove(upper);
            let strand = self.strand_mut(lower);
            strand.cells.splice(0..0, above.cells);
            (strand.start, strand.parent) = (above.start, above.parent);
            self.replace_child(above.parent, upper, lower);
            self.rename_cells(lower, 0..n_upper);
            return;
        }
        let below = self.remove(lower);
        let strand = self.strand_mut(upper);
        strand.cells.extend_from_slice(&below.cells);
        (strand.children, strand.tips, strand.n_pinned) = (below.children, below.tips, below.n_pinned);
        self.rename_cells(upper, n_upper..usize::MAX);
        self.rename_links(upper);
    }

    fn replace_child(&mut self, parent: Option<CellRunId>, old: CellRunId, new: CellRunId) {
        let Some(parent) = parent else { return };
        if let Some(child) = self.strand_mut(parent).children.iter_mut().find(|child| **child == old) {
            *child = new;
        }
    }

    /// These cells of `id` learn its name.
    fn rename_cells(&mut self, id: CellRunId, which: Range<usize>) {
        let strand = self.strands[id.index()].as_ref().expect("a name is given up with its strand");
        for cell in &strand.cells[which.start..which.end.min(strand.cells.len())] {
            self.owners[cell.index()].strand = id;
        }
    }

    /// What follows `id`, and the ids that end with it, learn its name.
    fn rename_links(&mut self, id: CellRunId) {
        let strand = self.strand(id);
        let (children, tips) = (strand.children.clone(), strand.tips.clone());
        for child in children {
            self.strand_mut(child).parent = Some(id);
        }
        for tip in tips {
            self.holders[usize::from(tip.0)].end = Some(id);
        }
    }

    pub(super) fn add(&mut self, strand: CellRun) -> CellRunId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.strands.push(None);
            length_of(self.strands.len() - 1)
        });
        self.strands[index as usize] = Some(strand);
        CellRunId(index)
    }

    fn remove(&mut self, id: CellRunId) -> CellRun {
        self.free.push(id.0);
        self.strands[id.index()].take().expect("a strand is given up once")
    }

    pub(super) fn strand(&self, id: CellRunId) -> &CellRun {
        self.strands[id.index()].as_ref().expect("a name is given up with its strand")
    }

    pub(super) fn strand_mut(&mut self, id: CellRunId) -> &mut CellRun {
        self.strands[id.index()].as_mut().expect("a name is given up with its strand")
    }

    /// Compares every count and link with one made anew.
    ///
    /// # Panics
    /// Where one differs.
    pub(in crate::cache) fn check_integrity(&self) {
        let all = || (0..).map(CellRunId).zip(&self.strands).filter_map(|(id, strand)| Some((id, strand.as_ref()?)));
        self.cells.check_integrity(all().flat_map(|(_, strand)| strand.cells.iter().copied()));
        let mut n_pinned = 0;
        for (id, strand) in all() {
            for (&cell, position) in strand.cells.iter().zip(strand.start..) {
                let owner = self.owners[cell.index()];
                assert_eq!((owner.strand, owner.position), (id, position), "what {cell:?} belongs to");
            }
            let above = strand.parent.map(|parent| self.strand(parent));
            assert!(above.is_none_or(|above| above.children.contains(&id)), "{id:?} is known above");
            assert_eq!(strand.start, above.map_or(0, CellRun::end), "{id:?} follows what is above");
            assert!(strand.tips.iter().all(|&tip| self.holders[usize::from(tip.0)].end == Some(id)), "ids end with {id:?}");
            let pinned_tips = strand.tips.iter().filter(|&&tip| self.is_pinned(tip)).count();
            let pinned_children = strand.children.iter().filter(|&&child| self.strand(child).n_pinned > 0).count();
            assert_eq!(strand.n_pinned as usize, pinned_tips + pinned_children, "pins of {id:?}");
            assert!(!strand.cells.is_empty() && strand.tips.len() + strand.children.len() > 0, "{id:?} is of use");
            assert!(!strand.tips.is_empty() || strand.children.len() != 1, "{id:?} and its child are held by the same ids");
            n_pinned += if strand.n_pinned > 0 { strand.cells.len() } else { 0 };
        }
        let n_tips: usize = all().map(|(_, strand)| strand.tips.len()).sum();
        assert_eq!(n_tips, self.holders.iter().filter(|holder| holder.end.is_some()).count(), "every id ends once");
        assert_eq!(n_pinned, self.n_pinned, "pinned cells");
        assert_eq!(self.strands.iter().filter(|strand| strand.is_none()).count(), self.free.len(), "free names");
        assert_eq!(
            self.cells.n_free() + self.n_evictable() + self.n_pinned,
            self.cells.n_total(),
            "free + evictable + pinned = all"
        );
    }
}
