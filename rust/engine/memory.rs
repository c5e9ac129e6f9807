//! The model's memory: the runner, what the cache knows of it, and what moves between the pool and the store.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::{
    AdapterSchedule, CacheOp, EvictionReason, IdleCost, KvCache, PathRemoval, PrefixMatch, PrefixQuery, Reload, SavedState,
};
use crate::config::Limits;
use crate::engine::move_budget::MoveBudget;
use crate::engine::runner::{DecodeError, KvSeqId, MemoryKind, Plan, RelocateError, Runner, StateError};
use crate::request::{PlacedMedia, Token};

/// The runner with the cache that keeps its books, so that no call of the one misses what the other has decided: changes are
/// queued by the cache and carried out here before each call that they concern.
pub(super) struct Memory<R> {
    runner: R,
    cache: KvCache,
    movement: MoveBudget,
    /// The cache's time when the last sequence was placed.
    newest_start: u64,
    /// Time spent on copying since it was last asked for.
    copying: CopyTime,
}

/// Time spent on copying cells.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CopyTime {
    /// Out of the pool, or to lower cells.
    pub(super) spill: Duration,
    /// Back into the pool.
    pub(super) restore: Duration,
}

/// What became of an attempt to move cells down.
pub(super) enum RelocationOutcome {
    /// They were moved.
    Done,
    /// They are where they were, or there was nothing to move.
    Nothing,
    /// What these ids held is of no use any more.
    Lost { ids: Vec<KvSeqId>, reason: String },
}

impl<R: Runner> Memory<R> {
    pub(super) fn new(runner: R, limits: &Limits) -> Self {
        let cache = KvCache::new(limits.n_ctx, limits.n_seq_max, runner.memory_kind(), limits.max_store_bytes)
            .with_ids_for_slots(limits.n_slots);
        Self { runner, cache, movement: MoveBudget::new(), newest_start: 0, copying: CopyTime::default() }
    }

    /// The model, for what does not depend on what its memory holds: the vocabulary, and the last decode's logits.
    pub(super) fn model(&self) -> &R {
        &self.runner
    }

    pub(super) fn kind(&self) -> MemoryKind {
        self.runner.memory_kind()
    }

    pub(super) fn cache(&self) -> &KvCache {
        &self.cache
    }

    pub(super) fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }

    /// Carries the cache's changes out in the model's memory.
    pub(super) fn flush(&mut self) {
        for op in self.cache.take_ops() {
            match op {
                CacheOp::Fork { from, to, n_tokens } => self.runner.fork(from, to, n_tokens),
                CacheOp::Truncate(id, n_kept) => {
                    let is_done = self.runner.truncate(id, n_kept);
                    assert!(is_done, "only a memory that can be cut anywhere is told to");
                }
                CacheOp::Drop(id) => self.runner.drop_sequence(id),
            }
        }
    }

    /// Time spent on copying since the last call.
    pub(super) fn take_copying(&mut self) -> CopyTime {
        std::mem::take(&mut self.copying)
    }

    /// Cells that a decode looks through.
    pub(super) fn n_reached(&self) -> u32 {
        u32::try_from(self.cache.n_reached()).expect("a pool has fewer than 2³² cells")
    }

    /// Cells that nobody holds.
    pub(super) fn n_free(&self) -> u32 {
        u32::try_from(self.cache.n_free()).expect("a pool has fewer than 2³² cells")
    }

    /// The longest prefix that can be forked and restored, and that ends in none of `media` that is whole or nothing; nothing where
    /// none is worth it.
    pub(super) fn find(&mut self, wanted: &PrefixQuery<'_>, media: &[PlacedMedia]) -> PrefixMatch {
        self.flush();
        let Self { cache, runner, .. } = self;
        let find = |at_most| {
            let wanted = PrefixQuery { at_most, ..*wanted };
            cache.find(&wanted, |id, n_held, n_tokens| runner.can_fork(id, n_held, n_tokens)).unwrap_or_default()
        };
        let mut matched = find(wanted.at_most);
        // What is found instead may end in an earlier one.
        while let Some(cut) = media.iter().find(|placed| placed.is_cut_at(matched.n_tokens())) {
            if cut.start < wanted.at_least {
                return PrefixMatch::default();
            }
            matched = find(cut.start);
        }
        matched
    }

    /// Whether what `id` holds can be gone on from.
    pub(super) fn can_extend(&mut self, id: KvSeqId, n_held: u32) -> bool {
        self.flush();
        self.runner.can_fork(id, n_held, n_held)
    }

    /// Gives the lowest free id what `matched` found in the pool. `None` where no id is free.
    pub(super) fn place(&mut self, variants: &AdapterSchedule, matched: Option<&PrefixMatch>) -> Option<KvSeqId> {
        let id = self.cache.place(variants, matched)?;
        self.flush();
        Some(id)
    }

    /// As [`Memory::place`] of nothing, for what nobody else shares.
    pub(super) fn place_private(&mut self, variants: &AdapterSchedule) -> Option<KvSeqId> {
        let id = self.cache.place_private(variants)?;
        self.flush();
        Some(id)
    }

    /// Gives `to`, which holds nothing, a copy of all that `from` holds, whose `tokens` these are; as many cells are free.
    ///
    /// # Errors
    /// As [`Runner::save`] and [`Runner::restore`].
    pub(super) fn copy(&mut self, from: KvSeqId, to: KvSeqId, tokens: &[Token]) -> Result<(), StateError> {
        let range = 0..u32::try_from(tokens.len()).expect("a sequence fits its context");
        let bytes = self.save(from, range.clone(), None)?;
        self.restore(to, &Reload { bytes, piece: range.clone(), kept: range }, tokens)
    }

    /// Whether another sequence can begin with the first `n_tokens` of what `id` holds.
    pub(super) fn can_fork(&mut self, id: KvSeqId, n_tokens: u32) -> bool {
        self.flush();
        self.runner.can_fork(id, self.cache.n_held(id), n_tokens)
    }

    /// Groups the tokens of `range` of `id`, as [`Runner::group`] says.
    pub(super) fn group(&mut self, id: KvSeqId, range: Range<u32>, n: u32) {
        self.flush();
        self.runner.group(id, range, n);
    }

    /// A sequence was placed: what is idle now is older than it.
    pub(super) fn remember_start(&mut self) {
        self.newest_start = self.cache.now();
    }

    /// Computes the rows of `plan`, whose cells were taken before.
    ///
    /// # Errors
    /// As [`Runner::decode`].
    pub(super) fn decode(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        self.flush();
        self.movement.remember_decode(self.cache.now());
        self.runner.decode(plan)
    }

    /// Takes back the rows of a failed decode: of the tokens of `id`, only the first `n_kept` are left. `false` where the model's
    /// memory cannot be cut there.
    pub(super) fn truncate(&mut self, id: KvSeqId, n_kept: u32) -> bool {
        self.flush();
        self.cache.truncate(id, n_kept);
        self.runner.truncate(id, n_kept)
    }

    /// A step begins that has `time` for moving.
    pub(super) fn begin_moving(&mut self, time: Duration) {
        self.movement.begin(time);
    }

    /// Computing a token of a prompt takes `seconds`.
    pub(super) fn learn_compute(&mut self, seconds: f64) {
        self.movement.learn_compute(seconds);
    }

    /// Whether this step has no more time for moving.
    pub(super) fn is_out_of_time(&self) -> bool {
        self.movement.is_over()
    }

    /// Time that this step has spent on moving.
    pub(super) fn spent(&self) -> Duration {
        self.movement.spent()
    }

    /// How much of what `id` holds from `start` on can be saved in what is left of this step's time, at most up to `n_held`: the
    /// range, and what it costs.
    pub(super) fn next_to_save(&self, id: KvSeqId, start: u32, n_held: u32) -> (Range<u32>, u64) {
        if self.kind().is_a_state() {
            return (0..n_held, u64::from(n_held));
        }
        let (n_tokens, n_units) = self.cache.affordable_from(id, start, self.movement.affordable());
        (start..n_held.min(start + n_tokens), n_units)
    }

    /// A copy of what `id` holds of `range`, which costs `n_units` where that is known.
    ///
    /// # Errors
    /// As [`Runner::save`].
    pub(super) fn save(&mut self, id: KvSeqId, range: Range<u32>, n_units: Option<u64>) -> Result<Arc<[u8]>, StateError> {
        self.flush();
        let started = Instant::now();
        let saved = self.runner.save(id, range);
        let took = started.elapsed();
        if let Some(n_units) = n_units {
            self.movement.learn_save(n_units, took);
        }
        self.count_spill(took);
        saved
    }

    /// Gives `id`, which holds all before them, the `tokens` that `piece` has of its text.
    ///
    /// # Errors
    /// As [`Runner::restore`].
    pub(super) fn restore(&mut self, id: KvSeqId, piece: &Reload, tokens: &[Token]) -> Result<(), StateError> {
        self.flush();
        let started = Instant::now();
        let restored = self.runner.restore(id, &piece.bytes, piece.kept.clone());
        let took = started.elapsed();
        self.copying.restore += took;
        self.movement.count(took);
        restored?;
        self.cache.restored(id, tokens, &piece.piece);
        Ok(())
    }

    /// Frees `n_wanted` cells for as long as a restore takes, so that only idle prefixes leave for them, and none where that is not
    /// enough. `false` where as many are not free.
    pub(super) fn free_idle_cells(&mut self, n_wanted: u32) -> bool {
        if !self.has_idle_cells(n_wanted) {
            return false;
        }
        while self.n_free() < n_wanted && !self.movement.is_over() && self.evict() {}
        self.n_free() >= n_wanted
    }

    /// Whether so many cells are free or can be evicted.
    pub(super) fn has_idle_cells(&self, n_wanted: u32) -> bool {
        n_wanted as usize <= self.cache.n_free() + self.cache.n_evictable()
    }

    /// Lets the least recently used idle prefix leave the pool, or a part of it. `false` where there is none.
    pub(super) fn evict(&mut self) -> bool {
        let departure = self.next_removal(EvictionReason::Pressed);
        departure.is_some_and(|departure| self.remove_tail(&departure, EvictionReason::Pressed))
    }

    /// The part of an idle prefix that leaves next, which cuts nothing that leaves whole.
    fn next_removal(&mut self, why: EvictionReason) -> Option<PathRemoval> {
        let mut departure = self.cache.next_removal(self.movement.affordable(), why)?;
        if let Some(range) = departure.saves.clone() {
            self.flush();
            departure.begin_at(self.runner.widened(departure.id, range).start);
        }
        Some(departure)
    }

    /// `false` where it was to leave early and stays, since it cannot be kept. What a GPU computes sooner than its cells are copied is
    /// not saved; a CPU computes nothing as fast.
    fn remove_tail(&mut self, departure: &PathRemoval, why: EvictionReason) -> bool {
        self.flush();
        let by_gpu = self.kind().idle_cost == IdleCost::Nothing;
        let is_dear = by_gpu && !departure.is_firm && self.movement.is_expensive(departure.n_tokens, departure.n_units);
        let saved = departure.saves.clone().filter(|_| !is_dear).and_then(|range| {
            let whole_from = self.runner.whole_from(departure.id, &range);
            let bytes = self.save(departure.id, range, Some(departure.n_units));
            bytes.map(|bytes| SavedState { bytes, whole_from }).map_err(|error| warn_unsaved(&error)).ok()
        });
        self.cache.remove_tail(departure, saved, why)
    }

    /// Lets an idle prefix leave the pool that costs more than it saves. `false` where there is none.
    ///
    /// Where a decode pays for idle cells, they leave when nothing runs, and after as many decodes as make them dearer than their
    /// way out and back; where it computes their scores, also before what starts next is put above them. Without a store they stay:
    /// computing them again is dearer by far.
    pub(super) fn offload_early(&mut self, nobody_runs: bool) -> bool {
        let cost = self.kind().idle_cost;
        let is_of_use = cost != IdleCost::Nothing && self.cache.has_host_cache();
        if !is_of_use || self.movement.is_refused_at(self.cache.now()) {
            return false;
        }
        let Some(departure) = self.next_removal(EvictionReason::Early) else { return false };
        let is_below_newer = cost == IdleCost::Scores && departure.last_used < self.newest_start;
        if !(nobody_runs || is_below_newer || self.movement.has_exceeded_cost(&departure, cost)) {
            return false;
        }
        let has_left = self.remove_tail(&departure, EvictionReason::Early);
        self.movement.remember_refusal(self.cache.now(), !has_left);
        has_left
    }

    /// Moves cells down where what is used lies far apart.
    pub(super) fn relocate(&mut self) -> RelocationOutcome {
        let Some(mut relocation) = self.cache.next_relocation(self.movement.affordable()) else {
            return RelocationOutcome::Nothing;
        };
        self.flush();
        let holder = *relocation.ids.first().expect("somebody holds what is moved");
        relocation.range = self.runner.widened(holder, relocation.range);
        let started = Instant::now();
        let moved = self.runner.relocate(&relocation.ids, relocation.range.clone());
        self.count_spill(started.elapsed());
        match moved {
            Ok(()) => {
                self.cache.relocated(&relocation);
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
                    RelocateError::Refused(_) => RelocationOutcome::Nothing,
                }
            }
        }
    }

    /// Keeps the whole state after the `n_tokens` tokens that `id` has computed, with the logits after them where they are known.
    pub(super) fn snapshot(&mut self, id: KvSeqId, n_tokens: u32, logits: Option<Arc<[f32]>>) {
        match self.save(id, 0..n_tokens, None) {
            Ok(bytes) => drop(self.cache.add_checkpoint(id, n_tokens, bytes, logits)),
            Err(error) => warn_unsaved(&error),
        }
    }

    /// Keeps what a sliding window sees after the `n_tokens` tokens that `id` has computed, with all before it that no piece has yet.
    pub(super) fn save_window(&mut self, id: KvSeqId, n_tokens: u32) {
        let mut n_kept = 0;
        while let Some(range) = self.cache.next_of_window(id, n_tokens).filter(|range| range.start >= n_kept) {
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

    fn count_spill(&mut self, took: Duration) {
        self.copying.spill += took;
        self.movement.count(took);
    }
}

fn warn_unsaved(error: &StateError) {
    match error {
        StateError::OwnPositions => tracing::debug!("{error}"),
        StateError::Refused(reason) => tracing::warn!("a prefix could not be saved: {reason}"),
    }
}
