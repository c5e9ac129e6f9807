//! What was computed and is nowhere any more, so that whoever asks for it again can be told why it must be computed again.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::cache::prefix_tree::NodeId;
use crate::cache::{KvCache, KvSeqId};
use crate::request::EvictionCause;

/// Most stretches that are remembered until they are taken; the oldest are forgotten first.
pub const MAX_EVICTED_RUNS: usize = 4096;

/// A request that computes or uses what is cached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provenance {
    /// Its number.
    pub request_id: u64,
    /// Whose it is; `None` is whoever names nobody.
    pub owner: Option<Arc<str>>,
}

/// A stretch of computed tokens that neither tier has any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictedRun {
    /// The number of the request that computed or used it last: its text says which tokens these were.
    pub maker: u64,
    /// Which tokens of that text.
    pub range: Range<u32>,
    /// What it had to go for.
    pub why: EvictionCause,
}

/// What was lost since it was last asked for.
#[derive(Debug, Default)]
pub(super) struct EvictionLog(VecDeque<EvictedRun>);

impl EvictionLog {
    fn add(&mut self, lost: EvictedRun) {
        if self.0.len() == MAX_EVICTED_RUNS {
            self.0.pop_front();
        }
        self.0.push_back(lost);
    }
}

impl KvCache {
    /// What is computed on the path of `id`, and what it has in common with others, is that request's from now on.
    pub fn set_provenance(&mut self, id: KvSeqId, maker: Provenance) {
        self.path_mut(id).maker = Some(maker);
    }

    /// What was lost since the last call, oldest first; [`MAX_EVICTED_RUNS`] stretches at most.
    pub fn take_evicted(&mut self) -> impl Iterator<Item = EvictedRun> {
        self.lost.0.drain(..)
    }

    /// Remembers that `node` is computed no more.
    pub(super) fn remember_lost(&mut self, node: NodeId, why: EvictionCause) {
        let node = self.tree.node(node);
        if let Some(Provenance { request_id: maker, .. }) = node.maker {
            self.lost.add(EvictedRun { maker, range: node.start..node.end(), why });
        }
    }

    /// Remembers that all that `id` holds is of no use any more.
    pub(super) fn record_failed_compute(&mut self, id: KvSeqId) {
        let n_held = self.n_held(id);
        if let Some(maker) = self.path(id).maker.as_ref().filter(|_| n_held > 0).map(|maker| maker.request_id) {
            self.lost.add(EvictedRun { maker, range: 0..n_held, why: EvictionCause::Failed });
        }
    }
}
