//! What is already computed: a prefix tree in two tiers over one pool of cells.
//!
//! Bookkeeping only. Changes that the model's memory must follow are queued as [`CacheOp`]s, which the worker carries out in
//! order before the next decode; what must be copied (saved, restored, moved) is named here and done by the worker.
//!
//! A *path* is what one sequence id holds: its tokens and a cell for each. While a sequence runs on it, the path is pinned, and
//! what it computes is its own *tail*; when it ends, or when another one shares a part, that part enters the tree. A node of the
//! tree is in the pool where some path goes through it, and stored where a saved piece contains it. The cells of paths are in
//! *strands*: stretches that the same ids hold. A *private* path is all tail: it shares nothing, and goes when it ends.
//!
//! What depends on the kind of memory is asked of `kinds`, where each has a file of its own. No call costs more the more waits in
//! the store: they walk the nodes of a path, the ids, and the cells that they move, as `tests/costs.rs` counts.

mod adapter_set;
mod blocks;
mod cell_runs;
mod cells;
mod eviction_log;
mod host_cache;
mod host_eviction;
mod invocation;
mod kinds;
mod listing;
mod path_removal;
mod paths;
mod pins;
mod prefix_match;
mod prefix_tree;
mod relocation;
#[cfg(test)]
mod tests;
mod visit_counter;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::request::Token;
pub use adapter_set::{AdapterSchedule, AdapterSet};
pub use blocks::{BLOCK, CachedBlock, DigestCursor, MAX_KEY_BYTES, PrefixDigest, block_hashes};
use cell_runs::CellRuns;
use eviction_log::EvictionLog;
pub use eviction_log::{EvictedRun, MAX_EVICTED_RUNS, Provenance};
use host_cache::HostCache;
pub use invocation::invoked_at;
pub use kinds::{ForkRule, IdleCost, MemoryKind};
pub use listing::{CachedNode, Tier};
pub use path_removal::{EvictionReason, PathRemoval, SavedState};
pub use pins::Reservation;
pub use prefix_match::{PrefixMatch, PrefixQuery, Reload};
use prefix_tree::{DropKey, NodeId, PrefixTree, length};
pub use relocation::Relocation;

/// llama.cpp's number that owns cells, `0 ≤ id < n_seq_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvSeqId(pub u16);

/// Fewer tokens than this are not worth a place in somebody's cells: they are computed again.
pub const MIN_SHARED: u32 = 16;

/// What the model's memory must do to follow the bookkeeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOp {
    /// Give the cells of `[0, n_tokens)` of `from` to `to` as well.
    Fork {
        /// Holds the tokens.
        from: KvSeqId,
        /// Holds nothing yet.
        to: KvSeqId,
        /// How many.
        n_tokens: u32,
    },
    /// Forget all but the first `n_kept` tokens of this id.
    Truncate(KvSeqId, u32),
    /// Forget everything that this id holds.
    Drop(KvSeqId),
}

/// What one sequence id holds.
#[derive(Debug)]
struct Path {
    /// Where the part of it that is in the tree ends.
    tip: NodeId,
    /// The rest, which nobody shares.
    tail: Vec<Token>,
    /// Hashes of the blocks that end in it.
    blocks: blocks::BlockHashes,
    /// How all of it is computed.
    variants: AdapterSchedule,
    /// Whether nobody ever shares any of it.
    is_private: bool,
    /// The request that runs on it, or ran.
    maker: Option<Provenance>,
}

/// The pool's bookkeeping and the store. See the module.
#[derive(Debug)]
pub struct KvCache {
    kind: MemoryKind,
    tree: PrefixTree,
    /// By sequence id; an id without a path is free.
    paths: Vec<Option<Path>>,
    free_ids: BTreeSet<KvSeqId>,
    /// Sequence ids that pinned prefixes leave to the sequences in slots.
    n_ids_for_slots: usize,
    /// The cells of the paths.
    strands: CellRuns,
    store: HostCache,
    /// Nodes whose saved pieces can be dropped, first those to drop first.
    droppable: BTreeSet<(DropKey, NodeId)>,
    pins: BTreeMap<u64, pins::Pin>,
    n_pinned_ever: u64,
    /// Bytes of all pinned prefixes, each counted by itself.
    n_pinned_bytes: u64,
    ops: Vec<CacheOp>,
    /// Whether cells are being moved down.
    is_compacting: bool,
    now: u64,
    counts: TierMetrics,
    lost: EvictionLog,
    /// That of the hashes of blocks.
    key: blocks::HashKey,
}

/// Tokens that moved between the tiers since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierMetrics {
    /// Copied into the store.
    pub n_saved: u64,
    /// Copied back into the pool.
    pub n_restored: u64,
    /// Forgotten for want of room.
    pub n_forgotten: u64,
    /// Moved to lower cells.
    pub n_relocated: u64,
}

impl KvCache {
    /// A pool of `n_cells` cells and `n_ids` sequence ids, all free, for a memory of this kind, and an empty store of at most
    /// `max_store_bytes` (`None` is no limit); of nothing where the memory cannot be saved.
    #[must_use]
    pub fn new(n_cells: u32, n_ids: u32, kind: MemoryKind, max_store_bytes: Option<u64>) -> Self {
        Self {
            kind,
            tree: PrefixTree::default(),
            paths: (0..n_ids).map(|_| None).collect(),
            free_ids: (0..n_ids).map(|id| KvSeqId(u16::try_from(id).expect("llama.cpp tells 256 apart"))).collect(),
            n_ids_for_slots: 0,
            strands: CellRuns::new(n_cells, n_ids),
            store: HostCache::new(if kind.can_be_saved { max_store_bytes } else { Some(0) }),
            droppable: BTreeSet::new(),
            pins: BTreeMap::new(),
            n_pinned_ever: 0,
            n_pinned_bytes: 0,
            ops: Vec::new(),
            is_compacting: false,
            now: 0,
            counts: TierMetrics::default(),
            lost: EvictionLog::default(),
            key: blocks::HashKey::default(),
        }
    }

    /// The same cache, in which prefixes that are pinned in the pool leave `n_slots` sequence ids or more to running sequences.
    #[must_use]
    pub fn with_ids_for_slots(mut self, n_slots: u32) -> Self {
        self.n_ids_for_slots = n_slots as usize;
        self
    }

    /// Cells that nobody holds.
    #[must_use]
    pub fn n_free(&self) -> usize {
        self.strands.cells().n_free()
    }

    /// Cells that only idle paths hold.
    #[must_use]
    pub fn n_evictable(&self) -> usize {
        self.strands.n_evictable()
    }

    /// Cells that are not free.
    #[must_use]
    pub fn n_used(&self) -> usize {
        self.strands.cells().n_used()
    }

    /// The highest used cell, plus one: what a decode looks through.
    #[must_use]
    pub fn n_reached(&self) -> usize {
        self.strands.cells().n_reached()
    }

    /// Sequence ids that hold something.
    #[must_use]
    pub fn n_ids_used(&self) -> usize {
        self.paths.len() - self.free_ids.len()
    }

    /// Bytes of the store, the most that it may take, and its pieces.
    #[must_use]
    pub fn host_cache_size(&self) -> (u64, Option<u64>, usize) {
        (self.store.n_bytes(), self.store.max_bytes(), self.store.n_pieces())
    }

    /// Whether saved pieces are kept at all.
    #[must_use]
    pub fn has_host_cache(&self) -> bool {
        self.store.is_on()
    }

    /// Tokens of texts that were compared with what is known, since the start.
    #[must_use]
    pub fn n_compared(&self) -> u64 {
        self.tree.n_compared()
    }

    /// What moved between the tiers so far.
    #[must_use]
    pub fn counts(&self) -> TierMetrics {
        self.counts
    }

    /// Cells of what `matched` found in the pool that can be evicted now and could not once the match is placed.
    #[must_use]
    pub fn n_evictable_in(&self, matched: &PrefixMatch) -> usize {
        let Some(source) = matched.source else { return 0 };
        self.strands.n_evictable_of(source, matched.n_pool)
    }

    /// How many cells can be evicted once each of `ids`, which are placed, is idle, one after the other.
    #[must_use]
    pub fn freed_by(&self, ids: impl Iterator<Item = KvSeqId>) -> Vec<usize> {
        self.strands.freed_by(ids)
    }

    /// Whether a path could be placed: some id holds nothing.
    #[must_use]
    pub fn has_free_id(&self) -> bool {
        !self.free_ids.is_empty()
    }

    /// Paths that could be placed.
    #[must_use]
    pub fn n_free_ids(&self) -> usize {
        self.free_ids.len()
    }

    /// A pinned path that starts with what `matched` found in the pool, on the lowest free id. `None` where no id is free.
    pub fn place(&mut self, variants: &AdapterSchedule, matched: Option<&PrefixMatch>) -> Option<KvSeqId> {
        let id = self.free_ids.pop_first()?;
        self.now += 1;
        let source = matched.and_then(|matched| Some((matched.source?, matched.n_pool)));
        let tip = if let Some((from, n_tokens)) = source {
            let tip = self.cut_at(from, n_tokens);
            self.strands.share(from, id, n_tokens);
            self.ops.push(CacheOp::Fork { from, to: id, n_tokens });
            tip
        } else {
            self.strands.pin(id);
            self.tree.root(variants.at(0))
        };
        self.paths[usize::from(id.0)] = Some(Path {
            tip,
            tail: Vec::new(),
            blocks: blocks::BlockHashes::default(),
            variants: variants.clone(),
            is_private: false,
            maker: None,
        });
        self.begin_at(tip, None, id);
        self.release_ids(tip, id);
        Some(id)
    }

    /// A pinned path that holds nothing, on the lowest free id, of which nobody ever shares anything: what it holds is not what
    /// others would compute of the same tokens. `None` where no id is free.
    pub fn place_private(&mut self, variants: &AdapterSchedule) -> Option<KvSeqId> {
        let id = self.place(variants, None)?;
        self.path_mut(id).is_private = true;
        Some(id)
    }

    /// What is known of `tokens` is used now: it is the last to be given up.
    pub fn touch(&mut self, variants: &AdapterSchedule, tokens: &[Token]) {
        self.now += 1;
        let now = self.now;
        let walk = self.tree.walk(variants, tokens);
        for node in walk.whole.into_iter().chain(walk.part.map(|(node, _)| node)) {
            self.tree.set_last_used(node, now);
            self.refresh(node);
        }
    }

    /// The request `by` uses what is computed of `tokens`, and the listing counts it.
    pub fn count_hit(&mut self, variants: &AdapterSchedule, tokens: &[Token], by: &Provenance) {
        let walk = self.tree.walk(variants, tokens);
        let part = match walk.part {
            Some((node, n)) if self.kind.forks.can_truncate() => Some(self.split(node, n)),
            _ => None,
        };
        for node in walk.whole.into_iter().chain(part) {
            let node = self.tree.node_mut(node);
            node.n_hits += 1;
            node.maker = Some(by.clone());
        }
    }

    /// As [`KvCache::count_hit`], where a request was placed on what was found, at `id`.
    pub fn count_hit_of(&mut self, id: KvSeqId) {
        let Path { tip, ref maker, .. } = *self.path(id);
        let maker = maker.clone();
        self.tree.change_upwards(tip, |node| {
            node.n_hits += 1;
            if maker.is_some() {
                node.maker.clone_from(&maker);
            }
        });
    }

    /// What the path of `id` holds of its first `n_tokens` tokens is found by others and can be forked.
    pub fn share_first(&mut self, id: KvSeqId, n_tokens: u32) {
        self.cut_at(id, n_tokens);
    }

    /// Appends `tokens` to the pinned path of each id, in the order in which the next decode computes them, a free cell for each.
    ///
    /// # Panics
    /// If fewer cells are free: whoever plans makes room first.
    pub fn extend<'a>(&mut self, rows: impl IntoIterator<Item = (KvSeqId, &'a [Token])>) {
        for (id, tokens) in rows {
            let path = self.paths[usize::from(id.0)].as_mut().expect("only a placed id grows");
            path.tail.extend_from_slice(tokens);
            self.strands.grow(id, tokens.len());
        }
    }

    /// Takes back the tokens of `[n_kept, …)` of the pinned path of `id`, whose decode has failed.
    ///
    /// # Panics
    /// If they are not the path's own: nobody shares what was not computed.
    pub fn truncate(&mut self, id: KvSeqId, n_kept: u32) {
        let in_tree = self.tree.node(self.path(id).tip).end();
        assert!(n_kept >= in_tree, "{n_kept} tokens of {id:?} are kept, but {in_tree} are shared");
        let path = self.paths[usize::from(id.0)].as_mut().expect("only a placed id is taken back");
        path.tail.truncate((n_kept - in_tree) as usize);
        path.blocks.clear();
        self.strands.shorten(id, n_kept);
    }

    /// The saved `piece` of these tokens was restored to `id`, which then holds `tokens` more; what is outside of them was given
    /// up again.
    ///
    /// What a private path was given it keeps to itself.
    pub fn restored(&mut self, id: KvSeqId, tokens: &[Token], piece: &Range<u32>) {
        let start = self.n_held(id);
        self.strands.grow_by_piece(id, piece, &(start..start + length(tokens)));
        self.counts.n_restored += tokens.len() as u64;
        self.path_mut(id).tail.extend_from_slice(tokens);
        self.commit(id);
    }

    /// The path of `id` is idle from now on: it stays until its cells or its id are needed. Where another path contains it, its
    /// id is free; a private one is forgotten.
    pub fn unpin(&mut self, id: KvSeqId) {
        self.now += 1;
        self.commit(id);
        let tip = self.stop_running(id);
        if self.rules().is_contained(self, id) || self.tree.node(tip).parent.is_none() {
            self.drop_path(id);
        }
    }

    /// The pinned path of `id` is forgotten, since what its sequence computed is unknown. A pinned prefix that nobody else holds was
    /// there before, and stays.
    pub fn forget(&mut self, id: KvSeqId) {
        self.record_failed_compute(id);
        self.give_up(id);
    }

    /// As [`KvCache::forget`], where nothing was lost: nobody wants to go on with what it holds.
    pub fn give_up(&mut self, id: KvSeqId) {
        let tip = self.stop_running(id);
        match self.rules().end_of_pin(self, tip) {
            Some(node) => self.keep_up_to(id, node),
            None => self.drop_path(id),
        }
    }

    /// No sequence runs on the path of `id` any more; returns where the part of it that is in the tree ends.
    fn stop_running(&mut self, id: KvSeqId) -> NodeId {
        let tip = self.path(id).tip;
        self.strands.unpin(id);
        let last = self.tree.stop_running(tip, self.now);
        self.refresh_upwards(tip, last);
        tip
    }

    /// What the model's memory must do since the last call, in order.
    pub fn take_ops(&mut self) -> impl Iterator<Item = CacheOp> {
        self.ops.drain(..)
    }

    /// Whether every cell is free or can be evicted, but for pinned prefixes: nobody runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let keepers: Vec<KvSeqId> = self.pins.values().filter_map(|pin| pin.keeper).collect();
        self.paths().all(|(id, _)| !self.is_pinned(id) || keepers.contains(&id))
    }

    /// How many tokens `id` holds.
    #[must_use]
    pub fn n_held(&self, id: KvSeqId) -> u32 {
        self.strands.n_held(id)
    }

    /// Whether a sequence runs on the path of `id`, or it is kept for a pinned prefix.
    fn is_pinned(&self, id: KvSeqId) -> bool {
        self.strands.is_pinned(id)
    }

    fn paths(&self) -> impl Iterator<Item = (KvSeqId, &Path)> {
        (0u16..).map(KvSeqId).zip(&self.paths).filter_map(|(id, path)| Some((id, path.as_ref()?)))
    }

    fn path(&self, id: KvSeqId) -> &Path {
        self.paths[usize::from(id.0)].as_ref().expect("only ids that hold something are named")
    }

    /// Whether nobody shares what `id` holds.
    fn is_private(&self, id: KvSeqId) -> bool {
        self.path(id).is_private
    }

    fn path_mut(&mut self, id: KvSeqId) -> &mut Path {
        self.paths[usize::from(id.0)].as_mut().expect("only ids that hold something are named")
    }

    /// Compares every count with one made anew.
    ///
    /// # Panics
    /// Where one differs.
    pub fn check_integrity(&self) {
        self.strands.check_integrity();
        for (id, path) in self.paths() {
            let n_tokens = self.tree.node(path.tip).end() as usize + path.tail.len();
            assert_eq!(n_tokens, self.n_held(id) as usize, "a cell for each token of {id:?}");
            assert!(self.is_pinned(id) || path.tail.is_empty(), "what is idle is in the tree: {id:?}");
            assert!(self.tree.node(path.tip).tips.contains(&id), "{id:?} is known where it ends");
            assert!(!path.is_private || self.tree.node(path.tip).parent.is_none(), "what is private is not in the tree: {id:?}");
        }
        for &id in &self.free_ids {
            assert!(self.paths[usize::from(id.0)].is_none(), "{id:?} is free");
            assert_eq!((self.n_held(id), self.is_pinned(id)), (0, false), "{id:?} holds nothing");
        }
        assert_eq!(self.n_ids_used(), self.paths().count(), "ids that hold something");
        let n_tips: usize = self.tree.nodes().map(|(_, node)| node.tips.len()).sum();
        assert_eq!(n_tips, self.n_ids_used(), "every path ends once");
        let pins: Vec<NodeId> = self.pins.values().map(|pin| pin.node).collect();
        assert_eq!(self.pins.values().map(pins::Pin::n_bytes).sum::<u64>(), self.n_pinned_bytes, "bytes of pinned prefixes");
        self.tree.check_integrity(&pins, |id| self.is_pinned(id));
        self.store.check_integrity(self.tree.nodes().filter_map(|(_, node)| node.stored));
        for (id, node) in self.tree.nodes() {
            if let Some(piece) = node.stored {
                let range = &self.store.piece(piece).range;
                let is_inside = range.start <= node.start && node.end() <= range.end;
                assert!(is_inside || self.kind.is_a_state(), "{range:?} holds {id:?}");
            }
            assert_eq!(node.drop_key, self.drop_key(id), "entry of {id:?}");
        }
        let n_entries = self.tree.nodes().filter(|(_, node)| node.drop_key.is_some()).count();
        assert_eq!(n_entries, self.droppable.len(), "an entry for each node that has one");
        assert!(self.droppable.iter().all(|&(key, id)| self.tree.node(id).drop_key == Some(key)), "entries name nodes");
    }
}

/// Lengths are 32-bit numbers, as positions are.
fn length_of(n: usize) -> u32 {
    u32::try_from(n).expect("a context is shorter than 2³² tokens")
}
