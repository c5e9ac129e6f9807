//! Which paths go through a node: how they come and go, and how one is found.

use crate::cache::prefix_tree::{NodeId, PrefixTree};
use crate::cache::{KvSeqId, visit_counter};

impl PrefixTree {
    /// One more path, on which a sequence runs, goes through `id` and what is above it, up to `above`, through which it goes
    /// already. What did not run is used now. Returns the first node upwards that ran before.
    pub(in crate::cache) fn enter(&mut self, id: NodeId, above: Option<NodeId>, now: u64) -> Option<NodeId> {
        let mut ran = None;
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
                ran = ran.or(Some(at));
            }
            if let (1, Some(parent)) = (n_holders, next) {
                self.node_mut(parent).pooled.push(at);
            }
        }
        ran.or(above)
    }

    /// An idle path goes no more through `id` and what is above it, up to `above`, through which it still goes. Returns the first
    /// node upwards that is in the pool.
    pub(in crate::cache) fn leave(&mut self, id: NodeId, above: Option<NodeId>) -> Option<NodeId> {
        let mut pooled = None;
        let mut next = Some(id);
        while let Some(at) = next.filter(|&at| Some(at) != above) {
            visit_counter::count_visited(1);
            let node = self.node_mut(at);
            node.n_holders -= 1;
            next = node.parent;
            if node.n_holders > 0 {
                pooled = pooled.or(Some(at));
            } else if let Some(parent) = next {
                self.node_mut(parent).pooled.retain(|&child| child != at);
            }
        }
        pooled.or(above)
    }

    /// A sequence runs on a path that ends at `id`, and was idle.
    pub(in crate::cache) fn start_running(&mut self, id: NodeId) {
        self.change_upwards(id, |node| node.n_running += 1);
    }

    /// The sequence on a path that ends at `id` runs no more. What no other one runs on was used until now. Returns the first node
    /// upwards that still runs.
    pub(in crate::cache) fn stop_running(&mut self, id: NodeId, now: u64) -> Option<NodeId> {
        let mut runs = None;
        let mut next = Some(id);
        while let Some(at) = next {
            visit_counter::count_visited(1);
            let node = self.node_mut(at);
            node.n_running -= 1;
            next = node.parent;
            if node.n_running == 0 {
                self.set_last_used(at, now);
            } else {
                runs = runs.or(Some(at));
            }
        }
        runs
    }

    /// The ids whose paths go through `id`, but not through its child `beside`; nearest first.
    pub(in crate::cache) fn other_holders(&self, id: NodeId, beside: Option<NodeId>) -> impl Iterator<Item = KvSeqId> {
        let mut waiting = vec![id];
        let mut tips: &[KvSeqId] = &[];
        let mut last = None;
        std::iter::from_fn(move || {
            loop {
                if let Some((&tip, rest)) = tips.split_first() {
                    tips = rest;
                    return Some(tip);
                }
                // What is below a node is looked at only where its own tips are not enough.
                let below = last.take().into_iter().flat_map(|at: NodeId| &self.node(at).pooled);
                waiting.extend(below.copied().filter(|&child| Some(child) != beside));
                let at = waiting.pop()?;
                visit_counter::count_visited(1 + self.node(at).pooled.len());
                (tips, last) = (&self.node(at).tips, Some(at));
            }
        })
    }

    /// An id whose path goes through `id`, which is in the pool.
    pub(in crate::cache) fn any_holder(&self, id: NodeId) -> Option<KvSeqId> {
        let mut at = id;
        loop {
            visit_counter::count_visited(1);
            let node = self.node(at);
            if let Some(&tip) = node.tips.first() {
                return Some(tip);
            }
            at = *node.pooled.first()?;
        }
    }
}
