//! Which host cache entries are dropped to make space for another one: none if less valuable entries would not suffice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cache::host_cache::HostEntry;
use crate::cache::kinds::Dependents;
use crate::cache::path_removal::EvictionReason;
use crate::cache::prefix_tree::{DropKey, NodeId};
use crate::cache::{KvCache, visit_counter};
use crate::request::EvictionCause;

#[derive(Debug)]
pub(super) struct OffloadCandidate {
    pub(super) node: NodeId,
    above: BTreeSet<NodeId>,
}

impl OffloadCandidate {
    pub(super) fn is_within(&self, other: NodeId) -> bool {
        self.above.contains(&other)
    }
}

/// A simulation of dropping entries, which determines what becomes droppable next.
struct HostEviction<'a> {
    cache: &'a KvCache,
    nodes: Vec<NodeId>,
    n_bytes: u64,
    dropped: BTreeSet<NodeId>,
    n_removed_children: BTreeMap<NodeId, usize>,
    /// Children that would be in the host cache alone; computed on demand.
    n_host_only_children: BTreeMap<NodeId, usize>,
    /// Number of nodes of an entry that would have released it; the last one frees its bytes.
    n_released: BTreeMap<*const HostEntry, usize>,
    droppable: BTreeSet<(DropKey, NodeId)>,
}

impl<'a> HostEviction<'a> {
    fn new(cache: &'a KvCache) -> Self {
        Self {
            cache,
            nodes: Vec::new(),
            n_bytes: 0,
            dropped: BTreeSet::new(),
            n_removed_children: BTreeMap::new(),
            n_host_only_children: BTreeMap::new(),
            n_released: BTreeMap::new(),
            droppable: BTreeSet::new(),
        }
    }

    fn drop(&mut self, id: NodeId) {
        let node = self.cache.tree.node(id);
        let entry = node.host_entry.as_ref().expect("only a node with an entry can drop it");
        self.nodes.push(id);
        self.dropped.insert(id);
        let n_released = self.n_released.entry(Arc::as_ptr(entry)).or_default();
        *n_released += 1;
        if *n_released == Arc::strong_count(entry) {
            self.n_bytes += entry.n_bytes();
        }
        let Some(parent) = node.parent else { return };
        if !node.is_on_device()
            && let Some(n) = self.n_host_only_children.get_mut(&parent)
        {
            *n -= 1;
        }
        self.propagate_removal(id);
    }

    fn propagate_removal(&mut self, mut id: NodeId) {
        while let Some(parent) = self.cache.tree.node(id).parent {
            visit_counter::count_visited(1);
            let node = self.cache.tree.node(id);
            let is_stored = node.host_entry.is_some() && !self.dropped.contains(&id);
            let is_kept = is_stored || !node.tips.is_empty() || node.n_pins + node.n_reserved > 0;
            let is_removed = !is_kept && self.n_children(id) == 0;
            if is_removed {
                *self.n_removed_children.entry(parent).or_default() += 1;
            }
            self.update_droppable(parent);
            if !is_removed {
                return;
            }
            id = parent;
        }
    }

    fn n_children(&self, id: NodeId) -> usize {
        self.cache.tree.node(id).children.len() - self.n_removed_children.get(&id).copied().unwrap_or(0)
    }

    fn update_droppable(&mut self, id: NodeId) {
        let cache = self.cache;
        let node = cache.tree.node(id);
        if node.host_entry.is_none() || node.drop_key.is_some() || node.n_pins > 0 || self.dropped.contains(&id) {
            return;
        }
        let is_needed = match cache.rules().dependents(node.is_on_device()) {
            Dependents::None => false,
            Dependents::Children => self.n_children(id) > 0,
            Dependents::HostOnlyChildren => {
                let count = || node.children.values().filter(|child| self.is_host_only(**child)).count();
                let n = self.n_host_only_children.get(&id).copied().unwrap_or_else(count);
                self.n_host_only_children.insert(id, n);
                n > 0
            }
        };
        if !is_needed {
            self.droppable.insert(((cache.drop_class(id), node.last_used), id));
        }
    }

    fn is_host_only(&self, id: NodeId) -> bool {
        visit_counter::count_visited(1);
        self.cache.tree.node(id).is_host_only() && !self.dropped.contains(&id)
    }
}

impl KvCache {
    pub(super) fn can_save(&self, node: NodeId, n_tokens: u32, reason: EvictionReason) -> bool {
        self.entries_to_drop(node, self.kind.bytes_of(n_tokens), reason).is_some()
    }

    /// Returns the nodes whose entries are dropped, in order, so that `n_bytes` more fit for `node`; `None` if an entry that
    /// would have to go is more valuable.
    fn entries_to_drop(&self, node: NodeId, n_bytes: u64, reason: EvictionReason) -> Option<Vec<NodeId>> {
        if !self.host_cache.can_ever_hold(n_bytes) {
            return None;
        }
        let n_missing_bytes = self.host_cache.n_missing_bytes(n_bytes);
        if n_missing_bytes == 0 {
            return Some(Vec::new());
        }
        let candidate = OffloadCandidate { node, above: self.tree.upwards(node).collect() };
        let is_saved_together = |id: NodeId| id == node || self.rules().is_saved_together(self, id, &candidate);
        let mut first =
            self.droppable.iter().copied().inspect(|_| visit_counter::count_visited(1)).filter(|&(_, id)| !is_saved_together(id));
        let mut existing = first.next();
        let mut eviction = HostEviction::new(self);
        while eviction.n_bytes < n_missing_bytes {
            let new = eviction.droppable.first().copied();
            let (key, victim) = existing.into_iter().chain(new).min()?;
            if existing == Some((key, victim)) {
                existing = first.next();
            } else {
                eviction.droppable.pop_first();
                if is_saved_together(victim) {
                    continue;
                }
            }
            if !self.can_be_dropped_for(key, victim, &candidate, reason) {
                return None;
            }
            eviction.drop(victim);
        }
        Some(eviction.nodes)
    }

    fn can_be_dropped_for(
        &self,
        (class, last_used): DropKey,
        victim: NodeId,
        candidate: &OffloadCandidate,
        reason: EvictionReason,
    ) -> bool {
        // Without the candidate, which it continues, the victim's entry would be useless.
        if reason == EvictionReason::MemoryPressure
            && class == 1
            && self.kind.forks.can_truncate()
            && self.tree.is_within(victim, candidate.node)
        {
            return true;
        }
        let node = self.tree.node(candidate.node);
        let is_firm = node.n_pins > 0 || node.n_reserved > 0;
        class == 0 || (class == 1 && (is_firm || last_used < node.last_used)) || node.n_pins > 0
    }

    /// Drops entries until `n_bytes` more fit for `node`, or none and returns `false`. Dropping may join nodes, also `node`.
    pub(super) fn evict_for(&mut self, node: NodeId, n_bytes: u64, reason: EvictionReason) -> bool {
        let Some(dropped) = self.entries_to_drop(node, n_bytes, reason) else { return false };
        for id in dropped {
            // A node that was joined with its child is dropped with that child.
            if self.tree.contains(id) && self.tree.node(id).host_entry.is_some() {
                let node = self.tree.node(id);
                let is_on_device = node.is_on_device();
                self.counts.n_evicted += if is_on_device { 0 } else { node.tokens.len() as u64 };
                // The cells of a path through a state's node hold a longer state, which is no copy of this one.
                if !is_on_device || (self.kind.is_a_state() && node.tips.is_empty()) {
                    self.log_eviction(id, EvictionCause::HostCache);
                }
                self.drop_host_entry(id);
            }
        }
        debug_assert!(self.host_cache.n_missing_bytes(n_bytes) == 0, "the dropped entries suffice");
        self.host_cache.n_missing_bytes(n_bytes) == 0
    }

    pub(super) fn drop_host_entry(&mut self, id: NodeId) {
        self.set_host_entry(id, None);
        self.prune(id);
    }
}
