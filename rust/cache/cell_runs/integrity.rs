//! A recount of all runs.

use crate::cache::cell_runs::{CellRun, CellRunId, CellRuns};

impl CellRuns {
    pub(in crate::cache) fn check_integrity(&self) {
        let all = || (0..).map(CellRunId).zip(&self.runs).filter_map(|(id, run)| Some((id, run.as_ref()?)));
        self.cells.check_integrity(all().flat_map(|(_, run)| run.cells.iter().copied()));
        let mut n_pinned = 0;
        for (id, run) in all() {
            for (&cell, position) in run.cells.iter().zip(run.start..) {
                let owner = self.owners[cell.index()];
                assert_eq!((owner.run, owner.position), (id, position), "the run of {cell:?}");
            }
            let above = run.parent.map(|parent| self.run(parent));
            assert!(above.is_none_or(|above| above.children.contains(&id)), "the parent of {id:?} refers to it");
            assert_eq!(run.start, above.map_or(0, CellRun::end), "{id:?} starts at the end of its parent");
            assert!(run.tips.iter().all(|&tip| self.holders[usize::from(tip.0)].end == Some(id)), "ids end with {id:?}");
            let pinned_tips = run.tips.iter().filter(|&&tip| self.is_pinned(tip)).count();
            let pinned_children = run.children.iter().filter(|&&child| self.run(child).n_pinned > 0).count();
            assert_eq!(run.n_pinned as usize, pinned_tips + pinned_children, "pins of {id:?}");
            assert!(!run.cells.is_empty() && run.tips.len() + run.children.len() > 0, "{id:?} has cells and a holder");
            assert!(!run.tips.is_empty() || run.children.len() != 1, "{id:?} and its child are held by the same ids");
            n_pinned += if run.n_pinned > 0 { run.cells.len() } else { 0 };
        }
        let n_tips: usize = all().map(|(_, run)| run.tips.len()).sum();
        assert_eq!(n_tips, self.holders.iter().filter(|holder| holder.end.is_some()).count(), "every id ends once");
        assert_eq!(n_pinned, self.n_pinned, "pinned cells");
        assert_eq!(self.runs.iter().filter(|run| run.is_none()).count(), self.free.len(), "free ids");
        assert_eq!(
            self.cells.n_free() + self.n_evictable() + self.n_pinned,
            self.cells.n_total(),
            "free + evictable + pinned = all"
        );
    }
}
