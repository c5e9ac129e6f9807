//! A log of evicted tokens, for reports of why a prompt had to be computed again.

use std::ops::Range;
use std::sync::Arc;

use crate::cache::prefix_tree::NodeId;
use crate::cache::{KvCache, KvSeqId};
use crate::request::EvictionCause;

/// Maximum length of the log; the oldest are dropped first.
pub const MAX_EVICTED_RUNS: usize = 4096;

/// A request that computes or uses cached tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provenance {
    pub group_id: u64,
    pub owner: Option<Arc<str>>,
}

/// A run of computed tokens that is in neither tier any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictedRun {
    /// The request that computed or used the run last.
    pub group_id: u64,
    /// Range of the run in the text of that request.
    pub range: Range<u32>,
    pub cause: EvictionCause,
}

impl KvCache {
    /// Attributes the nodes that the path of `id` computes or shares from now on to a request.
    pub(crate) fn set_provenance(&mut self, id: KvSeqId, provenance: Provenance) {
        self.path_mut(id).provenance = Some(provenance);
    }

    pub(crate) fn take_evicted(&mut self) -> impl Iterator<Item = EvictedRun> {
        self.eviction_log.drain(..)
    }

    pub(super) fn log_eviction(&mut self, node: NodeId, cause: EvictionCause) {
        let node = self.tree.node(node);
        if let Some(Provenance { group_id, .. }) = node.provenance {
            let evicted = EvictedRun { group_id, range: node.start..node.end(), cause };
            self.push_evicted(evicted);
        }
    }

    pub(super) fn log_failure(&mut self, id: KvSeqId) {
        let n_held = self.n_held(id);
        if let Some(group_id) = self.path(id).provenance.as_ref().filter(|_| n_held > 0).map(|by| by.group_id) {
            self.push_evicted(EvictedRun { group_id, range: 0..n_held, cause: EvictionCause::Failed });
        }
    }

    fn push_evicted(&mut self, evicted: EvictedRun) {
        if self.eviction_log.len() == MAX_EVICTED_RUNS {
            self.eviction_log.pop_front();
        }
        self.eviction_log.push_back(evicted);
    }
}
