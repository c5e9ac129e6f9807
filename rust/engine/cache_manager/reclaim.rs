//! Frees cells and sequence ids: idle prefixes are evicted first; then the scheduler releases what is in use.

use crate::engine::cache_manager::CacheManager;
use crate::engine::runner::Runner;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    Now,
    /// Within the time of this step for moves.
    WithinMoveTime,
}

impl<R: Runner> CacheManager<R> {
    /// Returns how many of `n_wanted` cells are free. `release` releases cells in use, or returns `false` if no cell is in use.
    pub(crate) fn free_cells(&mut self, n_wanted: u32, urgency: Urgency, mut release: impl FnMut() -> bool) -> u32 {
        while self.n_free() < n_wanted && !self.is_late(urgency) && (self.evict() || release()) {}
        n_wanted.min(self.n_free())
    }

    /// As [`CacheManager::free_cells`]. Returns `false` if too few ids are free yet, or this step has no time left to save.
    ///
    /// With [`Urgency::Now`] this succeeds for sequences in slots: there are at least as many ids as slots, pinned prefixes
    /// leave one for each slot, and held prompts release theirs.
    pub(crate) fn free_ids(&mut self, n: usize, urgency: Urgency, mut release: impl FnMut() -> bool) -> bool {
        while self.n_free_ids() < n {
            if self.is_late(urgency) || !(self.evict() || release()) {
                return false;
            }
        }
        true
    }

    fn is_late(&self, urgency: Urgency) -> bool {
        urgency == Urgency::WithinMoveTime && self.is_out_of_time()
    }
}
