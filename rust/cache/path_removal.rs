//! Removal of idle paths from the device cache, with or without saving them in the host cache.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use crate::cache::cells::CellId;
use crate::cache::host_cache::HostEntry;
use crate::cache::kinds::TailPart;
use crate::cache::prefix_tree::NodeId;
use crate::cache::{KvCache, KvSeqId, MIN_SHARED, Path, length_of, visit_counter};

/// A part of an idle path that is removed from the device cache next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathRemoval {
    node: NodeId,
    pub id: KvSeqId,
    /// Tokens that must be saved before the removal; `None` if they are saved already or not worth saving.
    pub saves: Option<Range<u32>>,
    /// True if a pin or a preempted sequence needs them, or the parts of the path are useful only together.
    pub is_required: bool,
    pub n_tokens: u32,
    /// Cost of saving them, in tokens of one contiguous run of cells.
    pub n_units: u64,
    pub last_used: u64,
}

impl PathRemoval {
    pub(crate) fn extend_to(&mut self, start: u32) {
        if let Some(range) = &mut self.saves {
            let n_more = range.start - start;
            range.start = start;
            self.n_tokens += n_more;
            self.n_units += u64::from(n_more);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionReason {
    /// Keeping the cells costs more than it saves; the removal must lose nothing.
    Early,
    /// The cells or the id are needed.
    MemoryPressure,
}

#[derive(Debug)]
pub struct SavedState {
    /// The bytes that [`Runner::save`](crate::engine::runner::Runner::save) returned.
    pub bytes: Arc<[u8]>,
    /// Position from which the bytes hold the cells of a sliding window; the start for other kinds of memory.
    pub whole_from: u32,
}

impl KvCache {
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns the end of the least recently used idle path: at least 16 tokens, more if saving them costs at most `max_units`.
    /// `None` if no path is idle, or an early removal could not be saved.
    pub fn next_removal(&self, max_units: u64, reason: EvictionReason) -> Option<PathRemoval> {
        let can_remove = |(id, path): &(KvSeqId, &Path)| !self.is_pinned(*id) && self.rules().can_remove(self, path.tip, reason);
        let idle = self.paths().inspect(|_| visit_counter::count_visited(1)).filter(can_remove);
        // Of paths that were used together the longest is first: paths that end within it can be saved on top of its entries.
        let order = |path: &Path| (self.tree.node(path.tip).last_used, Reverse(self.tree.node(path.tip).end()));
        let (id, path) = idle.min_by_key(|(_, path)| order(path))?;
        let last_used = self.tree.node(path.tip).last_used;
        let TailPart { node, range, is_stored } = self.rules().next_removal_part(self, id);
        let (n_tokens, n_units) = if self.kind.is_a_state() {
            (length_of(range.len()), range.len() as u64)
        } else {
            self.count_affordable(self.cell_runs.cells_reversed(id, range.clone()), max_units)
        };
        let is_needed = !is_stored && self.rules().is_needed_by_pin(self, id, node);
        let saves = !is_stored && (is_needed || self.can_save(node, n_tokens, reason));
        if reason == EvictionReason::Early && !is_stored && !saves {
            return None;
        }
        let saves = saves.then(|| range.end - n_tokens..range.end);
        let is_required = is_needed || self.tree.node(node).n_reserved > 0 || self.kind.forks.removes_whole_paths();
        Some(PathRemoval { node, id, saves, is_required, n_tokens, n_units, last_used })
    }

    /// As [`KvCache::count_affordable`], from token `start` of `id` on.
    pub(crate) fn count_affordable_from(&self, id: KvSeqId, start: u32, max_units: u64) -> (u32, u64) {
        self.count_affordable(self.cell_runs.cells_from(id, start), max_units)
    }

    /// Number of the first `cells` that can be saved for `max_units`, at least 16, and their cost.
    pub(super) fn count_affordable(&self, cells: impl Iterator<Item = CellId>, max_units: u64) -> (u32, u64) {
        let (mut n_tokens, mut n_units) = (0, 0);
        let mut last: Option<u32> = None;
        for cell in cells {
            let is_next = last.is_some_and(|last| cell.0.abs_diff(last) == 1);
            let n_more = 1 + if is_next { 0 } else { u64::from(self.kind.tokens_per_run) };
            if n_tokens >= MIN_SHARED && n_units + n_more > max_units {
                break;
            }
            (n_tokens, n_units, last) = (n_tokens + 1, n_units + n_more, Some(cell.0));
        }
        (n_tokens, n_units)
    }

    /// Carries out `removal`; the cache must not have changed since [`KvCache::next_removal`]. A pinned prefix that could not
    /// be saved becomes pinned in the device cache. Returns `false` if an early removal could not be saved; its path stays.
    pub fn remove_tail(&mut self, removal: &PathRemoval, saved: Option<SavedState>, reason: EvictionReason) -> bool {
        let PathRemoval { mut node, id, .. } = *removal;
        if let Some(range) = &removal.saves {
            let saved = saved.filter(|saved| self.evict_for(node, saved.bytes.len() as u64, reason));
            // The eviction may have joined nodes of the path.
            node = self.cut_at(id, range.end);
            if saved.is_none() {
                if self.rules().is_needed_by_pin(self, id, node) && self.pin_on_device(id, node) {
                    return true;
                }
                if reason == EvictionReason::Early {
                    return false;
                }
            }
            let is_stored = self.store_end(node, range, saved);
            if is_stored && self.kind.forks.removes_whole_paths() {
                return true;
            }
        }
        self.rules().remove(self, id, node);
        true
    }

    /// Stores what was saved of `range`, which ends with `node`. Returns `false` if that adds nothing to the existing entry.
    pub(super) fn store_end(&mut self, node: NodeId, range: &Range<u32>, saved: Option<SavedState>) -> bool {
        let start = self.tree.node(node).start;
        if range.start > start && !self.kind.is_a_state() {
            self.split(node, range.start - start);
        }
        let entry = self.tree.node(node).host_entry.as_ref();
        let is_better = |saved: &SavedState| entry.is_none_or(|entry| saved.whole_from < entry.whole_from);
        let Some(SavedState { bytes, whole_from }) = saved.filter(is_better) else { return false };
        self.store_entry(node, HostEntry { range: range.clone(), bytes, logits: None, whole_from });
        true
    }

    pub(super) fn store_entry(&mut self, node: NodeId, entry: HostEntry) {
        self.counts.n_offloaded += entry.range.len() as u64;
        self.set_host_entry(node, Some(entry));
    }
}
