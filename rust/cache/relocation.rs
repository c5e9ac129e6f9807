//! Moving cells down: llama.cpp never does, and every decode pays for the highest used one.

use std::ops::Range;

use crate::cache::{KvCache, KvSeqId};

/// llama.cpp looks through the cells in steps of this many.
const STEP: usize = 256;

/// A stretch of cells that would lie lower if they were saved and restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocation {
    /// Everyone who holds them.
    pub ids: Vec<KvSeqId>,
    /// The tokens in them.
    pub range: Range<u32>,
}

impl KvCache {
    /// The highest cells, where they would come to lie lower; about `max_units` of them (see [`KvCache::next_departure`]), but 16
    /// at least. It begins where the highest used cell is more than twice the number of used ones, so that what is moved is worth
    /// it, and then goes on until hardly a free one is left among them. The cells of a private path stay where they are: they may
    /// have other positions than those of its tokens.
    #[must_use]
    pub fn next_relocation(&mut self, max_units: u64) -> Option<Relocation> {
        let (n_reached, n_used) = (self.n_reached(), self.n_used());
        let n_most = if self.is_compacting { n_used + n_used / 8 } else { 2 * n_used };
        self.is_compacting = self.kind.forks.can_truncate() && n_reached.div_ceil(STEP) > n_most.div_ceil(STEP);
        if !self.is_compacting {
            return None;
        }
        // A free cell lies below the highest used one. So among those that are free once these are given up, enough lie below it
        // for all of them, and it is the lowest that are taken.
        let (position, cells) = self.strands.top()?;
        let high = cells.take_while(|cell| cell.index() >= n_used);
        let (n_tokens, _) = self.count_affordable(high, max_units);
        let ids = self.strands.holders_of_top();
        if ids.iter().any(|&id| self.is_private(id)) {
            return None;
        }
        Some(Relocation { ids, range: position + 1 - n_tokens..position + 1 })
    }

    /// What `ids` hold is of no use any more. A pinned prefix among it is computed anew when it is asked for.
    pub fn lose(&mut self, ids: &[KvSeqId]) {
        for &id in ids {
            for pin in self.pins.values_mut().filter(|pin| pin.keeper == Some(id)) {
                pin.keeper = None;
            }
            if self.is_pinned(id) {
                self.forget(id);
            }
            if self.paths[usize::from(id.0)].is_some() {
                self.record_failed_compute(id);
                self.drop_path(id);
            }
        }
    }

    /// Carries out `relocation`: the cells were given up by all and taken anew, in the order of their positions.
    pub fn relocated(&mut self, relocation: &Relocation) {
        let Relocation { ids, range } = relocation;
        self.strands.retake(*ids.first().expect("somebody holds what is moved"), range);
        self.counts.n_relocated += u64::from(range.end - range.start);
    }
}
