//! What must stay: pinned prefixes, and what preempted sequences left behind.

use crate::cache::prefix_tree::NodeId;
use crate::cache::{AdapterSchedule, KvCache, KvSeqId};
use crate::error::Error;
use crate::request::{EvictionCause, PinnedPrefix, Token};

/// A prefix that is never forgotten.
#[derive(Debug)]
pub(super) struct Pin {
    /// Where it ends.
    pub(super) node: NodeId,
    /// Whose path keeps it in the pool, where there is no store that it could leave to, or where it could not be saved.
    pub(super) keeper: Option<KvSeqId>,
    /// How it was computed.
    variants: AdapterSchedule,
    n_bytes: u64,
}

impl Pin {
    pub(super) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }
}

/// What a preempted sequence left: it is the last to be given up, but for pinned prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation(pub(super) NodeId);

impl KvCache {
    /// Pins what the path of `id` holds, which has ended and is idle from now on, as [`KvCache::unpin`] makes it. Where there is
    /// no store, the path stays pinned instead.
    ///
    /// # Errors
    /// [`Error::PinsFull`] if all pinned prefixes together would take more than half of the store or, without one, of the pool or
    /// of the sequence ids, or an id that a slot needs; the path is idle then too.
    pub fn pin(&mut self, id: KvSeqId) -> Result<PinnedPrefix, Error> {
        let n_tokens = self.n_held(id);
        let node = self.cut_at(id, n_tokens);
        let variants = self.path(id).variants.of_first(n_tokens);
        if let Err(error) = self.check_pin(n_tokens) {
            self.unpin(id);
            return Err(error);
        }
        let n_bytes = self.bytes_of_pin(n_tokens);
        self.share_no_piece(node);
        self.tree.change_upwards(node, |node| node.n_pins += 1);
        self.refresh_upwards(node, None);
        let keeper = if self.has_host_cache() {
            self.unpin(id);
            None
        } else {
            Some(id)
        };
        let name = self.n_pinned_ever;
        self.n_pinned_ever += 1;
        let pin = Pin { node, keeper, variants, n_bytes };
        let pinned = self.listed(name, &pin);
        self.pins.insert(name, pin);
        self.n_pinned_bytes += n_bytes;
        Ok(pinned)
    }

    /// Whether another prefix of `n_tokens` can be pinned.
    ///
    /// # Errors
    /// As [`KvCache::pin`].
    pub fn check_pin(&self, n_tokens: u32) -> Result<(), Error> {
        let n_bytes = self.bytes_of_pin(n_tokens);
        let (_, n_pinned_bytes) = self.pinned_size();
        let (limit, can_be_kept) = if self.has_host_cache() {
            let limit = self.store.max_bytes().map_or(u64::MAX, |max| max / 2);
            (limit, n_bytes + n_pinned_bytes <= limit)
        } else {
            (self.bytes_of_pinnable(), self.can_keep(n_tokens))
        };
        if can_be_kept { Ok(()) } else { Err(Error::PinsFull { n_bytes, n_pinned_bytes, limit }) }
    }

    /// Bytes of half of the cells and, of a memory that is a state, of the sequence ids that pinned prefixes may keep.
    fn bytes_of_pinnable(&self) -> u64 {
        let n_cell_bytes = self.strands.cells().n_total() as u64 * self.kind.bytes_per_token / 2;
        n_cell_bytes + self.n_pinnable_ids() as u64 * self.kind.bytes_per_state
    }

    /// Most sequence ids that pinned prefixes keep: half of them, and none that a slot needs. Otherwise a search whose beams start
    /// together in all slots could never start, nor could any request that comes after it.
    fn n_pinnable_ids(&self) -> usize {
        (self.paths.len() / 2).min(self.paths.len().saturating_sub(self.n_ids_for_slots))
    }

    /// Whether half of the cells and enough sequence ids stay for others if one more path of `n_tokens` is in the pool for good.
    fn can_keep(&self, n_tokens: u32) -> bool {
        let keepers = || self.pins.values().filter_map(|pin| pin.keeper);
        let n_cells = n_tokens as usize + keepers().map(|id| self.n_held(id) as usize).sum::<usize>();
        2 * n_cells <= self.strands.cells().n_total() && keepers().count() < self.n_pinnable_ids()
    }

    /// Whether a pinned prefix ends at `node`.
    pub(super) fn is_end_of_pin(&self, node: NodeId) -> bool {
        self.tree.node(node).n_pins > 0 && self.pins.values().any(|pin| pin.node == node)
    }

    /// A pinned prefix that contains `node` could not be saved: what the idle path of `id` holds of it stays in the pool, as it
    /// would without a store. `false` where that leaves too little to others, or another path keeps it.
    pub(super) fn keep_in_pool(&mut self, id: KvSeqId, node: NodeId) -> bool {
        if !self.can_keep(self.n_held(id)) {
            return false;
        }
        let tree = &self.tree;
        let contains = |pin: &&mut Pin| pin.keeper.is_none() && tree.is_within(pin.node, node);
        let Some(pin) = self.pins.values_mut().find(contains) else { return false };
        pin.keeper = Some(id);
        self.strands.pin(id);
        self.tree.start_running(self.path(id).tip);
        true
    }

    fn bytes_of_pin(&self, n_tokens: u32) -> u64 {
        self.kind.bytes_of(n_tokens).max(u64::from(n_tokens))
    }

    /// A prefix that ends at `node`, which is in the pool, keeps no piece that goes on after it: it is saved on its own.
    fn share_no_piece(&mut self, node: NodeId) {
        let end = self.tree.node(node).end();
        let goes_on = |&at: &NodeId| {
            let is_longer = |piece| self.store.piece(piece).range.end > end;
            self.tree.node(at).stored.is_some_and(is_longer) && self.rules().gives_up_longer_piece(self, at)
        };
        for at in self.tree.upwards(node).filter(goes_on).collect::<Vec<_>>() {
            if let Some(piece) = self.tree.node_mut(at).stored.take() {
                self.store.release(piece);
            }
            self.refresh_stored(at);
        }
    }

    /// Lets a pinned prefix be given up again; `false` where there is none of that name.
    pub fn unpin_prefix(&mut self, name: u64) -> bool {
        let Some(Pin { node, keeper, n_bytes, .. }) = self.pins.remove(&name) else { return false };
        self.n_pinned_bytes -= n_bytes;
        self.tree.change_upwards(node, |node| node.n_pins -= 1);
        self.refresh_upwards(node, None);
        // Its keeper may hold only a part of it.
        self.prune(node);
        if let Some(id) = keeper {
            self.unpin(id);
        }
        true
    }

    /// Every pinned prefix, in the order of their pinning.
    #[must_use]
    pub fn pinned(&self) -> Vec<PinnedPrefix> {
        self.pins.iter().map(|(&id, pin)| self.listed(id, pin)).collect()
    }

    /// How many prefixes are pinned, and the bytes that they take, each counted by itself.
    #[must_use]
    pub fn pinned_size(&self) -> (usize, u64) {
        (self.pins.len(), self.n_pinned_bytes)
    }

    fn listed(&self, id: u64, pin: &Pin) -> PinnedPrefix {
        let adapters = pin.variants.adapters().collect();
        PinnedPrefix {
            id,
            tokens: self.tree.tokens_to(pin.node),
            n_bytes: pin.n_bytes,
            adapters,
            invoked_at: pin.variants.change(),
        }
    }

    /// As [`KvCache::unpin`], for a sequence that will come back.
    pub fn reserve(&mut self, id: KvSeqId) -> Reservation {
        self.reserve_first(id, self.n_held(id))
    }

    /// As [`KvCache::reserve`], where it comes back for the first `n_kept` tokens of what it has computed. Of a private path nothing
    /// stays.
    pub fn reserve_first(&mut self, id: KvSeqId, n_kept: u32) -> Reservation {
        let node = self.cut_at(id, if self.is_private(id) { 0 } else { n_kept });
        self.tree.change_upwards(node, |node| node.n_reserved += 1);
        self.unpin(id);
        self.refresh_upwards(node, None);
        Reservation(node)
    }

    /// The sequence is back, or will never come.
    pub fn release(&mut self, reservation: Reservation) {
        let Reservation(node) = reservation;
        self.tree.change_upwards(node, |node| node.n_reserved -= 1);
        self.refresh_upwards(node, None);
        self.prune(node);
    }

    /// Forgets `tokens` in both tiers, from their end up to where another path, a pin or a sequence needs them, but not the first
    /// `n_kept`.
    pub fn erase(&mut self, variants: &AdapterSchedule, tokens: &[Token], n_kept: u32) {
        if let Some((node, n)) = self.tree.walk(variants, &tokens[..n_kept as usize]).part {
            self.split(node, n);
        }
        let walk = self.tree.walk(variants, tokens);
        if walk.part.is_some() {
            return;
        }
        for id in walk.whole.into_iter().skip(1).rev() {
            // It may have held nothing but what followed it. Where it was joined with another continuation, that needs what is above.
            if !self.tree.contains(id) {
                continue;
            }
            let node = self.tree.node(id);
            let is_needed = !node.children.is_empty() || node.n_running > 0 || node.n_pins > 0 || node.n_reserved > 0;
            if is_needed || node.start < n_kept {
                return;
            }
            self.remember_lost(id, EvictionCause::Erased);
            // Stays until the last thing that it holds has gone.
            self.tree.change_upwards(id, |node| node.n_reserved += 1);
            for tip in self.tree.node(id).tips.clone() {
                self.rules().erase_end(self, tip);
            }
            if self.tree.node(id).stored.is_some() {
                self.drop_stored(id);
            }
            self.release(Reservation(id));
        }
    }
}
