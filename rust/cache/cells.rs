//! The cells of the pool: who owns which, counted here, so that a decode never finds the pool full.

/// A cell of the pool, by its place in it.
///
/// llama.cpp never says where it puts a token. But it follows a fixed rule, and [`Cells::take`] follows it too, so that the
/// numbers are its own: what a decode costs depends on the highest used one, and what a save costs on how they are scattered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CellId(pub(super) u32);

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
    n_used: usize,
    n_pinned: usize,
    /// No cell below is free.
    head: usize,
    /// The highest used cell, plus one.
    n_reached: usize,
}

impl Cells {
    pub(super) fn new(n_cells: u32) -> Self {
        Self { owners: vec![Owners::default(); n_cells as usize], n_used: 0, n_pinned: 0, head: 0, n_reached: 0 }
    }

    pub(super) fn n_total(&self) -> usize {
        self.owners.len()
    }

    pub(super) fn n_free(&self) -> usize {
        self.n_total() - self.n_used
    }

    pub(super) fn n_used(&self) -> usize {
        self.n_used
    }

    pub(super) fn n_evictable(&self) -> usize {
        self.n_used - self.n_pinned
    }

    /// The highest used cell, plus one.
    pub(super) fn n_reached(&self) -> usize {
        self.n_reached
    }

    pub(super) fn is_pinned(&self, cell: CellId) -> bool {
        self.owners[cell.0 as usize].n_pinned > 0
    }

    /// Takes the lowest free cell for a pinned path, as llama.cpp does for each row of a decode in turn and for each token of a
    /// restored piece (`find_slot` in `llama-kv-cache.cpp`: its head never passes a free cell, since whatever frees one below moves
    /// it back).
    ///
    /// # Panics
    /// If none is free.
    pub(super) fn take(&mut self) -> CellId {
        assert!(self.n_free() > 0, "room for each token was made, but none of {} cells is free", self.n_total());
        while self.owners[self.head].n_paths > 0 {
            self.head += 1;
        }
        self.owners[self.head] = Owners { n_paths: 1, n_pinned: 1 };
        let taken = cell_at(self.head);
        self.head += 1;
        self.n_reached = self.n_reached.max(self.head);
        self.n_used += 1;
        self.n_pinned += 1;
        taken
    }

    /// Takes `n` cells as [`Cells::take`] does, in order.
    ///
    /// # Panics
    /// If fewer are free.
    pub(super) fn take_all(&mut self, n: usize) -> Vec<CellId> {
        (0..n).map(|_| self.take()).collect()
    }

    /// The highest cell that `freed` would be moved to.
    pub(super) fn highest_after_moving(&self, freed: &[CellId]) -> Option<CellId> {
        let lowest = freed.iter().min()?.0 as usize;
        let is_free = |&at: &usize| self.owners[at].n_paths == 0 || freed.contains(&cell_at(at));
        (self.head.min(lowest)..self.n_total()).filter(is_free).nth(freed.len() - 1).map(cell_at)
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
        let place = cell.0 as usize;
        let owners = &mut self.owners[place];
        owners.n_paths -= 1;
        if owners.n_paths == 0 {
            self.n_used -= 1;
            self.head = self.head.min(place);
            while self.n_reached > 0 && self.owners[self.n_reached - 1].n_paths == 0 {
                self.n_reached -= 1;
            }
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
        assert_eq!(counted.iter().filter(|owners| owners.n_paths > 0).count(), self.n_used, "used cells");
        assert_eq!(counted.iter().filter(|owners| owners.n_pinned > 0).count(), self.n_pinned, "pinned cells");
        assert_eq!(counted.iter().rposition(|owners| owners.n_paths > 0).map_or(0, |at| at + 1), self.n_reached, "highest cell");
        assert!(counted[..self.head].iter().all(|owners| owners.n_paths > 0), "no cell below the head is free");
        assert_eq!(self.n_free() + self.n_evictable() + self.n_pinned, self.n_total(), "free + evictable + pinned = all");
    }
}

fn cell_at(place: usize) -> CellId {
    CellId(u32::try_from(place).expect("a pool has fewer than 2³² cells"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(cells: &[CellId]) -> Vec<u32> {
        cells.iter().map(|cell| cell.0).collect()
    }

    fn free(cells: &mut Cells, freed: &[CellId]) {
        for &cell in freed {
            cells.unpin(cell);
            cells.release(cell);
        }
    }

    #[test]
    fn the_lowest_free_cells_are_taken() {
        let mut cells = Cells::new(16);
        let first = cells.take_all(4);
        assert_eq!(places(&cells.take_all(3)), [4, 5, 6]);
        free(&mut cells, &first[1..3]);
        assert_eq!(places(&cells.take_all(3)), [1, 2, 7]);
        assert_eq!(cells.n_reached(), 8);
    }

    #[test]
    fn the_highest_cell_falls_when_it_is_freed() {
        let mut cells = Cells::new(16);
        let all = cells.take_all(8);
        free(&mut cells, &all[6..]);
        assert_eq!(cells.n_reached(), 6);
        free(&mut cells, &all[2..6]);
        assert_eq!((cells.n_reached(), cells.n_used()), (2, 2));
    }

    #[test]
    fn where_cells_would_move_to_is_known_before() {
        let mut cells = Cells::new(32);
        let low = cells.take_all(10);
        let high = cells.take_all(2);
        free(&mut cells, &low);
        assert_eq!(cells.highest_after_moving(&high), Some(CellId(1)));
        free(&mut cells, &high);
        assert_eq!(places(&cells.take_all(2)), [0, 1]);
    }
}
