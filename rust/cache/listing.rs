//! Lists the nodes of the prefix tree for inspection.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cache::host_cache::HostEntry;
use crate::cache::prefix_tree::{NodeId, length};
use crate::cache::{KvCache, KvSeqId, visit_counter};
use crate::request::{AdapterScale, Token};

#[derive(Debug, Clone, PartialEq)]
pub struct CachedNode {
    /// Index of its parent in the listing; `None` for a node below a root.
    pub parent: Option<usize>,
    pub tokens: Vec<Token>,
    /// Number of tokens before the node.
    pub start: u32,
    pub adapters: Vec<AdapterScale>,
    pub tier: Tier,
    pub slots: Vec<u32>,
    /// Cache owner of the request that computed or used it last, if that request names one.
    pub owner: Option<Arc<str>>,
    pub is_pinned: bool,
    /// Number of requests that matched the node, or a part of it that was then split off.
    pub n_hits: u64,
    pub last_used: u64,
    /// Bytes in the host cache; an entry that several nodes are reloaded from is counted at the first of them.
    pub n_host_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    Device,
    /// The device cache, with a copy in the host cache.
    DeviceAndHost,
    Host,
    /// The device cache, for tokens of a running sequence that are not in the tree yet.
    Computing,
    /// Neither tier: only a descendant is in the host cache.
    Uncached,
}

impl KvCache {
    /// Lists all nodes, parents first, and then the computed tokens of running sequences that are not in the tree yet.
    pub(crate) fn list_nodes(&self, slot_of: impl Fn(KvSeqId) -> Option<u32>) -> Vec<CachedNode> {
        let mut listing = Listing::new(self, usize::MAX);
        for id in self.tree.in_order() {
            listing.add(id);
        }
        let running = self.running_paths(slot_of);
        for &(id, slot) in &running {
            listing.add_computing(id, slot);
        }
        listing.with_slots(&running)
    }

    /// Lists the `limit` most recently used nodes, and counts all. A node was used when a descendant was, so parents come
    /// first; what running sequences have computed counts as used now.
    ///
    /// Visits `limit` nodes, their ancestors, and the paths of running sequences, however large the tree is.
    pub(crate) fn list_recently_used(&self, limit: usize, slot_of: impl Fn(KvSeqId) -> Option<u32>) -> (Vec<CachedNode>, usize) {
        let running = self.running_paths(slot_of);
        let n_computing: usize = running.iter().map(|&(id, _)| self.uncommitted_runs(id).count()).sum();
        let mut listing = Listing::new(self, limit);
        for &(id, slot) in &running {
            if self.uncommitted_runs(id).next().is_some() {
                listing.add_with_parents(self.path(id).tip);
                listing.add_computing(id, slot);
            }
        }
        for id in self.tree.most_recent() {
            if listing.is_full() {
                break;
            }
            listing.add_with_parents(id);
        }
        (listing.with_slots(&running), self.tree.n_below_roots() + n_computing)
    }

    #[cfg(test)]
    pub(super) fn tokens_of(&self, id: KvSeqId) -> Vec<Token> {
        let path = self.path(id);
        let mut tokens = self.tree.tokens_to(path.tip);
        tokens.extend_from_slice(&path.tail);
        tokens
    }

    fn running_paths(&self, slot_of: impl Fn(KvSeqId) -> Option<u32>) -> Vec<(KvSeqId, u32)> {
        self.paths().filter_map(|(id, _)| Some((id, slot_of(id)?))).collect()
    }

    /// Computed tokens of the sequence on `id` that are not in the tree yet, as runs with one adapter set, each with its start.
    fn uncommitted_runs(&self, id: KvSeqId) -> impl Iterator<Item = (u32, &[Token])> {
        let path = self.path(id);
        let (mut start, mut rest) = (self.tree.node(path.tip).end(), &path.tail[..]);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (run, others) = rest.split_at(rest.len().min(path.adapters.n_unchanged(start) as usize));
            let run_start = start;
            (start, rest) = (run_start + length(run), others);
            Some((run_start, run))
        })
    }

    /// Bytes of the host cache entry of a node; 0 if an ancestor shares the entry, where its bytes are counted.
    fn n_host_bytes(&self, id: NodeId) -> u64 {
        let node = self.tree.node(id);
        let Some(entry) = &node.host_entry else { return 0 };
        let is_same = |other: &Arc<HostEntry>| Arc::ptr_eq(other, entry);
        let above = node.parent.into_iter().flat_map(|parent| self.tree.upwards(parent));
        let mut above = above.map(|id| self.tree.node(id)).take_while(|node| node.end() > entry.range.start);
        let is_shared = Arc::strong_count(entry) > 1 && above.any(|node| node.host_entry.as_ref().is_some_and(is_same));
        if is_shared { 0 } else { entry.n_bytes() }
    }
}

struct Listing<'a> {
    cache: &'a KvCache,
    limit: usize,
    nodes: Vec<CachedNode>,
    indices: BTreeMap<NodeId, usize>,
}

impl<'a> Listing<'a> {
    fn new(cache: &'a KvCache, limit: usize) -> Self {
        Self { cache, limit, nodes: Vec::new(), indices: BTreeMap::new() }
    }

    fn is_full(&self) -> bool {
        self.nodes.len() >= self.limit
    }

    fn push(&mut self, node: CachedNode) {
        if !self.is_full() {
            self.nodes.push(node);
        }
    }

    fn add(&mut self, id: NodeId) {
        let node = self.cache.tree.node(id);
        let Some(parent) = node.parent.filter(|_| !self.is_full()) else { return };
        visit_counter::count_visited(1);
        self.indices.insert(id, self.nodes.len());
        self.push(CachedNode {
            parent: self.indices.get(&parent).copied(),
            tokens: node.tokens.clone(),
            start: node.start,
            adapters: node.adapters.adapters().collect(),
            tier: match (node.is_on_device(), node.host_entry.is_some()) {
                (true, false) => Tier::Device,
                (true, true) => Tier::DeviceAndHost,
                (false, true) => Tier::Host,
                (false, false) => Tier::Uncached,
            },
            slots: Vec::new(),
            owner: node.provenance.as_ref().and_then(|provenance| provenance.owner.clone()),
            is_pinned: node.n_pins > 0,
            n_hits: node.n_hits,
            last_used: node.last_used,
            n_host_bytes: self.cache.n_host_bytes(id),
        });
    }

    fn add_with_parents(&mut self, id: NodeId) {
        let mut missing: Vec<NodeId> = self.cache.tree.upwards(id).take_while(|id| !self.indices.contains_key(id)).collect();
        while let Some(id) = missing.pop() {
            self.add(id);
        }
    }

    fn add_computing(&mut self, id: KvSeqId, slot: u32) {
        let path = self.cache.path(id);
        let mut parent = self.indices.get(&path.tip).copied();
        for (start, tokens) in self.cache.uncommitted_runs(id) {
            if self.is_full() {
                return;
            }
            self.push(CachedNode {
                parent,
                tokens: tokens.to_vec(),
                start,
                adapters: path.adapters.at(start).adapters().collect(),
                tier: Tier::Computing,
                slots: vec![slot],
                owner: path.provenance.as_ref().and_then(|provenance| provenance.owner.clone()),
                is_pinned: false,
                n_hits: 0,
                last_used: self.cache.now,
                n_host_bytes: 0,
            });
            parent = Some(self.nodes.len() - 1);
        }
    }

    fn with_slots(mut self, running: &[(KvSeqId, u32)]) -> Vec<CachedNode> {
        for &(id, slot) in running {
            for node in self.cache.tree.upwards(self.cache.path(id).tip) {
                if let Some(&index) = self.indices.get(&node) {
                    self.nodes[index].slots.push(slot);
                }
            }
        }
        for node in &mut self.nodes {
            node.slots.sort_unstable();
        }
        self.nodes
    }
}
