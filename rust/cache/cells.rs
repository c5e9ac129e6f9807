//! The free and used cells of the device cache, counted here so that a decode never finds the device cache full.

use crate::cache::visit_counter;

/// Index of a cell in the device cache.
///
/// llama.cpp does not report it, but follows a fixed rule that [`Cells::take`] reproduces. A decode's cost depends on the
/// highest used cell, and a save's cost on the number of contiguous runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CellId(pub(super) u32);

impl CellId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug)]
pub(super) struct Cells {
    /// One bit per cell, 1 if it is used; the padding bits after the last cell are 1.
    used: Vec<u64>,
    n_total: usize,
    n_used: usize,
    head: usize,
    /// Index of the highest used cell, plus one.
    n_cells_reached: usize,
}

const WORD: usize = u64::BITS as usize;

impl Cells {
    pub(super) fn new(n_cells: u32) -> Self {
        let n_total = n_cells as usize;
        let mut used = vec![0; n_total.div_ceil(WORD)];
        if let Some(last) = used.last_mut().filter(|_| !n_total.is_multiple_of(WORD)) {
            *last = u64::MAX << (n_total % WORD);
        }
        Self { used, n_total, n_used: 0, head: 0, n_cells_reached: 0 }
    }

    pub(super) fn n_total(&self) -> usize {
        self.n_total
    }

    pub(super) fn n_free(&self) -> usize {
        self.n_total - self.n_used
    }

    pub(super) fn n_used(&self) -> usize {
        self.n_used
    }

    pub(super) fn n_cells_reached(&self) -> usize {
        self.n_cells_reached
    }

    fn is_used(&self, index: usize) -> bool {
        self.used[index / WORD] >> (index % WORD) & 1 == 1
    }

    /// Takes the lowest free cell, as llama.cpp does for each row of a decode and each token of a reloaded entry (`find_slot`
    /// in `llama-kv-cache.cpp`: its head never passes a free cell, since freeing a lower cell moves it back).
    pub(super) fn take(&mut self) -> CellId {
        assert!(self.n_free() > 0, "the planner frees a cell for each token, but none of {} is free", self.n_total);
        while self.used[self.head] == u64::MAX {
            self.head += 1;
            visit_counter::count_visited(1);
        }
        let bit = self.used[self.head].trailing_ones() as usize;
        self.used[self.head] |= 1 << bit;
        let index = self.head * WORD + bit;
        self.n_used += 1;
        self.n_cells_reached = self.n_cells_reached.max(index + 1);
        CellId(u32::try_from(index).expect("the device cache has fewer than 2³² cells"))
    }

    pub(super) fn take_all(&mut self, n: usize) -> Vec<CellId> {
        (0..n).map(|_| self.take()).collect()
    }

    pub(super) fn release(&mut self, cell: CellId) {
        let index = cell.index();
        debug_assert!(self.is_used(index), "cell {index} is freed once");
        self.used[index / WORD] &= !(1 << (index % WORD));
        self.n_used -= 1;
        self.head = self.head.min(index / WORD);
        if index + 1 == self.n_cells_reached {
            self.n_cells_reached = self.highest_used_below(index);
        }
    }

    /// The cost is amortized: each word passed here was filled cell by cell before.
    fn highest_used_below(&self, end: usize) -> usize {
        let mut word = end / WORD;
        let mut bits = self.used[word] & !(u64::MAX << (end % WORD));
        while bits == 0 {
            if word == 0 {
                return 0;
            }
            word -= 1;
            bits = self.used[word];
            visit_counter::count_visited(1);
        }
        (word + 1) * WORD - bits.leading_zeros() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Cells {
        pub(in crate::cache) fn check_integrity(&self, used: impl Iterator<Item = CellId>) {
            let mut counted = vec![false; self.n_total];
            for cell in used {
                assert!(!counted[cell.index()], "{cell:?} is used once");
                counted[cell.index()] = true;
            }
            for (index, &is_used) in counted.iter().enumerate() {
                assert_eq!(is_used, self.is_used(index), "cell {index} is used");
            }
            assert_eq!(counted.iter().filter(|&&is_used| is_used).count(), self.n_used, "used cells");
            assert_eq!(
                counted.iter().rposition(|&is_used| is_used).map_or(0, |index| index + 1),
                self.n_cells_reached,
                "highest cell"
            );
            assert!(self.used[..self.head].iter().all(|&word| word == u64::MAX), "no cell below the head is free");
        }
    }

    fn numbers(cells: &[CellId]) -> Vec<u32> {
        cells.iter().map(|cell| cell.0).collect()
    }

    #[test]
    fn the_lowest_free_cells_are_taken() {
        let mut cells = Cells::new(200);
        let first = cells.take_all(100);
        assert_eq!(numbers(&cells.take_all(3)), [100, 101, 102]);
        for &cell in &first[62..66] {
            cells.release(cell);
        }
        assert_eq!(numbers(&cells.take_all(6)), [62, 63, 64, 65, 103, 104]);
        assert_eq!((cells.n_cells_reached(), cells.n_free()), (105, 95));
        cells.take_all(95);
        assert_eq!((cells.n_cells_reached(), cells.n_free()), (200, 0));
    }

    #[test]
    fn freeing_the_highest_cell_lowers_the_reached_count() {
        let mut cells = Cells::new(300);
        let all = cells.take_all(200);
        for &cell in &all[150..] {
            cells.release(cell);
        }
        assert_eq!(cells.n_cells_reached(), 150);
        for &cell in all[2..150].iter().rev() {
            cells.release(cell);
        }
        assert_eq!((cells.n_cells_reached(), cells.n_used()), (2, 2));
        cells.release(all[0]);
        assert_eq!(cells.n_cells_reached(), 2);
        cells.release(all[1]);
        assert_eq!(cells.n_cells_reached(), 0);
        cells.check_integrity(std::iter::empty());
    }
}
