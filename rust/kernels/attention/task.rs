//! A unit of work in progress.

use std::ops::Range;

use super::groups::Group;
use super::units::Unit;

/// A unit together with values that are looked up once for it.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) unit: &'a Unit,
    /// The unit that this thread will probably take next.
    pub(super) next_unit: Option<&'a Unit>,
    pub(super) group: &'a Group,
    /// Index of the current KV head within the unit's.
    pub(super) kv_index: usize,
    /// Query heads per row for this KV head, and rows times these. Query `row * n_heads + head` is one pair.
    pub(super) n_heads: usize,
    pub(super) n_queries: usize,
}

impl Task<'_> {
    pub(super) fn kv_head(&self) -> usize {
        self.unit.kv_heads.start + self.kv_index
    }

    /// Returns this task for each of the unit's KV heads.
    pub(super) fn per_kv_head(self) -> impl Iterator<Item = Self> {
        (0..self.unit.kv_heads.len()).map(move |kv_index| Self { kv_index, ..self })
    }
}

/// Divides `queries` into register blocks of about equal size.
pub(super) fn tiles(queries: Range<usize>, max_rows: usize) -> impl Iterator<Item = Range<usize>> {
    let n_tiles = queries.len().div_ceil(max_rows);
    (0..n_tiles).map(move |tile| {
        let at = |tile: usize| queries.start + queries.len() * tile / n_tiles;
        at(tile)..at(tile + 1)
    })
}
