//! A unit in progress.

use std::ops::Range;

use super::groups::Group;
use super::units::WorkUnit;

#[derive(Clone, Copy)]
pub(super) struct UnitTask<'a> {
    pub(super) unit: &'a WorkUnit,
    /// The unit that this thread will probably take next.
    pub(super) next_unit: Option<&'a WorkUnit>,
    pub(super) group: &'a Group,
    /// The current KV head, within the unit's.
    pub(super) kv_index: usize,
    /// Query heads per row of this KV head, and of all rows: query `row * n_heads + head`.
    pub(super) n_heads: usize,
    pub(super) n_queries: usize,
}

impl UnitTask<'_> {
    pub(super) fn kv_head(&self) -> usize {
        self.unit.kv_heads.start + self.kv_index
    }

    pub(super) fn per_kv_head(self) -> impl Iterator<Item = Self> {
        (0..self.unit.kv_heads.len()).map(move |kv_index| Self { kv_index, ..self })
    }

    /// Divides the queries of `rows` into register blocks of about equal size.
    pub(super) fn tiles(&self, rows: &Range<usize>, max_rows: usize) -> impl Iterator<Item = Range<usize>> {
        let (first, n) = (rows.start * self.n_heads, rows.len() * self.n_heads);
        let n_tiles = n.div_ceil(max_rows);
        (0..n_tiles).map(move |tile| first + n * tile / n_tiles..first + n * (tile + 1) / n_tiles)
    }
}
