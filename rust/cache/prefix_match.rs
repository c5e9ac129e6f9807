//! The longest prefix that is computed, in either tier.

use std::ops::Range;
use std::sync::Arc;

use crate::cache::host_cache::HostEntryId;
use crate::cache::prefix_tree::{NodeId, Walk, common_prefix, length};
use crate::cache::{AdapterSchedule, ForkRule, KvCache, KvSeqId, visit_counter};
use crate::request::{SavedPrefix, Token};

/// Whether the model's memory allows a fork of so many tokens of an id that holds so many.
pub(super) type CanFork<'a> = &'a dyn Fn(KvSeqId, u32, u32) -> bool;

/// What is looked for.
#[derive(Debug, Clone, Copy)]
pub struct PrefixQuery<'a> {
    /// How it is computed.
    pub variants: &'a AdapterSchedule,
    /// A prefix of this text.
    pub tokens: &'a [Token],
    /// Fewer tokens are not worth it.
    pub at_least: u32,
    /// Where the logits after the prefix are not known, more would leave nothing to compute them with.
    pub at_most: u32,
    /// Whether a state with its logits may be all of the text.
    pub takes_logits: bool,
}

/// The longest prefix that is computed: what an id holds of it, and what can be restored after that.
#[derive(Debug, Clone, Default)]
pub struct PrefixMatch {
    /// Who holds `[0, n_pool)`; `None` where that is nothing.
    pub source: Option<KvSeqId>,
    /// Tokens in the pool.
    pub n_pool: u32,
    /// What follows, in order.
    pub restores: Vec<Reload>,
    /// The logits after the prefix, where they were saved with it.
    pub logits: Option<Arc<[f32]>>,
}

impl PrefixMatch {
    /// The first `n_tokens` tokens of what `source` holds.
    #[must_use]
    pub fn in_pool(source: KvSeqId, n_tokens: u32) -> Self {
        Self { source: Some(source), n_pool: n_tokens, ..Self::default() }
    }

    /// Tokens of the prefix.
    #[must_use]
    pub fn n_tokens(&self) -> u32 {
        self.restores.last().map_or(self.n_pool, |last| last.kept.end)
    }
}

impl PrefixMatch {
    /// Adds what `saved` holds of the same text beyond the prefix.
    pub fn take_from(&mut self, saved: &SavedPrefix, forks: ForkRule) {
        let n_tokens = self.n_tokens();
        if n_tokens >= length(&saved.tokens) {
            return;
        }
        // A state goes to an id that holds nothing.
        if forks.is_a_state() {
            *self = Self::default();
        }
        let n_tokens = self.n_tokens();
        self.restores.extend(saved.pieces.iter().filter(|piece| piece.range.end > n_tokens).map(|piece| Reload {
            bytes: Arc::clone(&piece.bytes),
            piece: piece.range.clone(),
            kept: piece.range.start.max(n_tokens)..piece.range.end,
        }));
    }
}

/// A saved piece, and which of its tokens are needed.
#[derive(Debug, Clone)]
pub struct Reload {
    /// The piece.
    pub bytes: Arc<[u8]>,
    /// The tokens that it was saved of.
    pub piece: Range<u32>,
    /// Those that are needed; they begin where what was restored before them ends.
    pub kept: Range<u32>,
}

/// Adds what follows. A piece that was cut is restored once.
pub(super) fn add_part(restores: &mut Vec<Reload>, part: Reload) {
    match restores.last_mut() {
        Some(last) if Arc::ptr_eq(&last.bytes, &part.bytes) => last.kept.end = part.kept.end,
        _ => restores.push(part),
    }
}

impl KvCache {
    /// The longest prefix that can be forked and restored, idle or running.
    ///
    /// `can_fork(id, n_held, n_tokens)` says whether the model's memory allows that fork. An id that is refused is not asked
    /// for less: a window that has moved on saw earlier tokens only before.
    pub fn find(&self, wanted: &PrefixQuery<'_>, can_fork: impl Fn(KvSeqId, u32, u32) -> bool) -> Option<PrefixMatch> {
        let walk = self.tree.walk(wanted.variants, wanted.tokens);
        let matched = self.rules().find(self, wanted, &walk, &can_fork);
        matched.filter(|matched| matched.n_tokens() >= wanted.at_least.max(1))
    }

    /// How many of the first of `tokens` are in either tier or were computed by a running sequence, whether or not a sequence could
    /// begin there; of a memory that is a state, how many some path holds or some snapshot was made after.
    #[must_use]
    pub fn n_there(&self, variants: &AdapterSchedule, tokens: &[Token]) -> u32 {
        let walk = self.tree.walk(variants, tokens);
        let is_there = |id: NodeId| {
            let node = self.tree.node(id);
            self.kind.is_a_state() || node.is_in_pool() || node.stored.is_some()
        };
        let in_tree = self.reached(&walk, u32::MAX).take_while(|&(id, _)| is_there(id)).map(|(_, reached)| reached.end);
        let wanted = PrefixQuery { variants, tokens, at_least: 1, at_most: u32::MAX, takes_logits: false };
        let in_tails = self.in_tails(&wanted, &walk).map(|(_, n)| n);
        in_tree.chain(in_tails).max().unwrap_or(0)
    }

    /// Nodes below the roots that the text reaches, with how many of its first `at_most` tokens are known at the end of each.
    pub(super) fn reached<'a>(&'a self, walk: &'a Walk, at_most: u32) -> impl Iterator<Item = (NodeId, Range<u32>)> + 'a {
        let whole = walk.whole.iter().skip(1).map(|&id| (id, self.tree.node(id).end()));
        let part = walk.part.map(|(id, n)| (id, self.tree.node(id).start + n));
        whole.chain(part).filter_map(move |(id, end)| {
            let reached = self.tree.node(id).start..end.min(at_most);
            (!reached.is_empty()).then_some((id, reached))
        })
    }

    /// What running sequences computed after the nodes that the text contains, and did not share yet.
    pub(super) fn in_tails<'a>(
        &'a self,
        wanted: &'a PrefixQuery<'_>,
        walk: &'a Walk,
    ) -> impl Iterator<Item = (KvSeqId, u32)> + 'a {
        let ends_here = |&node: &NodeId| self.tree.node(node).tips.iter().map(move |&id| (id, node));
        let tails = walk.whole.iter().flat_map(ends_here).map(|(id, node)| (id, node, &self.path(id).tail));
        tails.filter(|(id, _, tail)| !tail.is_empty() && !self.is_private(*id)).map(|(id, node, tail)| {
            visit_counter::count_visited(1);
            let end = self.tree.node(node).end();
            let rest = &wanted.tokens[(end as usize).min(wanted.tokens.len())..];
            let n_alike = self.path(id).variants.n_common(wanted.variants).saturating_sub(end);
            (id, end + common_prefix(tail, rest).min(n_alike))
        })
    }

    /// A piece of the store, and which of its tokens a node needs.
    pub(super) fn part_of(&self, piece: HostEntryId, kept: Range<u32>) -> Reload {
        let piece = self.store.piece(piece);
        Reload { bytes: Arc::clone(&piece.bytes), piece: piece.range.clone(), kept }
    }
}
