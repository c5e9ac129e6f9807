//! Which rows walk over the same cells: streams, each with one ordered list.

use std::cmp::Ordering;
use std::ops::Range;

use super::plan::SLOTS;
use super::{Mask, MaskOrder};

/// A cell and the position it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CellEntry {
    pub(super) position: u32,
    pub(super) cell: u32,
}

/// The entries of a stream whose positions are `SLOTS * number..SLOTS * (number + 1)`.
#[derive(Debug, Clone)]
pub(super) struct PositionBlock {
    pub(super) number: u32,
    pub(super) entries: Range<usize>,
    /// The first entry's cell, if both cells and positions are adjacent from there on.
    pub(super) first: Option<u32>,
}

/// Rows that see cells of one list.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    /// Of `Streams::rows`.
    pub(super) rows: Range<usize>,
    /// Of `Streams::stretches`.
    pub(super) stretches: Range<usize>,
}

/// All streams of a decode, those that share cells beside each other.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) list: Vec<Stream>,
    /// The rows of each stream, one stream after the other.
    pub(super) rows: Vec<u32>,
    pub(super) entries: Vec<CellEntry>,
    pub(super) stretches: Vec<PositionBlock>,
    /// For each row a bit for each cell: whether it is seen.
    pub(super) seen: Vec<u64>,
    pub(super) n_words: usize,
    /// Whether a cell that is seen has anything added to its score.
    pub(super) is_biased: bool,
    union: Vec<u64>,
}

/// Tells for 64 numbers of a mask which are seen, and which of them are zero.
pub(super) type MaskReader = unsafe fn(*const u16) -> (u64, u64);

impl Streams {
    /// Finds them. `look` is for the processor at hand.
    pub(super) fn find(
        &mut self,
        mask: Option<&Mask>,
        (n_rows, n_cells): (usize, usize),
        order: Option<&MaskOrder>,
        look: MaskReader,
    ) {
        self.list.clear();
        self.entries.clear();
        self.stretches.clear();
        self.look_at(mask, (n_rows, n_cells), look);
        self.rows.clear();
        self.rows.extend((0..n_rows).map(index));
        if let Some(order) = order {
            self.rows.sort_by_key(|&row| order.sequence_of_row[row as usize]);
        }
        let mut first = 0;
        while first < n_rows {
            let end = match order {
                Some(order) => self.end_of_sequence(first, order.sequence_of_row),
                None => self.end_of_likes(first),
            };
            self.add(first..end, order.and_then(|order| order.position_of_cell));
            first = end;
        }
        self.sort();
    }

    /// The cells that a row sees.
    pub(super) fn seen_by(&self, row: u32) -> &[u64] {
        &self.seen[row as usize * self.n_words..][..self.n_words]
    }

    fn look_at(&mut self, mask: Option<&Mask>, (n_rows, n_cells): (usize, usize), look: MaskReader) {
        self.n_words = n_cells.div_ceil(64);
        self.is_biased = false;
        self.seen.clear();
        self.seen.reserve(n_rows * self.n_words);
        for row in 0..n_rows {
            let Some(mask) = mask else {
                self.seen.extend((0..self.n_words).map(|word| u64::MAX >> (64 - (n_cells - 64 * word).min(64))));
                continue;
            };
            let (whole, rest) = mask.row(row, n_cells).as_chunks::<64>();
            let mut add = |numbers: &[u16; 64]| {
                // SAFETY: `look` was made for the processor at hand and reads 64 numbers.
                let (seen, zero) = unsafe { look(numbers.as_ptr()) };
                self.is_biased |= seen & !zero != 0;
                self.seen.push(seen);
            };
            whole.iter().for_each(&mut add);
            if !rest.is_empty() {
                let mut numbers = [Mask::HIDDEN; 64];
                numbers[..rest.len()].copy_from_slice(rest);
                add(&numbers);
            }
        }
    }

    fn end_of_sequence(&self, first: usize, sequence_of_row: &[u32]) -> usize {
        let sequence = |at: usize| sequence_of_row[self.rows[at] as usize];
        (first + 1..self.rows.len()).find(|&at| sequence(at) != sequence(first)).unwrap_or(self.rows.len())
    }

    /// Neighbours of which one sees all that the other sees, or that differ as a sliding window's rows do.
    fn end_of_likes(&self, first: usize) -> usize {
        let is_like = |at: usize| {
            let (mut lost, mut gained) = (0, 0);
            for (old, new) in self.seen_by(self.rows[at - 1]).iter().zip(self.seen_by(self.rows[at])) {
                lost += (old & !new).count_ones();
                gained += (new & !old).count_ones();
            }
            lost == 0 || gained == 0 || lost == 1 && gained == 1
        };
        (first + 1..self.rows.len()).find(|&at| !is_like(at)).unwrap_or(self.rows.len())
    }

    fn add(&mut self, rows: Range<usize>, position_of_cell: Option<&[u32]>) {
        self.union.clear();
        self.union.resize(self.n_words, 0);
        for at in rows.clone() {
            let seen = &self.seen[self.rows[at] as usize * self.n_words..][..self.n_words];
            self.union.iter_mut().zip(seen).for_each(|(all, seen)| *all |= seen);
        }
        let first = self.entries.len();
        for (word, &bits) in self.union.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let cell = 64 * word + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let position = position_of_cell.map_or_else(|| index(self.entries.len() - first), |positions| positions[cell]);
                self.entries.push(CellEntry { position, cell: index(cell) });
            }
        }
        if position_of_cell.is_some() {
            let list = &mut self.entries[first..];
            if !list.is_sorted() {
                list.sort_unstable();
            }
            if list.windows(2).any(|pair| pair[0].position == pair[1].position) {
                list.iter_mut().enumerate().for_each(|(rank, entry)| entry.position = index(rank));
            }
        }
        let first_stretch = self.stretches.len();
        self.cut(first);
        self.list.push(Stream { rows, stretches: first_stretch..self.stretches.len() });
    }

    /// Cuts the entries from `first` on into stretches.
    fn cut(&mut self, mut first: usize) {
        let number_of = |entry: &CellEntry| entry.position / index(SLOTS);
        while let Some(start) = self.entries.get(first) {
            let (number, cell) = (number_of(start), start.cell);
            let list = &self.entries[first..];
            let n = list.iter().take(SLOTS).take_while(|entry| number_of(entry) == number).count();
            let list = &list[..n];
            let are_adjacent = (list[n - 1].position - start.position) as usize == n - 1
                && list.iter().zip(cell..).all(|(entry, cell)| entry.cell == cell);
            self.stretches.push(PositionBlock { number, entries: first..first + n, first: are_adjacent.then_some(cell) });
            first += n;
        }
    }

    /// Puts streams that begin alike beside each other. Where windows have left the beginnings behind, what all have counts.
    fn sort(&mut self) {
        if self.list.len() < 2 {
            return;
        }
        let Self { list, entries, stretches, .. } = self;
        let first_number = |stream: &Stream| stretches[stream.stretches.clone()].first().map_or(0, |stretch| stretch.number);
        let newest_start = list.iter().map(first_number).max().unwrap_or(0);
        let tail = |stream: &Stream| {
            let all = &stretches[stream.stretches.clone()];
            if newest_start == 0 { all } else { &all[all.partition_point(|stretch| stretch.number <= newest_start)..] }
        };
        let whole = |stream: &Stream| &stretches[stream.stretches.clone()];
        let compare_two = |a: &PositionBlock, b: &PositionBlock| {
            let (of_a, of_b) = (&entries[a.entries.clone()], &entries[b.entries.clone()]);
            // Adjacent ones are equal where they begin and end alike.
            let are_equal = a.first.is_some() && b.first.is_some() && of_a.len() == of_b.len() && of_a[0] == of_b[0];
            if are_equal { Ordering::Equal } else { of_a.cmp(of_b) }
        };
        let compare = |a: &[PositionBlock], b: &[PositionBlock]| {
            let mut pairs = a.iter().zip(b).map(|(a, b)| compare_two(a, b));
            pairs.find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        };
        list.sort_by(|a, b| compare(tail(a), tail(b)).then_with(|| compare(whole(a), whole(b))));
    }

    /// Whether two streams hold enough of the same cells to be walked together.
    pub(super) fn share(&self, a: &Stream, b: &Stream) -> bool {
        const WORTH_IT: usize = 16;
        let (a, b) = (&self.stretches[a.stretches.clone()], &self.stretches[b.stretches.clone()]);
        let mut others = b.iter().peekable();
        a.iter().any(|one| {
            while others.next_if(|other| other.number < one.number).is_some() {}
            let Some(other) = others.peek().filter(|other| other.number == one.number) else { return false };
            let pairs = self.entries[one.entries.clone()].iter().zip(&self.entries[other.entries.clone()]);
            pairs.take_while(|(a, b)| a == b).take(WORTH_IT).count() == WORTH_IT
        })
    }
}

/// A row or cell as it is stored.
pub(super) fn index(n: usize) -> u32 {
    u32::try_from(n).expect("rows and cells are fewer than 2^32")
}
