//! How paths enter the tree, move in it and leave it, and how its nodes follow.

use crate::cache::kinds::PieceUser;
use crate::cache::prefix_tree::{DropKey, Node, NodeId, common_prefix};
use crate::cache::{CacheOp, KvCache, KvSeqId, visit_counter};
use crate::request::Token;

impl KvCache {
    /// Moves the tail of `id` into the tree, but for what is private.
    pub(super) fn commit(&mut self, id: KvSeqId) {
        let n = if self.is_private(id) { 0 } else { self.path(id).tail.len() };
        self.commit_part(id, n);
    }

    /// Moves the first `n` tokens of the tail of `id` into the tree.
    fn commit_part(&mut self, id: KvSeqId, n: usize) {
        if n == 0 {
            return;
        }
        let path = self.path_mut(id);
        let tokens: Vec<Token> = path.tail.drain(..n).collect();
        path.blocks.clear();
        let (old, maker, variants) = (path.tip, path.maker.clone(), path.variants.clone());
        let (mut at, mut passed, mut rest) = (old, vec![old], &tokens[..]);
        while let Some(first) = rest.first() {
            visit_counter::count_visited(1);
            let place = self.tree.node(at).end();
            let variant = self.tree.root(variants.at(place));
            let alike = &rest[..rest.len().min(variants.n_alike(place) as usize)];
            let Some(&child) = self.tree.node(at).children.get(&(variant, *first)) else {
                at = self.tree.add_child(at, variant, alike.to_vec());
                self.tree.node_mut(at).maker.clone_from(&maker);
                rest = &rest[alike.len()..];
                continue;
            };
            let n = common_prefix(&self.tree.node(child).tokens, alike);
            at = if (n as usize) < self.tree.node(child).tokens.len() { self.split(child, n) } else { child };
            rest = &rest[n as usize..];
            if maker.is_some() {
                self.tree.node_mut(at).maker.clone_from(&maker);
            }
            passed.push(at);
        }
        // What is above has this path already: a long one that is restored piece by piece is not walked for each of them.
        self.begin_at(at, Some(old), id);
        for node in passed {
            self.release_ids(node, id);
        }
        self.tree.node_mut(old).tips.retain(|&tip| tip != id);
        self.prune(old);
    }

    /// The node that ends after `n` tokens of the path of `id`; what has to be is cut or enters the tree.
    pub(super) fn cut_at(&mut self, id: KvSeqId, n: u32) -> NodeId {
        let path = self.path(id);
        let end = self.tree.node(path.tip).end();
        if n > end {
            self.commit_part(id, (n - end) as usize);
            return self.path(id).tip;
        }
        let at = self.tree.upwards(path.tip).find(|&node| self.tree.node(node).start < n);
        match at {
            None => self.tree.upwards(path.tip).last().expect("a path begins at a root"),
            Some(node) if self.tree.node(node).end() == n => node,
            Some(node) => self.split(node, n - self.tree.node(node).start),
        }
    }

    /// Cuts a node, and what is stored of it, but for a state: both parts are restored from the same piece.
    pub(super) fn split(&mut self, node: NodeId, n: u32) -> NodeId {
        let upper = self.tree.split(node, n);
        let Node { stored, whole_from, .. } = *self.tree.node(node);
        if let Some(piece) = stored
            && !self.kind.is_a_state()
        {
            self.store.share(piece);
            let upper = self.tree.node_mut(upper);
            (upper.stored, upper.whole_from) = (stored, whole_from);
        }
        self.refresh(upper);
        self.refresh(node);
        upper
    }

    /// The path of `id`, on which a sequence runs, ends at `node` from now on; it goes through `above` already.
    pub(super) fn begin_at(&mut self, node: NodeId, above: Option<NodeId>, id: KvSeqId) {
        self.tree.node_mut(node).tips.push(id);
        self.path_mut(id).tip = node;
        let last = self.tree.enter(node, above, self.now);
        self.refresh_upwards(node, last);
    }

    /// The idle path of `id` ends above `node` from now on, at `above`, or nowhere.
    fn end_above(&mut self, node: NodeId, above: Option<NodeId>, id: KvSeqId) {
        if let Some(above) = above {
            self.tree.node_mut(above).tips.push(id);
            self.path_mut(id).tip = above;
        }
        self.tree.node_mut(node).tips.retain(|&tip| tip != id);
        let last = self.tree.leave(node, above);
        self.refresh_upwards(node, last);
        self.prune(node);
    }

    /// Idle paths that end at `node`, where the path of `by` goes on or ends, hold nothing of their own.
    pub(super) fn release_ids(&mut self, node: NodeId, by: KvSeqId) {
        if !self.rules().gives_back_ids() {
            return;
        }
        let idle: Vec<KvSeqId> =
            self.tree.node(node).tips.iter().copied().filter(|&tip| tip != by && !self.is_pinned(tip)).collect();
        for id in idle {
            self.drop_path(id);
        }
    }

    /// An idle path is forgotten, with the cells that no other one holds.
    pub(super) fn drop_path(&mut self, id: KvSeqId) {
        debug_assert!(!self.is_pinned(id), "a pinned path is never dropped");
        let tip = self.path(id).tip;
        self.end_above(tip, None, id);
        self.strands.drop_all(id);
        self.paths[usize::from(id.0)] = None;
        self.free_ids.insert(id);
        self.ops.push(CacheOp::Drop(id));
    }

    /// Of the idle path of `id`, with its tail, only what is before the end of `node` is left.
    pub(super) fn keep_up_to(&mut self, id: KvSeqId, node: NodeId) {
        let (tip, end) = (self.path(id).tip, self.tree.node(node).end());
        let path = self.path_mut(id);
        path.tail.clear();
        path.blocks.clear();
        if node != tip {
            self.end_above(tip, Some(node), id);
        }
        self.strands.shorten(id, end);
        self.ops.push(CacheOp::Truncate(id, end));
    }

    /// The idle path of `id` gives up its last node; where others hold the rest, it gives back its id.
    pub(super) fn move_up(&mut self, id: KvSeqId) {
        let node = self.tree.node(self.path(id).tip);
        let parent = node.parent.expect("a path that ends at a root holds nothing and is free");
        let is_held = self.tree.node(parent).n_holders > node.n_holders;
        if is_held || node.start == 0 {
            self.drop_path(id);
        } else {
            self.keep_up_to(id, parent);
        }
    }

    /// Takes out `node` and what is above it, as far as they hold nothing, and joins what was cut for no more reason.
    pub(super) fn prune(&mut self, node: NodeId) {
        let mut at = node;
        while let Some(parent) = self.tree.node(at).parent {
            let node = self.tree.node(at);
            if !node.tips.is_empty() {
                return;
            }
            match node.children.len() {
                0 if node.n_pins == 0 && node.n_reserved == 0 && node.stored.is_none() => self.tree.remove(at),
                1 => {
                    let (_, &child) = node.children.first_key_value().expect("there is one");
                    let below = self.tree.node(child);
                    // Both in no piece, or both cut from the same one.
                    let is_one_piece = match node.stored {
                        Some(piece) => below.stored == Some(piece) && !self.kind.is_a_state(),
                        None => below.stored.is_none(),
                    };
                    let ends_alike = (below.n_pins, below.n_reserved) == (node.n_pins, node.n_reserved);
                    if is_one_piece && ends_alike && below.variant == node.variant {
                        let stored = node.stored;
                        self.drop_entry(at);
                        self.tree.join_with_child(at);
                        if let Some(piece) = stored {
                            self.store.release(piece);
                        }
                        self.refresh(child);
                    }
                    return;
                }
                _ => return,
            }
            self.refresh(parent);
            at = parent;
        }
    }

    /// Updates the entries of `node` and of what is above it, up to `last`, or all of it.
    pub(super) fn refresh_upwards(&mut self, node: NodeId, last: Option<NodeId>) {
        let mut next = Some(node);
        while let Some(at) = next {
            visit_counter::count_visited(1);
            self.refresh(at);
            next = self.tree.node(at).parent.filter(|_| Some(at) != last);
        }
    }

    /// Updates the entry of `node` among the pieces that can be dropped.
    pub(super) fn refresh(&mut self, id: NodeId) {
        let (key, old) = (self.drop_key(id), self.tree.node(id).drop_key);
        if key == old {
            return;
        }
        self.drop_entry(id);
        if let Some(key) = key {
            self.droppable.insert((key, id));
        }
        self.tree.node_mut(id).drop_key = key;
    }

    /// As [`KvCache::refresh`], where the node's piece has come or gone: what is stored above may be needed for it.
    pub(super) fn refresh_stored(&mut self, id: NodeId) {
        self.refresh(id);
        if let Some(parent) = self.tree.node(id).parent {
            self.refresh(parent);
        }
    }

    pub(super) fn drop_entry(&mut self, id: NodeId) {
        if let Some(old) = self.tree.node_mut(id).drop_key.take() {
            self.droppable.remove(&(old, id));
        }
    }

    /// Where the saved piece of a node stands among those that can be dropped: what is in the pool too, and what nothing follows.
    pub(super) fn drop_key(&self, id: NodeId) -> Option<DropKey> {
        let node = self.tree.node(id);
        if node.stored.is_none() || node.n_pins > 0 {
            return None;
        }
        let children = || node.children.values().inspect(|_| visit_counter::count_visited(1)).map(|&child| self.tree.node(child));
        let is_needed = match self.rules().needed_by(node.is_in_pool()) {
            PieceUser::Nobody => false,
            PieceUser::Children => !node.children.is_empty(),
            PieceUser::StoredChildren => children().any(Node::is_host_only),
        };
        (!is_needed).then_some((self.drop_class(id), node.last_used))
    }

    /// How dear it is: a copy of what is in the pool, what nobody waits for, what a preempted sequence left.
    pub(super) fn drop_class(&self, id: NodeId) -> u8 {
        let node = self.tree.node(id);
        if node.is_in_pool() {
            0
        } else if node.n_reserved == 0 {
            1
        } else {
            2
        }
    }
}
