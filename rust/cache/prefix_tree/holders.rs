//! The paths through each node.

use crate::cache::prefix_tree::{NodeId, PrefixTree};
use crate::cache::{KvSeqId, visit_counter};

impl PrefixTree {
    /// Adds a path that ends at `node`. Returns the first node, going up, that was in the device cache before, or the root.
    pub(in crate::cache) fn add_tip(&mut self, mut node: NodeId, tip: KvSeqId) -> NodeId {
        let mut was_on_device = self.node(node).is_on_device();
        self.node_mut(node).tips.push(tip);
        while let Some(parent) = self.node(node).parent.filter(|_| !was_on_device) {
            visit_counter::count_visited(1);
            was_on_device = self.node(parent).is_on_device();
            self.node_mut(parent).device_children.push(node);
            node = parent;
        }
        node
    }

    /// Removes a path that ends at `node`. Returns the first node, going up, that is still in the device cache, or the root.
    pub(in crate::cache) fn remove_tip(&mut self, mut node: NodeId, tip: KvSeqId) -> NodeId {
        self.node_mut(node).tips.retain(|&other| other != tip);
        while let Some(parent) = self.node(node).parent.filter(|_| !self.node(node).is_on_device()) {
            visit_counter::count_visited(1);
            self.node_mut(parent).device_children.retain(|&child| child != node);
            node = parent;
        }
        node
    }

    /// Iterates over the nodes that only the path to `tip` passes, last first.
    pub(in crate::cache) fn own_nodes(&self, tip: NodeId) -> impl Iterator<Item = NodeId> {
        self.upwards(tip).take_while(|&node| self.node(node).tips.len() + self.node(node).device_children.len() == 1)
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
                let below = last.take().into_iter().flat_map(|node: NodeId| &self.node(node).device_children);
                pending.extend(below.copied().filter(|&child| Some(child) != except));
                let node = pending.pop()?;
                visit_counter::count_visited(1 + self.node(node).device_children.len());
                (tips, last) = (&self.node(node).tips, Some(node));
            }
        })
    }
}
