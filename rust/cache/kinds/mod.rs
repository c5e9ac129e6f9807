//! The kinds of model memory and their cache rules, one file per kind. The rest of the cache calls these rules. Of a
//! [`ForkRule`] it reads only three properties: a path can be cut anywhere, is removed as a whole, or is saved as a whole state.

mod attention;
mod recurrent;
mod sliding_window;

use std::fmt::Debug;
use std::ops::Range;

use crate::cache::host_eviction::OffloadCandidate;
use crate::cache::path_removal::EvictionReason;
use crate::cache::prefix_match::{CanFork, PrefixMatch, PrefixQuery};
use crate::cache::prefix_tree::{NodeId, TreeMatch};
use crate::cache::{KvCache, KvSeqId};

/// The positions of a sequence at which another one can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkRule {
    Anywhere,
    /// Positions whose sliding window is still complete; a host cache entry holds only the window of its end.
    InWindow,
    /// The end alone: the memory is a state, which is saved and restored as a whole.
    AtEnd,
}

impl ForkRule {
    pub(crate) fn is_a_state(self) -> bool {
        self == Self::AtEnd
    }

    pub(crate) fn can_truncate(self) -> bool {
        self == Self::Anywhere
    }

    /// Returns true if the cells of a path are removed together, once all of its parts are saved.
    pub(super) fn removes_whole_paths(self) -> bool {
        self == Self::InWindow
    }

    fn rules(self) -> &'static dyn MemoryRules {
        match self {
            Self::Anywhere => &attention::AttentionRules,
            Self::InWindow => &sliding_window::SlidingWindowRules,
            Self::AtEnd => &recurrent::RecurrentRules,
        }
    }
}

/// Cost of cells in a decode that none of its rows attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleCost {
    /// Less than offloading and reloading them costs: on a GPU, which copies each contiguous run of cells separately.
    Nothing,
    /// A mask check per row and cell: on a CPU with our attention.
    Mask,
    /// The full cost of attended cells: on a CPU with llama.cpp's attention.
    Scores,
}

/// The capabilities and costs of a model's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryKind {
    pub forks: ForkRule,
    pub idle_cost: IdleCost,
    /// True if removed tokens can be saved; if not, the host cache is off.
    pub can_be_saved: bool,
    /// Approximate bytes of one token's cells in a host cache entry.
    pub bytes_per_token: u64,
    /// Approximate bytes of a saved state in addition to its tokens' cells; 0 if the memory is not a state.
    pub bytes_per_state: u64,
    /// Cost of another contiguous run of cells in a save, in tokens of one run.
    pub tokens_per_run: u32,
    /// Size of the sliding window in tokens, the newest included; 0 if `forks` is not [`ForkRule::InWindow`].
    pub n_window: u32,
}

impl MemoryKind {
    /// Memory for embeddings: never saved; each token attends to the last `n_window` tokens, or to all if that is 0.
    pub const fn for_embeddings(n_window: u32) -> Self {
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

    pub(crate) fn is_a_state(self) -> bool {
        self.forks.is_a_state()
    }

    pub(crate) fn bytes_of(self, n_tokens: u32) -> u64 {
        self.bytes_per_state + u64::from(n_tokens) * self.bytes_per_token
    }

    /// Returns true if a sequence that is complete from `whole_from` on holds the window of the token after `n_tokens`.
    pub(crate) fn holds_window(self, whole_from: u32, n_tokens: u32) -> bool {
        self.n_window == 0 || whole_from <= self.window_from(n_tokens)
    }

    /// First token in the window of the token after `n_tokens`, which includes that token.
    pub(crate) fn window_from(self, n_tokens: u32) -> u32 {
        (n_tokens + 1).saturating_sub(self.n_window)
    }

    /// First token in the window of the last of `n_tokens` tokens.
    pub(crate) fn window_of_last(self, n_tokens: u32) -> u32 {
        n_tokens.saturating_sub(self.n_window)
    }
}

#[derive(Debug)]
pub(super) struct TailPart {
    /// The node that ends with the part, or that is saved.
    pub(super) node: NodeId,
    pub(super) range: Range<u32>,
    pub(super) is_stored: bool,
}

/// The nodes that depend on the host cache entry of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dependents {
    None,
    Children,
    HostOnlyChildren,
}

/// The rules of a kind of memory. The implementations give the reasons.
pub(super) trait MemoryRules: Debug + Sync {
    /// Returns the longest prefix of the query that can be forked and reloaded.
    fn find(
        &self,
        cache: &KvCache,
        query: &PrefixQuery<'_>,
        tree_match: &TreeMatch,
        can_fork: CanFork<'_>,
    ) -> Option<PrefixMatch>;

    /// Returns true if another path makes the path of `id` redundant: by default an idle one of equal length.
    fn is_contained(&self, cache: &KvCache, id: KvSeqId) -> bool {
        cache.tree.node(cache.path(id).tip).tips.iter().any(|&other| other != id && !cache.is_pinned(other))
    }

    fn can_remove(&self, cache: &KvCache, tip: NodeId, reason: EvictionReason) -> bool;

    fn next_removal_part(&self, cache: &KvCache, id: KvSeqId) -> TailPart;

    /// Counts unsaved tokens as evicted.
    fn remove(&self, cache: &mut KvCache, id: KvSeqId, node: NodeId);

    fn dependents(&self, is_on_device: bool) -> Dependents;

    /// Returns true if one of both entries is useless without the other: both are saved or neither.
    fn is_saved_together(&self, _cache: &KvCache, _victim: NodeId, _candidate: &OffloadCandidate) -> bool {
        false
    }

    /// Returns true if a pin would be lost if the idle path of `id` dropped `node` unsaved. By default a longer text cannot
    /// replace the pinned one.
    fn is_needed_by_pin(&self, cache: &KvCache, id: KvSeqId, _node: NodeId) -> bool {
        cache.is_end_of_pin(cache.path(id).tip)
    }
}

impl KvCache {
    pub(super) fn rules(&self) -> &'static dyn MemoryRules {
        self.kind.forks.rules()
    }
}
