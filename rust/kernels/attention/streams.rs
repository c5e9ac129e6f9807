//! Streams: rows that see cells of one ordered list.

use std::cmp::Ordering;
use std::ops::Range;

use super::plan::SLOTS;
use super::{Mask, MaskOrder};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CellEntry {
    pub(super) position: u32,
    pub(super) cell: u32,
}

/// A stream's entries at positions `SLOTS * number..SLOTS * (number + 1)`.
#[derive(Debug, Clone)]
pub(super) struct PositionBlock {
    pub(super) number: u32,
    pub(super) entries: Range<usize>,
    /// The first entry's cell, if both cells and positions are contiguous.
    pub(super) first: Option<u32>,
}

#[derive(Debug, Clone)]
pub(super) struct RowStream {
    pub(super) rows: Range<usize>,
    pub(super) position_blocks: Range<usize>,
}

/// All streams of a decode. Streams that share cells are adjacent. The ranges above index its fields.
#[derive(Debug, Default)]
pub(super) struct RowStreams {
    pub(super) list: Vec<RowStream>,
    pub(super) rows: Vec<u32>,
    pub(super) entries: Vec<CellEntry>,
    pub(super) position_blocks: Vec<PositionBlock>,
    /// Visible cells: one bit per row and cell.
    pub(super) visible: Vec<u64>,
    pub(super) n_words: usize,
    /// True if the mask adds a nonzero bias to a visible cell's score.
    pub(super) is_biased: bool,
    union: Vec<u64>,
}

/// Reads 64 mask values and returns the bits of the visible ones and of the zeros.
pub(super) type MaskReader = unsafe fn(*const u16) -> (u64, u64);

impl RowStreams {
    /// `read_mask` must be for an instruction set that the processor supports.
    pub(super) fn rebuild(
        &mut self,
        mask: Option<&Mask>,
        (n_rows, n_cells): (usize, usize),
        order: Option<&MaskOrder>,
        read_mask: MaskReader,
    ) {
        self.list.clear();
        self.entries.clear();
        self.position_blocks.clear();
        self.read_mask_rows(mask, (n_rows, n_cells), read_mask);
        self.rows.clear();
        self.rows.extend((0..n_rows).map(index));
        if let Some(order) = order {
            self.rows.sort_by_key(|&row| order.sequence_of_row[row as usize]);
        }
        let mut first = 0;
        while first < n_rows {
            let end = match order {
                Some(order) => self.end_of_sequence(first, order.sequence_of_row),
                None => self.end_of_similar_rows(first),
            };
            self.add_stream(first..end, order.and_then(|order| order.position_of_cell));
            first = end;
        }
        self.sort();
    }

    pub(super) fn visible_cells(&self, row: u32) -> &[u64] {
        &self.visible[row as usize * self.n_words..][..self.n_words]
    }

    fn read_mask_rows(&mut self, mask: Option<&Mask>, (n_rows, n_cells): (usize, usize), read_mask: MaskReader) {
        self.n_words = n_cells.div_ceil(64);
        self.is_biased = false;
        self.visible.clear();
        self.visible.reserve(n_rows * self.n_words);
        for row in 0..n_rows {
            let Some(mask) = mask else {
                self.visible.extend((0..self.n_words).map(|word| u64::MAX >> (64 - (n_cells - 64 * word).min(64))));
                continue;
            };
            let (whole, rest) = mask.row(row, n_cells).as_chunks::<64>();
            let mut add = |numbers: &[u16; 64]| {
                // SAFETY: `read_mask` was chosen for the processor, and reads 64 elements.
                let (visible, zero) = unsafe { read_mask(numbers.as_ptr()) };
                self.is_biased |= visible & !zero != 0;
                self.visible.push(visible);
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

    /// Returns the end of a run of rows in which each row, compared with the row before, sees a subset or a superset of its
    /// cells, or differs by one lost and one gained cell as in a sliding window.
    fn end_of_similar_rows(&self, first: usize) -> usize {
        let is_similar = |at: usize| {
            let (mut lost, mut gained) = (0, 0);
            for (old, new) in self.visible_cells(self.rows[at - 1]).iter().zip(self.visible_cells(self.rows[at])) {
                lost += (old & !new).count_ones();
                gained += (new & !old).count_ones();
            }
            lost == 0 || gained == 0 || lost == 1 && gained == 1
        };
        (first + 1..self.rows.len()).find(|&at| !is_similar(at)).unwrap_or(self.rows.len())
    }

    fn add_stream(&mut self, rows: Range<usize>, position_of_cell: Option<&[u32]>) {
        self.union.clear();
        self.union.resize(self.n_words, 0);
        for at in rows.clone() {
            let visible = &self.visible[self.rows[at] as usize * self.n_words..];
            self.union.iter_mut().zip(visible).for_each(|(all, visible)| *all |= visible);
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
        let first_position_block = self.position_blocks.len();
        self.add_position_blocks(first);
        self.list.push(RowStream { rows, position_blocks: first_position_block..self.position_blocks.len() });
    }

    fn add_position_blocks(&mut self, mut first: usize) {
        let number_of = |entry: &CellEntry| entry.position / index(SLOTS);
        while let Some(start) = self.entries.get(first) {
            let (number, cell) = (number_of(start), start.cell);
            let list = &self.entries[first..];
            let n = list.iter().take(SLOTS).take_while(|entry| number_of(entry) == number).count();
            let list = &list[..n];
            let are_adjacent = (list[n - 1].position - start.position) as usize == n - 1
                && list.iter().zip(cell..).all(|(entry, cell)| entry.cell == cell);
            self.position_blocks.push(PositionBlock { number, entries: first..first + n, first: are_adjacent.then_some(cell) });
            first += n;
        }
    }

    /// Makes streams with the same first cells adjacent. Where sliding windows have dropped the first blocks of some streams,
    /// the blocks that all streams have are compared first.
    fn sort(&mut self) {
        if self.list.len() < 2 {
            return;
        }
        let Self { list, entries, position_blocks, .. } = self;
        let whole = |stream: &RowStream| &position_blocks[stream.position_blocks.clone()];
        let first_number = |stream: &RowStream| whole(stream).first().map_or(0, |block| block.number);
        let newest_start = list.iter().map(first_number).max().unwrap_or(0);
        let tail = |stream: &RowStream| {
            let all = whole(stream);
            if newest_start == 0 { all } else { &all[all.partition_point(|block| block.number <= newest_start)..] }
        };
        let compare_two = |a: &PositionBlock, b: &PositionBlock| {
            let (of_a, of_b) = (&entries[a.entries.clone()], &entries[b.entries.clone()]);
            // Contiguous blocks are equal if they have the same first entry and the same length.
            let are_equal = a.first.is_some() && b.first.is_some() && of_a.len() == of_b.len() && of_a[0] == of_b[0];
            if are_equal { Ordering::Equal } else { of_a.cmp(of_b) }
        };
        let compare = |a: &[PositionBlock], b: &[PositionBlock]| {
            let mut pairs = a.iter().zip(b).map(|(a, b)| compare_two(a, b));
            pairs.find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        };
        list.sort_by(|a, b| compare(tail(a), tail(b)).then_with(|| compare(whole(a), whole(b))));
    }

    /// Returns true if two streams share enough cells to form a group.
    pub(super) fn share_cells(&self, a: &RowStream, b: &RowStream) -> bool {
        const MIN_SHARED: usize = 16;
        let (a, b) = (&self.position_blocks[a.position_blocks.clone()], &self.position_blocks[b.position_blocks.clone()]);
        let mut others = b.iter().peekable();
        a.iter().any(|one| {
            while others.next_if(|other| other.number < one.number).is_some() {}
            let Some(other) = others.peek().filter(|other| other.number == one.number) else { return false };
            let pairs = self.entries[one.entries.clone()].iter().zip(&self.entries[other.entries.clone()]);
            pairs.take_while(|(a, b)| a == b).take(MIN_SHARED).count() == MIN_SHARED
        })
    }
}

pub(super) fn index(n: usize) -> u32 {
    u32::try_from(n).expect("rows and cells are fewer than 2^32")
}
