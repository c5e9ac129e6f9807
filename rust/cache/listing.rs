//! The tree, for those who look at it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cache::prefix_tree::{NodeId, length};
use crate::cache::store::PieceId;
use crate::cache::{KvCache, SequenceId};
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
    /// Bytes that it takes in the store; a piece that was saved in one is counted in its last stretch.
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
    pub fn listing(&self, slot_of: impl Fn(SequenceId) -> Option<u32>) -> Vec<CachedNode> {
        // A piece may be that of several nodes; it counts at the last of them.
        let mut last: BTreeMap<PieceId, (u32, NodeId)> = BTreeMap::new();
        for (id, node) in self.tree.nodes() {
            if let Some(piece) = node.stored {
                let at = last.entry(piece).or_insert((node.end(), id));
                *at = (*at).max((node.end(), id));
            }
        }
        let order: Vec<NodeId> = self.tree.in_order().into_iter().filter(|&id| self.tree.node(id).parent.is_some()).collect();
        let indices: BTreeMap<NodeId, usize> = order.iter().enumerate().map(|(index, &id)| (id, index)).collect();
        let index_of = |id: NodeId| indices.get(&id).copied();
        let variants = self.tree.variants();
        let mut listing: Vec<CachedNode> = order
            .iter()
            .map(|&id| {
                let node = self.tree.node(id);
                let piece = node.stored.filter(|piece| last[piece].1 == id);
                CachedNode {
                    parent: node.parent.and_then(index_of),
                    tokens: node.tokens.clone(),
                    start: node.start,
                    adapters: variants[&node.variant].adapters().collect(),
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
                    n_stored_bytes: piece.map_or(0, |piece| self.store.bytes_of(piece)),
                }
            })
            .collect();
        for (id, path) in self.paths() {
            let Some(slot) = slot_of(id) else { continue };
            for index in self.tree.upwards(path.tip).filter_map(index_of) {
                listing[index].slots.push(slot);
            }
            let (mut parent, mut start, mut rest) = (index_of(path.tip), self.tree.node(path.tip).end(), &path.tail[..]);
            while !rest.is_empty() {
                let alike;
                (alike, rest) = rest.split_at(rest.len().min(path.variants.n_alike(start) as usize));
                listing.push(CachedNode {
                    parent,
                    tokens: alike.to_vec(),
                    start,
                    adapters: path.variants.at(start).adapters().collect(),
                    tier: Tier::Computing,
                    slots: vec![slot],
                    owner: path.maker.as_ref().and_then(|maker| maker.owner.clone()),
                    is_pinned: false,
                    n_hits: 0,
                    last_used: self.now,
                    n_stored_bytes: 0,
                });
                (parent, start) = (Some(listing.len() - 1), start + length(alike));
            }
        }
        for node in &mut listing {
            node.slots.sort_unstable();
        }
        listing
    }

    /// The tokens of the path of `id`.
    #[must_use]
    pub fn tokens_of(&self, id: SequenceId) -> Vec<Token> {
        let path = self.path(id);
        let mut tokens = self.tree.tokens_to(path.tip);
        tokens.extend_from_slice(&path.tail);
        tokens
    }
}
