//! A unit of work in a thread's hands.

use std::ops::Range;

use super::groups::Group;
use super::units::Unit;

/// A unit with what is looked up once for it.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) unit: &'a Unit,
    /// What this thread will probably take next.
    pub(super) after: Option<&'a Unit>,
    pub(super) group: &'a Group,
    /// Which of the unit's heads of a cell is at hand.
    pub(super) kv: usize,
    /// How many heads of a row meet it, and rows times these. Query `row * n_heads + head` stands for one of each.
    pub(super) n_heads: usize,
    pub(super) n_queries: usize,
}

impl Task<'_> {
    pub(super) fn kv_head(&self) -> usize {
        self.unit.kv_heads.start + self.kv
    }

    /// The same for each of the unit's heads of a cell.
    pub(super) fn each(self) -> impl Iterator<Item = Self> {
        (0..self.unit.kv_heads.len()).map(move |kv| Self { kv, ..self })
    }
}

/// Cuts `queries` into register blocks of about one size.
pub(super) fn tiles(queries: Range<usize>, max_rows: usize) -> impl Iterator<Item = Range<usize>> {
    let n_tiles = queries.len().div_ceil(max_rows);
    (0..n_tiles).map(move |tile| {
        let at = |tile: usize| queries.start + queries.len() * tile / n_tiles;
        at(tile)..at(tile + 1)
    })
}
