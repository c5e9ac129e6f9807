//! Who owns the cells of the pool: counted here, so that a decode never finds the pool full.

/// A cell of the pool. The number is ours: llama.cpp places cells as it likes, but as many of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CellId(u32);

/// How many paths hold a cell, and how many of these are pinned.
#[derive(Debug, Clone, Copy, Default)]
struct Owners {
    n_paths: u16,
    n_pinned: u16,
}

/// Every cell of the pool: free, evictable (held by idle paths alone) or pinned (held by a running sequence).
#[derive(Debug)]
pub(super) struct Cells {
    owners: Vec<Owners>,
    free: Vec<CellId>,
    n_pinned: usize,
}

impl Cells {
    pub(super) fn new(n_cells: u32) -> Self {
        Self { owners: vec![Owners::default(); n_cells as usize], free: (0..n_cells).rev().map(CellId).collect(), n_pinned: 0 }
    }

    pub(super) fn n_total(&self) -> usize {
        self.owners.len()
    }

    pub(super) fn n_free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn n_evictable(&self) -> usize {
        self.n_total() - self.n_free() - self.n_pinned
    }

    pub(super) fn is_pinned(&self, cell: CellId) -> bool {
        self.owners[cell.0 as usize].n_pinned > 0
    }

    /// Takes a free cell for a pinned path.
    pub(super) fn take(&mut self) -> Option<CellId> {
        let cell = self.free.pop()?;
        self.owners[cell.0 as usize] = Owners { n_paths: 1, n_pinned: 1 };
        self.n_pinned += 1;
        Some(cell)
    }

    /// Gives `cell`, which some path holds, to one more pinned path.
    pub(super) fn share(&mut self, cell: CellId) {
        self.owners[cell.0 as usize].n_paths += 1;
        self.pin(cell);
    }

    /// One more of the paths that hold `cell` is pinned.
    pub(super) fn pin(&mut self, cell: CellId) {
        let owners = &mut self.owners[cell.0 as usize];
        self.n_pinned += usize::from(owners.n_pinned == 0);
        owners.n_pinned += 1;
    }

    /// One of the pinned paths that hold `cell` is idle now.
    pub(super) fn unpin(&mut self, cell: CellId) {
        let owners = &mut self.owners[cell.0 as usize];
        owners.n_pinned -= 1;
        self.n_pinned -= usize::from(owners.n_pinned == 0);
    }

    /// An idle path gives up `cell`; the last one frees it.
    pub(super) fn release(&mut self, cell: CellId) {
        let owners = &mut self.owners[cell.0 as usize];
        owners.n_paths -= 1;
        if owners.n_paths == 0 {
            self.free.push(cell);
        }
    }

    /// Compares every count with one made anew from `paths`: the cells of each path, and whether it is pinned.
    ///
    /// # Panics
    /// Where one differs.
    pub(super) fn check_integrity<'a>(&self, paths: impl Iterator<Item = (&'a [CellId], bool)>) {
        let mut counted = vec![Owners::default(); self.n_total()];
        for (cells, is_pinned) in paths {
            for cell in cells {
                counted[cell.0 as usize].n_paths += 1;
                counted[cell.0 as usize].n_pinned += u16::from(is_pinned);
            }
        }
        for (cell, (counted, kept)) in counted.iter().zip(&self.owners).enumerate() {
            assert_eq!((counted.n_paths, counted.n_pinned), (kept.n_paths, kept.n_pinned), "owners of cell {cell}");
        }
        assert_eq!(counted.iter().filter(|owners| owners.n_paths == 0).count(), self.n_free(), "free cells");
        assert_eq!(counted.iter().filter(|owners| owners.n_pinned > 0).count(), self.n_pinned, "pinned cells");
        assert_eq!(self.n_free() + self.n_evictable() + self.n_pinned, self.n_total(), "free + evictable + pinned = all");
    }
}
