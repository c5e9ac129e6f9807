//! Groups of rows that are processed together, and which of their rows use which cells of each block.

use std::ops::Range;

use super::plan::SLOTS;
use super::streams::{PositionBlock, RowStream, RowStreams, index};

/// Slots within which adjacent streams either hold the same cells or are processed separately.
const PANEL: usize = 16;
const N_PANELS: usize = SLOTS / PANEL;
/// A slot without a cell.
const NONE: u32 = u32::MAX;

/// Bit mask of the slots of a block that a row sees.
pub(super) type Visibility = [u64; SLOTS / 64];

/// Adjacent slots of a block that are shared by adjacent rows of a group.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    /// Range within the group's rows.
    pub(super) rows: Range<usize>,
    pub(super) first_slot: usize,
    /// Range of `Groups::cells`, one per slot.
    pub(super) cells: Range<usize>,
}

#[derive(Debug, Clone)]
pub(super) struct CellBlock {
    /// The segments of a row are ordered by slot.
    pub(super) segments: Range<usize>,
    /// Index into `Groups::visibility_masks`; one mask per row of the group follows.
    pub(super) first_visibility: usize,
    /// No row sees a slot at or after this one.
    pub(super) n_slots: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) rows: Range<usize>,
    /// Ordered by position.
    pub(super) blocks: Range<usize>,
}

/// All groups of a decode. The ranges above index its fields.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) list: Vec<Group>,
    pub(super) rows: Vec<u32>,
    pub(super) blocks: Vec<CellBlock>,
    pub(super) segments: Vec<Segment>,
    pub(super) cells: Vec<u32>,
    pub(super) visibility_masks: Vec<Visibility>,
    members: Vec<Member>,
    block_members: Vec<BlockMember>,
    open_segments: Vec<OpenSegment>,
}

#[derive(Debug)]
struct Member {
    /// Range within the group's rows.
    rows: Range<usize>,
    /// Remaining blocks of its stream: a range of `RowStreams::position_blocks`.
    position_blocks: Range<usize>,
}

#[derive(Debug)]
struct BlockMember {
    rows: Range<usize>,
    slots: [u32; SLOTS],
}

/// A segment that later panels may still extend.
#[derive(Debug)]
struct OpenSegment {
    members: Range<usize>,
    panels: Range<usize>,
}

impl Groups {
    pub(super) fn rebuild(&mut self, streams: &RowStreams, max_rows: usize) {
        self.list.clear();
        self.rows.clear();
        self.blocks.clear();
        self.segments.clear();
        self.cells.clear();
        self.visibility_masks.clear();
        let mut last: Option<&RowStream> = None;
        for stream in &streams.list {
            let n_taken = self.n_taken();
            if n_taken == max_rows || last.is_some_and(|last| n_taken > 0 && !streams.share_cells(last, stream)) {
                self.close(streams);
            }
            last = Some(stream);
            // A stream of more rows is cut into parts of about equal size.
            let n_parts = stream.rows.len().div_ceil(max_rows);
            let mut first = stream.rows.start;
            for part in 0..n_parts {
                let n = (stream.rows.end - first).div_ceil(n_parts - part);
                if self.n_taken() + n > max_rows {
                    self.close(streams);
                }
                let n_taken = self.n_taken();
                self.members.push(Member { rows: n_taken..n_taken + n, position_blocks: stream.position_blocks.clone() });
                self.rows.extend_from_slice(&streams.rows[first..first + n]);
                first += n;
            }
        }
        self.close(streams);
    }

    /// Rows in the open group.
    fn n_taken(&self) -> usize {
        self.members.last().map_or(0, |member| member.rows.end)
    }

    fn close(&mut self, streams: &RowStreams) {
        let n_rows = self.n_taken();
        if n_rows == 0 {
            return;
        }
        let first_block = self.blocks.len();
        let first_row = self.rows.len() - n_rows;
        let next = |members: &[Member]| {
            let firsts = members.iter().filter_map(|member| streams.position_blocks[member.position_blocks.clone()].first());
            firsts.map(|block| block.number).min()
        };
        while let Some(number) = next(&self.members) {
            self.add_block(streams, number, first_row);
        }
        self.members.clear();
        self.list.push(Group { rows: first_row..self.rows.len(), blocks: first_block..self.blocks.len() });
    }

    fn add_block(&mut self, streams: &RowStreams, number: u32, first_row: usize) {
        let first_visibility = self.visibility_masks.len();
        let n_rows = self.rows.len() - first_row;
        self.visibility_masks.resize(first_visibility + n_rows, [0; SLOTS / 64]);
        self.block_members.clear();
        let mut all = [0; SLOTS / 64];
        // The slots and the first cell of a group of one stream, where cells and slots are contiguous.
        let mut contiguous: Option<(Range<usize>, u32)> = None;
        let has_one_stream = self.members.len() == 1;
        for member in &mut self.members {
            let Some(position_block) = streams.position_blocks[member.position_blocks.clone()].first() else { continue };
            if position_block.number != number {
                continue;
            }
            member.position_blocks.start += 1;
            let mut union = [0; SLOTS / 64];
            for row in member.rows.clone() {
                let visibility = visibility_of(streams, position_block, self.rows[first_row + row]);
                self.visibility_masks[first_visibility + row] = visibility;
                union.iter_mut().zip(visibility).for_each(|(all, visible)| *all |= visible);
            }
            if union == [0; SLOTS / 64] {
                continue;
            }
            all.iter_mut().zip(union).for_each(|(all, visible)| *all |= visible);
            if let (true, Some(cell)) = (has_one_stream, position_block.first) {
                let first_slot = streams.entries[position_block.entries.start].position as usize % SLOTS;
                contiguous = visible_run(&union).map(|slots| (slots.clone(), cell + index(slots.start - first_slot)));
                if contiguous.is_some() {
                    continue;
                }
            }
            let mut slots = [NONE; SLOTS];
            for entry in &streams.entries[position_block.entries.clone()] {
                let slot = entry.position as usize % SLOTS;
                if union[slot / 64] >> (slot % 64) & 1 == 1 {
                    slots[slot] = entry.cell;
                }
            }
            self.block_members.push(BlockMember { rows: member.rows.clone(), slots });
        }
        let Some(word) = all.iter().rposition(|&word| word != 0) else {
            self.visibility_masks.truncate(first_visibility);
            return;
        };
        let n_slots = 64 * word + 64 - all[word].leading_zeros() as usize;
        let first_segment = self.segments.len();
        if let Some((slots, cell)) = contiguous {
            let first_cell = self.cells.len();
            self.cells.extend((cell..).take(slots.len()));
            self.segments.push(Segment { rows: 0..n_rows, first_slot: slots.start, cells: first_cell..self.cells.len() });
        } else {
            self.add_segments();
        }
        self.blocks.push(CellBlock { segments: first_segment..self.segments.len(), first_visibility, n_slots });
    }

    /// Cuts the current block into segments: the longest runs of panels in which the same streams hold the same cells.
    fn add_segments(&mut self) {
        self.open_segments.clear();
        let mut first_open = 0;
        for panel in 0..N_PANELS {
            let slots = |member: usize| &self.block_members[member].slots[PANEL * panel..][..PANEL];
            let n_open = self.open_segments.len();
            let mut first = 0;
            while first < self.block_members.len() {
                let end = (first + 1..self.block_members.len()).find(|&member| slots(member) != slots(first));
                let members = first..end.unwrap_or(self.block_members.len());
                first = members.end;
                if slots(members.start).iter().all(|&cell| cell == NONE) {
                    continue;
                }
                let continued = self.open_segments[first_open..n_open].iter_mut();
                match continued.into_iter().find(|open| open.panels.end == panel && open.members == members) {
                    Some(open) => open.panels.end += 1,
                    None => self.open_segments.push(OpenSegment { members, panels: panel..panel + 1 }),
                }
            }
            while self.open_segments.get(first_open).is_some_and(|open| open.panels.end <= panel) {
                first_open += 1;
            }
        }
        for open in &self.open_segments {
            let (first, last) = (&self.block_members[open.members.start], &self.block_members[open.members.end - 1]);
            let slots = PANEL * open.panels.start..PANEL * open.panels.end;
            let is_cell = |&slot: &usize| first.slots[slot] != NONE;
            let (Some(from), Some(to)) = (slots.clone().find(is_cell), slots.rev().find(is_cell)) else { continue };
            let first_cell = self.cells.len();
            let mut cell = NONE;
            for slot in from..=to {
                // A gap is filled with a neighbouring cell, whose product is masked for every row.
                cell = if first.slots[slot] == NONE { cell } else { first.slots[slot] };
                self.cells.push(cell);
            }
            let rows = first.rows.start..last.rows.end;
            self.segments.push(Segment { rows, first_slot: from, cells: first_cell..self.cells.len() });
        }
    }
}

/// Returns the range of visible slots, if it has no gap.
fn visible_run(visibility: &Visibility) -> Option<Range<usize>> {
    let first = visibility.iter().position(|&word| word != 0)?;
    let last = visibility.iter().rposition(|&word| word != 0)?;
    let start = 64 * first + visibility[first].trailing_zeros() as usize;
    let end = 64 * last + 64 - visibility[last].leading_zeros() as usize;
    let n_visible: u32 = visibility.iter().map(|word| word.count_ones()).sum();
    (n_visible as usize == end - start).then_some(start..end)
}

/// Returns the slots of a block that a row sees.
fn visibility_of(streams: &RowStreams, position_block: &PositionBlock, row: u32) -> Visibility {
    let visible = streams.visible_cells(row);
    let mut visibility = [0; SLOTS / 64];
    let entries = &streams.entries[position_block.entries.clone()];
    let first_slot = entries[0].position as usize % SLOTS;
    let Some(first_cell) = position_block.first else {
        for entry in entries {
            let (cell, slot) = (entry.cell as usize, entry.position as usize % SLOTS);
            visibility[slot / 64] |= (visible[cell / 64] >> (cell % 64) & 1) << (slot % 64);
        }
        return visibility;
    };
    // Contiguous cells at contiguous positions: bits are copied word by word.
    let mut done = 0;
    while done < entries.len() {
        let (cell, slot) = (first_cell as usize + done, first_slot + done);
        let n = (64 - cell % 64).min(64 - slot % 64).min(entries.len() - done);
        let bits = visible[cell / 64] >> (cell % 64) & (u64::MAX >> (64 - n));
        visibility[slot / 64] |= bits << (slot % 64);
        done += n;
    }
    visibility
}

const _: () = assert!(SLOTS.is_multiple_of(64) && SLOTS.is_multiple_of(PANEL));
