//! Room in the store: which saved pieces are dropped for what else. None is, where all that give way would not be enough.

use std::collections::{BTreeMap, BTreeSet};

use crate::cache::host_cache::HostEntryId;
use crate::cache::kinds::PieceUser;
use crate::cache::path_removal::EvictionReason;
use crate::cache::prefix_tree::{DropKey, NodeId};
use crate::cache::{KvCache, visit_counter};
use crate::request::EvictionCause;

/// What is to be saved, and where it lies among what is stored.
#[derive(Debug)]
pub(super) struct OffloadCandidate {
    node: NodeId,
    /// It, and everything above it.
    above: BTreeSet<NodeId>,
}

impl OffloadCandidate {
    fn new(cache: &KvCache, node: NodeId) -> Self {
        Self { node, above: cache.tree.upwards(node).collect() }
    }

    pub(super) fn node(&self) -> NodeId {
        self.node
    }

    /// Whether it is `other`, or somewhere below it.
    pub(super) fn is_within(&self, other: NodeId) -> bool {
        self.above.contains(&other)
    }

    /// Whether `other` is it, or somewhere below it.
    pub(super) fn contains(&self, cache: &KvCache, other: NodeId) -> bool {
        cache.tree.is_within(other, self.node)
    }
}

/// Pieces that would be dropped, and what the tree would be without them, as far as that decides what is dropped next.
struct HostEviction<'a> {
    cache: &'a KvCache,
    nodes: Vec<NodeId>,
    n_bytes: u64,
    dropped: BTreeSet<NodeId>,
    /// How many children of a node would have left the tree.
    n_gone: BTreeMap<NodeId, usize>,
    /// How many children of a node would be in the store alone, where that was asked.
    n_only_stored: BTreeMap<NodeId, usize>,
    /// How many nodes of a piece would have given it up; its bytes are free when all of them have.
    n_released: BTreeMap<HostEntryId, u32>,
    /// What could be dropped then.
    next: BTreeSet<(DropKey, NodeId)>,
}

impl<'a> HostEviction<'a> {
    fn new(cache: &'a KvCache) -> Self {
        Self {
            cache,
            nodes: Vec::new(),
            n_bytes: 0,
            dropped: BTreeSet::new(),
            n_gone: BTreeMap::new(),
            n_only_stored: BTreeMap::new(),
            n_released: BTreeMap::new(),
            next: BTreeSet::new(),
        }
    }

    /// `id` would give up its piece.
    fn drop(&mut self, id: NodeId) {
        let node = self.cache.tree.node(id);
        let piece = node.stored.expect("only what is stored can be dropped");
        self.nodes.push(id);
        self.dropped.insert(id);
        let n_released = self.n_released.entry(piece).or_default();
        *n_released += 1;
        if *n_released == self.cache.store.piece(piece).n_nodes() {
            self.n_bytes += self.cache.store.bytes_of(piece);
        }
        let Some(parent) = node.parent else { return };
        if !node.is_in_pool()
            && let Some(n) = self.n_only_stored.get_mut(&parent)
        {
            *n -= 1;
        }
        self.follow_up(id);
    }

    /// `id` holds less: it may leave the tree, and what is above it may be needed no more.
    fn follow_up(&mut self, id: NodeId) {
        let mut at = id;
        while let Some(parent) = self.cache.tree.node(at).parent {
            visit_counter::count_visited(1);
            let node = self.cache.tree.node(at);
            let is_stored = node.stored.is_some() && !self.dropped.contains(&at);
            let is_kept = is_stored || !node.tips.is_empty() || node.n_pins + node.n_reserved > 0;
            let is_gone = !is_kept && self.n_children(at) == 0;
            if is_gone {
                *self.n_gone.entry(parent).or_default() += 1;
            }
            self.ask_again(parent);
            if !is_gone {
                return;
            }
            at = parent;
        }
    }

    fn n_children(&self, id: NodeId) -> usize {
        self.cache.tree.node(id).children.len() - self.n_gone.get(&id).copied().unwrap_or(0)
    }

    /// Whether `id` could be dropped now, and could not before.
    fn ask_again(&mut self, id: NodeId) {
        let cache = self.cache;
        let node = cache.tree.node(id);
        if node.stored.is_none() || node.drop_key.is_some() || node.n_pins > 0 || self.dropped.contains(&id) {
            return;
        }
        let is_needed = match cache.rules().needed_by(node.is_in_pool()) {
            PieceUser::Nobody => false,
            PieceUser::Children => self.n_children(id) > 0,
            PieceUser::StoredChildren => {
                let count = || node.children.values().filter(|child| self.is_host_only(**child)).count();
                let n = self.n_only_stored.get(&id).copied().unwrap_or_else(count);
                self.n_only_stored.insert(id, n);
                n > 0
            }
        };
        if !is_needed {
            self.next.insert(((cache.drop_class(id), node.last_used), id));
        }
    }

    fn is_host_only(&self, id: NodeId) -> bool {
        visit_counter::count_visited(1);
        self.cache.tree.node(id).is_host_only() && !self.dropped.contains(&id)
    }
}

impl KvCache {
    /// Whether the store takes `n_tokens` tokens of `node`: it has room, or holds enough that is worth less.
    pub(super) fn is_worth_saving(&self, node: NodeId, n_tokens: u32, why: EvictionReason) -> bool {
        self.dropped_for(node, self.kind.bytes_of(n_tokens), why).is_some()
    }

    /// The nodes whose pieces are dropped, in order, so that `n_bytes` more fit for what `node` holds. `None` where what would be
    /// left to drop is worth more.
    fn dropped_for(&self, node: NodeId, n_bytes: u64, why: EvictionReason) -> Option<Vec<NodeId>> {
        if !self.store.can_ever_hold(n_bytes) {
            return None;
        }
        let n_lacking = self.store.n_missing_bytes(n_bytes);
        if n_lacking == 0 {
            return Some(Vec::new());
        }
        let leaving = OffloadCandidate::new(self, node);
        let is_saved_together = |id: NodeId| id == node || self.rules().is_saved_together(self, id, &leaving);
        let mut first =
            self.droppable.iter().copied().inspect(|_| visit_counter::count_visited(1)).filter(|&(_, id)| !is_saved_together(id));
        let mut known = first.next();
        let mut dropping = HostEviction::new(self);
        while dropping.n_bytes < n_lacking {
            let new = dropping.next.first().copied();
            let (key, least) = known.into_iter().chain(new).min()?;
            if known == Some((key, least)) {
                known = first.next();
            } else {
                dropping.next.pop_first();
                if is_saved_together(least) {
                    continue;
                }
            }
            if !self.gives_way(key, least, &leaving, why) {
                return None;
            }
            dropping.drop(least);
        }
        Some(dropping.nodes)
    }

    /// Whether the stored piece of `least` is dropped for what is leaving.
    fn gives_way(&self, (class, last_used): DropKey, least: NodeId, leaving: &OffloadCandidate, why: EvictionReason) -> bool {
        // Without what is before it, it would be of no use.
        if why == EvictionReason::Pressed && class == 1 && self.rules().needs_what_is_before() && leaving.contains(self, least) {
            return true;
        }
        let node = self.tree.node(leaving.node());
        let is_firm = node.n_pins > 0 || node.n_reserved > 0;
        class == 0 || (class == 1 && (is_firm || last_used < node.last_used)) || node.n_pins > 0
    }

    /// Drops stored pieces until `n_bytes` more fit for what `node` holds; `false`, and nothing is dropped, where what would be left
    /// to drop is worth more. What is dropped may join nodes, `node` too.
    pub(super) fn evict_for(&mut self, node: NodeId, n_bytes: u64, why: EvictionReason) -> bool {
        let Some(dropped) = self.dropped_for(node, n_bytes, why) else { return false };
        for id in dropped {
            // One that was joined with what follows it goes when that goes.
            if self.tree.contains(id) && self.tree.node(id).stored.is_some() {
                let node = self.tree.node(id);
                let is_in_pool = node.is_in_pool();
                self.counts.n_forgotten += if is_in_pool { 0 } else { node.tokens.len() as u64 };
                // Of a state, the cells that others go through are no copy.
                if !is_in_pool || (self.kind.is_a_state() && node.tips.is_empty()) {
                    self.remember_lost(id, EvictionCause::Store);
                }
                self.drop_stored(id);
            }
        }
        debug_assert!(self.store.n_missing_bytes(n_bytes) == 0, "what was to be dropped is enough");
        self.store.n_missing_bytes(n_bytes) == 0
    }

    /// Gives up the saved piece of `id`.
    pub(super) fn drop_stored(&mut self, id: NodeId) {
        let piece = self.tree.node_mut(id).stored.take().expect("it is stored");
        self.store.release(piece);
        self.refresh_stored(id);
        self.prune(id);
    }
}
