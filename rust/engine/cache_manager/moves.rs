//! Moves of cells: to the host cache and back, to lower cells, and copies of prefixes and checkpoints.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::{EvictionReason, IdleCost, PathRemoval, Reload, SavedState};
use crate::engine::cache_manager::CacheManager;
use crate::engine::cache_manager::move_budget::MAX_ENTRY_TIME;
use crate::engine::numbers::to_u32;
use crate::engine::runner::{KvSeqId, RelocateError, Runner, StateError};
use crate::request::Token;

impl<R: Runner> CacheManager<R> {
    /// Returns the range of `id` from `start` on that can be saved in the remaining time of this step, and its cost in units.
    pub(crate) fn next_to_save(&self, id: KvSeqId, start: u32, n_held: u32) -> (Range<u32>, u64) {
        if self.kind().is_a_state() {
            return (0..n_held, u64::from(n_held));
        }
        let (n_tokens, n_units) = self.kv().count_affordable_from(id, start, self.move_budget.affordable_units());
        (start..n_held.min(start + n_tokens), n_units)
    }

    pub(crate) fn save(&mut self, id: KvSeqId, range: Range<u32>, n_units: Option<u64>) -> Result<Arc<[u8]>, StateError> {
        self.flush();
        let started = Instant::now();
        let saved = self.runner.save(id, range);
        let took = started.elapsed();
        if let Some(n_units) = n_units {
            self.move_budget.observe_save(n_units, took);
        }
        self.count_offload(took);
        saved
    }

    /// Reloads `entry` into `id`, which holds all preceding tokens. `tokens` are the tokens of its kept range.
    pub(crate) fn restore(&mut self, id: KvSeqId, entry: &Reload, tokens: &[Token]) -> Result<(), StateError> {
        self.flush();
        let started = Instant::now();
        let restored = self.runner.restore(id, &entry.bytes, entry.kept.clone());
        let took = started.elapsed();
        self.copy_time.reload += took;
        self.move_budget.count(took);
        restored?;
        self.kv_mut().record_reload(id, tokens, &entry.range);
        Ok(())
    }

    /// Copies all cells of `from` to `to`, which must be empty; as many cells must be free.
    pub(crate) fn copy(&mut self, from: KvSeqId, to: KvSeqId, tokens: &[Token]) -> Result<(), StateError> {
        let range = 0..to_u32(tokens.len());
        let bytes = self.save(from, range.clone(), None)?;
        self.restore(to, &Reload { bytes, range: range.clone(), kept: range }, tokens)
    }

    /// Frees `n_wanted` cells by evicting idle prefixes, or none if those are not enough.
    pub(crate) fn free_idle_cells(&mut self, n_wanted: u32) -> bool {
        if !self.has_idle_cells(n_wanted) {
            return false;
        }
        while self.n_free() < n_wanted && !self.move_budget.is_over() && self.evict() {}
        self.n_free() >= n_wanted
    }

    pub(crate) fn has_idle_cells(&self, n_wanted: u32) -> bool {
        let kv = self.kv();
        n_wanted as usize <= kv.n_free() + kv.n_evictable()
    }

    /// Removes the least recently used idle prefix or its tail. Returns `false` if none qualifies.
    pub(crate) fn evict(&mut self) -> bool {
        let removal = self.next_removal(EvictionReason::MemoryPressure);
        removal.is_some_and(|removal| self.remove_tail(&removal, EvictionReason::MemoryPressure))
    }

    /// Returns the next part of an idle prefix to remove, extended so that no image is split.
    fn next_removal(&mut self, reason: EvictionReason) -> Option<PathRemoval> {
        let mut removal = self.kv().next_removal(self.move_budget.affordable_units(), reason)?;
        if let Some(range) = removal.saves.clone() {
            self.flush();
            removal.extend_to(self.runner.widen_to_images(removal.id, range).start);
        }
        Some(removal)
    }

    /// Removes a part of an idle prefix, and saves it unless computing it again is cheaper, as it may be with a GPU. Returns
    /// `false` if an early removal could not be saved.
    fn remove_tail(&mut self, removal: &PathRemoval, reason: EvictionReason) -> bool {
        self.flush();
        let by_gpu = self.kind().idle_cost == IdleCost::Nothing;
        let is_too_expensive = by_gpu && !removal.is_required && self.move_budget.is_expensive(removal.n_tokens, removal.n_units);
        let saved = removal.saves.clone().filter(|_| !is_too_expensive).and_then(|range| {
            let whole_from = self.runner.whole_from(removal.id, &range);
            let bytes = self.save(removal.id, range, Some(removal.n_units));
            bytes.map(|bytes| SavedState { bytes, whole_from }).map_err(|error| warn_unsaved(&error)).ok()
        });
        self.kv_mut().remove_tail(removal, saved, reason)
    }

    /// Offloads an idle prefix that costs more than it saves. Returns `false` if none qualifies.
    ///
    /// Idle cells that slow down decodes are offloaded while no sequence runs, once they have cost more than moving them out and
    /// back, and, with [`IdleCost::Scores`], if they are older than the newest start. Without a host cache they stay.
    pub(crate) fn offload_early(&mut self, is_idle: bool) -> bool {
        let cost = self.kind().idle_cost;
        let can_offload = cost != IdleCost::Nothing && self.kv().has_host_cache();
        if !can_offload || self.move_budget.is_refused_at(self.kv().now()) {
            return false;
        }
        let Some(removal) = self.next_removal(EvictionReason::Early) else { return false };
        let is_older_than_newest = cost == IdleCost::Scores && removal.last_used < self.newest_start;
        if !(is_idle || is_older_than_newest || self.move_budget.has_exceeded_cost(&removal, cost)) {
            return false;
        }
        let was_removed = self.remove_tail(&removal, EvictionReason::Early);
        let now = self.kv().now();
        self.move_budget.record_refusal(now, !was_removed);
        was_removed
    }

    /// Runs one move while no sequence is running. Returns `false` if there is nothing to move.
    pub(crate) fn use_idle_time(&mut self, on_lost: impl FnOnce(&[KvSeqId], &str)) -> bool {
        self.begin_moving(MAX_ENTRY_TIME);
        self.offload_early(true) || self.relocate(on_lost)
    }

    /// Moves cells down if the used ones are scattered. If contents are lost on the way, `on_lost` ends their sequences.
    pub(crate) fn relocate(&mut self, on_lost: impl FnOnce(&[KvSeqId], &str)) -> bool {
        let max_units = self.move_budget.affordable_units();
        let Some(mut relocation) = self.kv_mut().next_relocation(max_units) else { return false };
        self.flush();
        let sharer = *relocation.ids.first().expect("moved cells have a holder");
        relocation.range = self.runner.widen_to_images(sharer, relocation.range);
        let started = Instant::now();
        let moved = self.runner.relocate(&relocation.ids, relocation.range.clone());
        self.count_offload(started.elapsed());
        match &moved {
            Ok(()) => self.kv_mut().record_relocation(&relocation),
            Err(RelocateError::Refused(error)) => warn("cells could not be moved", error),
            Err(RelocateError::Lost(error)) => {
                tracing::warn!("cells could not be moved and are lost: {error}");
                on_lost(&relocation.ids, &error.to_string());
                self.kv_mut().invalidate(&relocation.ids);
            }
        }
        moved.is_ok()
    }

    pub(crate) fn save_checkpoint(&mut self, id: KvSeqId, n_tokens: u32, logits: Option<Arc<[f32]>>) {
        match self.save(id, 0..n_tokens, None) {
            Ok(bytes) => drop(self.kv_mut().add_checkpoint(id, n_tokens, bytes, logits)),
            Err(error) => warn_unsaved(&error),
        }
    }

    pub(crate) fn add_checkpoint(&mut self, id: KvSeqId, n_tokens: u32, bytes: Arc<[u8]>, logits: Arc<[f32]>) {
        self.kv_mut().add_checkpoint(id, n_tokens, bytes, Some(logits));
    }

    pub(crate) fn save_window(&mut self, id: KvSeqId, n_tokens: u32) {
        let mut n_kept = 0;
        while let Some(range) = self.kv_mut().next_window_part(id, n_tokens).filter(|range| range.start >= n_kept) {
            n_kept = range.end;
            let whole_from = self.runner.whole_from(id, &range);
            let is_kept = match self.save(id, range.clone(), None) {
                Ok(bytes) => self.kv_mut().add_window(id, &range, SavedState { bytes, whole_from }),
                Err(error) => return warn_unsaved(&error),
            };
            if !is_kept {
                return;
            }
        }
    }

    fn count_offload(&mut self, took: Duration) {
        self.copy_time.offload += took;
        self.move_budget.count(took);
    }
}

fn warn_unsaved(error: &StateError) {
    warn("a prefix could not be saved", error);
}

/// Logs a refusal: as a warning, unless it is permanent for the model.
fn warn(what: &str, error: &StateError) {
    match error {
        StateError::OwnPositions => tracing::debug!("{error}"),
        StateError::Refused(reason) => tracing::warn!("{what}: {reason}"),
    }
}
