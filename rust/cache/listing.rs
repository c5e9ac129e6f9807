//! The tree, for those who look at it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cache::prefix_tree::{NodeId, length};
use crate::cache::{KvCache, KvSeqId, visit_counter};
use crate::request::{AdapterScale, Token};

/// A part of the prefix tree: a stretch of tokens after those of its parent.
#[derive(Debug, Clone, PartialEq)]
pub struct CachedNode {
    /// The index in the listing of its parent; `None` for a first stretch.
    pub parent: Option<usize>,
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// Tokens before it.
    pub start: u32,
    /// The adapters that they are computed with.
    pub adapters: Vec<AdapterScale>,
    /// Where it is.
    pub tier: Tier,
    /// Slots whose sequences run on it.
    pub slots: Vec<u32>,
    /// Whose request computed or used it last; `None` is whoever names nobody.
    pub owner: Option<Arc<str>>,
    /// Whether a pinned prefix contains it.
    pub is_pinned: bool,
    /// Requests that found it computed, or a beginning of it where nothing parts from it.
    pub n_hits: u64,
    /// When it was last used, on the cache's clock.
    pub last_used: u64,
    /// Bytes that it takes in the store; a piece that several stretches are restored from is counted in the first of them.
    pub n_stored_bytes: u64,
}

/// Where a stretch of computed tokens is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// In cells.
    Pool,
    /// In cells, and a copy in the store.
    Both,
    /// In the store.
    Store,
    /// In cells, as far as a running sequence has computed it.
    Computing,
    /// Nowhere: only what follows it is stored.
    Nowhere,
}

impl KvCache {
    /// The tree and, after its nodes, what running sequences computed and did not share yet; parents before their children.
    /// `slot_of` says in which slot the sequence on an id runs.
    #[must_use]
    pub fn listing(&self, slot_of: impl Fn(KvSeqId) -> Option<u32>) -> Vec<CachedNode> {
        let mut listing = Listing::new(self, usize::MAX);
        for id in self.tree.in_order() {
            listing.add(id);
        }
        let running = self.running(slot_of);
        for &(id, slot) in &running {
            listing.add_computing(id, slot);
        }
        listing.with_slots(&running)
    }

    /// The `limit` most recently used nodes, in that order, and the number of all nodes. A node counts as used when one of its
    /// descendants was: parents come before their children, and no node is listed without its parent. The tokens that running
    /// sequences have computed and that are not in the tree yet count as used now.
    ///
    /// Visits `limit` nodes, their ancestors, and the paths of running sequences, however large the tree is.
    #[must_use]
    pub fn recently_used(&self, limit: usize, slot_of: impl Fn(KvSeqId) -> Option<u32>) -> (Vec<CachedNode>, usize) {
        let running = self.running(slot_of);
        let n_computing: usize = running.iter().map(|&(id, _)| self.computing(id).count()).sum();
        let mut listing = Listing::new(self, limit);
        for &(id, slot) in &running {
            if self.computing(id).next().is_some() {
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

    /// Ids of running sequences, each with its slot.
    fn running(&self, slot_of: impl Fn(KvSeqId) -> Option<u32>) -> Vec<(KvSeqId, u32)> {
        self.paths().filter_map(|(id, _)| Some((id, slot_of(id)?))).collect()
    }

    /// Computed tokens of the sequence on `id` that are not in the tree yet, as runs of one variant, each with its start position.
    fn computing(&self, id: KvSeqId) -> impl Iterator<Item = (u32, &[Token])> {
        let path = self.path(id);
        let (mut start, mut rest) = (self.tree.node(path.tip).end(), &path.tail[..]);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (alike, others) = rest.split_at(rest.len().min(path.variants.n_alike(start) as usize));
            let at = start;
            (start, rest) = (at + length(alike), others);
            Some((at, alike))
        })
    }

    /// Bytes of the saved piece of a node. Where several nodes share a piece, the first of them has its bytes and the others have 0.
    fn n_stored_bytes(&self, id: NodeId) -> u64 {
        let node = self.tree.node(id);
        let Some(piece) = node.stored else { return 0 };
        let start = self.store.piece(piece).range.start;
        let above = node.parent.into_iter().flat_map(|parent| self.tree.upwards(parent));
        let mut above = above.map(|at| self.tree.node(at)).take_while(|at| at.end() > start);
        if self.store.piece(piece).n_nodes() > 1 && above.any(|at| at.stored == Some(piece)) {
            return 0;
        }
        self.store.bytes_of(piece)
    }
}

/// A listing of at most `limit` nodes.
struct Listing<'a> {
    cache: &'a KvCache,
    limit: usize,
    nodes: Vec<CachedNode>,
    /// Index in the listing of each listed node of the tree.
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

    /// Lists a node, whose parent is listed, unless it is a root.
    fn add(&mut self, id: NodeId) {
        let node = self.cache.tree.node(id);
        let Some(parent) = node.parent.filter(|_| !self.is_full()) else { return };
        visit_counter::count_visited(1);
        self.indices.insert(id, self.nodes.len());
        self.push(CachedNode {
            parent: self.indices.get(&parent).copied(),
            tokens: node.tokens.clone(),
            start: node.start,
            adapters: self.cache.tree.variant(node.variant).adapters().collect(),
            tier: match (node.is_in_pool(), node.stored.is_some()) {
                (true, false) => Tier::Pool,
                (true, true) => Tier::Both,
                (false, true) => Tier::Store,
                (false, false) => Tier::Nowhere,
            },
            slots: Vec::new(),
            owner: node.maker.as_ref().and_then(|maker| maker.owner.clone()),
            is_pinned: node.n_pins > 0,
            n_hits: node.n_hits,
            last_used: node.last_used,
            n_stored_bytes: self.cache.n_stored_bytes(id),
        });
    }

    /// Lists a node, and before it each of its ancestors that is not listed yet.
    fn add_with_parents(&mut self, id: NodeId) {
        let mut missing: Vec<NodeId> = self.cache.tree.upwards(id).take_while(|at| !self.indices.contains_key(at)).collect();
        while let Some(at) = missing.pop() {
            self.add(at);
        }
    }

    /// Lists the computed tokens of the sequence on `id`, which runs in `slot`, that are not in the tree yet.
    fn add_computing(&mut self, id: KvSeqId, slot: u32) {
        let path = self.cache.path(id);
        let mut parent = self.indices.get(&path.tip).copied();
        for (start, tokens) in self.cache.computing(id) {
            if self.is_full() {
                return;
            }
            self.push(CachedNode {
                parent,
                tokens: tokens.to_vec(),
                start,
                adapters: path.variants.at(start).adapters().collect(),
                tier: Tier::Computing,
                slots: vec![slot],
                owner: path.maker.as_ref().and_then(|maker| maker.owner.clone()),
                is_pinned: false,
                n_hits: 0,
                last_used: self.cache.now,
                n_stored_bytes: 0,
            });
            parent = Some(self.nodes.len() - 1);
        }
    }

    /// The listed nodes, each with the slots whose sequences run on it.
    fn with_slots(mut self, running: &[(KvSeqId, u32)]) -> Vec<CachedNode> {
        for &(id, slot) in running {
            for at in self.cache.tree.upwards(self.cache.path(id).tip) {
                if let Some(&index) = self.indices.get(&at) {
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

impl KvCache {
    /// The tokens of the path of `id`.
    #[must_use]
    pub fn tokens_of(&self, id: KvSeqId) -> Vec<Token> {
        let path = self.path(id);
        let mut tokens = self.tree.tokens_to(path.tip);
        tokens.extend_from_slice(&path.tail);
        tokens
    }
}
