//! The cache manager: the runner, the bookkeeping of its cells, and moves between the device cache and the host cache.

pub(crate) mod guards;
pub(crate) mod move_budget;
pub(crate) mod reclaim;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::{
    AdapterSchedule, CacheOp, EvictionReason, IdleCost, KvCache, PathRemoval, PrefixMatch, PrefixQuery, Provenance, Reload,
    Reservation, SavedState,
};
use crate::config::Limits;
use crate::engine::cache_manager::guards::{PathGuard, Release, ReleaseQueue};
use crate::engine::cache_manager::move_budget::MoveBudget;
use crate::engine::runner::{DecodeError, KvSeqId, MemoryKind, Plan, RelocateError, Runner, StateError};
use crate::error::Error;
use crate::request::{PinnedPrefix, PlacedMedia, Token};

/// The runner together with the cache that tracks its cells. The cache queues changes, and they are applied to the runner here
/// before each call that depends on them.
pub(crate) struct CacheManager<R> {
    runner: R,
    cache: KvCache,
    released: ReleaseQueue,
    /// Kept to reuse its allocation.
    releases: Vec<Release>,
    /// By the number of their guard.
    reservations: BTreeMap<u64, Reservation>,
    move_budget: MoveBudget,
    /// The cache's clock when the last sequence was placed.
    newest_start: u64,
    /// Time spent on copying since the last [`CacheManager::take_copy_time`].
    copy_time: CopyTime,
}

/// Time spent on copying cells.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CopyTime {
    /// Offloading, and moving to lower cells.
    pub(crate) offload: Duration,
    /// Reloading.
    pub(crate) reload: Duration,
}

/// Outcome of an attempt to move cells down.
pub(crate) enum RelocationOutcome {
    /// Cells were moved.
    Done,
    /// Nothing was moved.
    Unchanged,
    /// The contents of these sequences are invalid.
    Lost { ids: Vec<KvSeqId>, reason: String },
}

impl<R: Runner> CacheManager<R> {
    pub(crate) fn new(runner: R, limits: &Limits) -> Self {
        let cache = KvCache::new(limits.n_ctx, limits.n_seq_max, runner.memory_kind(), limits.max_host_cache_bytes)
            .with_ids_for_slots(limits.n_slots);
        Self {
            runner,
            cache,
            released: ReleaseQueue::default(),
            releases: Vec::new(),
            reservations: BTreeMap::new(),
            move_budget: MoveBudget::new(),
            newest_start: 0,
            copy_time: CopyTime::default(),
        }
    }

    /// Returns the model, for its vocabulary and the logits of the last decode.
    pub(crate) fn model(&self) -> &R {
        &self.runner
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        self.runner.memory_kind()
    }

    pub(crate) fn has_host_cache(&self) -> bool {
        self.cache.has_host_cache()
    }

    /// Returns the bookkeeping, as of the last [`CacheManager::settle`].
    pub(crate) fn kv(&self) -> &KvCache {
        debug_assert!(self.released.is_empty(), "a cache is read before what was released is idle");
        &self.cache
    }

    pub(crate) fn kv_mut(&mut self) -> &mut KvCache {
        self.settle();
        &mut self.cache
    }

    /// Carries out the releases of dropped guards.
    pub(crate) fn settle(&mut self) {
        if self.released.is_empty() {
            return;
        }
        let mut releases = std::mem::take(&mut self.releases);
        self.released.swap(&mut releases);
        for release in releases.drain(..) {
            match release {
                Release::Unpin(id) => self.cache.unpin(id),
                Release::Truncate(id, n_kept) => {
                    self.apply_ops();
                    self.cache.truncate(id, n_kept);
                    if !self.runner.truncate(id, n_kept) {
                        tracing::debug!("the memory cannot drop the tokens of sequence {} from {n_kept} on", id.0);
                    }
                }
                Release::Discard(id) => self.cache.discard(id),
                Release::DiscardFailed(id) => self.cache.discard_failed(id),
                Release::Reserve(id, n_kept, number) => {
                    self.reservations.insert(number, self.cache.reserve(id, n_kept));
                }
                Release::EndReservation(number) => {
                    let reservation = self.reservations.remove(&number).expect("a reservation ends once");
                    self.cache.release(reservation);
                }
            }
        }
        self.releases = releases;
    }

    /// Applies the queued changes of the cache to the model's memory.
    pub(crate) fn flush(&mut self) {
        self.settle();
        self.apply_ops();
    }

    fn apply_ops(&mut self) {
        for op in self.cache.take_ops() {
            match op {
                CacheOp::Fork { from, to, n_tokens } => self.runner.fork(from, to, n_tokens),
                CacheOp::Truncate(id, n_kept) => {
                    let is_done = self.runner.truncate(id, n_kept);
                    assert!(is_done, "only a memory that can be cut anywhere is truncated");
                }
                CacheOp::Drop(id) => self.runner.drop_sequence(id),
            }
        }
    }

    /// Returns the time spent on copying since the last call.
    pub(crate) fn take_copy_time(&mut self) -> CopyTime {
        std::mem::take(&mut self.copy_time)
    }

    /// Returns the number of cells that a decode scans.
    pub(crate) fn n_reached(&self) -> u32 {
        u32::try_from(self.cache.n_reached()).expect("a device cache has fewer than 2³² cells")
    }

    /// Returns the number of free sequence ids.
    pub(crate) fn n_free_ids(&mut self) -> usize {
        self.settle();
        self.cache.n_free_ids()
    }

    /// Returns the number of free cells.
    pub(crate) fn n_free(&mut self) -> u32 {
        self.settle();
        u32::try_from(self.cache.n_free()).expect("a device cache has fewer than 2³² cells")
    }

    /// Returns the longest prefix that can be forked or reloaded and does not end inside a medium that can only be cached as a
    /// whole; empty if none is worthwhile.
    pub(crate) fn find_match(&mut self, query: &PrefixQuery<'_>, media: &[PlacedMedia]) -> PrefixMatch {
        self.flush();
        let Self { cache, runner, .. } = self;
        let find = |at_most| {
            let query = PrefixQuery { at_most, ..*query };
            cache.find(&query, |id, n_held, n_tokens| runner.can_fork(id, n_held, n_tokens)).unwrap_or_default()
        };
        let mut matched = find(query.at_most);
        // A shorter match may end in an earlier medium.
        while let Some(cut) = media.iter().find(|placed| placed.is_cut_at(matched.n_tokens())) {
            if cut.start < query.at_least {
                return PrefixMatch::default();
            }
            matched = find(cut.start);
        }
        matched
    }

    /// Returns true if the contents of `id` can be continued.
    pub(crate) fn can_extend(&mut self, id: KvSeqId, n_held: u32) -> bool {
        self.flush();
        self.runner.can_fork(id, n_held, n_held)
    }

    /// Assigns the cells of `matched` in the device cache to the lowest free id. `None` if no id is free.
    pub(crate) fn place(&mut self, adapter_schedule: &AdapterSchedule, matched: Option<&PrefixMatch>) -> Option<PathGuard> {
        let id = self.kv_mut().place(adapter_schedule, matched)?;
        self.apply_ops();
        Some(self.released.guard(id))
    }

    /// As [`CacheManager::place`] without a match, for cells that are never shared.
    pub(crate) fn place_private(&mut self, adapter_schedule: &AdapterSchedule) -> Option<PathGuard> {
        let id = self.kv_mut().place_private(adapter_schedule)?;
        self.apply_ops();
        Some(self.released.guard(id))
    }

    /// Replaces the path of a sequence by one with the cells of `matched`. An id must be free once its own is.
    pub(crate) fn replace(
        &mut self,
        path: &mut PathGuard,
        adapter_schedule: &AdapterSchedule,
        matched: Option<&PrefixMatch>,
        provenance: Provenance,
    ) {
        path.discard();
        *path = self.place(adapter_schedule, matched).expect("an id is free");
        self.kv_mut().set_provenance(path.id(), provenance);
    }

    /// Pins the tokens of a path whose sequence has ended, see [`KvCache::pin`].
    ///
    /// # Errors
    /// As [`KvCache::pin`].
    pub(crate) fn pin(&mut self, path: &mut PathGuard) -> Result<PinnedPrefix, Error> {
        let id = path.take();
        self.kv_mut().pin(id)
    }

    /// Copies all cells of `from`, which has `tokens`, to `to`, which must be empty; as many cells must be free.
    ///
    /// # Errors
    /// As [`Runner::save`] and [`Runner::restore`].
    pub(crate) fn copy(&mut self, from: KvSeqId, to: KvSeqId, tokens: &[Token]) -> Result<(), StateError> {
        let range = 0..u32::try_from(tokens.len()).expect("a sequence fits its context");
        let bytes = self.save(from, range.clone(), None)?;
        self.restore(to, &Reload { bytes, range: range.clone(), kept: range }, tokens)
    }

    /// Returns true if another sequence can share the first `n_tokens` tokens of `id`.
    pub(crate) fn can_fork(&mut self, id: KvSeqId, n_tokens: u32) -> bool {
        self.flush();
        self.runner.can_fork(id, self.cache.n_held(id), n_tokens)
    }

    /// Groups the tokens of `range` of `id`, see [`Runner::group`].
    pub(crate) fn group(&mut self, id: KvSeqId, range: Range<u32>, n: u32) {
        self.flush();
        self.runner.group(id, range, n);
    }

    /// Records that a sequence was placed; all idle prefixes are now older than the newest start.
    pub(crate) fn record_start(&mut self) {
        self.newest_start = self.cache.now();
    }

    /// Computes the rows of `plan`, whose cells are already taken.
    ///
    /// # Errors
    /// As [`Runner::decode`].
    pub(crate) fn decode(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        self.flush();
        self.move_budget.record_decode(self.cache.now());
        self.runner.decode(plan)
    }

    /// Undoes the rows of a failed decode: keeps only the first `n_kept` tokens of `id`. Returns `false` if the model's memory
    /// cannot be cut there.
    pub(crate) fn truncate(&mut self, id: KvSeqId, n_kept: u32) -> bool {
        self.flush();
        self.cache.truncate(id, n_kept);
        self.runner.truncate(id, n_kept)
    }

    /// Starts a step with `time` for moves.
    pub(crate) fn begin_moving(&mut self, time: Duration) {
        self.move_budget.begin(time);
    }

    /// Records the seconds to compute a prompt token.
    pub(crate) fn observe_compute(&mut self, seconds: f64) {
        self.move_budget.observe_compute(seconds);
    }

    /// Returns true if this step has no time left for moves.
    pub(crate) fn is_out_of_time(&self) -> bool {
        self.move_budget.is_over()
    }

    /// Returns the time that this step has spent on moves.
    pub(crate) fn spent(&self) -> Duration {
        self.move_budget.spent()
    }

    /// Returns the range of `id` from `start` on, up to `n_held`, that can be saved in the remaining time of this step, and its
    /// cost in units.
    pub(crate) fn next_to_save(&self, id: KvSeqId, start: u32, n_held: u32) -> (Range<u32>, u64) {
        if self.kind().is_a_state() {
            return (0..n_held, u64::from(n_held));
        }
        let (n_tokens, n_units) = self.cache.affordable_from(id, start, self.move_budget.affordable_units());
        (start..n_held.min(start + n_tokens), n_units)
    }

    /// Saves `range` of `id`, at a cost of `n_units` if known, and returns the bytes.
    ///
    /// # Errors
    /// As [`Runner::save`].
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

    /// Reloads `entry` into `id`, which holds all tokens before it. `tokens` are the tokens of its kept range.
    ///
    /// # Errors
    /// As [`Runner::restore`].
    pub(crate) fn restore(&mut self, id: KvSeqId, entry: &Reload, tokens: &[Token]) -> Result<(), StateError> {
        self.flush();
        let started = Instant::now();
        let restored = self.runner.restore(id, &entry.bytes, entry.kept.clone());
        let took = started.elapsed();
        self.copy_time.reload += took;
        self.move_budget.count(took);
        restored?;
        self.cache.record_reload(id, tokens, &entry.range);
        Ok(())
    }

    /// Frees `n_wanted` cells for a reload by evicting idle prefixes, and none if those are not enough. Returns true if as many
    /// are free.
    pub(crate) fn free_idle_cells(&mut self, n_wanted: u32) -> bool {
        if !self.has_idle_cells(n_wanted) {
            return false;
        }
        while self.n_free() < n_wanted && !self.move_budget.is_over() && self.evict() {}
        self.n_free() >= n_wanted
    }

    /// Returns true if `n_wanted` cells are free or can be evicted.
    pub(crate) fn has_idle_cells(&mut self, n_wanted: u32) -> bool {
        self.settle();
        n_wanted as usize <= self.cache.n_free() + self.cache.n_evictable()
    }

    /// Removes the least recently used idle prefix, or its tail, from the device cache. Returns `false` if no prefix qualifies.
    pub(crate) fn evict(&mut self) -> bool {
        let removal = self.next_removal(EvictionReason::Pressed);
        removal.is_some_and(|removal| self.remove_tail(&removal, EvictionReason::Pressed))
    }

    /// Returns the next part of an idle prefix to remove, extended so that no picture is split.
    fn next_removal(&mut self, why: EvictionReason) -> Option<PathRemoval> {
        self.settle();
        let mut removal = self.cache.next_removal(self.move_budget.affordable_units(), why)?;
        if let Some(range) = removal.saves.clone() {
            self.flush();
            removal.extend_to(self.runner.widened(removal.id, range).start);
        }
        Some(removal)
    }

    /// Removes a tail, saving it if that is worthwhile. Returns `false` if an early removal was refused because the tail could
    /// not be saved. With a GPU, cells that are cheaper to compute than to copy are not saved; on a CPU, copying is always
    /// cheaper.
    fn remove_tail(&mut self, removal: &PathRemoval, why: EvictionReason) -> bool {
        self.flush();
        let by_gpu = self.kind().idle_cost == IdleCost::Nothing;
        let is_too_expensive = by_gpu && !removal.is_required && self.move_budget.is_expensive(removal.n_tokens, removal.n_units);
        let saved = removal.saves.clone().filter(|_| !is_too_expensive).and_then(|range| {
            let whole_from = self.runner.whole_from(removal.id, &range);
            let bytes = self.save(removal.id, range, Some(removal.n_units));
            bytes.map(|bytes| SavedState { bytes, whole_from }).map_err(|error| warn_unsaved(&error)).ok()
        });
        self.cache.remove_tail(removal, saved, why)
    }

    /// Offloads an idle prefix that costs more than it saves. Returns `false` if no prefix qualifies.
    ///
    /// If idle cells slow down decodes, they are offloaded while no sequence is running, and after as many decodes as make them
    /// more expensive than moving them out and back. With [`IdleCost::Scores`], prefixes that are older than the newest start are
    /// offloaded too. Without a host cache they stay: computing them again is far more expensive.
    pub(crate) fn offload_early(&mut self, is_idle: bool) -> bool {
        self.settle();
        let cost = self.kind().idle_cost;
        let can_offload = cost != IdleCost::Nothing && self.cache.has_host_cache();
        if !can_offload || self.move_budget.is_refused_at(self.cache.now()) {
            return false;
        }
        let Some(removal) = self.next_removal(EvictionReason::Early) else { return false };
        let is_older_than_newest = cost == IdleCost::Scores && removal.last_used < self.newest_start;
        if !(is_idle || is_older_than_newest || self.move_budget.has_exceeded_cost(&removal, cost)) {
            return false;
        }
        let was_removed = self.remove_tail(&removal, EvictionReason::Early);
        self.move_budget.record_refusal(self.cache.now(), !was_removed);
        was_removed
    }

    /// Moves cells down if the used ones are scattered.
    pub(crate) fn relocate(&mut self) -> RelocationOutcome {
        self.settle();
        let Some(mut relocation) = self.cache.next_relocation(self.move_budget.affordable_units()) else {
            return RelocationOutcome::Unchanged;
        };
        self.flush();
        let sharer = *relocation.ids.first().expect("moved cells have a holder");
        relocation.range = self.runner.widened(sharer, relocation.range);
        let started = Instant::now();
        let moved = self.runner.relocate(&relocation.ids, relocation.range.clone());
        self.count_offload(started.elapsed());
        match moved {
            Ok(()) => {
                self.cache.record_relocation(&relocation);
                RelocationOutcome::Done
            }
            Err(error) => {
                if let RelocateError::Refused(refused @ StateError::OwnPositions) = &error {
                    tracing::debug!("{refused}");
                } else {
                    tracing::warn!("cells could not be moved: {error}");
                }
                match error {
                    RelocateError::Lost(error) => RelocationOutcome::Lost { ids: relocation.ids, reason: error.to_string() },
                    RelocateError::Refused(_) => RelocationOutcome::Unchanged,
                }
            }
        }
    }

    /// Saves the state after the `n_tokens` computed tokens of `id`, with the logits after them if known.
    pub(crate) fn save_checkpoint(&mut self, id: KvSeqId, n_tokens: u32, logits: Option<Arc<[f32]>>) {
        match self.save(id, 0..n_tokens, None) {
            Ok(bytes) => drop(self.cache.add_checkpoint(id, n_tokens, bytes, logits)),
            Err(error) => warn_unsaved(&error),
        }
    }

    /// Saves the sliding window after the `n_tokens` computed tokens of `id`, and all earlier cells that are not saved yet.
    pub(crate) fn save_window(&mut self, id: KvSeqId, n_tokens: u32) {
        let mut n_kept = 0;
        while let Some(range) = self.cache.next_window_part(id, n_tokens).filter(|range| range.start >= n_kept) {
            n_kept = range.end;
            let whole_from = self.runner.whole_from(id, &range);
            let is_kept = match self.save(id, range.clone(), None) {
                Ok(bytes) => self.cache.add_window(id, &range, SavedState { bytes, whole_from }),
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
    match error {
        StateError::OwnPositions => tracing::debug!("{error}"),
        StateError::Refused(reason) => tracing::warn!("a prefix could not be saved: {reason}"),
    }
}
