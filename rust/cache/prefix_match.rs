//! Finds the longest cached prefix of a prompt in both tiers.

use std::ops::Range;
use std::sync::Arc;

use crate::cache::host_cache::HostEntry;
use crate::cache::prefix_tree::{NodeId, TreeMatch, common_prefix, length};
use crate::cache::{AdapterSchedule, ForkRule, KvCache, KvSeqId, visit_counter};
use crate::request::{SavedPrefix, Token};

/// `can_fork(id, n_held, n_tokens)` returns true if the memory allows that fork of an id that holds `n_held` tokens.
pub(super) type CanFork<'a> = &'a dyn Fn(KvSeqId, u32, u32) -> bool;

#[derive(Debug, Clone, Copy)]
pub struct PrefixQuery<'a> {
    pub adapters: &'a AdapterSchedule,
    pub tokens: &'a [Token],
    pub at_least: u32,
    /// Length of the longest useful match: without stored logits, at least one token must be computed to get them.
    pub at_most: u32,
    /// True if a state with its logits may match all tokens.
    pub takes_logits: bool,
}

/// The longest cached prefix of the tokens: a part to fork from a sequence id, and entries to reload after it.
#[derive(Debug, Clone, Default)]
pub struct PrefixMatch {
    /// The id that holds `[0, n_device)`; `None` if that is empty.
    pub source: Option<KvSeqId>,
    pub n_device: u32,
    /// Host cache entries that follow, in order.
    pub reloads: Vec<Reload>,
    /// The logits after the prefix, if they were saved with it.
    pub logits: Option<Arc<[f32]>>,
}

impl PrefixMatch {
    pub(crate) fn on_device(source: KvSeqId, n_tokens: u32) -> Self {
        Self { source: Some(source), n_device: n_tokens, ..Self::default() }
    }

    pub fn n_tokens(&self) -> u32 {
        self.reloads.last().map_or(self.n_device, |last| last.kept.end)
    }

    /// Extends the match by the tokens of `saved` beyond it.
    pub(crate) fn take_from(&mut self, saved: &SavedPrefix, forks: ForkRule) {
        let n_tokens = self.n_tokens();
        if n_tokens >= length(&saved.tokens) {
            return;
        }
        // A state is reloaded to an id that holds nothing.
        if forks.is_a_state() {
            *self = Self::default();
        }
        let n_tokens = self.n_tokens();
        self.reloads.extend(saved.runs.iter().filter(|entry| entry.range.end > n_tokens).map(|entry| Reload {
            bytes: Arc::clone(&entry.bytes),
            range: entry.range.clone(),
            kept: entry.range.start.max(n_tokens)..entry.range.end,
        }));
    }
}

/// A reload of a host cache entry, and the range of its tokens to keep.
#[derive(Debug, Clone)]
pub struct Reload {
    pub bytes: Arc<[u8]>,
    pub range: Range<u32>,
    /// Range of the tokens to keep; it starts at the end of the previous reload.
    pub kept: Range<u32>,
}

impl Reload {
    pub(super) fn of(entry: &HostEntry, kept: Range<u32>) -> Self {
        Self { bytes: Arc::clone(&entry.bytes), range: entry.range.clone(), kept }
    }
}

/// Adds a reload; parts of the same entry become one reload.
pub(super) fn add_part(reloads: &mut Vec<Reload>, part: Reload) {
    match reloads.last_mut() {
        Some(last) if Arc::ptr_eq(&last.bytes, &part.bytes) => last.kept.end = part.kept.end,
        _ => reloads.push(part),
    }
}

impl KvCache {
    /// Returns the longest prefix that can be forked and reloaded. An id that `can_fork` refuses is not tried with fewer
    /// tokens: a window that has moved on does not cover earlier positions either.
    pub fn find(&self, query: &PrefixQuery<'_>, can_fork: impl Fn(KvSeqId, u32, u32) -> bool) -> Option<PrefixMatch> {
        let tree_match = self.tree.match_tokens(query.adapters, query.tokens);
        let matched = self.rules().find(self, query, &tree_match, &can_fork);
        matched.filter(|matched| matched.n_tokens() >= query.at_least.max(1))
    }

    /// Length of the longest prefix of `tokens` that is cached or computed, whether or not a sequence could begin there. For a
    /// state: that a path holds or that leads to a checkpoint.
    pub fn n_computed_prefix(&self, adapters: &AdapterSchedule, tokens: &[Token]) -> u32 {
        let tree_match = self.tree.match_tokens(adapters, tokens);
        let is_computed = |id: NodeId| {
            let node = self.tree.node(id);
            self.kind.is_a_state() || node.is_on_device() || node.host_entry.is_some()
        };
        let in_tree =
            self.reached_nodes(&tree_match, u32::MAX).take_while(|&(id, _)| is_computed(id)).map(|(_, reached)| reached.end);
        let query = PrefixQuery { adapters, tokens, at_least: 1, at_most: u32::MAX, takes_logits: false };
        let tail_matches = self.tail_matches(&query, &tree_match).map(|(_, n)| n);
        in_tree.chain(tail_matches).max().unwrap_or(0)
    }

    /// Nodes below the root that the tokens reach, each with the range of the first `at_most` tokens that it covers.
    pub(super) fn reached_nodes<'a>(
        &'a self,
        tree_match: &'a TreeMatch,
        at_most: u32,
    ) -> impl Iterator<Item = (NodeId, Range<u32>)> + 'a {
        let whole = tree_match.nodes.iter().skip(1).map(|&id| (id, self.tree.node(id).end()));
        let part = tree_match.partial.map(|(id, n)| (id, self.tree.node(id).start + n));
        whole.chain(part).filter_map(move |(id, end)| {
            let reached = self.tree.node(id).start..end.min(at_most);
            (!reached.is_empty()).then_some((id, reached))
        })
    }

    /// Running paths that end at a node of `tree_match`, each with the length that it shares with the query, its tail included.
    pub(super) fn tail_matches<'a>(
        &'a self,
        query: &'a PrefixQuery<'_>,
        tree_match: &'a TreeMatch,
    ) -> impl Iterator<Item = (KvSeqId, u32)> + 'a {
        let ends_here = |&node: &NodeId| self.tree.node(node).tips.iter().map(move |&id| (id, node));
        let tails = tree_match.nodes.iter().flat_map(ends_here).map(|(id, node)| (id, node, &self.path(id).tail));
        tails.filter(|(id, _, tail)| !tail.is_empty() && !self.is_private(*id)).map(|(id, node, tail)| {
            visit_counter::count_visited(1);
            let end = self.tree.node(node).end();
            let rest = &query.tokens[(end as usize).min(query.tokens.len())..];
            let n_unchanged = self.path(id).adapters.n_common(query.adapters).saturating_sub(end);
            (id, end + common_prefix(tail, rest).min(n_unchanged))
        })
    }
}
