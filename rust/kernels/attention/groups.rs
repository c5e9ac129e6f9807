//! Groups: rows that are walked together, and for each block of positions who meets which cells.

use std::ops::Range;

use super::plan::SLOTS;
use super::streams::{PositionBlock, Stream, Streams, index};

/// Slots that are shared as one: in each, neighbouring streams hold the same cells or go on alone.
const PANEL: usize = 16;
const N_PANELS: usize = SLOTS / PANEL;
/// No cell.
const NONE: u32 = u32::MAX;

/// Which slots of a block a row sees.
pub(super) type Visibility = [u64; SLOTS / 64];

/// Neighbouring slots of a block that some neighbouring rows of a group meet.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    /// Of the group.
    pub(super) rows: Range<usize>,
    pub(super) first_slot: usize,
    /// Of `Groups::cells`, one per slot.
    pub(super) cells: Range<usize>,
}

/// A block of positions of a group.
#[derive(Debug, Clone)]
pub(super) struct Block {
    /// Of `Groups::segments`. Those of a row are in the order of their slots.
    pub(super) segments: Range<usize>,
    /// Of `Groups::visibility_masks`, one per row of the group.
    pub(super) first_sight: usize,
    /// No row sees anything from here on.
    pub(super) n_slots: usize,
}

/// Rows that are walked together.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// Of `Groups::rows`.
    pub(super) rows: Range<usize>,
    /// Of `Groups::blocks`, in the order of positions.
    pub(super) blocks: Range<usize>,
}

/// All groups of a decode.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) list: Vec<Group>,
    pub(super) rows: Vec<u32>,
    pub(super) blocks: Vec<Block>,
    pub(super) segments: Vec<Segment>,
    pub(super) cells: Vec<u32>,
    pub(super) visibility_masks: Vec<Visibility>,
    members: Vec<Member>,
    present: Vec<BlockMember>,
    open: Vec<OpenSegment>,
}

/// The rows of one stream in a group.
#[derive(Debug)]
struct Member {
    /// Of the group.
    rows: Range<usize>,
    /// What is left of its stream: of `Streams::stretches`.
    stretches: Range<usize>,
}

/// A member's part of the block at hand.
#[derive(Debug)]
struct BlockMember {
    rows: Range<usize>,
    slots: [u32; SLOTS],
}

/// A segment whose end is not yet known.
#[derive(Debug)]
struct OpenSegment {
    members: Range<usize>,
    panels: Range<usize>,
}

impl Groups {
    /// Forms them, of at most `max_rows` rows each.
    pub(super) fn form(&mut self, streams: &Streams, max_rows: usize) {
        self.list.clear();
        self.rows.clear();
        self.blocks.clear();
        self.segments.clear();
        self.cells.clear();
        self.visibility_masks.clear();
        let mut last: Option<&Stream> = None;
        for stream in &streams.list {
            let n_taken: usize = self.members.last().map_or(0, |member| member.rows.end);
            if n_taken == max_rows || last.is_some_and(|last| n_taken > 0 && !streams.share(last, stream)) {
                self.close(streams);
            }
            last = Some(stream);
            // A stream of many rows is cut into parts of about one size.
            let n_parts = stream.rows.len().div_ceil(max_rows);
            let mut first = stream.rows.start;
            for part in 0..n_parts {
                let n_taken: usize = self.members.last().map_or(0, |member| member.rows.end);
                let n = (stream.rows.end - first).div_ceil(n_parts - part);
                if n_taken + n > max_rows {
                    self.close(streams);
                }
                let n_taken: usize = self.members.last().map_or(0, |member| member.rows.end);
                self.members.push(Member { rows: n_taken..n_taken + n, stretches: stream.stretches.clone() });
                self.rows.extend_from_slice(&streams.rows[first..first + n]);
                first += n;
            }
        }
        self.close(streams);
    }

    /// Ends the group that `members` are of.
    fn close(&mut self, streams: &Streams) {
        let n_rows = self.members.last().map_or(0, |member| member.rows.end);
        if n_rows == 0 {
            return;
        }
        let first_block = self.blocks.len();
        let first_row = self.rows.len() - n_rows;
        let next = |members: &[Member]| {
            members.iter().filter_map(|member| Some(streams.stretches[member.stretches.clone()].first()?.number)).min()
        };
        while let Some(number) = next(&self.members) {
            self.add_block(streams, number, first_row);
        }
        self.members.clear();
        self.list.push(Group { rows: first_row..self.rows.len(), blocks: first_block..self.blocks.len() });
    }

    fn add_block(&mut self, streams: &Streams, number: u32, first_row: usize) {
        let first_sight = self.visibility_masks.len();
        let n_rows = self.rows.len() - first_row;
        self.visibility_masks.resize(first_sight + n_rows, [0; SLOTS / 64]);
        self.present.clear();
        let mut all = [0; SLOTS / 64];
        // The slots and the first cell of a stream that shares with nobody, where these are adjacent.
        let mut only: Option<(Range<usize>, u32)> = None;
        let is_alone = self.members.len() == 1;
        for member in &mut self.members {
            let Some(stretch) = streams.stretches[member.stretches.clone()].first() else { continue };
            if stretch.number != number {
                continue;
            }
            member.stretches.start += 1;
            let mut union = [0; SLOTS / 64];
            for row in member.rows.clone() {
                let sight = sight_of(streams, stretch, self.rows[first_row + row]);
                self.visibility_masks[first_sight + row] = sight;
                union.iter_mut().zip(sight).for_each(|(all, seen)| *all |= seen);
            }
            if union == [0; SLOTS / 64] {
                continue;
            }
            all.iter_mut().zip(union).for_each(|(all, seen)| *all |= seen);
            if let (true, Some(cell)) = (is_alone, stretch.first) {
                let first_slot = streams.entries[stretch.entries.start].position as usize % SLOTS;
                only = run_of(&union).map(|slots| (slots.clone(), cell + index(slots.start - first_slot)));
                if only.is_some() {
                    continue;
                }
            }
            let mut slots = [NONE; SLOTS];
            for entry in &streams.entries[stretch.entries.clone()] {
                let slot = entry.position as usize % SLOTS;
                if union[slot / 64] >> (slot % 64) & 1 == 1 {
                    slots[slot] = entry.cell;
                }
            }
            self.present.push(BlockMember { rows: member.rows.clone(), slots });
        }
        let Some(word) = all.iter().rposition(|&word| word != 0) else {
            self.visibility_masks.truncate(first_sight);
            return;
        };
        let n_slots = 64 * word + 64 - all[word].leading_zeros() as usize;
        let first_segment = self.segments.len();
        if let Some((slots, cell)) = only {
            let first_cell = self.cells.len();
            self.cells.extend((cell..).take(slots.len()));
            self.segments.push(Segment { rows: 0..n_rows, first_slot: slots.start, cells: first_cell..self.cells.len() });
        } else {
            self.add_segments();
        }
        self.blocks.push(Block { segments: first_segment..self.segments.len(), first_sight, n_slots });
    }

    /// Cuts the block at hand into segments: the longest runs of panels in which the same streams hold the same cells.
    fn add_segments(&mut self) {
        self.open.clear();
        let mut first_open = 0;
        for panel in 0..N_PANELS {
            let slots = |member: usize| &self.present[member].slots[PANEL * panel..][..PANEL];
            let n_open = self.open.len();
            let mut first = 0;
            while first < self.present.len() {
                let end = (first + 1..self.present.len()).find(|&member| slots(member) != slots(first));
                let members = first..end.unwrap_or(self.present.len());
                first = members.end;
                if slots(members.start).iter().all(|&cell| cell == NONE) {
                    continue;
                }
                let continued = self.open[first_open..n_open].iter_mut();
                match continued.into_iter().find(|open| open.panels.end == panel && open.members == members) {
                    Some(open) => open.panels.end += 1,
                    None => self.open.push(OpenSegment { members, panels: panel..panel + 1 }),
                }
            }
            while self.open.get(first_open).is_some_and(|open| open.panels.end <= panel) {
                first_open += 1;
            }
        }
        for open in &self.open {
            let (first, last) = (&self.present[open.members.start], &self.present[open.members.end - 1]);
            let slots = PANEL * open.panels.start..PANEL * open.panels.end;
            let is_cell = |&slot: &usize| first.slots[slot] != NONE;
            let (Some(from), Some(to)) = (slots.clone().find(is_cell), slots.rev().find(is_cell)) else { continue };
            let first_cell = self.cells.len();
            let mut cell = NONE;
            for slot in from..=to {
                // A hole is filled with a neighbour, whose product no row sees.
                cell = if first.slots[slot] == NONE { cell } else { first.slots[slot] };
                self.cells.push(cell);
            }
            let rows = first.rows.start..last.rows.end;
            self.segments.push(Segment { rows, first_slot: from, cells: first_cell..self.cells.len() });
        }
    }
}

/// The slots that are seen, if nothing between them is not.
fn run_of(sight: &Visibility) -> Option<Range<usize>> {
    let first = sight.iter().position(|&word| word != 0)?;
    let last = sight.iter().rposition(|&word| word != 0)?;
    let start = 64 * first + sight[first].trailing_zeros() as usize;
    let end = 64 * last + 64 - sight[last].leading_zeros() as usize;
    let n_seen: u32 = sight.iter().map(|word| word.count_ones()).sum();
    (n_seen as usize == end - start).then_some(start..end)
}

/// Which slots of a stretch a row sees.
fn sight_of(streams: &Streams, stretch: &PositionBlock, row: u32) -> Visibility {
    let seen = streams.seen_by(row);
    let mut sight = [0; SLOTS / 64];
    let entries = &streams.entries[stretch.entries.clone()];
    let first_slot = entries[0].position as usize % SLOTS;
    let Some(first_cell) = stretch.first else {
        for entry in entries {
            let (cell, slot) = (entry.cell as usize, entry.position as usize % SLOTS);
            sight[slot / 64] |= (seen[cell / 64] >> (cell % 64) & 1) << (slot % 64);
        }
        return sight;
    };
    // Adjacent cells at adjacent positions: bits are moved by words.
    let mut done = 0;
    while done < entries.len() {
        let (cell, slot) = (first_cell as usize + done, first_slot + done);
        let n = (64 - cell % 64).min(64 - slot % 64).min(entries.len() - done);
        let bits = seen[cell / 64] >> (cell % 64) & (u64::MAX >> (64 - n));
        sight[slot / 64] |= bits << (slot % 64);
        done += n;
    }
    sight
}

/// How many rows, cells and segments a block has: what its cost follows.
pub(super) fn weight_of(groups: &Groups, block: &Block) -> (usize, usize) {
    let segments = &groups.segments[block.segments.clone()];
    let n_cells = segments.iter().map(|segment| segment.cells.len()).sum();
    let n_pairs = segments.iter().map(|segment| segment.cells.len() * segment.rows.len()).sum();
    (n_cells, n_pairs)
}

const _: () = assert!(SLOTS.is_multiple_of(64) && SLOTS.is_multiple_of(PANEL));
