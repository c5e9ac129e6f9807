//! Memories with a sliding window: a sequence can begin only where the window before it is still there. Cells that the window has
//! passed are used again, so each path has its own window, and what is saved of a path has the window of its end alone. A path
//! therefore leaves whole, when all of it is saved, and what ends inside of a longer path is kept for its own window.

use std::ops::Range;

use crate::cache::host_eviction::OffloadCandidate;
use crate::cache::kinds::{MemoryRules, PieceUser, TailPart};
use crate::cache::path_removal::{EvictionReason, SavedState};
use crate::cache::prefix_match::{CanFork, PrefixMatch, PrefixQuery, Reload, add_part};
use crate::cache::prefix_tree::{NodeId, Walk};
use crate::cache::{KvCache, KvSeqId};
use crate::request::EvictionCause;

#[derive(Debug)]
pub(super) struct InWindow;

impl MemoryRules for InWindow {
    fn find(&self, cache: &KvCache, wanted: &PrefixQuery<'_>, walk: &Walk, can_fork: CanFork<'_>) -> Option<PrefixMatch> {
        let reached: Vec<(NodeId, Range<u32>)> = cache.reached(walk, wanted.at_most).collect();
        let n_in_pool = reached.iter().take_while(|(id, _)| cache.tree.node(*id).is_in_pool()).count();
        let (in_pool, below) = reached.split_at(n_in_pool);
        let in_tails = cache
            .in_tails(wanted, walk)
            .map(|(id, n)| (id, n.min(wanted.at_most)))
            .filter(|&(id, n)| can_fork(id, cache.n_held(id), n))
            .max_by_key(|&(id, n)| (n, id));
        let deepest = deepest_fork(cache, in_pool, can_fork);
        let pool = in_tails.into_iter().chain(deepest).max_by_key(|&(_, n)| n);
        let mut matched =
            PrefixMatch { source: pool.map(|(id, _)| id), n_pool: pool.map_or(0, |(_, n)| n), ..PrefixMatch::default() };
        let trunk_end = in_pool.last().map_or(0, |(_, reached)| reached.end);
        if matched.n_pool == trunk_end {
            matched.restores = stored_after(cache, below, trunk_end);
        }
        // The cells of a trunk may have lost what its saved pieces still have.
        let from_start = PrefixMatch { restores: stored_after(cache, &reached, 0), ..PrefixMatch::default() };
        Some(if from_start.n_tokens() > matched.n_tokens() { from_start } else { matched })
    }

    /// A window moves on, so that a longer path has not what a shorter one sees at its end.
    fn is_contained(&self, cache: &KvCache, id: KvSeqId) -> bool {
        cache.tree.node(cache.path(id).tip).tips.iter().any(|&other| other != id && !cache.is_pinned(other))
    }

    fn gives_back_ids(&self) -> bool {
        false
    }

    /// What ends inside of a longer path is kept for its own window, which is saved over what that one saves: it leaves after it, but
    /// where its id is needed.
    fn can_leave(&self, cache: &KvCache, tip: NodeId, why: EvictionReason) -> bool {
        why == EvictionReason::Pressed || cache.tree.node(tip).n_running == 0
    }

    /// The cells leave together, when all of them are saved: what is left of a window cannot be cut.
    fn next_part(&self, cache: &KvCache, id: KvSeqId, max_units: u64) -> TailPart {
        let tip = cache.path(id).tip;
        let (node, range, is_stored) = match unsaved(cache, tip) {
            Some((node, range)) => (node, range, false),
            None => (tip, cache.tree.node(tip).start..cache.tree.node(tip).end(), true),
        };
        let (n_tokens, n_units) = cache.affordable(id, range.clone(), max_units);
        TailPart { node, range, is_stored, n_tokens, n_units }
    }

    fn stays_until_all_is_saved(&self) -> bool {
        true
    }

    /// The path leaves whole; what was stored of it was stored part by part.
    fn leave(&self, cache: &mut KvCache, id: KvSeqId, _: NodeId) {
        let is_lost = |node: &NodeId| {
            let node = cache.tree.node(*node);
            node.n_holders == 1 && node.stored.is_none()
        };
        let lost: Vec<NodeId> = cache.tree.upwards(cache.path(id).tip).filter(is_lost).collect();
        for node in lost {
            cache.counts.n_forgotten += cache.tree.node(node).tokens.len() as u64;
            cache.remember_lost(node, EvictionCause::Pool);
        }
        cache.drop_path(id);
    }

    fn erase_end(&self, cache: &mut KvCache, id: KvSeqId) {
        cache.drop_path(id);
    }

    /// A part is restored over what is before it, and the window of what is in the pool may have moved on.
    fn needed_by(&self, is_in_pool: bool) -> PieceUser {
        if is_in_pool { PieceUser::StoredChildren } else { PieceUser::Children }
    }

    /// All of a text is restored, or nothing. But a pin gives way to nothing.
    fn is_saved_together(&self, cache: &KvCache, least: NodeId, leaving: &OffloadCandidate) -> bool {
        cache.tree.node(leaving.node()).n_pins == 0 && (leaving.is_within(least) || leaving.contains(cache, least))
    }

    /// What is saved together with what is before it never gives way to it.
    fn needs_what_is_before(&self) -> bool {
        false
    }

    /// What is saved of a longer path is not what a shorter one sees at its end.
    fn is_needed_by_pin(&self, cache: &KvCache, id: KvSeqId, _: NodeId) -> bool {
        cache.is_end_of_pin(cache.path(id).tip)
    }

    /// What others keep of a longer path is not what they see at its end.
    fn end_of_pin(&self, _: &KvCache, _: NodeId) -> Option<NodeId> {
        None
    }

    /// The window of what is in the pool may move on, and leave others only the piece.
    fn gives_up_longer_piece(&self, cache: &KvCache, node: NodeId) -> bool {
        let node = cache.tree.node(node);
        node.n_pins + node.n_reserved == 0
    }
}

/// The fork that leaves least to compute of what is in the pool. Who has not the window at one place has it at no earlier one, so
/// each id is asked once.
fn deepest_fork(cache: &KvCache, in_pool: &[(NodeId, Range<u32>)], can_fork: CanFork<'_>) -> Option<(KvSeqId, u32)> {
    let mut asked = None;
    in_pool.iter().rev().find_map(|(id, reached)| {
        let mut holders = cache.tree.other_holders(*id, asked.replace(*id));
        let holder = holders.find(|&holder| can_fork(holder, cache.n_held(holder), reached.end))?;
        Some((holder, reached.end))
    })
}

/// What can be put after a fork at `start` of what is stored of these nodes, up to the last place of those that the text reaches
/// where a window then finds all that it sees.
fn stored_after(cache: &KvCache, nodes: &[(NodeId, Range<u32>)], start: u32) -> Vec<Reload> {
    let mut whole_from = cache.kind.window_from(start);
    let mut restores = Vec::new();
    // How many restores lead to the last such place, and where it is.
    let mut found = (0, start);
    for (id, reached) in nodes {
        let node = cache.tree.node(*id);
        let Some(piece) = node.stored else { break };
        // A piece without a hole goes on from what is before it.
        if node.whole_from > reached.start {
            whole_from = node.whole_from.min(reached.end);
        }
        add_part(&mut restores, cache.part_of(piece, reached.clone()));
        if cache.kind.holds_window(whole_from, reached.end) {
            found = (restores.len(), reached.end);
        }
    }
    restores.truncate(found.0);
    if let Some(last) = restores.last_mut() {
        last.kept.end = found.1;
    }
    restores
}

/// The first part of what ends at `tip` that must be saved before a path leaves: what nobody else holds, or all of it where a pin
/// or a preempted sequence ends, since the others' windows move on.
fn unsaved(cache: &KvCache, tip: NodeId) -> Option<(NodeId, Range<u32>)> {
    let is_firm = cache.tree.node(tip).n_reserved > 0 || cache.is_end_of_pin(tip);
    let needed_from = cache.kind.window_from(cache.tree.node(tip).end());
    first_unsaved(cache, tip, needed_from, |at| is_firm || cache.tree.node(at).n_holders == 1)
}

/// The first part of what ends at `tip`, as far up as nodes are `wanted`, that is to be saved so that a sequence can begin there: what
/// no piece has yet, and what the window needs from `needed_from` on but the piece lacks, because it was saved of a longer path.
///
/// A piece that is replaced starts at the window of the last token, one token before the window of the next one: a prompt that ends
/// at `tip` computes its last token again, for the logits after it.
fn first_unsaved(
    cache: &KvCache,
    tip: NodeId,
    needed_from: u32,
    wanted: impl Fn(NodeId) -> bool,
) -> Option<(NodeId, Range<u32>)> {
    let last_sees_from = cache.kind.window_of_last(cache.tree.node(tip).end());
    let own = cache.tree.upwards(tip).take_while(|&at| cache.tree.node(at).parent.is_some() && wanted(at));
    let unsaved = own.filter_map(|at| {
        let node = cache.tree.node(at);
        if node.stored.is_none() {
            return Some((at, node.start..node.end()));
        }
        let lacking_from = node.start.max(needed_from);
        let is_lacking = lacking_from < node.end() && lacking_from < node.whole_from;
        is_lacking.then(|| (at, node.start.max(last_sees_from)..node.end()))
    });
    unsaved.last()
}

/// Windows that are kept while a prompt passes them.
impl KvCache {
    /// What is to be saved next of the first `n_tokens` tokens of the path of `id`, which runs, so that others can begin after them, or
    /// compute the last of them again, when the window has moved on; `None` where all is.
    pub fn next_of_window(&mut self, id: KvSeqId, n_tokens: u32) -> Option<Range<u32>> {
        let node = self.cut_at(id, n_tokens);
        first_unsaved(self, node, self.kind.window_of_last(n_tokens), |_| true).map(|(_, range)| range)
    }

    /// Keeps what was saved of `range` of the path of `id`, as [`KvCache::next_of_window`] said. `false` where the store has no room for
    /// it.
    pub fn add_window(&mut self, id: KvSeqId, range: &Range<u32>, saved: SavedState) -> bool {
        let node = self.cut_at(id, range.end);
        if !self.evict_for(node, saved.bytes.len() as u64, EvictionReason::Pressed) {
            return false;
        }
        // What was dropped may have joined nodes of the path.
        let node = self.cut_at(id, range.end);
        self.keep_end(node, range, Some(saved))
    }
}
