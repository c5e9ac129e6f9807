//! How paths enter the tree, move in it and leave it, and how its nodes follow.

use crate::cache::prefix_tree::{DropKey, Node, NodeId, common_prefix};
use crate::cache::{CacheOp, Forks, KvCache, SequenceId};
use crate::request::Token;

impl KvCache {
    /// Moves the tail of `id` into the tree.
    pub(super) fn commit(&mut self, id: SequenceId) {
        let n = self.path(id).tail.len();
        self.commit_part(id, n);
    }

    /// Moves the first `n` tokens of the tail of `id` into the tree.
    fn commit_part(&mut self, id: SequenceId, n: usize) {
        if n == 0 {
            return;
        }
        let path = self.path_mut(id);
        let mut tokens: Vec<Token> = path.tail.drain(..n).collect();
        let old = path.tip;
        let mut passed = vec![old];
        let mut at = old;
        while !tokens.is_empty() {
            let Some(&child) = self.tree.node(at).children.get(&tokens[0]) else {
                at = self.tree.add_child(at, std::mem::take(&mut tokens));
                break;
            };
            let n = common_prefix(&self.tree.node(child).tokens, &tokens);
            at = if (n as usize) < self.tree.node(child).tokens.len() { self.split(child, n) } else { child };
            tokens.drain(..n as usize);
            passed.push(at);
        }
        self.add_tip(at, id);
        self.path_mut(id).tip = at;
        for node in passed {
            self.give_back_ids(node, id);
        }
        self.remove_tip(old, id);
    }

    /// The node that ends after `n` tokens of the path of `id`; what has to be is cut or enters the tree.
    pub(super) fn cut_at(&mut self, id: SequenceId, n: u32) -> NodeId {
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
            && self.memory.forks != Forks::AtEnd
        {
            self.store.share(piece);
            let upper = self.tree.node_mut(upper);
            (upper.stored, upper.whole_from) = (stored, whole_from);
        }
        self.refresh(upper);
        self.refresh(node);
        upper
    }

    pub(super) fn add_tip(&mut self, node: NodeId, id: SequenceId) {
        let is_running = u32::from(self.path(id).is_pinned);
        let now = self.now;
        self.tree.node_mut(node).tips.push(id);
        self.tree.change_upwards(node, |node| {
            node.n_holders += 1;
            node.n_running += is_running;
            node.last_used = now;
        });
        self.refresh_upwards(node);
    }

    pub(super) fn remove_tip(&mut self, node: NodeId, id: SequenceId) {
        let is_running = u32::from(self.path(id).is_pinned);
        self.tree.node_mut(node).tips.retain(|&tip| tip != id);
        self.tree.change_upwards(node, |node| {
            node.n_holders -= 1;
            node.n_running -= is_running;
        });
        self.refresh_upwards(node);
        self.prune(node);
    }

    /// Idle paths that end at `node`, where the path of `by` goes on or ends, hold nothing of their own.
    pub(super) fn give_back_ids(&mut self, node: NodeId, by: SequenceId) {
        if self.memory.forks != Forks::Anywhere {
            return;
        }
        let idle: Vec<SequenceId> =
            self.tree.node(node).tips.iter().copied().filter(|&tip| tip != by && !self.path(tip).is_pinned).collect();
        for id in idle {
            self.drop_path(id);
        }
    }

    /// An idle path is forgotten, with the cells that no other one holds.
    pub(super) fn drop_path(&mut self, id: SequenceId) {
        let tip = self.path(id).tip;
        debug_assert!(!self.path(id).is_pinned, "a pinned path is never dropped");
        self.remove_tip(tip, id);
        let path = self.paths[usize::from(id.0)].take().expect("it was found above");
        for cell in path.cells {
            self.cells.release(cell);
        }
        self.ops.push(CacheOp::Drop(id));
    }

    /// Of the idle path of `id`, with its tail, only what is before the end of `node` is left.
    pub(super) fn keep_up_to(&mut self, id: SequenceId, node: NodeId) {
        let (tip, end) = (self.path(id).tip, self.tree.node(node).end());
        self.path_mut(id).tail.clear();
        if node != tip {
            self.add_tip(node, id);
            self.path_mut(id).tip = node;
            self.remove_tip(tip, id);
        }
        for cell in self.path_mut(id).cells.split_off(end as usize) {
            self.cells.release(cell);
        }
        self.ops.push(CacheOp::Truncate(id, end));
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
                        Some(piece) => below.stored == Some(piece) && self.memory.forks != Forks::AtEnd,
                        None => below.stored.is_none(),
                    };
                    if is_one_piece && (below.n_pins, below.n_reserved) == (node.n_pins, node.n_reserved) {
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

    pub(super) fn refresh_upwards(&mut self, node: NodeId) {
        let mut at = Some(node);
        while let Some(node) = at {
            self.refresh(node);
            at = self.tree.node(node).parent;
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
        // A part is restored over what is before it; a state is whole.
        let is_needed_below = match self.memory.forks {
            Forks::Anywhere | Forks::InWindow if !node.is_in_pool() => !node.children.is_empty(),
            Forks::Anywhere | Forks::AtEnd => false,
            // The window of what is in the pool may have moved on.
            Forks::InWindow => node.children.values().map(|&child| self.tree.node(child)).any(Node::is_only_stored),
        };
        let class = if node.is_in_pool() {
            0
        } else if node.n_reserved == 0 {
            1
        } else {
            2
        };
        (!is_needed_below).then_some((class, node.last_used))
    }
}
