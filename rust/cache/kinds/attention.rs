//! Memories that can be cut at any token: plain attention. Cells of a common beginning serve everybody, so a path that another
//! one contains is of no use, and what leaves does so leaf by leaf, a stretch at a time.

use crate::cache::host_eviction::OffloadCandidate;
use crate::cache::kinds::{MemoryRules, PieceUser, TailPart};
use crate::cache::path_removal::EvictionReason;
use crate::cache::prefix_match::{CanFork, PrefixMatch, PrefixQuery, add_part};
use crate::cache::prefix_tree::{NodeId, Walk};
use crate::cache::{KvCache, KvSeqId};
use crate::request::EvictionCause;

#[derive(Debug)]
pub(super) struct Anywhere;

impl MemoryRules for Anywhere {
    /// Whatever is in the pool can be forked, and what is stored after it restored.
    fn find(&self, cache: &KvCache, wanted: &PrefixQuery<'_>, walk: &Walk, _: CanFork<'_>) -> Option<PrefixMatch> {
        let mut matched = PrefixMatch::default();
        let mut deepest = None;
        for (id, reached) in cache.reached(walk, wanted.at_most) {
            let node = cache.tree.node(id);
            if node.is_in_pool() {
                matched.n_pool = reached.end;
                deepest = Some(id);
                continue;
            }
            let Some(piece) = node.stored else { break };
            add_part(&mut matched.restores, cache.part_of(piece, reached));
        }
        matched.source = deepest.and_then(|id| cache.tree.any_holder(id));
        let in_tails = cache.in_tails(wanted, walk).map(|(id, n)| (id, n.min(wanted.at_most))).max_by_key(|&(id, n)| (n, id));
        match in_tails {
            // Of two that are as long, the one in the pool: it is forked, with nothing to restore.
            Some((id, n)) if n >= matched.n_tokens() => {
                Some(PrefixMatch { source: Some(id), n_pool: n, ..PrefixMatch::default() })
            }
            _ => Some(matched),
        }
    }

    fn is_contained(&self, cache: &KvCache, id: KvSeqId) -> bool {
        cache.tree.node(cache.path(id).tip).n_holders > 1
    }

    fn gives_back_ids(&self) -> bool {
        true
    }

    /// A leaf: what another path goes through stays with that one.
    fn can_leave(&self, cache: &KvCache, tip: NodeId, _: EvictionReason) -> bool {
        let node = cache.tree.node(tip);
        node.n_running == 0 && node.n_holders as usize == node.tips.len()
    }

    fn next_part(&self, cache: &KvCache, id: KvSeqId, max_units: u64) -> TailPart {
        let node = cache.path(id).tip;
        let tip = cache.tree.node(node);
        let range = tip.start..tip.end();
        let (n_tokens, n_units) = cache.affordable(id, range.clone(), max_units);
        TailPart { node, range, is_stored: tip.stored.is_some(), n_tokens, n_units }
    }

    fn stays_until_all_is_saved(&self) -> bool {
        false
    }

    /// The path ends above `node`, its last one, from now on.
    fn leave(&self, cache: &mut KvCache, _: KvSeqId, node: NodeId) {
        if cache.tree.node(node).stored.is_none() {
            cache.counts.n_forgotten += cache.tree.node(node).tokens.len() as u64;
            cache.remember_lost(node, EvictionCause::Pool);
        }
        for id in cache.tree.node(node).tips.clone() {
            cache.move_up(id);
        }
    }

    fn erase_end(&self, cache: &mut KvCache, id: KvSeqId) {
        cache.move_up(id);
    }

    /// A part is restored over what is before it, but what is in the pool is its own copy.
    fn needed_by(&self, is_in_pool: bool) -> PieceUser {
        if is_in_pool { PieceUser::Nobody } else { PieceUser::Children }
    }

    fn is_saved_together(&self, _: &KvCache, _: NodeId, _: &OffloadCandidate) -> bool {
        false
    }

    fn needs_what_is_before(&self) -> bool {
        true
    }

    fn is_needed_by_pin(&self, cache: &KvCache, _: KvSeqId, node: NodeId) -> bool {
        cache.tree.node(node).n_pins > 0
    }

    fn end_of_pin(&self, cache: &KvCache, tip: NodeId) -> Option<NodeId> {
        cache.tree.upwards(tip).find(|&at| {
            let node = cache.tree.node(at);
            node.parent.is_some() && node.n_pins > 0 && node.n_holders == 1 && node.stored.is_none()
        })
    }

    fn gives_up_longer_piece(&self, _: &KvCache, _: NodeId) -> bool {
        true
    }
}
