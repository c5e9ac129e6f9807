//! Rules for sliding-window attention: a sequence can begin only where the preceding window is still complete. Cells that the
//! window has passed are reused, so each path has a separate window, and a saved path holds only the window of its end. It is
//! therefore removed as a whole once all of it is saved, and kept for its window if it ends inside a longer one.

use std::ops::Range;

use crate::cache::host_eviction::OffloadCandidate;
use crate::cache::kinds::{Dependents, MemoryRules, TailPart};
use crate::cache::path_removal::{EvictionReason, SavedState};
use crate::cache::prefix_match::{CanFork, PrefixMatch, PrefixQuery, Reload, add_part};
use crate::cache::prefix_tree::{NodeId, TreeMatch};
use crate::cache::{KvCache, KvSeqId};
use crate::request::EvictionCause;

#[derive(Debug)]
pub(super) struct SlidingWindowRules;

impl MemoryRules for SlidingWindowRules {
    fn find(
        &self,
        cache: &KvCache,
        query: &PrefixQuery<'_>,
        tree_match: &TreeMatch,
        can_fork: CanFork<'_>,
    ) -> Option<PrefixMatch> {
        let reached: Vec<(NodeId, Range<u32>)> = cache.reached_nodes(tree_match, query.at_most).collect();
        let n_on_device = reached.iter().take_while(|(id, _)| cache.tree.node(*id).is_on_device()).count();
        let (on_device, below) = reached.split_at(n_on_device);
        let tail_matches = cache
            .tail_matches(query, tree_match)
            .map(|(id, n)| (id, n.min(query.at_most)))
            .filter(|&(id, n)| can_fork(id, cache.n_held(id), n))
            .max_by_key(|&(id, n)| (n, id));
        let deepest = find_deepest_fork(cache, on_device, can_fork);
        let device_match = tail_matches.into_iter().chain(deepest).max_by_key(|&(_, n)| n);
        let mut matched = PrefixMatch {
            source: device_match.map(|(id, _)| id),
            n_device: device_match.map_or(0, |(_, n)| n),
            ..PrefixMatch::default()
        };
        let device_end = on_device.last().map_or(0, |(_, reached)| reached.end);
        if matched.n_device == device_end {
            matched.reloads = find_reloads(cache, below, device_end);
        }
        // The cells of the common prefix may have lost tokens that its host cache entries still hold.
        let from_start = PrefixMatch { reloads: find_reloads(cache, &reached, 0), ..PrefixMatch::default() };
        Some(if from_start.n_tokens() > matched.n_tokens() { from_start } else { matched })
    }

    /// A path that ends inside a longer one is removed after it, unless its id is needed: its window is saved on top of the
    /// longer path's entries.
    fn can_remove(&self, cache: &KvCache, tip: NodeId, reason: EvictionReason) -> bool {
        reason == EvictionReason::MemoryPressure || !cache.tree.other_holders(tip, None).any(|id| cache.is_pinned(id))
    }

    /// All cells are removed together, once all are saved: the rest of a window cannot be cut.
    fn next_removal_part(&self, cache: &KvCache, id: KvSeqId) -> TailPart {
        let tip = cache.path(id).tip;
        match find_unsaved(cache, tip) {
            Some((node, range)) => TailPart { node, range, is_stored: false },
            None => TailPart { node: tip, range: cache.tree.node(tip).start..cache.tree.node(tip).end(), is_stored: true },
        }
    }

    fn remove(&self, cache: &mut KvCache, id: KvSeqId, _: NodeId) {
        let is_lost = |&node: &NodeId| cache.tree.node(node).host_entry.is_none();
        let evicted: Vec<NodeId> = cache.tree.own_nodes(cache.path(id).tip).filter(is_lost).collect();
        for node in evicted {
            cache.counts.n_evicted += cache.tree.node(node).tokens.len() as u64;
            cache.log_eviction(node, EvictionCause::DeviceCache);
        }
        cache.drop_path(id);
    }

    /// A part is reloaded on top of its ancestors, and the window in the device cache may have moved on.
    fn dependents(&self, is_on_device: bool) -> Dependents {
        if is_on_device { Dependents::HostOnlyChildren } else { Dependents::Children }
    }

    /// A text is reloaded as a whole or not at all. A pin is exempt: its entries are always saved.
    fn is_saved_together(&self, cache: &KvCache, victim: NodeId, candidate: &OffloadCandidate) -> bool {
        cache.tree.node(candidate.node).n_pins == 0
            && (candidate.is_within(victim) || cache.tree.is_within(victim, candidate.node))
    }
}

/// Returns the longest fork. An id whose window is incomplete at one position is so at all earlier ones: each is checked once.
fn find_deepest_fork(cache: &KvCache, on_device: &[(NodeId, Range<u32>)], can_fork: CanFork<'_>) -> Option<(KvSeqId, u32)> {
    let mut visited = None;
    on_device.iter().rev().find_map(|(id, reached)| {
        let mut holders = cache.tree.other_holders(*id, visited.replace(*id));
        let holder = holders.find(|&holder| can_fork(holder, cache.n_held(holder), reached.end))?;
        Some((holder, reached.end))
    })
}

/// Returns the reloads after a fork at `start`, up to the last node end at which the window is complete.
fn find_reloads(cache: &KvCache, nodes: &[(NodeId, Range<u32>)], start: u32) -> Vec<Reload> {
    let mut whole_from = cache.kind.window_from(start);
    let mut reloads = Vec::new();
    // Number of reloads up to the last such position, and that position.
    let mut last_complete = (0, start);
    for (id, reached) in nodes {
        let Some(entry) = &cache.tree.node(*id).host_entry else { break };
        // An entry without a gap continues the preceding tokens.
        if entry.whole_from > reached.start {
            whole_from = entry.whole_from.min(reached.end);
        }
        add_part(&mut reloads, Reload::of(entry, reached.clone()));
        if cache.kind.holds_window(whole_from, reached.end) {
            last_complete = (reloads.len(), reached.end);
        }
    }
    reloads.truncate(last_complete.0);
    if let Some(last) = reloads.last_mut() {
        last.kept.end = last_complete.1;
    }
    reloads
}

/// Returns the first part of the path to `tip` that must be saved before the path is removed: tokens that no other path holds,
/// or all tokens if a pin or a preempted sequence ends there, since the windows of other paths move on.
fn find_unsaved(cache: &KvCache, tip: NodeId) -> Option<(NodeId, Range<u32>)> {
    let is_firm = cache.tree.node(tip).n_reserved > 0 || cache.is_end_of_pin(tip);
    let needed_from = cache.kind.window_from(cache.tree.node(tip).end());
    let n_nodes = if is_firm { usize::MAX } else { cache.tree.own_nodes(tip).count() };
    find_first_unsaved(cache, tip, needed_from, n_nodes)
}

/// Returns the first part of the last `n_nodes` nodes of the path to `tip` that must be saved so that a sequence can begin at
/// `tip`: tokens without an entry, and tokens of the window from `needed_from` on that the entry of a longer path lacks.
///
/// A replacing entry starts at the window of the last token, one token before the window of the next one: a prompt that ends at
/// `tip` computes its last token again to get the logits.
fn find_first_unsaved(cache: &KvCache, tip: NodeId, needed_from: u32, n_nodes: usize) -> Option<(NodeId, Range<u32>)> {
    let last_sees_from = cache.kind.window_of_last(cache.tree.node(tip).end());
    let nodes = cache.tree.upwards(tip).take_while(|&id| cache.tree.node(id).parent.is_some()).take(n_nodes);
    let unsaved = nodes.filter_map(|id| {
        let node = cache.tree.node(id);
        let Some(entry) = &node.host_entry else { return Some((id, node.start..node.end())) };
        let lacking_from = node.start.max(needed_from);
        let is_lacking = lacking_from < node.end() && lacking_from < entry.whole_from;
        is_lacking.then(|| (id, node.start.max(last_sees_from)..node.end()))
    });
    unsaved.last()
}

impl KvCache {
    /// Returns the next part of the first `n_tokens` tokens of the running path of `id` that must be saved, so that others can
    /// begin there once the window has moved on; `None` if everything is saved.
    pub(crate) fn next_window_part(&mut self, id: KvSeqId, n_tokens: u32) -> Option<Range<u32>> {
        let node = self.cut_at(id, n_tokens);
        find_first_unsaved(self, node, self.kind.window_of_last(n_tokens), usize::MAX).map(|(_, range)| range)
    }

    /// Stores a part that [`KvCache::next_window_part`] returned. Returns `false` if the host cache has no space.
    pub(crate) fn add_window(&mut self, id: KvSeqId, range: &Range<u32>, saved: SavedState) -> bool {
        let node = self.cut_at(id, range.end);
        if !self.evict_for(node, saved.bytes.len() as u64, EvictionReason::MemoryPressure) {
            return false;
        }
        // The eviction may have joined nodes of the path.
        let node = self.cut_at(id, range.end);
        self.store_end(node, range, Some(saved))
    }
}
