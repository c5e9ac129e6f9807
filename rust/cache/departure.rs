//! What leaves the pool: into the store, or into nothing.

use std::ops::Range;
use std::sync::Arc;

use crate::cache::Forks;
use crate::cache::cells::CellId;
use crate::cache::prefix_tree::{DropKey, NodeId};
use crate::cache::{CacheOp, KvCache, SequenceId};
use crate::request::Token;

/// A part of an idle path that is next to leave the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    node: NodeId,
    /// Who holds it.
    pub id: SequenceId,
    /// What is to be saved before it leaves; `None` where it is saved already, or not worth it.
    pub saves: Option<Range<u32>>,
    /// How many tokens leave.
    pub n_tokens: u32,
    /// What saving them costs, in tokens of one run of cells.
    pub n_units: u64,
    /// When it was last used, on the cache's clock.
    pub last_used: u64,
}

/// Why something leaves the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It costs more than it saves: it goes where nothing is lost by that.
    Early,
    /// Its cells or its id are needed.
    Pressed,
}

/// What a save made.
#[derive(Debug)]
pub struct Saved {
    /// As [`Runner::save`](crate::engine::runner::Runner::save) made it.
    pub bytes: Box<[u8]>,
    /// From which position on it holds what a sliding window sees: its first one for other memories, its end where it lacks the
    /// end.
    pub whole_from: u32,
}

impl KvCache {
    /// The time on the clock that [`Departure::last_used`] is read from.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The part of the least recently used idle path that can leave next, leaf first, whose save costs about `max_units` or less,
    /// but of 16 tokens at least. `None` where nothing is idle, or where what would leave early could not be kept.
    #[must_use]
    pub fn next_departure(&self, max_units: u64, why: Why) -> Option<Departure> {
        let is_leaf = |node: NodeId| {
            let node = self.tree.node(node);
            node.n_running == 0 && node.n_holders as usize == node.tips.len()
        };
        let is_candidate = |node: NodeId| match self.memory.forks {
            Forks::Anywhere => is_leaf(node),
            // What ends inside of a longer path is kept for its own window or state.
            Forks::InWindow | Forks::AtEnd => true,
        };
        let idle = self.held().filter(|(_, path)| !path.is_pinned && is_candidate(path.tip));
        let (id, path) = idle.min_by_key(|(_, path)| self.tree.node(path.tip).last_used)?;
        let tip = self.tree.node(path.tip);
        let last_used = tip.last_used;
        let (node, range, is_stored) = match self.memory.forks {
            Forks::Anywhere => (path.tip, tip.start..tip.end(), tip.stored.is_some()),
            Forks::AtEnd => (path.tip, 0..tip.end(), tip.stored.is_some()),
            // Its cells leave together, when all of them are saved: what is left of a window cannot be cut.
            Forks::InWindow => match self.unsaved_in_window(path.tip) {
                Some((node, range)) => (node, range, false),
                None => (path.tip, tip.start..tip.end(), true),
            },
        };
        let (n_tokens, n_units) = if self.memory.forks == Forks::AtEnd {
            (range.end, u64::from(range.end))
        } else {
            self.affordable(id, range.clone(), max_units)
        };
        let saves = !is_stored && (self.is_needed_by_pin(id, node) || self.is_worth_saving(node, n_tokens, why));
        if why == Why::Early && !is_stored && !saves {
            return None;
        }
        Some(Departure { node, id, saves: saves.then(|| range.end - n_tokens..range.end), n_tokens, n_units, last_used })
    }

    /// The first part of what ends at `tip` that must be saved before a path leaves: what nobody else holds, or all of it where
    /// a pin or a preempted sequence ends, since the others' windows move on. That is what no piece has yet, and what the window
    /// at the tip sees but the piece lacks, because it was saved of a longer path.
    fn unsaved_in_window(&self, tip: NodeId) -> Option<(NodeId, Range<u32>)> {
        let window_from = self.memory.window_from(self.tree.node(tip).end());
        let is_firm = self.tree.node(tip).n_reserved > 0 || self.pins.values().any(|pin| pin.node == tip);
        let own = self.tree.upwards(tip).take_while(|&at| {
            let node = self.tree.node(at);
            node.parent.is_some() && (is_firm || node.n_holders == 1)
        });
        let unsaved = own.filter_map(|at| {
            let node = self.tree.node(at);
            let start = if node.stored.is_some() { node.start.max(window_from) } else { node.start };
            let is_unsaved = node.stored.is_none() || (start < node.end() && start < node.whole_from);
            is_unsaved.then(|| (at, start..node.end()))
        });
        unsaved.last()
    }

    /// How many of the last tokens of `range` can be saved for `max_units`, 16 at least, and what they cost.
    pub(super) fn affordable(&self, id: SequenceId, range: Range<u32>, max_units: u64) -> (u32, u64) {
        let cells = &self.path(id).cells[range.start as usize..range.end as usize];
        self.count_affordable(cells.iter().rev(), max_units)
    }

    /// How many of the tokens that `id` holds from `start` on can be saved for `max_units`, 16 at least, and what they cost.
    #[must_use]
    pub fn affordable_from(&self, id: SequenceId, start: u32, max_units: u64) -> (u32, u64) {
        self.count_affordable(self.path(id).cells[start as usize..].iter(), max_units)
    }

    fn count_affordable<'a>(&self, cells: impl Iterator<Item = &'a CellId>, max_units: u64) -> (u32, u64) {
        let (mut n_tokens, mut n_units) = (0, 0);
        let mut last: Option<u32> = None;
        for cell in cells {
            let is_next = last.is_some_and(|last| cell.0.abs_diff(last) == 1);
            let more = 1 + if is_next { 0 } else { u64::from(self.memory.tokens_per_run) };
            if n_tokens >= crate::cache::MIN_SHARED && n_units + more > max_units {
                break;
            }
            (n_tokens, n_units, last) = (n_tokens + 1, n_units + more, Some(cell.0));
        }
        (n_tokens, n_units)
    }

    /// Whether the store takes `n_tokens` tokens of `node`: it has room, or holds something that is worth less.
    fn is_worth_saving(&self, node: NodeId, n_tokens: u32, why: Why) -> bool {
        let n_bytes = self.memory.bytes_of(n_tokens);
        self.store.can_ever_hold(n_bytes) && (self.store.has_room(n_bytes) || self.next_to_drop(node, why).is_some())
    }

    /// What is dropped next from the store for what `node` holds.
    fn next_to_drop(&self, node: NodeId, why: Why) -> Option<NodeId> {
        let (key, least) = *self.droppable.iter().find(|&&(_, least)| !self.stays_with(least, node))?;
        self.gives_way(key, least, node, why).then_some(least)
    }

    /// Whether the stored piece of `least` is of no use without what `node` holds, or the other way round: what leaves together
    /// is saved together, or never. But a pin gives way to nothing.
    fn stays_with(&self, least: NodeId, node: NodeId) -> bool {
        let is_related = || self.is_above(least, node) || self.is_above(node, least);
        least == node || (self.memory.forks == Forks::InWindow && self.tree.node(node).n_pins == 0 && is_related())
    }

    fn is_above(&self, above: NodeId, below: NodeId) -> bool {
        self.tree.upwards(below).any(|at| at == above)
    }

    /// Whether the stored piece of `least` is dropped for what `node` holds.
    fn gives_way(&self, (class, last_used): DropKey, least: NodeId, node: NodeId, why: Why) -> bool {
        // Without what is before it, it would be of no use.
        if why == Why::Pressed && class == 1 && self.memory.forks == Forks::Anywhere && self.is_above(node, least) {
            return true;
        }
        let node = self.tree.node(node);
        let is_firm = node.n_pins > 0 || node.n_reserved > 0;
        class == 0 || (class == 1 && (is_firm || last_used < node.last_used)) || node.n_pins > 0
    }

    /// Drops stored pieces until `n_bytes` more fit; `false` where what would be left to drop is worth more than what ends after
    /// the first `end` tokens of the path of `id`. What is dropped may join nodes of that path.
    fn make_room_in_store(&mut self, id: SequenceId, end: u32, n_bytes: u64, why: Why) -> bool {
        if !self.store.can_ever_hold(n_bytes) {
            return false;
        }
        while !self.store.has_room(n_bytes) {
            let node = self.cut_at(id, end);
            let Some(least) = self.next_to_drop(node, why) else { return false };
            let dropped = self.tree.node(least);
            self.counts.n_forgotten += if dropped.is_in_pool() { 0 } else { dropped.tokens.len() as u64 };
            self.drop_stored(least);
        }
        true
    }

    /// Gives up the saved piece of `node`.
    pub(super) fn drop_stored(&mut self, id: NodeId) {
        let piece = self.tree.node_mut(id).stored.take().expect("it is stored");
        self.store.release(piece);
        self.refresh_stored(id);
        self.prune(id);
    }

    /// Carries out `departure`, with what was saved for it: its cells are free, where the memory can give up a part. Nothing else
    /// may have changed since [`KvCache::next_departure`]. A pinned prefix that could not be saved stays and is idle no more.
    /// `false` where it was to leave early and cannot be kept: then it stays.
    pub fn depart(&mut self, departure: &Departure, saved: Option<Saved>, why: Why) -> bool {
        let Departure { mut node, id, .. } = *departure;
        if let Some(range) = &departure.saves {
            let saved = saved.filter(|saved| self.make_room_in_store(id, range.end, saved.bytes.len() as u64, why));
            node = self.cut_at(id, range.end);
            if saved.is_none() {
                if self.is_needed_by_pin(id, node) && self.hold(id, node) {
                    return true;
                }
                if why == Why::Early {
                    return false;
                }
            }
            let start = self.tree.node(node).start;
            if range.start > start && self.memory.forks != Forks::AtEnd {
                self.split(node, range.start - start);
            }
            // A window that is not there can be saved from nowhere.
            let is_news =
                |saved: &Saved| self.tree.node(node).stored.is_none() || saved.whole_from < self.tree.node(node).whole_from;
            if let Some(Saved { bytes, whole_from }) = saved.filter(is_news) {
                self.keep(node, range.clone(), bytes, None, whole_from);
                if self.memory.forks == Forks::InWindow {
                    return true;
                }
            }
        }
        match self.memory.forks {
            Forks::Anywhere => self.leave_leaf(node),
            Forks::InWindow => self.forget_path(id, true),
            Forks::AtEnd => self.forget_path(id, false),
        }
        true
    }

    fn keep(&mut self, node: NodeId, range: Range<u32>, bytes: Box<[u8]>, logits: Option<Arc<[f32]>>, whole_from: u32) {
        self.counts.n_saved += u64::from(range.end - range.start);
        let piece = self.store.add(range, bytes, logits);
        if let Some(lacking) = self.tree.node_mut(node).stored.replace(piece) {
            self.store.release(lacking);
        }
        self.tree.node_mut(node).whole_from = whole_from;
        self.refresh_stored(node);
    }

    /// The path that ends at the leaf `node` ends above it from now on.
    fn leave_leaf(&mut self, node: NodeId) {
        if self.tree.node(node).stored.is_none() {
            self.counts.n_forgotten += self.tree.node(node).tokens.len() as u64;
        }
        for id in self.tree.node(node).tips.clone() {
            self.move_up(id);
        }
    }

    /// The idle path of `id` gives up its last node; where others hold the rest, it gives back its id.
    pub(super) fn move_up(&mut self, id: SequenceId) {
        let node = self.path(id).tip;
        let start = self.tree.node(node).start;
        let parent = self.tree.node(node).parent.expect("a path that ends at a root holds nothing and is free");
        let is_held = self.tree.node(parent).n_holders > self.tree.node(node).n_holders;
        if is_held || start == 0 {
            self.drop_path(id);
            return;
        }
        self.add_tip_quietly(parent, id);
        self.path_mut(id).tip = parent;
        self.remove_tip(node, id);
        for cell in self.path_mut(id).cells.split_off(start as usize) {
            self.cells.release(cell);
        }
        self.ops.push(CacheOp::Truncate(id, start));
    }

    /// As a path that moves up, without being used by that.
    fn add_tip_quietly(&mut self, node: NodeId, id: SequenceId) {
        self.tree.node_mut(node).tips.push(id);
        self.tree.change_upwards(node, |node| node.n_holders += 1);
    }

    /// An idle path leaves whole. `counts_parts` where what is stored of it is stored part by part.
    fn forget_path(&mut self, id: SequenceId, counts_parts: bool) {
        let tip = self.path(id).tip;
        let is_lost = |node: &NodeId| {
            let node = self.tree.node(*node);
            node.n_holders == 1 && node.stored.is_none()
        };
        let n_parts = if counts_parts { usize::MAX } else { 1 };
        let n_lost: usize =
            self.tree.upwards(tip).take(n_parts).filter(is_lost).map(|node| self.tree.node(node).tokens.len()).sum();
        self.counts.n_forgotten += n_lost as u64;
        self.drop_path(id);
    }

    /// Keeps the whole state after the first tokens of the path of `id`, which runs and has computed exactly `n_tokens` tokens,
    /// with the logits after them, where they are known. `false` where the store has no room for it.
    pub fn add_snapshot(&mut self, id: SequenceId, n_tokens: u32, bytes: Box<[u8]>, logits: Option<Arc<[f32]>>) -> bool {
        let node = self.cut_at(id, n_tokens);
        let n_bytes = (bytes.len() + logits.as_deref().map_or(0, size_of_val)) as u64;
        let lacks_logits = |piece| logits.is_some() && self.store.piece(piece).logits.is_none();
        if self.tree.node(node).stored.is_some_and(|piece| !lacks_logits(piece)) {
            return true;
        }
        if !self.make_room_in_store(id, n_tokens, n_bytes, Why::Pressed) {
            return false;
        }
        let node = self.cut_at(id, n_tokens);
        self.keep(node, 0..n_tokens, bytes, logits, 0);
        true
    }

    /// Whether a snapshot of a prefix of `n_tokens` could be kept.
    #[must_use]
    pub fn can_keep_snapshot(&self, n_tokens: u32) -> bool {
        self.store.can_ever_hold(self.memory.bytes_of(n_tokens))
    }

    /// The logits after this prefix, where a snapshot of it is stored; they may be unknown.
    #[must_use]
    pub fn snapshot(&self, variant: &super::Variant, tokens: &[Token]) -> Option<Option<Arc<[f32]>>> {
        let walk = self.tree.walk(variant, tokens);
        let end = self.tree.node(*walk.whole.last()?);
        let piece = end.stored.filter(|_| end.end() as usize == tokens.len())?;
        Some(self.store.piece(piece).logits.clone())
    }
}
