//! Splits, joins and removals of cell runs.

use std::ops::Range;

use crate::cache::cell_runs::{CellRun, CellRunId, CellRuns};
use crate::cache::cells::CellId;
use crate::cache::{KvSeqId, length_of, visit_counter};

impl CellRuns {
    /// Removes `run` and its ancestors up to the first held one, then joins a run with its child if the same ids hold both.
    pub(super) fn prune(&mut self, run: CellRunId) {
        let mut next = Some(run);
        while let Some(id) = next {
            visit_counter::count_visited(1);
            let run = self.run(id);
            match run.children[..] {
                _ if !run.tips.is_empty() => return,
                [] => {
                    let run = self.remove(id);
                    debug_assert!(run.n_pinned == 0, "a run without holders is not pinned");
                    self.release(&run.cells);
                    if let Some(parent) = run.parent {
                        self.run_mut(parent).children.retain(|&child| child != id);
                    }
                    next = run.parent;
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

    /// Returns the run that ends after the first `n` cells of `id`; `None` if `n` is 0.
    pub(super) fn cut(&mut self, id: KvSeqId, n: u32) -> Option<CellRunId> {
        let run = self.upwards(id).find(|&run| self.run(run).start < n)?;
        let end = self.run(run).end();
        debug_assert!(n <= end, "{n} cells of {id:?}, which holds {end}");
        Some(if end == n { run } else { self.split(run, n) })
    }

    /// Splits a run before position `n`; returns the upper part. The shorter part gets a new id: few cells must be updated.
    pub(super) fn split(&mut self, id: CellRunId, n: u32) -> CellRunId {
        let run = self.run_mut(id);
        let (parent, start, n_upper) = (run.parent, run.start, (n - run.start) as usize);
        debug_assert!(n_upper > 0 && n_upper < run.cells.len(), "neither part is empty");
        let n_upper_pinned = u32::from(run.n_pinned > 0);
        if n_upper <= run.cells.len() / 2 {
            let cells: Vec<CellId> = run.cells.drain(..n_upper).collect();
            run.start = n;
            let upper = CellRun { parent, children: vec![id], tips: Vec::new(), start, cells, n_pinned: n_upper_pinned };
            let upper = self.add(upper);
            self.run_mut(id).parent = Some(upper);
            self.replace_child(parent, id, upper);
            self.rename_cells(upper, 0..n_upper);
            return upper;
        }
        let cells = run.cells.split_off(n_upper);
        let (children, tips) = (std::mem::take(&mut run.children), std::mem::take(&mut run.tips));
        let n_pinned = std::mem::replace(&mut run.n_pinned, n_upper_pinned);
        let lower = self.add(CellRun { parent: Some(id), children, tips, start: n, cells, n_pinned });
        self.run_mut(id).children.push(lower);
        self.rename_cells(lower, 0..usize::MAX);
        self.rename_links(lower);
        id
    }

    /// Joins a run that is no id's last with its only child. The longer part keeps its id.
    fn join(&mut self, upper: CellRunId, lower: CellRunId) {
        let n_upper = self.run(upper).cells.len();
        if n_upper < self.run(lower).cells.len() {
            let above = self.remove(upper);
            let run = self.run_mut(lower);
            run.cells.splice(0..0, above.cells);
            (run.start, run.parent) = (above.start, above.parent);
            self.replace_child(above.parent, upper, lower);
            self.rename_cells(lower, 0..n_upper);
            return;
        }
        let below = self.remove(lower);
        let run = self.run_mut(upper);
        run.cells.extend_from_slice(&below.cells);
        (run.children, run.tips, run.n_pinned) = (below.children, below.tips, below.n_pinned);
        self.rename_cells(upper, n_upper..usize::MAX);
        self.rename_links(upper);
    }

    fn replace_child(&mut self, parent: Option<CellRunId>, old: CellRunId, new: CellRunId) {
        let Some(parent) = parent else { return };
        if let Some(child) = self.run_mut(parent).children.iter_mut().find(|child| **child == old) {
            *child = new;
        }
    }

    fn rename_cells(&mut self, id: CellRunId, range: Range<usize>) {
        let run = self.runs[id.index()].as_ref().expect("an id is released with its run");
        for cell in &run.cells[range.start..range.end.min(run.cells.len())] {
            self.owners[cell.index()].run = id;
        }
    }

    fn rename_links(&mut self, id: CellRunId) {
        let run = self.run(id);
        let (children, tips) = (run.children.clone(), run.tips.clone());
        for child in children {
            self.run_mut(child).parent = Some(id);
        }
        for tip in tips {
            self.holders[usize::from(tip.0)].end = Some(id);
        }
    }

    pub(super) fn add(&mut self, run: CellRun) -> CellRunId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.runs.push(None);
            length_of(self.runs.len() - 1)
        });
        self.runs[index as usize] = Some(run);
        CellRunId(index)
    }

    fn remove(&mut self, id: CellRunId) -> CellRun {
        self.free.push(id.0);
        self.runs[id.index()].take().expect("a run is removed once")
    }

    pub(super) fn run(&self, id: CellRunId) -> &CellRun {
        self.runs[id.index()].as_ref().expect("an id is released with its run")
    }

    pub(super) fn run_mut(&mut self, id: CellRunId) -> &mut CellRun {
        self.runs[id.index()].as_mut().expect("an id is released with its run")
    }
}
