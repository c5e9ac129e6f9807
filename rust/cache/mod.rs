//! The KV cache's bookkeeping: a prefix tree over computed tokens in two tiers, the device cache and the host cache.
//!
//! It never touches the model's memory: it queues changes as [`CacheOp`]s, which its owner (the engine's cache manager, or the
//! worker of embeddings) carries out before the next decode, and names what the owner must copy.
//!
//! A *path* is the tokens that one sequence id holds, with a cell for each. While a sequence runs on it, the path is pinned,
//! and its newest tokens form its *tail*, which moves into the tree when the sequence ends or another one shares a part. A node
//! is in the device cache if a path goes through it, and in the host cache if it has an entry. The cells of paths form *cell
//! runs*: groups that the same ids hold. A *private* path is all tail: it shares nothing and is dropped at its end.
//!
//! Rules that depend on the kind of memory are in `kinds`. No call's cost grows with the number of idle nodes in the host
//! cache: calls walk the nodes of a path, the ids, and the cells that they move. `tests/costs.rs` counts these visits.
#![expect(missing_docs, reason = "items with a clear name and type need no comment")]

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

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use crate::request::Token;
pub use adapter_set::{AdapterSchedule, AdapterSet};
pub use blocks::{BLOCK, CachedBlock, DigestCursor, MAX_KEY_BYTES, PrefixDigest};
use cell_runs::CellRuns;
pub use eviction_log::{EvictedRun, MAX_EVICTED_RUNS, Provenance};
use host_cache::HostCache;
pub use invocation::invoked_at;
pub use kinds::{ForkRule, IdleCost, MemoryKind};
pub use listing::{CachedNode, Tier};
pub use path_removal::{EvictionReason, PathRemoval, SavedState};
pub use pins::Reservation;
pub use prefix_match::{PrefixMatch, PrefixQuery, Reload};
use prefix_tree::{DropKey, NodeId, PrefixTree, TreeMatch, length};
pub use relocation::Relocation;

/// A llama.cpp sequence, which owns cells: `0 ≤ id < n_seq_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvSeqId(pub u16);

/// Shortest prefix that is shared, in tokens; fewer tokens are computed again.
pub const MIN_SHARED: u32 = 16;

/// A change that the model's memory must make to follow the bookkeeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOp {
    /// Adds `to` as a holder of the cells of `[0, n_tokens)` of `from`.
    Fork {
        from: KvSeqId,
        to: KvSeqId,
        n_tokens: u32,
    },
    /// Removes all but the first `n_kept` tokens of this id.
    Truncate(KvSeqId, u32),
    /// As `Truncate`, if the memory can.
    TruncateIfPossible(KvSeqId, u32),
    Drop(KvSeqId),
}

#[derive(Debug)]
struct Path {
    /// Node at which the part of the path that is in the tree ends.
    tip: NodeId,
    tail: Vec<Token>,
    blocks: blocks::BlockHashes,
    adapters: AdapterSchedule,
    is_private: bool,
    /// The request that runs on the path, or ran on it last.
    provenance: Option<Provenance>,
}

#[derive(Debug)]
pub struct KvCache {
    kind: MemoryKind,
    tree: PrefixTree,
    paths: Vec<Option<Path>>,
    free_ids: BTreeSet<KvSeqId>,
    /// Ids that pinned prefixes leave to the sequences in slots.
    n_ids_for_slots: usize,
    cell_runs: CellRuns,
    host_cache: HostCache,
    /// Droppable host cache entries, the next one first.
    droppable: BTreeSet<(DropKey, NodeId)>,
    pins: BTreeMap<u64, pins::Pin>,
    n_pinned_ever: u64,
    /// Bytes of all pinned prefixes; tokens that two of them share are counted twice.
    n_pinned_bytes: u64,
    ops: Vec<CacheOp>,
    is_compacting: bool,
    now: u64,
    counts: TierMetrics,
    eviction_log: VecDeque<EvictedRun>,
    key: blocks::HashKey,
}

/// Tokens that moved between the tiers since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierMetrics {
    pub n_offloaded: u64,
    pub n_reloaded: u64,
    /// Evicted from both tiers for lack of memory.
    pub n_evicted: u64,
    pub n_relocated: u64,
}

impl KvCache {
    /// Returns a cache of `n_cells` cells and `n_ids` sequence ids, all free, with an empty host cache of at most
    /// `max_host_bytes` (`None` is no limit). If this kind of memory cannot be saved, the host cache is off.
    pub fn new(n_cells: u32, n_ids: u32, kind: MemoryKind, max_host_bytes: Option<u64>) -> Self {
        Self {
            kind,
            tree: PrefixTree::default(),
            paths: (0..n_ids).map(|_| None).collect(),
            free_ids: (0..n_ids).map(|id| KvSeqId(u16::try_from(id).expect("llama.cpp has at most 256 sequence ids"))).collect(),
            n_ids_for_slots: 0,
            cell_runs: CellRuns::new(n_cells, n_ids),
            host_cache: HostCache::new(if kind.can_be_saved { max_host_bytes } else { Some(0) }),
            droppable: BTreeSet::new(),
            pins: BTreeMap::new(),
            n_pinned_ever: 0,
            n_pinned_bytes: 0,
            ops: Vec::new(),
            is_compacting: false,
            now: 0,
            counts: TierMetrics::default(),
            eviction_log: VecDeque::new(),
            key: blocks::HashKey::default(),
        }
    }

    /// Makes prefixes that are pinned in the device cache leave at least `n_slots` sequence ids to running sequences.
    pub(crate) fn with_ids_for_slots(mut self, n_slots: u32) -> Self {
        self.n_ids_for_slots = n_slots as usize;
        self
    }

    pub(crate) fn n_free(&self) -> usize {
        self.cell_runs.cells().n_free()
    }

    pub(crate) fn n_evictable(&self) -> usize {
        self.cell_runs.n_evictable()
    }

    pub(crate) fn n_used(&self) -> usize {
        self.cell_runs.cells().n_used()
    }

    /// Index of the highest used cell, plus one: the number of cells that a decode visits.
    pub(crate) fn n_cells_reached(&self) -> usize {
        self.cell_runs.cells().n_cells_reached()
    }

    pub fn n_ids_used(&self) -> usize {
        self.paths.len() - self.free_ids.len()
    }

    /// Bytes of the host cache, its limit in bytes (`None` is no limit), and the number of its entries.
    pub fn host_cache_size(&self) -> (u64, Option<u64>, usize) {
        self.host_cache.size()
    }

    pub(crate) fn has_host_cache(&self) -> bool {
        self.host_cache.is_on()
    }

    pub(crate) fn n_compared(&self) -> u64 {
        self.tree.n_compared()
    }

    pub(crate) fn counts(&self) -> TierMetrics {
        self.counts
    }

    /// Number of cells of the match's device part that are evictable now and will be pinned once the match is placed.
    pub(crate) fn n_evictable_in(&self, matched: &PrefixMatch) -> u32 {
        let Some(source) = matched.source else { return 0 };
        self.cell_runs.n_evictable_of(source, matched.n_device)
    }

    pub(crate) fn count_freed(&self, ids: impl Iterator<Item = KvSeqId>) -> Vec<u32> {
        self.cell_runs.count_freed(ids)
    }

    pub fn n_free_ids(&self) -> usize {
        self.free_ids.len()
    }

    /// Places a pinned path that starts with the device part of `matched` on the lowest free id; `None` if no id is free.
    pub fn place(&mut self, adapters: &AdapterSchedule, matched: Option<&PrefixMatch>) -> Option<KvSeqId> {
        let id = self.free_ids.pop_first()?;
        self.now += 1;
        let source = matched.and_then(|matched| Some((matched.source?, matched.n_device)));
        let tip = if let Some((from, n_tokens)) = source {
            let tip = self.cut_at(from, n_tokens);
            self.cell_runs.share(from, id, n_tokens);
            self.ops.push(CacheOp::Fork { from, to: id, n_tokens });
            tip
        } else {
            self.cell_runs.pin(id);
            self.tree.root(adapters.at(0))
        };
        self.paths[usize::from(id.0)] = Some(Path {
            tip,
            tail: Vec::new(),
            blocks: blocks::BlockHashes::default(),
            adapters: adapters.clone(),
            is_private: false,
            provenance: None,
        });
        self.start_path_at(tip, id);
        self.drop_redundant_paths(tip, id);
        Some(id)
    }

    /// As [`KvCache::place`], for a sequence whose cells differ from what others would compute for the same tokens.
    pub fn place_private(&mut self, adapters: &AdapterSchedule) -> Option<KvSeqId> {
        let id = self.place(adapters, None)?;
        self.path_mut(id).is_private = true;
        Some(id)
    }

    pub(crate) fn touch(&mut self, adapters: &AdapterSchedule, tokens: &[Token]) {
        self.now += 1;
        let TreeMatch { nodes, partial } = self.tree.match_tokens(adapters, tokens);
        if let Some(node) = partial.map(|(node, _)| node).or(nodes.last().copied()) {
            self.mark_used(node);
        }
    }

    /// Counts a match of `tokens`, the first of which are placed on `id`, and attributes them to the request that runs there.
    pub(crate) fn count_hit(&mut self, id: KvSeqId, tokens: &[Token]) {
        let Path { tip, ref adapters, ref provenance, .. } = *self.path(id);
        let provenance = provenance.clone();
        let mut deepest = tip;
        if tokens.len() > self.n_held(id) as usize {
            let TreeMatch { nodes, partial } = self.tree.match_tokens(adapters, tokens);
            deepest = match partial {
                Some((node, n)) if self.kind.forks.can_truncate() => self.split(node, n),
                _ => nodes.last().copied().unwrap_or(tip),
            };
        }
        self.tree.change_upwards(deepest, |node| {
            node.n_hits += 1;
            if provenance.is_some() {
                node.provenance.clone_from(&provenance);
            }
        });
    }

    pub(crate) fn share_first(&mut self, id: KvSeqId, n_tokens: u32) {
        self.cut_at(id, n_tokens);
    }

    /// Appends `tokens` to the pinned path of each id, in the order in which the next decode computes them, to free cells.
    pub fn extend<'a>(&mut self, rows: impl IntoIterator<Item = (KvSeqId, &'a [Token])>) {
        for (id, tokens) in rows {
            self.path_mut(id).tail.extend_from_slice(tokens);
            self.cell_runs.grow(id, tokens.len());
        }
    }

    /// Removes the tokens of `[n_kept, …)` of the pinned path of `id`, whose decode failed. They must not be in the tree.
    pub fn truncate(&mut self, id: KvSeqId, n_kept: u32) {
        let in_tree = self.tree.node(self.path(id).tip).end();
        assert!(n_kept >= in_tree, "{n_kept} tokens of {id:?} are kept, but {in_tree} are in the tree");
        let path = self.path_mut(id);
        path.tail.truncate((n_kept - in_tree) as usize);
        path.blocks.clear();
        self.cell_runs.shorten(id, n_kept);
    }

    /// As [`KvCache::truncate`], for tokens that the model's memory still holds.
    pub(crate) fn truncate_memory(&mut self, id: KvSeqId, n_kept: u32) {
        self.truncate(id, n_kept);
        self.ops.push(CacheOp::TruncateIfPossible(id, n_kept));
    }

    /// Records that `entry` was reloaded to `id`, which kept only `tokens` of it. A private tail stays private.
    pub fn record_reload(&mut self, id: KvSeqId, tokens: &[Token], entry: &Range<u32>) {
        let start = self.n_held(id);
        self.cell_runs.grow_by_entry(id, entry, &(start..start + length(tokens)));
        self.counts.n_reloaded += tokens.len() as u64;
        self.path_mut(id).tail.extend_from_slice(tokens);
        self.commit(id);
    }

    /// Makes the path of `id` idle. If another path contains it, its id is freed; a private path is dropped.
    pub fn unpin(&mut self, id: KvSeqId) {
        self.now += 1;
        self.commit(id);
        let tip = self.stop_running(id);
        if self.rules().is_contained(self, id) || self.tree.node(tip).parent.is_none() {
            self.drop_path(id);
        }
    }

    /// Drops the pinned path of `id`, whose contents are unknown, except a pinned prefix, which was computed before.
    pub(crate) fn discard_failed(&mut self, id: KvSeqId) {
        self.log_failure(id);
        self.discard(id);
    }

    /// Drops the pinned path of `id`, except a pinned prefix that no other path holds.
    pub(crate) fn discard(&mut self, id: KvSeqId) {
        let tip = self.stop_running(id);
        let is_lost_pin = |&node: &NodeId| {
            let node = self.tree.node(node);
            node.parent.is_some() && node.n_pins > 0 && node.host_entry.is_none()
        };
        // The path is cut after the pinned prefix, if it can be cut.
        let last_pinned = self.tree.own_nodes(tip).find(is_lost_pin).filter(|_| self.kind.forks.can_truncate());
        match last_pinned {
            Some(node) => self.truncate_after(id, node),
            None => self.drop_path(id),
        }
    }

    fn stop_running(&mut self, id: KvSeqId) -> NodeId {
        let tip = self.path(id).tip;
        self.cell_runs.unpin(id);
        self.mark_used(tip);
        tip
    }

    pub fn take_ops(&mut self) -> impl Iterator<Item = CacheOp> {
        self.ops.drain(..)
    }

    pub fn n_held(&self, id: KvSeqId) -> u32 {
        self.cell_runs.n_held(id)
    }

    /// Returns true if a sequence runs on the path of `id`, or the path is held for a pinned prefix.
    fn is_pinned(&self, id: KvSeqId) -> bool {
        self.cell_runs.is_pinned(id)
    }

    fn paths(&self) -> impl Iterator<Item = (KvSeqId, &Path)> {
        (0u16..).map(KvSeqId).zip(&self.paths).filter_map(|(id, path)| Some((id, path.as_ref()?)))
    }

    fn path(&self, id: KvSeqId) -> &Path {
        self.paths[usize::from(id.0)].as_ref().expect("only ids with a path are used")
    }

    fn is_private(&self, id: KvSeqId) -> bool {
        self.path(id).is_private
    }

    fn path_mut(&mut self, id: KvSeqId) -> &mut Path {
        self.paths[usize::from(id.0)].as_mut().expect("only ids with a path are used")
    }
}

fn length_of(n: usize) -> u32 {
    u32::try_from(n).expect("a context is shorter than 2³² tokens")
}
