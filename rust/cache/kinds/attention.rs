//! Rules for plain attention, which can be cut at any token. All paths share the cells of a common prefix, so a path that
//! another one contains is redundant, and paths are removed from their leaves upwards, one run of tokens at a time.

use crate::cache::kinds::{Dependents, MemoryRules, TailPart};
use crate::cache::path_removal::EvictionReason;
use crate::cache::prefix_match::{CanFork, PrefixMatch, PrefixQuery, Reload, add_part};
use crate::cache::prefix_tree::{NodeId, TreeMatch};
use crate::cache::{KvCache, KvSeqId};
use crate::request::EvictionCause;

#[derive(Debug)]
pub(super) struct AttentionRules;

impl MemoryRules for AttentionRules {
    fn find(&self, cache: &KvCache, query: &PrefixQuery<'_>, tree_match: &TreeMatch, _: CanFork<'_>) -> Option<PrefixMatch> {
        let mut matched = PrefixMatch::default();
        let mut deepest = None;
        for (id, reached) in cache.reached_nodes(tree_match, query.at_most) {
            let node = cache.tree.node(id);
            if node.is_on_device() {
                matched.n_device = reached.end;
                deepest = Some(id);
                continue;
            }
            let Some(entry) = &node.host_entry else { break };
            add_part(&mut matched.reloads, Reload::of(entry, reached));
        }
        matched.source = deepest.and_then(|id| cache.tree.other_holders(id, None).next());
        let tail_matches =
            cache.tail_matches(query, tree_match).map(|(id, n)| (id, n.min(query.at_most))).max_by_key(|&(id, n)| (n, id));
        match tail_matches {
            // Of two equally long matches, the one in the device cache wins: a fork needs no reload.
            Some((id, n)) if n >= matched.n_tokens() => Some(PrefixMatch::on_device(id, n)),
            _ => Some(matched),
        }
    }

    fn is_contained(&self, cache: &KvCache, id: KvSeqId) -> bool {
        cache.tree.own_nodes(cache.path(id).tip).next().is_none()
    }

    /// Returns true for leaves only: a node that another path passes stays with that path.
    fn can_remove(&self, cache: &KvCache, tip: NodeId, _: EvictionReason) -> bool {
        let node = cache.tree.node(tip);
        node.device_children.is_empty() && !node.tips.iter().any(|&id| cache.is_pinned(id))
    }

    fn next_removal_part(&self, cache: &KvCache, id: KvSeqId) -> TailPart {
        let node = cache.path(id).tip;
        let tip = cache.tree.node(node);
        TailPart { node, range: tip.start..tip.end(), is_stored: tip.host_entry.is_some() }
    }

    fn remove(&self, cache: &mut KvCache, _: KvSeqId, node: NodeId) {
        if cache.tree.node(node).host_entry.is_none() {
            cache.counts.n_evicted += cache.tree.node(node).tokens.len() as u64;
            cache.log_eviction(node, EvictionCause::DeviceCache);
        }
        for id in cache.tree.node(node).tips.clone() {
            cache.drop_last_node(id);
        }
    }

    /// A part is reloaded on top of its ancestors; a node in the device cache needs no entry.
    fn dependents(&self, is_on_device: bool) -> Dependents {
        if is_on_device { Dependents::None } else { Dependents::Children }
    }

    fn is_needed_by_pin(&self, cache: &KvCache, _: KvSeqId, node: NodeId) -> bool {
        cache.tree.node(node).n_pins > 0
    }
}
