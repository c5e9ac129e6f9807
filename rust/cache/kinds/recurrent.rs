//! Memories that are a state, which cannot be cut: recurrent ones. A sequence begins only where another one ends, or at a saved
//! state, which is whole: it needs nothing before it and serves nothing but its own end. States that a prompt will pass only once
//! are kept as snapshots.

use std::sync::Arc;

use crate::cache::host_eviction::OffloadCandidate;
use crate::cache::kinds::{MemoryRules, PieceUser, TailPart};
use crate::cache::path_removal::EvictionReason;
use crate::cache::prefix_match::{CanFork, PrefixMatch, PrefixQuery};
use crate::cache::prefix_tree::{NodeId, Walk, length};
use crate::cache::{AdapterSchedule, KvCache, KvSeqId};
use crate::request::{EvictionCause, Token};

#[derive(Debug)]
pub(super) struct AtEnd;

impl MemoryRules for AtEnd {
    fn find(&self, cache: &KvCache, wanted: &PrefixQuery<'_>, walk: &Walk, can_fork: CanFork<'_>) -> Option<PrefixMatch> {
        let whole = cache
            .in_tails(wanted, walk)
            .filter(|&(id, n)| n == cache.n_held(id) && n <= wanted.at_most && can_fork(id, n, n))
            .max_by_key(|&(id, n)| (n, id));
        let in_tails = whole.map(|(id, n)| PrefixMatch { source: Some(id), n_pool: n, ..PrefixMatch::default() });
        let in_tree = walk.whole.iter().skip(1).rev().find_map(|&id| {
            let node = cache.tree.node(id);
            let end = node.end();
            let holds = |&tip: &KvSeqId| cache.path(tip).tail.is_empty() && can_fork(tip, end, end);
            if end <= wanted.at_most
                && let Some(source) = node.tips.iter().copied().find(holds)
            {
                return Some(PrefixMatch { source: Some(source), n_pool: end, ..PrefixMatch::default() });
            }
            let piece = cache.store.piece(node.stored?);
            let logits = piece.logits.clone().filter(|_| wanted.takes_logits && end == length(wanted.tokens));
            if end > wanted.at_most && logits.is_none() {
                return None;
            }
            Some(PrefixMatch { restores: vec![cache.part_of(node.stored?, 0..end)], logits, ..PrefixMatch::default() })
        });
        // Of two that are as long, the last one is taken: that in the pool is forked, with nothing to restore.
        in_tree.into_iter().chain(in_tails).max_by_key(PrefixMatch::n_tokens)
    }

    /// A shorter state is not part of a longer one.
    fn is_contained(&self, cache: &KvCache, id: KvSeqId) -> bool {
        cache.tree.node(cache.path(id).tip).tips.iter().any(|&other| other != id && !cache.is_pinned(other))
    }

    fn gives_back_ids(&self) -> bool {
        false
    }

    /// Each state is kept for itself, wherever it ends.
    fn can_leave(&self, _: &KvCache, _: NodeId, _: EvictionReason) -> bool {
        true
    }

    /// All of it.
    fn next_part(&self, cache: &KvCache, id: KvSeqId, _: u64) -> TailPart {
        let node = cache.path(id).tip;
        let tip = cache.tree.node(node);
        let end = tip.end();
        TailPart { node, range: 0..end, is_stored: tip.stored.is_some(), n_tokens: end, n_units: u64::from(end) }
    }

    fn stays_until_all_is_saved(&self) -> bool {
        false
    }

    /// The path leaves whole. Only its end counts as forgotten: what is before it never had a state of its own.
    fn leave(&self, cache: &mut KvCache, id: KvSeqId, _: NodeId) {
        let node = cache.path(id).tip;
        let tip = cache.tree.node(node);
        let is_lost = tip.n_holders == 1 && tip.stored.is_none();
        let is_last_state = tip.tips.len() == 1 && tip.stored.is_none();
        cache.counts.n_forgotten += if is_lost { tip.tokens.len() as u64 } else { 0 };
        if is_last_state {
            cache.remember_lost(node, EvictionCause::Pool);
        }
        cache.drop_path(id);
    }

    fn erase_end(&self, cache: &mut KvCache, id: KvSeqId) {
        cache.drop_path(id);
    }

    /// A state is whole.
    fn needed_by(&self, _: bool) -> PieceUser {
        PieceUser::Nobody
    }

    fn is_saved_together(&self, _: &KvCache, _: NodeId, _: &OffloadCandidate) -> bool {
        false
    }

    fn needs_what_is_before(&self) -> bool {
        false
    }

    /// A longer state is none of its beginning.
    fn is_needed_by_pin(&self, cache: &KvCache, id: KvSeqId, _: NodeId) -> bool {
        cache.is_end_of_pin(cache.path(id).tip)
    }

    /// What is left of a state that is cut would be none.
    fn end_of_pin(&self, _: &KvCache, _: NodeId) -> Option<NodeId> {
        None
    }

    /// No state goes on after the end of its node.
    fn gives_up_longer_piece(&self, _: &KvCache, _: NodeId) -> bool {
        false
    }
}

/// Snapshots: states that are kept while a prompt passes them.
impl KvCache {
    /// Keeps the whole state after the first tokens of the path of `id`, which runs and has computed exactly `n_tokens` tokens,
    /// with the logits after them, where they are known. `false` where the store has no room for it.
    pub fn add_checkpoint(&mut self, id: KvSeqId, n_tokens: u32, bytes: Arc<[u8]>, logits: Option<Arc<[f32]>>) -> bool {
        let node = self.cut_at(id, n_tokens);
        let n_bytes = (bytes.len() + logits.as_deref().map_or(0, size_of_val)) as u64;
        let lacks_logits = |piece| logits.is_some() && self.store.piece(piece).logits.is_none();
        if self.tree.node(node).stored.is_some_and(|piece| !lacks_logits(piece)) {
            return true;
        }
        if !self.evict_for(node, n_bytes, EvictionReason::Pressed) {
            return false;
        }
        // What was dropped may have joined nodes of the path.
        let node = self.cut_at(id, n_tokens);
        self.keep(node, 0..n_tokens, bytes, logits, 0);
        true
    }

    /// Whether a snapshot of a prefix of `n_tokens` could be kept.
    #[must_use]
    pub fn can_save_checkpoint(&self, n_tokens: u32) -> bool {
        self.store.can_ever_hold(self.kind.bytes_of(n_tokens))
    }

    /// The logits after this prefix, where a snapshot of it is stored; they may be unknown.
    #[must_use]
    pub fn snapshot(&self, variants: &AdapterSchedule, tokens: &[Token]) -> Option<Option<Arc<[f32]>>> {
        let walk = self.tree.walk(variants, tokens);
        let end = self.tree.node(*walk.whole.last()?);
        let piece = end.stored.filter(|_| end.end() as usize == tokens.len())?;
        Some(self.store.piece(piece).logits.clone())
    }
}
