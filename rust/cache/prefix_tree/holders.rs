//! The paths through each node: how they are added and removed, and how one is found.

use crate::cache::prefix_tree::{NodeId, PrefixTree};
use crate::cache::{KvSeqId, visit_counter};

impl PrefixTree {
    /// Adds a path on which a sequence runs to `id` and its ancestors below `above`, which the path already passes. Nodes on
    /// which nothing ran are marked as used now. Returns the first node, going up, on which another sequence ran before.
    pub(in crate::cache) fn enter(&mut self, id: NodeId, above: Option<NodeId>, now: u64) -> Option<NodeId> {
        let mut first_running = None;
        let mut next = Some(id);
        while let Some(at) = next.filter(|&at| Some(at) != above) {
            visit_counter::count_visited(1);
            let node = self.node_mut(at);
            node.n_holders += 1;
            node.n_running += 1;
            next = node.parent;
            let (n_holders, n_running) = (node.n_holders, node.n_running);
            if n_running == 1 {
                self.set_last_used(at, now);
            } else {
                first_running = first_running.or(Some(at));
            }
            if let (1, Some(parent)) = (n_holders, next) {
                self.node_mut(parent).device_children.push(at);
            }
        }
        first_running.or(above)
    }

    /// Removes an idle path from `id` and its ancestors below `above`, which the path still passes. Returns the first node,
    /// going up, that is still in the device cache.
    pub(in crate::cache) fn exit(&mut self, id: NodeId, above: Option<NodeId>) -> Option<NodeId> {
        let mut first_on_device = None;
        let mut next = Some(id);
        while let Some(at) = next.filter(|&at| Some(at) != above) {
            visit_counter::count_visited(1);
            let node = self.node_mut(at);
            node.n_holders -= 1;
            next = node.parent;
            if node.n_holders > 0 {
                first_on_device = first_on_device.or(Some(at));
            } else if let Some(parent) = next {
                self.node_mut(parent).device_children.retain(|&child| child != at);
            }
        }
        first_on_device.or(above)
    }

    /// Records that a sequence runs on an idle path that ends at `id`.
    pub(in crate::cache) fn start_running(&mut self, id: NodeId) {
        self.change_upwards(id, |node| node.n_running += 1);
    }

    /// Records that the sequence on a path that ends at `id` no longer runs. Nodes on which nothing else runs are marked as
    /// used now. Returns the first node, going up, on which a sequence still runs.
    pub(in crate::cache) fn stop_running(&mut self, id: NodeId, now: u64) -> Option<NodeId> {
        let mut first_running = None;
        let mut next = Some(id);
        while let Some(at) = next {
            visit_counter::count_visited(1);
            let node = self.node_mut(at);
            node.n_running -= 1;
            next = node.parent;
            if node.n_running == 0 {
                self.set_last_used(at, now);
            } else {
                first_running = first_running.or(Some(at));
            }
        }
        first_running
    }

    /// Iterates over ids whose paths pass `id` but not its child `except`, nearest first.
    pub(in crate::cache) fn other_holders(&self, id: NodeId, except: Option<NodeId>) -> impl Iterator<Item = KvSeqId> {
        let mut pending = vec![id];
        let mut tips: &[KvSeqId] = &[];
        let mut last = None;
        std::iter::from_fn(move || {
            loop {
                if let Some((&tip, rest)) = tips.split_first() {
                    tips = rest;
                    return Some(tip);
                }
                // Descend only when the node's own tips are not enough.
                let below = last.take().into_iter().flat_map(|at: NodeId| &self.node(at).device_children);
                pending.extend(below.copied().filter(|&child| Some(child) != except));
                let at = pending.pop()?;
                visit_counter::count_visited(1 + self.node(at).device_children.len());
                (tips, last) = (&self.node(at).tips, Some(at));
            }
        })
    }

    /// Returns an id whose path passes `id`, if the node is in the device cache.
    pub(in crate::cache) fn any_holder(&self, id: NodeId) -> Option<KvSeqId> {
        let mut at = id;
        loop {
            visit_counter::count_visited(1);
            let node = self.node(at);
            if let Some(&tip) = node.tips.first() {
                return Some(tip);
            }
            at = *node.device_children.first()?;
        }
    }
}
