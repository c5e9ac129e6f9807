//! Rules for recurrent memory, whose state cannot be cut: a sequence begins where another one ends or at a saved state, which
//! depends on no other entry. States that a prompt passes only once are saved as checkpoints.

use std::sync::Arc;

use crate::cache::host_cache::HostEntry;
use crate::cache::kinds::{Dependents, MemoryRules, TailPart};
use crate::cache::path_removal::EvictionReason;
use crate::cache::prefix_match::{CanFork, PrefixMatch, PrefixQuery, Reload};
use crate::cache::prefix_tree::{NodeId, TreeMatch, length};
use crate::cache::{AdapterSchedule, KvCache, KvSeqId};
use crate::request::{EvictionCause, Token};

#[derive(Debug)]
pub(super) struct RecurrentRules;

impl MemoryRules for RecurrentRules {
    fn find(
        &self,
        cache: &KvCache,
        query: &PrefixQuery<'_>,
        tree_match: &TreeMatch,
        can_fork: CanFork<'_>,
    ) -> Option<PrefixMatch> {
        let whole = cache
            .tail_matches(query, tree_match)
            .filter(|&(id, n)| n == cache.n_held(id) && n <= query.at_most && can_fork(id, n, n))
            .max_by_key(|&(id, n)| (n, id));
        let tail_matches = whole.map(|(id, n)| PrefixMatch::on_device(id, n));
        let in_tree = tree_match.nodes.iter().skip(1).rev().find_map(|&id| {
            let node = cache.tree.node(id);
            let end = node.end();
            let holds = |&tip: &KvSeqId| cache.path(tip).tail.is_empty() && can_fork(tip, end, end);
            if end <= query.at_most
                && let Some(source) = node.tips.iter().copied().find(holds)
            {
                return Some(PrefixMatch::on_device(source, end));
            }
            let entry = node.host_entry.as_ref()?;
            let logits = entry.logits.clone().filter(|_| query.takes_logits && end == length(query.tokens));
            if end > query.at_most && logits.is_none() {
                return None;
            }
            Some(PrefixMatch { reloads: vec![Reload::of(entry, 0..end)], logits, ..PrefixMatch::default() })
        });
        // Of equally long matches, `max_by_key` returns the last: a fork needs no reload.
        in_tree.into_iter().chain(tail_matches).max_by_key(PrefixMatch::n_tokens)
    }

    fn can_remove(&self, _: &KvCache, _: NodeId, _: EvictionReason) -> bool {
        true
    }

    fn next_removal_part(&self, cache: &KvCache, id: KvSeqId) -> TailPart {
        let node = cache.path(id).tip;
        let tip = cache.tree.node(node);
        TailPart { node, range: 0..tip.end(), is_stored: tip.host_entry.is_some() }
    }

    /// Counts only the last node as evicted: its ancestors never had a state.
    fn remove(&self, cache: &mut KvCache, id: KvSeqId, _: NodeId) {
        let node = cache.path(id).tip;
        let tip = cache.tree.node(node);
        let is_lost = cache.tree.own_nodes(node).next().is_some() && tip.host_entry.is_none();
        let is_last_state = tip.tips.len() == 1 && tip.host_entry.is_none();
        cache.counts.n_evicted += if is_lost { tip.tokens.len() as u64 } else { 0 };
        if is_last_state {
            cache.log_eviction(node, EvictionCause::DeviceCache);
        }
        cache.drop_path(id);
    }

    fn dependents(&self, _: bool) -> Dependents {
        Dependents::None
    }
}

impl KvCache {
    /// Saves the state of the running path of `id` after exactly `n_tokens` tokens, or returns `false` if there is no space.
    pub(crate) fn add_checkpoint(&mut self, id: KvSeqId, n_tokens: u32, bytes: Arc<[u8]>, logits: Option<Arc<[f32]>>) -> bool {
        let node = self.cut_at(id, n_tokens);
        let n_bytes = (bytes.len() + logits.as_deref().map_or(0, size_of_val)) as u64;
        let is_complete = |entry: &Arc<HostEntry>| logits.is_none() || entry.logits.is_some();
        if self.tree.node(node).host_entry.as_ref().is_some_and(is_complete) {
            return true;
        }
        if !self.evict_for(node, n_bytes, EvictionReason::MemoryPressure) {
            return false;
        }
        // The eviction may have joined nodes of the path.
        let node = self.cut_at(id, n_tokens);
        self.store_entry(node, HostEntry { range: 0..n_tokens, bytes, logits, whole_from: 0 });
        true
    }

    pub(crate) fn can_save_checkpoint(&self, n_tokens: u32) -> bool {
        self.host_cache.can_ever_hold(self.kind.bytes_of(n_tokens))
    }

    pub(crate) fn find_checkpoint(&self, adapters: &AdapterSchedule, tokens: &[Token]) -> Option<&HostEntry> {
        let tree_match = self.tree.match_tokens(adapters, tokens);
        let end = self.tree.node(*tree_match.nodes.last()?);
        end.host_entry.as_deref().filter(|_| end.end() as usize == tokens.len())
    }
}
