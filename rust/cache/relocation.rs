//! Moves used cells to lower free cells: llama.cpp never does, and the cost of every decode grows with the highest used cell.

use std::ops::Range;

use crate::cache::{KvCache, KvSeqId};

/// llama.cpp rounds the number of cells that a decode visits up to a multiple of this.
const CELL_PADDING: usize = 256;

/// A run of tokens whose cells would be lower after saving and reloading them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocation {
    pub ids: Vec<KvSeqId>,
    pub range: Range<u32>,
}

impl KvCache {
    /// Returns the highest cells if they can be moved down: at least 16 tokens, more for at most `max_units`. Compaction starts
    /// when the highest used cell exceeds twice the number of used cells, and continues until hardly any is free below it.
    /// Cells of a private path are not moved: their positions may differ from the indices of its tokens.
    pub fn next_relocation(&mut self, max_units: u64) -> Option<Relocation> {
        let (n_cells_reached, n_used) = (self.n_cells_reached(), self.n_used());
        let max_reached = if self.is_compacting { n_used + n_used / 8 } else { 2 * n_used };
        self.is_compacting =
            self.kind.forks.can_truncate() && n_cells_reached.div_ceil(CELL_PADDING) > max_reached.div_ceil(CELL_PADDING);
        if !self.is_compacting {
            return None;
        }
        // Once the moved cells are released, at least as many lower ones are free, and the lowest are taken.
        let (position, cells) = self.cell_runs.top()?;
        let high = cells.take_while(|cell| cell.index() >= n_used);
        let (n_tokens, _) = self.count_affordable(high, max_units);
        let ids = self.cell_runs.holders_of_top();
        if ids.iter().any(|&id| self.is_private(id)) {
            return None;
        }
        Some(Relocation { ids, range: position + 1 - n_tokens..position + 1 })
    }

    /// Drops the contents of `ids`, which became invalid. A pin among them is computed again on the next request for it.
    pub(crate) fn invalidate(&mut self, ids: &[KvSeqId]) {
        for &id in ids {
            for pin in self.pins.values_mut().filter(|pin| pin.holder == Some(id)) {
                pin.holder = None;
            }
            if self.is_pinned(id) {
                self.discard_failed(id);
            }
            if self.paths[usize::from(id.0)].is_some() {
                self.log_failure(id);
                self.drop_path(id);
            }
        }
    }

    /// Applies `relocation`: all ids released the cells and took new ones, in order of position.
    pub fn record_relocation(&mut self, relocation: &Relocation) {
        let Relocation { ids, range } = relocation;
        self.cell_runs.replace_cells(*ids.first().expect("moved cells have a holder"), range);
        self.counts.n_relocated += u64::from(range.end - range.start);
    }
}
