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
    /// Where the search for free cells begins.
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

    /// Takes `n` free cells at once for a pinned path, as llama.cpp does for the rows of one decode (`find_slot` in
    /// `llama-kv-cache.cpp`): the next free ones from its head on, or from the start where the head is far beyond what is used.
    ///
    /// # Panics
    /// If fewer are free.
    pub(super) fn take(&mut self, n: usize) -> Vec<CellId> {
        assert!(n <= self.n_free(), "room for {n} cells was made, but {} are free", self.n_free());
        let mut at = self.search_start(self.head, self.n_used, n);
        let mut taken = Vec::with_capacity(n);
        while taken.len() < n {
            if at == self.owners.len() {
                at = 0;
            }
            if self.owners[at].n_paths == 0 {
                self.owners[at] = Owners { n_paths: 1, n_pinned: 1 };
                self.n_reached = self.n_reached.max(at + 1);
                taken.push(CellId(u32::try_from(at).expect("a pool has fewer than 2³² cells")));
            }
            at += 1;
        }
        if n > 0 {
            self.head = at;
        }
        self.n_used += n;
        self.n_pinned += n;
        taken
    }

    fn search_start(&self, head: usize, n_used: usize, n: usize) -> usize {
        if head > n_used + 2 * n { 0 } else { head }
    }

    /// The highest cell that `n` tokens would be put into if `freed`, as many cells, were free.
    pub(super) fn highest_after_moving(&self, freed: &[CellId]) -> Option<CellId> {
        let lowest = freed.iter().min()?.0 as usize;
        let mut at = self.search_start(self.head.min(lowest), self.n_used - freed.len(), freed.len());
        let mut highest = 0;
        let mut n_left = freed.len();
        while n_left > 0 {
            if at == self.owners.len() {
                at = 0;
            }
            let cell = CellId(u32::try_from(at).expect("a pool has fewer than 2³² cells"));
            if self.owners[at].n_paths == 0 || freed.contains(&cell) {
                highest = highest.max(at);
                n_left -= 1;
            }
            at += 1;
        }
        u32::try_from(highest).ok().map(CellId)
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
        assert_eq!(self.n_free() + self.n_evictable() + self.n_pinned, self.n_total(), "free + evictable + pinned = all");
    }
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
    fn cells_are_taken_one_after_another_and_freed_ones_next() {
        let mut cells = Cells::new(16);
        let first = cells.take(4);
        assert_eq!(places(&cells.take(3)), [4, 5, 6]);
        free(&mut cells, &first[1..3]);
        assert_eq!(places(&cells.take(3)), [1, 2, 7]);
        assert_eq!(cells.n_reached(), 8);
    }

    #[test]
    fn a_search_far_beyond_what_is_used_begins_at_the_start() {
        let mut cells = Cells::new(64);
        let low = cells.take(30);
        cells.take(1);
        free(&mut cells, &low);
        let _ = cells.take(1);
        // The head is at 1 and one cell is used at 30.
        assert_eq!(places(&cells.take(2)), [1, 2]);
        let mut cells = Cells::new(64);
        let low = cells.take(30);
        let _ = cells.take(2);
        free(&mut cells, &low[..1]);
        let _ = cells.take(1);
        assert_eq!(cells.n_reached(), 32);
    }

    #[test]
    fn the_highest_cell_falls_when_it_is_freed() {
        let mut cells = Cells::new(16);
        let all = cells.take(8);
        free(&mut cells, &all[6..]);
        assert_eq!(cells.n_reached(), 6);
        free(&mut cells, &all[2..6]);
        assert_eq!((cells.n_reached(), cells.n_used()), (2, 2));
    }

    #[test]
    fn where_cells_would_move_to_is_known_before() {
        let mut cells = Cells::new(32);
        let low = cells.take(10);
        let high = cells.take(2);
        free(&mut cells, &low);
        assert_eq!(cells.highest_after_moving(&high), Some(CellId(1)));
        free(&mut cells, &high);
        assert_eq!(places(&cells.take(2)), [0, 1]);
    }
}
