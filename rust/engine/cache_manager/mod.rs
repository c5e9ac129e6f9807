//! The cache manager: the runner, the bookkeeping of its cells in both tiers, and the time that moves between them may take.
//!
//! It decides what is evicted and offloaded, never who runs: callers pass what to do when idle prefixes are not enough. It wraps
//! [`KvCache`], which only records which cells are used, and carries out its changes in the runner.

pub(crate) mod guards;
pub(crate) mod move_budget;
pub(crate) mod moves;
pub(crate) mod reclaim;

use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::cache::{
    AdapterSchedule, CacheOp, CachedBlock, DigestCursor, EvictedRun, KvCache, PrefixMatch, PrefixQuery, Provenance, Reservation,
};
use crate::config::Limits;
use crate::engine::cache_manager::guards::{PathGuard, Release, ReleaseQueue};
use crate::engine::cache_manager::move_budget::MoveBudget;
use crate::engine::numbers::to_u32;
use crate::engine::runner::{DecodeError, DraftRequest, KvSeqId, MemoryKind, ModelDrafts, Plan, Runner};
use crate::error::Error;
use crate::request::{PinnedPrefix, PlacedMedia, Token};

/// Queued changes are applied before each call that depends on them.
pub(crate) struct CacheManager<R> {
    runner: R,
    /// In a cell, so that a read, too, carries out what dropped guards have released.
    bookkeeping: RefCell<Bookkeeping>,
    released: ReleaseQueue,
    move_budget: MoveBudget,
    /// The cache's clock when the last sequence was placed.
    newest_start: u64,
    copy_time: CopyTime,
}

struct Bookkeeping {
    kv: KvCache,
    reservations: BTreeMap<u64, Reservation>,
}

impl Bookkeeping {
    fn apply(&mut self, released: &ReleaseQueue) {
        if released.is_empty() {
            return;
        }
        for release in released.take() {
            match release {
                Release::Unpin(id) => self.kv.unpin(id),
                Release::Truncate(id, n_kept) => self.kv.truncate_memory(id, n_kept),
                Release::Discard(id) => self.kv.discard(id),
                Release::DiscardFailed(id) => self.kv.discard_failed(id),
                Release::Reserve(id, n_kept, number) => {
                    self.reservations.insert(number, self.kv.reserve(id, n_kept));
                }
                Release::EndReservation(number) => {
                    let reservation = self.reservations.remove(&number).expect("a reservation ends once");
                    self.kv.release(reservation);
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CopyTime {
    /// Includes moving to lower cells.
    pub(crate) offload: Duration,
    pub(crate) reload: Duration,
}

impl<R: Runner> CacheManager<R> {
    pub(crate) fn new(runner: R, limits: &Limits) -> Self {
        let kv = KvCache::new(limits.n_ctx, limits.n_seq_max, runner.memory_kind(), limits.max_host_cache_bytes)
            .with_ids_for_slots(limits.n_slots);
        Self {
            runner,
            bookkeeping: RefCell::new(Bookkeeping { kv, reservations: BTreeMap::new() }),
            released: ReleaseQueue::default(),
            move_budget: MoveBudget::new(),
            newest_start: 0,
            copy_time: CopyTime::default(),
        }
    }

    pub(crate) fn runner(&self) -> &R {
        &self.runner
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        self.runner.memory_kind()
    }

    /// Returns a view of the bookkeeping, after the releases of dropped guards. It does not change while it exists.
    pub(crate) fn kv(&self) -> Ref<'_, KvCache> {
        if let Ok(mut bookkeeping) = self.bookkeeping.try_borrow_mut() {
            bookkeeping.apply(&self.released);
        }
        Ref::map(self.bookkeeping.borrow(), |bookkeeping| &bookkeeping.kv)
    }

    fn kv_mut(&mut self) -> &mut KvCache {
        let bookkeeping = self.bookkeeping.get_mut();
        bookkeeping.apply(&self.released);
        &mut bookkeeping.kv
    }

    /// Carries out the releases of dropped guards, and all changes in the runner's memory.
    pub(crate) fn flush(&mut self) {
        let Self { runner, bookkeeping, released, .. } = self;
        let bookkeeping = bookkeeping.get_mut();
        bookkeeping.apply(released);
        for op in bookkeeping.kv.take_ops() {
            match op {
                CacheOp::Fork { from, to, n_tokens } => runner.fork(from, to, n_tokens),
                CacheOp::Truncate(id, n_kept) => {
                    let is_done = runner.truncate(id, n_kept);
                    assert!(is_done, "only a memory that can be cut anywhere is truncated");
                }
                CacheOp::TruncateIfPossible(id, n_kept) => {
                    if !runner.truncate(id, n_kept) {
                        tracing::debug!("the memory cannot drop the tokens of sequence {} from {n_kept} on", id.0);
                    }
                }
                CacheOp::Drop(id) => runner.drop_sequence(id),
            }
        }
    }

    pub(crate) fn take_copy_time(&mut self) -> CopyTime {
        std::mem::take(&mut self.copy_time)
    }

    pub(crate) fn n_cells_reached(&self) -> u32 {
        to_u32(self.kv().n_cells_reached())
    }

    pub(crate) fn n_free(&self) -> u32 {
        to_u32(self.kv().n_free())
    }

    pub(crate) fn n_free_ids(&self) -> usize {
        self.kv().n_free_ids()
    }

    pub(crate) fn touch(&mut self, adapter_schedule: &AdapterSchedule, tokens: &[Token]) {
        self.kv_mut().touch(adapter_schedule, tokens);
    }

    pub(crate) fn count_hit(&mut self, path: &PathGuard, tokens: &[Token]) {
        self.kv_mut().count_hit(path.id(), tokens);
    }

    /// Moves the first `n_tokens` of a running sequence into the tree, so that others can share them.
    pub(crate) fn share_first(&mut self, id: KvSeqId, n_tokens: u32) {
        self.kv_mut().share_first(id, n_tokens);
    }

    pub(crate) fn extend<'a>(&mut self, rows: impl IntoIterator<Item = (KvSeqId, &'a [Token])>) {
        self.kv_mut().extend(rows);
    }

    pub(crate) fn take_evicted(&mut self) -> impl Iterator<Item = EvictedRun> {
        self.kv_mut().take_evicted()
    }

    pub(crate) fn erase(&mut self, adapter_schedule: &AdapterSchedule, tokens: &[Token], n_kept: u32) {
        self.kv_mut().erase(adapter_schedule, tokens, n_kept);
    }

    pub(crate) fn hash_blocks(&mut self, key: &[u8], cursor: DigestCursor) -> (Vec<CachedBlock>, Option<DigestCursor>) {
        self.kv_mut().hash_blocks(key, cursor)
    }

    /// Returns the longest prefix that can be forked or reloaded and does not cut a medium that can only be cached as a whole.
    pub(crate) fn find_match(&mut self, query: &PrefixQuery<'_>, media: &[PlacedMedia]) -> PrefixMatch {
        self.flush();
        let Self { bookkeeping, runner, .. } = self;
        let kv = &bookkeeping.get_mut().kv;
        let find = |at_most| {
            let query = PrefixQuery { at_most, ..*query };
            kv.find(&query, |id, n_held, n_tokens| runner.can_fork(id, n_held, n_tokens)).unwrap_or_default()
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

    /// Attributes the cells that are computed on the path to `provenance`. `None` if no id is free.
    pub(crate) fn place(
        &mut self,
        provenance: Option<Provenance>,
        adapter_schedule: &AdapterSchedule,
        matched: Option<&PrefixMatch>,
    ) -> Option<PathGuard> {
        let id = self.kv_mut().place(adapter_schedule, matched)?;
        self.flush();
        if let Some(provenance) = provenance {
            self.kv_mut().set_provenance(id, provenance);
        }
        Some(self.released.guard(id))
    }

    /// As [`CacheManager::place`] without a match, for cells that are never shared.
    pub(crate) fn place_private(&mut self, adapter_schedule: &AdapterSchedule) -> Option<PathGuard> {
        let id = self.kv_mut().place_private(adapter_schedule)?;
        self.flush();
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
        *path = self.place(Some(provenance), adapter_schedule, matched).expect("an id is free");
    }

    pub(crate) fn pin(&mut self, path: &mut PathGuard) -> Result<PinnedPrefix, Error> {
        self.kv_mut().pin(path.disarm())
    }

    pub(crate) fn unpin_all(&mut self, pin_ids: &[u64]) {
        for &pin_id in pin_ids {
            self.kv_mut().unpin_prefix(pin_id);
        }
    }

    /// Returns `false` if no prefix has this id.
    pub(crate) fn unpin(&mut self, pin_id: u64) -> bool {
        self.kv_mut().unpin_prefix(pin_id)
    }

    pub(crate) fn can_fork(&mut self, id: KvSeqId, n_tokens: u32) -> bool {
        self.flush();
        self.runner.can_fork(id, self.kv().n_held(id), n_tokens)
    }

    pub(crate) fn group_positions(&mut self, id: KvSeqId, range: Range<u32>, n: u32) {
        self.flush();
        self.runner.group_positions(id, range, n);
    }

    pub(crate) fn record_start(&mut self) {
        self.newest_start = self.kv_mut().now();
    }

    pub(crate) fn decode(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        self.flush();
        let now = self.kv().now();
        self.move_budget.record_decode(now);
        self.runner.decode(plan)
    }

    pub(crate) fn draft(&mut self, requests: &[DraftRequest<'_>], max_caught_up: u32) -> ModelDrafts {
        if requests.is_empty() {
            return ModelDrafts::default();
        }
        self.flush();
        self.runner.draft(requests, max_caught_up)
    }

    /// Keeps only the first `n_kept` tokens of `id`, after a failed decode or a rejected draft, or returns `false` if it cannot.
    pub(crate) fn truncate(&mut self, id: KvSeqId, n_kept: u32) -> bool {
        self.flush();
        self.kv_mut().truncate(id, n_kept);
        self.runner.truncate(id, n_kept)
    }

    /// Drops the rows of rejected drafts: each sequence keeps its first `n_held` tokens.
    pub(crate) fn drop_rejected(&mut self, verified: &[(KvSeqId, u32)]) {
        for &(id, n_held) in verified {
            if self.kv_mut().n_held(id) > n_held {
                let is_done = self.truncate(id, n_held);
                assert!(is_done, "only sequences whose cells can be truncated have drafts");
            }
        }
    }

    pub(crate) fn begin_moving(&mut self, time: Duration) {
        self.move_budget.begin(time);
    }

    pub(crate) fn observe_compute(&mut self, seconds: f64) {
        self.move_budget.observe_compute(seconds);
    }

    pub(crate) fn is_out_of_time(&self) -> bool {
        self.move_budget.is_over()
    }

    pub(crate) fn spent(&self) -> Duration {
        self.move_budget.spent()
    }
}
