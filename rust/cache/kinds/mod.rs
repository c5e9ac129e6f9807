//! What a model's memory can do, and what follows from it: one file per kind, which answers every question that the rest of the
//! cache asks about it. Nobody else tells the kinds apart.

mod attention;
mod recurrent;
mod sliding_window;

use std::fmt::Debug;
use std::ops::Range;

use crate::cache::host_eviction::OffloadCandidate;
use crate::cache::path_removal::EvictionReason;
use crate::cache::prefix_match::{CanFork, PrefixMatch, PrefixQuery};
use crate::cache::prefix_tree::{NodeId, Walk};
use crate::cache::{KvCache, KvSeqId};

/// At which points of what a sequence holds another one can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkRule {
    /// At any.
    Anywhere,
    /// Where what a sliding window sees is still there; a saved piece has that only of its end.
    InWindow,
    /// Only at the end: the memory is a state, which is saved and restored whole.
    AtEnd,
}

impl ForkRule {
    /// Whether the memory is a state: it is saved and restored whole, and another sequence can begin only where it ends.
    #[must_use]
    pub fn is_a_state(self) -> bool {
        self == Self::AtEnd
    }

    /// Whether any part of what a sequence holds can be given up, moved or begun from.
    #[must_use]
    pub fn can_truncate(self) -> bool {
        self == Self::Anywhere
    }

    /// The rules of this kind: the one place where the kinds are told apart.
    fn rules(self) -> &'static dyn MemoryRules {
        match self {
            Self::Anywhere => &attention::Anywhere,
            Self::InWindow => &sliding_window::InWindow,
            Self::AtEnd => &recurrent::AtEnd,
        }
    }
}

/// What a decode pays for cells that none of its rows sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleCost {
    /// Nothing that the way out and back would be worth: on a GPU, from which each run of cells is copied for itself.
    Nothing,
    /// That llama.cpp asks of each row and cell whether one sees the other: on a CPU with our attention.
    Mask,
    /// All that it pays for those that are seen: on a CPU with llama.cpp's attention.
    Scores,
}

/// What a model's memory can do, and what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryKind {
    /// Where it can be shared.
    pub forks: ForkRule,
    /// What cells cost that nothing that runs sees.
    pub idle_cost: IdleCost,
    /// Whether what leaves the pool can be saved; if not, there is no store.
    pub can_be_saved: bool,
    /// Bytes of one token's cells in a saved piece, about.
    pub bytes_per_token: u64,
    /// Bytes of a saved state beside its tokens' cells, about; 0 for a memory that is not one.
    pub bytes_per_state: u64,
    /// What one more run of adjacent cells costs in a save, in tokens of one run.
    pub tokens_per_run: u32,
    /// Tokens that a sliding window sees, the newest included; 0 for a memory that does not fork [`ForkRule::InWindow`].
    pub n_window: u32,
}

impl MemoryKind {
    /// The memory of a context that makes vectors of texts: nothing of it is saved, and each token sees the `n_window` last ones, or
    /// all where that is 0.
    #[must_use]
    pub const fn of_vectors(n_window: u32) -> Self {
        Self {
            forks: if n_window > 0 { ForkRule::InWindow } else { ForkRule::Anywhere },
            idle_cost: IdleCost::Nothing,
            can_be_saved: false,
            bytes_per_token: 0,
            bytes_per_state: 0,
            tokens_per_run: 0,
            n_window,
        }
    }

    /// Whether it is a state: saved and restored whole, and shared only where it ends.
    #[must_use]
    pub fn is_a_state(self) -> bool {
        self.forks.is_a_state()
    }

    /// Bytes of a saved prefix of `n_tokens`, about.
    #[must_use]
    pub fn bytes_of(self, n_tokens: u32) -> u64 {
        self.bytes_per_state + u64::from(n_tokens) * self.bytes_per_token
    }

    /// Whether a sequence that holds everything from `whole_from` on holds what a token after `n_tokens` sees: itself and the
    /// `n_window - 1` before it.
    #[must_use]
    pub fn holds_window(self, whole_from: u32, n_tokens: u32) -> bool {
        self.n_window == 0 || whole_from <= self.window_from(n_tokens)
    }

    /// The first token that one after `n_tokens` sees.
    #[must_use]
    pub fn window_from(self, n_tokens: u32) -> u32 {
        (n_tokens + 1).saturating_sub(self.n_window)
    }

    /// The first token that the last one of `n_tokens` sees.
    #[must_use]
    pub fn window_of_last(self, n_tokens: u32) -> u32 {
        n_tokens.saturating_sub(self.n_window)
    }
}

/// A part of an idle path that leaves the pool next.
#[derive(Debug)]
pub(super) struct TailPart {
    /// Where it ends, or the node that is saved.
    pub(super) node: NodeId,
    /// What could leave.
    pub(super) range: Range<u32>,
    /// Whether it is saved already.
    pub(super) is_stored: bool,
    /// How many of the last tokens of `range` leave, and what saving them costs.
    pub(super) n_tokens: u32,
    pub(super) n_units: u64,
}

/// Who would lose the saved piece of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceUser {
    Nobody,
    /// Every child that the node has.
    Children,
    /// Those of them that are in the store alone.
    StoredChildren,
}

/// What the cache asks about a kind of memory. Each kind answers in a file of its own, with its reasons.
pub(super) trait MemoryRules: Debug + Sync {
    /// The longest prefix of what is `wanted` that can be forked and restored.
    fn find(&self, cache: &KvCache, wanted: &PrefixQuery<'_>, walk: &Walk, can_fork: CanFork<'_>) -> Option<PrefixMatch>;

    /// Whether the path of `id`, which is idle from now on, holds nothing that no other one holds.
    fn is_contained(&self, cache: &KvCache, id: KvSeqId) -> bool;

    /// Whether an idle path that ends where another one goes on holds nothing of its own.
    fn gives_back_ids(&self) -> bool;

    /// Whether an idle path that ends at `tip` may leave.
    fn can_leave(&self, cache: &KvCache, tip: NodeId, why: EvictionReason) -> bool;

    /// What of the idle path of `id` leaves next, where saving it should cost about `max_units` or less.
    fn next_part(&self, cache: &KvCache, id: KvSeqId, max_units: u64) -> TailPart;

    /// Whether the cells of a part that was saved stay until all of its path is saved.
    fn stays_until_all_is_saved(&self) -> bool;

    /// The idle path of `id` leaves, as far as the memory lets `node` leave alone. What it leaves unsaved is counted as forgotten.
    fn leave(&self, cache: &mut KvCache, id: KvSeqId, node: NodeId);

    /// The idle path of `id` gives up its last node, which is erased.
    fn erase_end(&self, cache: &mut KvCache, id: KvSeqId);

    /// Who needs the saved piece of a node.
    fn needed_by(&self, is_in_pool: bool) -> PieceUser;

    /// Whether the saved piece of `least` is of no use without what is leaving, or the other way round: what leaves together is
    /// saved together, or never.
    fn is_saved_together(&self, cache: &KvCache, least: NodeId, leaving: &OffloadCandidate) -> bool;

    /// Whether a saved piece is of no use without what is before it.
    fn needs_what_is_before(&self) -> bool;

    /// Whether a pin would be lost if the idle path of `id` gave up `node`, unsaved.
    fn is_needed_by_pin(&self, cache: &KvCache, id: KvSeqId, node: NodeId) -> bool;

    /// The last node above `tip` that a pin needs and only the path that ends at `tip` has.
    fn end_of_pin(&self, cache: &KvCache, tip: NodeId) -> Option<NodeId>;

    /// Whether `node`, whose piece goes on after the end of a new pin, gives the piece up, so that the pin is saved on its own.
    fn gives_up_longer_piece(&self, cache: &KvCache, node: NodeId) -> bool;
}

impl KvCache {
    /// The rules of this cache's kind of memory.
    pub(super) fn rules(&self) -> &'static dyn MemoryRules {
        self.kind.forks.rules()
    }
}
