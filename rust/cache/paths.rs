//! Adds paths to the tree, moves their ends in it and removes them, and keeps the nodes up to date.

use std::sync::Arc;

use crate::cache::host_cache::HostEntry;
use crate::cache::kinds::Dependents;
use crate::cache::prefix_tree::{DropKey, Node, NodeId, common_prefix};
use crate::cache::{CacheOp, KvCache, KvSeqId, visit_counter};
use crate::request::Token;

impl KvCache {
    pub(super) fn commit(&mut self, id: KvSeqId) {
        let n = if self.is_private(id) { 0 } else { self.path(id).tail.len() };
        self.commit_part(id, n);
    }

    fn commit_part(&mut self, id: KvSeqId, n: usize) {
        if n == 0 {
            return;
        }
        let path = self.path_mut(id);
        let tokens: Vec<Token> = path.tail.drain(..n).collect();
        path.blocks.clear();
        let (old, provenance, adapters) = (path.tip, path.provenance.clone(), path.adapters.clone());
        let (mut node, mut passed_nodes, mut rest) = (old, vec![old], &tokens[..]);
        while let Some(first) = rest.first() {
            visit_counter::count_visited(1);
            let position = self.tree.node(node).end();
            let unchanged = &rest[..rest.len().min(adapters.n_unchanged(position) as usize)];
            let Some(child) = self.tree.child(node, &adapters, *first) else {
                node = self.tree.add_child(node, adapters.at(position).clone(), unchanged.to_vec());
                self.tree.node_mut(node).provenance.clone_from(&provenance);
                rest = &rest[unchanged.len()..];
                continue;
            };
            let n = common_prefix(&self.tree.node(child).tokens, unchanged);
            node = if (n as usize) < self.tree.node(child).tokens.len() { self.split(child, n) } else { child };
            rest = &rest[n as usize..];
            if provenance.is_some() {
                self.tree.node_mut(node).provenance.clone_from(&provenance);
            }
            passed_nodes.push(node);
        }
        self.start_path_at(node, id);
        for node in passed_nodes {
            self.drop_redundant_paths(node, id);
        }
        self.tree.remove_tip(old, id);
        self.prune(old);
    }

    /// Returns the node that ends after `n` tokens of the path of `id`, splitting a node or committing tail tokens if needed.
    pub(super) fn cut_at(&mut self, id: KvSeqId, n: u32) -> NodeId {
        let path = self.path(id);
        let end = self.tree.node(path.tip).end();
        if n > end {
            self.commit_part(id, (n - end) as usize);
            return self.path(id).tip;
        }
        let node = self.tree.upwards(path.tip).find(|&node| self.tree.node(node).start < n);
        match node {
            None => self.tree.upwards(path.tip).last().expect("a path begins at a root"),
            Some(node) if self.tree.node(node).end() == n => node,
            Some(node) => self.split(node, n - self.tree.node(node).start),
        }
    }

    /// Splits a node. Both parts are reloaded from the same host cache entry, unless it is a state.
    pub(super) fn split(&mut self, node: NodeId, n: u32) -> NodeId {
        let upper = self.tree.split(node, n);
        let entry = self.tree.node(node).host_entry.clone().filter(|_| !self.kind.is_a_state());
        self.tree.node_mut(upper).host_entry = entry;
        self.refresh(upper);
        self.refresh(node);
        upper
    }

    /// Makes the path of `id`, on which a sequence runs, end at `node`.
    pub(super) fn start_path_at(&mut self, node: NodeId, id: KvSeqId) {
        self.path_mut(id).tip = node;
        let last = self.tree.add_tip(node, id);
        self.refresh_upwards(node, Some(last));
        self.mark_used(node);
    }

    /// Marks `node` and its ancestors as used now. The ancestors of a node that was used now were used now too.
    pub(super) fn mark_used(&mut self, node: NodeId) {
        let mut next = Some(node);
        while let Some(node) = next.filter(|&node| self.tree.node(node).last_used < self.now) {
            visit_counter::count_visited(1);
            self.tree.set_last_used(node, self.now);
            self.refresh(node);
            next = self.tree.node(node).parent;
        }
    }

    /// Makes the idle path of `id` end at the ancestor `above` of its end `node`, or leave the tree.
    fn move_end_above(&mut self, node: NodeId, above: Option<NodeId>, id: KvSeqId) {
        if let Some(above) = above {
            self.tree.add_tip(above, id);
            self.path_mut(id).tip = above;
        }
        let last = self.tree.remove_tip(node, id);
        self.refresh_upwards(node, Some(last));
        self.prune(node);
    }

    /// Drops idle paths that end at `node`, which the path of `by` passes: redundant if any prefix can be forked.
    pub(super) fn drop_redundant_paths(&mut self, node: NodeId, by: KvSeqId) {
        if !self.kind.forks.can_truncate() {
            return;
        }
        let idle: Vec<KvSeqId> =
            self.tree.node(node).tips.iter().copied().filter(|&tip| tip != by && !self.is_pinned(tip)).collect();
        for id in idle {
            self.drop_path(id);
        }
    }

    pub(super) fn drop_path(&mut self, id: KvSeqId) {
        debug_assert!(!self.is_pinned(id), "a pinned path is never dropped");
        let tip = self.path(id).tip;
        self.move_end_above(tip, None, id);
        self.cell_runs.drop_all(id);
        self.paths[usize::from(id.0)] = None;
        self.free_ids.insert(id);
        self.ops.push(CacheOp::Drop(id));
    }

    pub(super) fn truncate_after(&mut self, id: KvSeqId, node: NodeId) {
        let (tip, end) = (self.path(id).tip, self.tree.node(node).end());
        let path = self.path_mut(id);
        path.tail.clear();
        path.blocks.clear();
        if node != tip {
            self.move_end_above(tip, Some(node), id);
        }
        self.cell_runs.shorten(id, end);
        self.ops.push(CacheOp::Truncate(id, end));
    }

    /// Drops the whole path if others hold the rest or it cannot be cut.
    pub(super) fn drop_last_node(&mut self, id: KvSeqId) {
        let node = self.tree.node(self.path(id).tip);
        let parent = node.parent.expect("a path that ends at a root holds nothing and is free");
        let above = self.tree.node(parent);
        let is_shared = !above.tips.is_empty() || above.device_children.len() > 1;
        if is_shared || node.start == 0 || !self.kind.forks.can_truncate() {
            self.drop_path(id);
        } else {
            self.truncate_after(id, parent);
        }
    }

    /// Removes `node` and its ancestors up to one in use, and joins nodes that need not be separate.
    pub(super) fn prune(&mut self, node: NodeId) {
        let mut next = Some(node);
        while let Some(id) = next {
            let node = self.tree.node(id);
            if !node.tips.is_empty() {
                return;
            }
            next = node.parent;
            match node.children.len() {
                0 if node.n_pins == 0 && node.n_reserved == 0 && node.host_entry.is_none() => self.tree.remove(id),
                1 if next.is_some() => {
                    let (_, &child) = node.children.first_key_value().expect("there is one");
                    let below = self.tree.node(child);
                    // Either neither node has an entry, or both were split from the same one.
                    let is_same_entry = node.host_entry.as_ref().map(Arc::as_ptr) == below.host_entry.as_ref().map(Arc::as_ptr);
                    let has_same_pins = (below.n_pins, below.n_reserved) == (node.n_pins, node.n_reserved);
                    if is_same_entry && has_same_pins && below.adapters == node.adapters {
                        self.remove_drop_key(id);
                        self.tree.join_with_child(id);
                        self.refresh(child);
                    }
                    return;
                }
                _ => return,
            }
            if let Some(parent) = next {
                self.refresh(parent);
            }
        }
    }

    /// Updates the drop keys of `node` and its ancestors up to `last`.
    pub(super) fn refresh_upwards(&mut self, node: NodeId, last: Option<NodeId>) {
        let mut next = Some(node);
        while let Some(node) = next {
            visit_counter::count_visited(1);
            self.refresh(node);
            next = self.tree.node(node).parent.filter(|_| Some(node) != last);
        }
    }

    fn refresh(&mut self, id: NodeId) {
        let (key, old) = (self.drop_key(id), self.tree.node(id).drop_key);
        if key == old {
            return;
        }
        self.remove_drop_key(id);
        if let Some(key) = key {
            self.droppable.insert((key, id));
        }
        self.tree.node_mut(id).drop_key = key;
    }

    /// Updates the drop key of the parent too, whose entry may depend on it.
    pub(super) fn set_host_entry(&mut self, id: NodeId, entry: Option<HostEntry>) {
        let entry = entry.map(|entry| self.host_cache.add(entry));
        if let Some(old) = std::mem::replace(&mut self.tree.node_mut(id).host_entry, entry) {
            self.host_cache.release(old);
        }
        self.refresh(id);
        if let Some(parent) = self.tree.node(id).parent {
            self.refresh(parent);
        }
    }

    fn remove_drop_key(&mut self, id: NodeId) {
        if let Some(old) = self.tree.node_mut(id).drop_key.take() {
            self.droppable.remove(&(old, id));
        }
    }

    /// `None` if there is no entry, or a pin or another node needs it.
    pub(super) fn drop_key(&self, id: NodeId) -> Option<DropKey> {
        let node = self.tree.node(id);
        if node.host_entry.is_none() || node.n_pins > 0 {
            return None;
        }
        let children = || node.children.values().inspect(|_| visit_counter::count_visited(1)).map(|&child| self.tree.node(child));
        let is_needed = match self.rules().dependents(node.is_on_device()) {
            Dependents::None => false,
            Dependents::Children => !node.children.is_empty(),
            Dependents::HostOnlyChildren => children().any(Node::is_host_only),
        };
        (!is_needed).then_some((self.drop_class(id), node.last_used))
    }

    pub(super) fn drop_class(&self, id: NodeId) -> u8 {
        let node = self.tree.node(id);
        match (node.is_on_device(), node.n_reserved) {
            (true, _) => 0,
            (false, 0) => 1,
            (false, _) => 2,
        }
    }
}
