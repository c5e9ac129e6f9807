//! What leaves the pool: into the store, or into nothing.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use crate::cache::cells::CellId;
use crate::cache::kinds::TailPart;
use crate::cache::prefix_tree::NodeId;
use crate::cache::{KvCache, KvSeqId, MIN_SHARED, Path, visit_counter};

/// A part of an idle path that is next to leave the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathRemoval {
    node: NodeId,
    /// Who holds it.
    pub id: KvSeqId,
    /// What is to be saved before it leaves; `None` where it is saved already, or not worth it.
    pub saves: Option<Range<u32>>,
    /// Whether it is to be saved however dear that is: a pin or a sequence that comes back has it, or what is saved of the path is of
    /// use only together.
    pub is_firm: bool,
    /// How many tokens leave.
    pub n_tokens: u32,
    /// What saving them costs, in tokens of one run of cells.
    pub n_units: u64,
    /// When it was last used, on the cache's clock.
    pub last_used: u64,
}

impl PathRemoval {
    /// What is to be saved begins at `start`, not after where it did.
    pub(crate) fn begin_at(&mut self, start: u32) {
        if let Some(range) = &mut self.saves {
            let n_more = range.start - start;
            range.start = start;
            self.n_tokens += n_more;
            self.n_units += u64::from(n_more);
        }
    }
}

/// Why something leaves the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionReason {
    /// It costs more than it saves: it goes where nothing is lost by that.
    Early,
    /// Its cells or its id are needed.
    Pressed,
}

/// What a save made.
#[derive(Debug)]
pub struct SavedState {
    /// As [`Runner::save`](crate::engine::runner::Runner::save) made it.
    pub bytes: Arc<[u8]>,
    /// From which position on it holds what a sliding window sees: its first one for other memories, its end where it lacks the
    /// end.
    pub whole_from: u32,
}

impl KvCache {
    /// The time on the clock that [`PathRemoval::last_used`] is read from.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The part of the least recently used idle path that can leave next, leaf first, whose save costs about `max_units` or less,
    /// but of 16 tokens at least. `None` where nothing is idle, or where what would leave early could not be kept.
    #[must_use]
    pub fn next_removal(&self, max_units: u64, why: EvictionReason) -> Option<PathRemoval> {
        let can_leave = |(id, path): &(KvSeqId, &Path)| !self.is_pinned(*id) && self.rules().can_leave(self, path.tip, why);
        let idle = self.paths().inspect(|_| visit_counter::count_visited(1)).filter(can_leave);
        // Of those that were used together the longest goes first: what ends within it may be saved over what it saves.
        let order = |path: &Path| (self.tree.node(path.tip).last_used, Reverse(self.tree.node(path.tip).end()));
        let (id, path) = idle.min_by_key(|(_, path)| order(path))?;
        let last_used = self.tree.node(path.tip).last_used;
        let TailPart { node, range, is_stored, n_tokens, n_units } = self.rules().next_part(self, id, max_units);
        let is_needed = !is_stored && self.rules().is_needed_by_pin(self, id, node);
        let saves = !is_stored && (is_needed || self.is_worth_saving(node, n_tokens, why));
        if why == EvictionReason::Early && !is_stored && !saves {
            return None;
        }
        let saves = saves.then(|| range.end - n_tokens..range.end);
        let is_firm = is_needed || self.tree.node(node).n_reserved > 0 || self.rules().stays_until_all_is_saved();
        Some(PathRemoval { node, id, saves, is_firm, n_tokens, n_units, last_used })
    }

    /// How many of the last tokens of `range` can be saved for `max_units`, 16 at least, and what they cost.
    pub(super) fn affordable(&self, id: KvSeqId, range: Range<u32>, max_units: u64) -> (u32, u64) {
        self.count_affordable(self.strands.cells_reversed(id, range), max_units)
    }

    /// How many of the tokens that `id` holds from `start` on can be saved for `max_units`, 16 at least, and what they cost.
    #[must_use]
    pub fn affordable_from(&self, id: KvSeqId, start: u32, max_units: u64) -> (u32, u64) {
        self.count_affordable(self.strands.cells_from(id, start), max_units)
    }

    /// The same for the first of `cells`.
    pub(super) fn count_affordable(&self, cells: impl Iterator<Item = CellId>, max_units: u64) -> (u32, u64) {
        let (mut n_tokens, mut n_units) = (0, 0);
        let mut last: Option<u32> = None;
        for cell in cells {
            let is_next = last.is_some_and(|last| cell.0.abs_diff(last) == 1);
            let more = 1 + if is_next { 0 } else { u64::from(self.kind.tokens_per_run) };
            if n_tokens >= MIN_SHARED && n_units + more > max_units {
                break;
            }
            (n_tokens, n_units, last) = (n_tokens + 1, n_units + more, Some(cell.0));
        }
        (n_tokens, n_units)
    }

    /// Carries out `departure`, with what was saved for it: its cells are free, where the memory can give up a part. Nothing else
    /// may have changed since [`KvCache::next_removal`]. A pinned prefix that could not be saved stays and is idle no more.
    /// `false` where it was to leave early and cannot be kept: then it stays.
    pub fn remove_tail(&mut self, departure: &PathRemoval, saved: Option<SavedState>, why: EvictionReason) -> bool {
        let PathRemoval { mut node, id, .. } = *departure;
        if let Some(range) = &departure.saves {
            let saved = saved.filter(|saved| self.evict_for(node, saved.bytes.len() as u64, why));
            // What was dropped may have joined nodes of the path.
            node = self.cut_at(id, range.end);
            if saved.is_none() {
                if self.rules().is_needed_by_pin(self, id, node) && self.keep_in_pool(id, node) {
                    return true;
                }
                if why == EvictionReason::Early {
                    return false;
                }
            }
            let is_kept = self.keep_end(node, range, saved);
            if is_kept && self.rules().stays_until_all_is_saved() {
                return true;
            }
        }
        self.rules().leave(self, id, node);
        true
    }

    /// Keeps what was saved of `range`, the end of `node`, which is cut there. `false` where nothing was, or what is kept already has
    /// as much of its window.
    pub(super) fn keep_end(&mut self, node: NodeId, range: &Range<u32>, saved: Option<SavedState>) -> bool {
        let start = self.tree.node(node).start;
        if range.start > start && !self.kind.is_a_state() {
            self.split(node, range.start - start);
        }
        // A window that is not there can be saved from nowhere.
        let is_news =
            |saved: &SavedState| self.tree.node(node).stored.is_none() || saved.whole_from < self.tree.node(node).whole_from;
        let Some(SavedState { bytes, whole_from }) = saved.filter(is_news) else { return false };
        self.keep(node, range.clone(), bytes, None, whole_from);
        true
    }

    /// Keeps a saved piece for `node`.
    pub(super) fn keep(
        &mut self,
        node: NodeId,
        range: Range<u32>,
        bytes: Arc<[u8]>,
        logits: Option<Arc<[f32]>>,
        whole_from: u32,
    ) {
        self.counts.n_saved += u64::from(range.end - range.start);
        let piece = self.store.add(range, bytes, logits);
        if let Some(lacking) = self.tree.node_mut(node).stored.replace(piece) {
            self.store.release(lacking);
        }
        self.tree.node_mut(node).whole_from = whole_from;
        self.refresh_stored(node);
    }
}
