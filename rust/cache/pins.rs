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
    /// Keeps it in the pool, where there is no store that it could leave to.
    pub(super) holder: Option<SequenceId>,
    n_bytes: u64,
}

/// What a preempted sequence left: it is the last to be given up, but for pinned prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation(NodeId);

impl KvCache {
    /// Pins what the path of `id` holds, which has ended and is idle from now on, as [`KvCache::unpin`] makes it. Where there is
    /// no store, the path stays pinned instead.
    ///
    /// # Errors
    /// [`Error::PinsFull`] if all pinned prefixes together would take more than half of the store or, without one, of the pool or
    /// of the sequence ids; the path is idle then too.
    pub fn pin(&mut self, id: SequenceId) -> Result<PinnedPrefix, Error> {
        let node = self.cut_at(id, self.n_held(id));
        let n_tokens = u64::from(self.n_held(id));
        let n_bytes = n_tokens * self.memory.bytes_per_token.max(1);
        let n_pinned_bytes = self.pins.values().map(|pin| pin.n_bytes).sum();
        let limit = if self.has_store() {
            self.store.max_bytes().map_or(u64::MAX, |max| max / 2)
        } else {
            self.cells.n_total() as u64 * self.memory.bytes_per_token.max(1) / 2
        };
        let has_id = self.has_store() || (self.pins.len() + 1) * 2 <= self.paths.len();
        if n_bytes + n_pinned_bytes > limit || !has_id {
            self.unpin(id);
            return Err(Error::PinsFull { n_bytes, n_pinned_bytes, limit });
        }
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

    /// Lets a pinned prefix be given up again; `false` where there is none of that name.
    pub fn unpin_prefix(&mut self, name: u64) -> bool {
        let Some(Pin { node, holder, .. }) = self.pins.remove(&name) else { return false };
        self.tree.change_upwards(node, |node| node.n_pins -= 1);
        self.refresh_upwards(node);
        match holder {
            Some(id) => self.unpin(id),
            None => self.prune(node),
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
        let node = self.cut_at(id, self.n_held(id));
        self.tree.node_mut(node).n_reserved += 1;
        self.unpin(id);
        self.refresh(node);
        Reservation(node)
    }

    /// The sequence is back, or will never come.
    pub fn release(&mut self, reservation: Reservation) {
        let Reservation(node) = reservation;
        self.tree.node_mut(node).n_reserved -= 1;
        self.refresh(node);
        self.prune(node);
    }

    /// Forgets `tokens` in both tiers, from their end up to where another path, a pin or a sequence needs them.
    pub fn erase(&mut self, variant: &Variant, tokens: &[Token]) {
        let mut rest = tokens;
        loop {
            let walk = self.tree.walk(variant, rest);
            let Some(&id) = walk.whole.last().filter(|_| walk.part.is_none()) else { return };
            let node = self.tree.node(id);
            let is_needed = !node.children.is_empty() || node.n_running > 0 || node.n_pins > 0 || node.n_reserved > 0;
            if node.parent.is_none() || is_needed {
                return;
            }
            rest = &rest[..node.start as usize];
            // Stays until the last thing that it holds has gone.
            self.tree.node_mut(id).n_reserved += 1;
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
