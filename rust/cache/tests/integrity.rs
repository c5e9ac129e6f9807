//! A recount of everything that the cache counts.

use crate::cache::prefix_tree::NodeId;
use crate::cache::{KvCache, KvSeqId};

impl KvCache {
    /// Every cell is free, evictable, or held for a pinned prefix.
    pub(crate) fn is_idle(&self) -> bool {
        let holders: Vec<KvSeqId> = self.pins.values().filter_map(|pin| pin.holder).collect();
        self.paths().all(|(id, _)| !self.is_pinned(id) || holders.contains(&id))
    }

    /// Compares every count with a recount; panics if one differs.
    pub(crate) fn check_integrity(&self) {
        self.cell_runs.check_integrity();
        for (id, path) in self.paths() {
            let n_tokens = self.tree.node(path.tip).end() as usize + path.tail.len();
            assert_eq!(n_tokens, self.n_held(id) as usize, "a cell for each token of {id:?}");
            assert!(self.is_pinned(id) || path.tail.is_empty(), "an idle path is in the tree: {id:?}");
            assert!(self.tree.node(path.tip).tips.contains(&id), "the tip of {id:?} refers to it");
            assert!(!path.is_private || self.tree.node(path.tip).parent.is_none(), "a private path is not in the tree: {id:?}");
        }
        for &id in &self.free_ids {
            assert!(self.paths[usize::from(id.0)].is_none(), "{id:?} is free");
            assert_eq!((self.n_held(id), self.is_pinned(id)), (0, false), "{id:?} is empty");
        }
        assert_eq!(self.n_ids_used(), self.paths().count(), "ids with a path");
        let n_tips: usize = self.tree.nodes().map(|(_, node)| node.tips.len()).sum();
        assert_eq!(n_tips, self.n_ids_used(), "every path ends once");
        let pins: Vec<NodeId> = self.pins.values().map(|pin| pin.node).collect();
        assert_eq!(self.pins.values().map(|pin| pin.n_bytes).sum::<u64>(), self.n_pinned_bytes, "bytes of pinned prefixes");
        self.tree.check_integrity(&pins);
        self.host_cache.check_integrity(self.tree.nodes().filter_map(|(_, node)| node.host_entry.as_ref()));
        for (id, node) in self.tree.nodes() {
            if let Some(entry) = &node.host_entry {
                let range = &entry.range;
                let is_inside = range.start <= node.start && node.end() <= range.end;
                assert!(is_inside || self.kind.is_a_state(), "{range:?} holds {id:?}");
            }
            assert_eq!(node.drop_key, self.drop_key(id), "drop key of {id:?}");
        }
        let n_entries = self.tree.nodes().filter(|(_, node)| node.drop_key.is_some()).count();
        assert_eq!(n_entries, self.droppable.len(), "an entry for each drop key");
        assert!(self.droppable.iter().all(|&(key, id)| self.tree.node(id).drop_key == Some(key)), "drop keys match their nodes");
    }
}
