//! What must stay: pinned prefixes, and what preempted sequences left behind.

use crate::cache::Forks;
use crate::cache::prefix_tree::NodeId;
use crate::cache::{KvCache, SequenceId, Variant};
use crate::error::Error;
use crate::request::{PinnedPrefix, Token};

/// A prefix that is never forgotten.
#[derive(Debug)]
pub(super) struct Pin {
    /// Where it ends.
    pub(super) node: NodeId,
    /// Keeps it in the pool, where there is no store that it could leave to, or where it could not be saved.
    pub(super) holder: Option<SequenceId>,
    n_bytes: u64,
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
    /// of the sequence ids; the path is idle then too.
    pub fn pin(&mut self, id: SequenceId) -> Result<PinnedPrefix, Error> {
        let n_tokens = self.n_held(id);
        let node = self.cut_at(id, n_tokens);
        if let Err(error) = self.check_pin(n_tokens) {
            self.unpin(id);
            return Err(error);
        }
        let n_bytes = self.bytes_of_pin(n_tokens);
        self.share_no_piece(node);
        self.tree.change_upwards(node, |node| node.n_pins += 1);
        self.refresh_upwards(node);
        let holder = if self.has_store() {
            self.unpin(id);
            None
        } else {
            Some(id)
        };
        let name = self.n_pinned_ever;
        self.n_pinned_ever += 1;
        self.pins.insert(name, Pin { node, holder, n_bytes });
        Ok(PinnedPrefix { id: name, tokens: self.tree.tokens_to(node), n_bytes })
    }

    /// Whether another prefix of `n_tokens` can be pinned.
    ///
    /// # Errors
    /// As [`KvCache::pin`].
    pub fn check_pin(&self, n_tokens: u32) -> Result<(), Error> {
        let n_bytes = self.bytes_of_pin(n_tokens);
        let n_pinned_bytes = self.pins.values().map(|pin| pin.n_bytes).sum();
        let (limit, can_be_kept) = if self.has_store() {
            let limit = self.store.max_bytes().map_or(u64::MAX, |max| max / 2);
            (limit, n_bytes + n_pinned_bytes <= limit)
        } else {
            (self.bytes_of_half_the_pool(), self.can_hold(n_tokens))
        };
        if can_be_kept { Ok(()) } else { Err(Error::PinsFull { n_bytes, n_pinned_bytes, limit }) }
    }

    /// What half of the cells hold and, of a memory that is a state, half of the sequence ids.
    fn bytes_of_half_the_pool(&self) -> u64 {
        let n_cell_bytes = self.cells.n_total() as u64 * self.memory.bytes_per_token / 2;
        n_cell_bytes + self.paths.len() as u64 / 2 * self.memory.bytes_per_state
    }

    /// Whether half of the cells and of the sequence ids stay for others if one more path of `n_tokens` is in the pool for good.
    fn can_hold(&self, n_tokens: u32) -> bool {
        let holders = || self.pins.values().filter_map(|pin| pin.holder);
        let n_cells = n_tokens as usize + holders().map(|id| self.path(id).cells.len()).sum::<usize>();
        2 * n_cells <= self.cells.n_total() && 2 * (holders().count() + 1) <= self.paths.len()
    }

    /// Whether a pin would be lost if the idle path of `id` gave up `node`, unsaved.
    pub(super) fn is_needed_by_pin(&self, id: SequenceId, node: NodeId) -> bool {
        match self.memory.forks {
            Forks::Anywhere => self.tree.node(node).n_pins > 0,
            // What is saved of a longer path is not what a shorter one sees at its end.
            Forks::InWindow | Forks::AtEnd => self.pins.values().any(|pin| pin.node == self.path(id).tip),
        }
    }

    /// The last node above `tip` that a pin needs and only the path that ends at `tip` has.
    pub(super) fn end_of_pin(&self, tip: NodeId) -> Option<NodeId> {
        let is_needed = |&at: &NodeId| {
            let node = self.tree.node(at);
            node.parent.is_some() && node.n_pins > 0 && node.n_holders == 1 && node.stored.is_none()
        };
        // What others keep of a longer path is not what they see at its end.
        (self.memory.forks == Forks::Anywhere).then(|| self.tree.upwards(tip).find(is_needed)).flatten()
    }

    /// A pinned prefix that contains `node` could not be saved: what the idle path of `id` holds of it stays in the pool, as it
    /// would without a store. `false` where that leaves too little to others, or another path holds it.
    pub(super) fn hold(&mut self, id: SequenceId, node: NodeId) -> bool {
        if !self.can_hold(self.n_held(id)) {
            return false;
        }
        let tree = &self.tree;
        let contains = |pin: &&mut Pin| pin.holder.is_none() && tree.upwards(pin.node).any(|at| at == node);
        let Some(pin) = self.pins.values_mut().find(contains) else { return false };
        pin.holder = Some(id);
        let path = self.paths[usize::from(id.0)].as_mut().expect("only ids that hold something are named");
        path.is_pinned = true;
        for &cell in &path.cells {
            self.cells.pin(cell);
        }
        self.tree.change_upwards(path.tip, |node| node.n_running += 1);
        true
    }

    fn bytes_of_pin(&self, n_tokens: u32) -> u64 {
        self.memory.bytes_of(n_tokens).max(u64::from(n_tokens))
    }

    /// A prefix that ends at `node`, which is in the pool, keeps no piece that goes on after it: it is saved on its own.
    fn share_no_piece(&mut self, node: NodeId) {
        if self.memory.forks == Forks::AtEnd {
            return;
        }
        let end = self.tree.node(node).end();
        let goes_on = |&at: &NodeId| {
            let node = self.tree.node(at);
            // The window of what is in the pool may move on, and leave others only the piece.
            let is_firm = self.memory.forks == Forks::InWindow && node.n_pins + node.n_reserved > 0;
            node.stored.is_some_and(|piece| self.store.piece(piece).range.end > end) && !is_firm
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
        let Some(Pin { node, holder, .. }) = self.pins.remove(&name) else { return false };
        self.tree.change_upwards(node, |node| node.n_pins -= 1);
        self.refresh_upwards(node);
        // Its holder may hold only a part of it.
        self.prune(node);
        if let Some(id) = holder {
            self.unpin(id);
        }
        true
    }

    /// Every pinned prefix, in the order of their pinning.
    #[must_use]
    pub fn pinned(&self) -> Vec<PinnedPrefix> {
        let listed = |(&id, pin): (&u64, &Pin)| PinnedPrefix { id, tokens: self.tree.tokens_to(pin.node), n_bytes: pin.n_bytes };
        self.pins.iter().map(listed).collect()
    }

    /// As [`KvCache::unpin`], for a sequence that will come back.
    pub fn reserve(&mut self, id: SequenceId) -> Reservation {
        self.reserve_first(id, self.n_held(id))
    }

    /// As [`KvCache::reserve`], where it comes back for the first `n_kept` tokens of what it has computed.
    pub fn reserve_first(&mut self, id: SequenceId, n_kept: u32) -> Reservation {
        let node = self.cut_at(id, n_kept);
        self.tree.change_upwards(node, |node| node.n_reserved += 1);
        self.unpin(id);
        self.refresh_upwards(node);
        Reservation(node)
    }

    /// The sequence is back, or will never come.
    pub fn release(&mut self, reservation: Reservation) {
        let Reservation(node) = reservation;
        self.tree.change_upwards(node, |node| node.n_reserved -= 1);
        self.refresh_upwards(node);
        self.prune(node);
    }

    /// Forgets `tokens` in both tiers, from their end up to where another path, a pin or a sequence needs them, but not the first
    /// `n_kept`.
    pub fn erase(&mut self, variant: &Variant, tokens: &[Token], n_kept: u32) {
        if let Some((node, n)) = self.tree.walk(variant, &tokens[..n_kept as usize]).part {
            self.split(node, n);
        }
        let mut rest = tokens;
        loop {
            let walk = self.tree.walk(variant, rest);
            let Some(&id) = walk.whole.last().filter(|_| walk.part.is_none()) else { return };
            let node = self.tree.node(id);
            let is_needed = !node.children.is_empty() || node.n_running > 0 || node.n_pins > 0 || node.n_reserved > 0;
            if node.parent.is_none() || is_needed || node.start < n_kept {
                return;
            }
            rest = &rest[..node.start as usize];
            // Stays until the last thing that it holds has gone.
            self.tree.change_upwards(id, |node| node.n_reserved += 1);
            for tip in self.tree.node(id).tips.clone() {
                match self.memory.forks {
                    Forks::Anywhere => self.move_up(tip),
                    Forks::InWindow | Forks::AtEnd => self.drop_path(tip),
                }
            }
            if self.tree.node(id).stored.is_some() {
                self.drop_stored(id);
            }
            self.release(Reservation(id));
        }
    }
}
