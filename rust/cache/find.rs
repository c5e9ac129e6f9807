//! The longest prefix that is computed, in either tier.

use std::ops::Range;
use std::sync::Arc;

use crate::cache::Forks;
use crate::cache::prefix_tree::{NodeId, Walk, common_prefix, length};
use crate::cache::{KvCache, SequenceId, Variant, part_of};
use crate::request::{SavedPrefix, Token};

/// What is looked for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// How it was computed.
    pub variant: &'a Variant,
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
pub struct Match {
    /// Who holds `[0, n_pool)`; `None` where that is nothing.
    pub source: Option<SequenceId>,
    /// Tokens in the pool.
    pub n_pool: u32,
    /// What follows, in order.
    pub restores: Vec<Restore>,
    /// The logits after the prefix, where they were saved with it.
    pub logits: Option<Arc<[f32]>>,
}

impl Match {
    /// The first `n_tokens` tokens of what `source` holds.
    #[must_use]
    pub fn in_pool(source: SequenceId, n_tokens: u32) -> Self {
        Self { source: Some(source), n_pool: n_tokens, ..Self::default() }
    }

    /// Tokens of the prefix.
    #[must_use]
    pub fn n_tokens(&self) -> u32 {
        self.restores.last().map_or(self.n_pool, |last| last.kept.end)
    }
}

impl Match {
    /// Adds what `saved` holds of the same text beyond the prefix.
    pub fn take_from(&mut self, saved: &SavedPrefix, forks: Forks) {
        let n_tokens = self.n_tokens();
        if n_tokens >= length(&saved.tokens) {
            return;
        }
        if forks == Forks::AtEnd {
            *self = Self::default();
        }
        let n_tokens = self.n_tokens();
        self.restores.extend(saved.pieces.iter().filter(|piece| piece.range.end > n_tokens).map(|piece| Restore {
            bytes: Arc::clone(&piece.bytes),
            piece: piece.range.clone(),
            kept: piece.range.start.max(n_tokens)..piece.range.end,
        }));
    }
}

/// A saved piece, and which of its tokens are needed.
#[derive(Debug, Clone)]
pub struct Restore {
    /// The piece.
    pub bytes: Arc<[u8]>,
    /// The tokens that it was saved of.
    pub piece: Range<u32>,
    /// Those that are needed; they begin where what was restored before them ends.
    pub kept: Range<u32>,
}

/// Adds what follows. A piece that was cut is restored once.
fn add_part(restores: &mut Vec<Restore>, part: Restore) {
    match restores.last_mut() {
        Some(last) if Arc::ptr_eq(&last.bytes, &part.bytes) => last.kept.end = part.kept.end,
        _ => restores.push(part),
    }
}

impl KvCache {
    /// The longest prefix that can be forked and restored, idle or running.
    ///
    /// `can_fork(id, n_held, n_tokens)` says whether the model's memory allows that fork.
    pub fn find(&self, wanted: &Wanted<'_>, can_fork: impl Fn(SequenceId, u32, u32) -> bool) -> Option<Match> {
        let walk = self.tree.walk(wanted.variant, wanted.tokens);
        let matched = match self.memory.forks {
            Forks::Anywhere => Some(self.find_anywhere(wanted, &walk)),
            Forks::InWindow => Some(self.find_in_window(wanted, &walk, &can_fork)),
            Forks::AtEnd => self.find_state(wanted, &walk, &can_fork),
        };
        matched.filter(|matched| matched.n_tokens() >= wanted.at_least.max(1))
    }

    /// Nodes below the roots that the text reaches, with how many of its first `at_most` tokens are known at the end of each.
    fn reached<'a>(&'a self, walk: &'a Walk, at_most: u32) -> impl Iterator<Item = (NodeId, Range<u32>)> + 'a {
        let whole = walk.whole.iter().skip(1).map(|&id| (id, self.tree.node(id).end()));
        let part = walk.part.map(|(id, n)| (id, self.tree.node(id).start + n));
        whole.chain(part).filter_map(move |(id, end)| {
            let reached = self.tree.node(id).start..end.min(at_most);
            (!reached.is_empty()).then_some((id, reached))
        })
    }

    /// What running sequences computed after the nodes that the text contains, and did not share yet.
    fn in_tails<'a>(&'a self, wanted: &'a Wanted<'_>, walk: &'a Walk) -> impl Iterator<Item = (SequenceId, u32)> + 'a {
        self.held().filter(|(_, path)| !path.tail.is_empty() && walk.whole.contains(&path.tip)).map(|(id, path)| {
            let end = self.tree.node(path.tip).end();
            let rest = &wanted.tokens[(end as usize).min(wanted.tokens.len())..];
            (id, end + common_prefix(&path.tail, rest))
        })
    }

    fn find_anywhere(&self, wanted: &Wanted<'_>, walk: &Walk) -> Match {
        let mut matched = Match::default();
        let mut holds = None;
        for (id, reached) in self.reached(walk, wanted.at_most) {
            let node = self.tree.node(id);
            if node.is_in_pool() {
                matched.n_pool = reached.end;
                holds = Some(id);
                continue;
            }
            let Some(piece) = node.stored else { break };
            add_part(&mut matched.restores, part_of(piece, &self.store, reached));
        }
        matched.source = holds.and_then(|id| self.tree.holders(id).next());
        let in_tails = self.in_tails(wanted, walk).map(|(id, n)| (id, n.min(wanted.at_most))).max_by_key(|&(_, n)| n);
        match in_tails {
            // Of two that are as long, the one in the pool: it is forked, with nothing to restore.
            Some((id, n)) if n >= matched.n_tokens() => Match { source: Some(id), n_pool: n, ..Match::default() },
            _ => matched,
        }
    }

    fn find_in_window(&self, wanted: &Wanted<'_>, walk: &Walk, can_fork: &impl Fn(SequenceId, u32, u32) -> bool) -> Match {
        let fork = |id: NodeId, n: u32| self.tree.holders(id).find(|&holder| can_fork(holder, self.n_held(holder), n));
        let reached: Vec<(NodeId, Range<u32>)> = self.reached(walk, wanted.at_most).collect();
        let n_in_pool = reached.iter().take_while(|(id, _)| self.tree.node(*id).is_in_pool()).count();
        let (in_pool, below) = reached.split_at(n_in_pool);
        let in_tails = self
            .in_tails(wanted, walk)
            .map(|(id, n)| (id, n.min(wanted.at_most)))
            .filter(|&(id, n)| can_fork(id, self.n_held(id), n))
            .max_by_key(|&(_, n)| n);
        let deepest = in_pool.iter().rev().find_map(|(id, reached)| Some((fork(*id, reached.end)?, reached.end)));
        let pool = in_tails.into_iter().chain(deepest).max_by_key(|&(_, n)| n);
        let mut matched = Match { source: pool.map(|(id, _)| id), n_pool: pool.map_or(0, |(_, n)| n), ..Match::default() };
        let trunk_end = in_pool.last().map_or(0, |(_, reached)| reached.end);
        if matched.n_pool == trunk_end {
            matched.restores = self.stored_in_window(below, trunk_end);
        }
        // The cells of a trunk may have lost what its saved pieces still have.
        let from_start = Match { restores: self.stored_in_window(&reached, 0), ..Match::default() };
        if from_start.n_tokens() > matched.n_tokens() { from_start } else { matched }
    }

    /// What can be put after a fork at `start` of what is stored of these nodes, up to the last place of those that the text
    /// reaches where a window then finds all that it sees.
    fn stored_in_window(&self, nodes: &[(NodeId, Range<u32>)], start: u32) -> Vec<Restore> {
        let mut whole_from = self.memory.window_from(start);
        let mut restores = Vec::new();
        // How many restores lead to the last such place, and where it is.
        let mut found = (0, start);
        for (id, reached) in nodes {
            let node = self.tree.node(*id);
            let Some(piece) = node.stored else { break };
            // A piece without a hole goes on from what is before it.
            if node.whole_from > reached.start {
                whole_from = node.whole_from.min(reached.end);
            }
            add_part(&mut restores, part_of(piece, &self.store, reached.clone()));
            if self.memory.holds_window(whole_from, reached.end) {
                found = (restores.len(), reached.end);
            }
        }
        restores.truncate(found.0);
        if let Some(last) = restores.last_mut() {
            last.kept.end = found.1;
        }
        restores
    }

    fn find_state(&self, wanted: &Wanted<'_>, walk: &Walk, can_fork: &impl Fn(SequenceId, u32, u32) -> bool) -> Option<Match> {
        let whole = self
            .in_tails(wanted, walk)
            .filter(|&(id, n)| n == self.n_held(id) && n <= wanted.at_most && can_fork(id, n, n))
            .max_by_key(|&(_, n)| n);
        let in_tails = whole.map(|(id, n)| Match { source: Some(id), n_pool: n, ..Match::default() });
        let in_tree = walk.whole.iter().skip(1).rev().find_map(|&id| {
            let node = self.tree.node(id);
            let end = node.end();
            let holds = |&tip: &SequenceId| self.path(tip).tail.is_empty() && can_fork(tip, end, end);
            if end <= wanted.at_most
                && let Some(source) = node.tips.iter().copied().find(holds)
            {
                return Some(Match { source: Some(source), n_pool: end, ..Match::default() });
            }
            let piece = self.store.piece(node.stored?);
            let logits = piece.logits.clone().filter(|_| wanted.takes_logits && end == length(wanted.tokens));
            if end > wanted.at_most && logits.is_none() {
                return None;
            }
            Some(Match { restores: vec![part_of(node.stored?, &self.store, 0..end)], logits, ..Match::default() })
        });
        // Of two that are as long, the last one is taken: that in the pool is forked, with nothing to restore.
        in_tree.into_iter().chain(in_tails).max_by_key(Match::n_tokens)
    }
}
