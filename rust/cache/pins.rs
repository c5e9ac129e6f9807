//! Pinned prefixes, and reservations for preempted sequences.

use crate::cache::prefix_tree::NodeId;
use crate::cache::{AdapterSchedule, KvCache, KvSeqId};
use crate::error::Error;
use crate::request::{EvictionCause, PinnedPrefix, Token};

#[derive(Debug)]
pub(super) struct Pin {
    pub(super) node: NodeId,
    /// The id whose path holds it in the device cache, if the host cache is off or the prefix could not be saved.
    pub(super) holder: Option<KvSeqId>,
    adapters: AdapterSchedule,
    pub(super) n_bytes: u64,
}

/// The cached tokens of a preempted sequence, which are evicted last except for pinned prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation(pub(super) NodeId);

impl KvCache {
    /// Pins the tokens of the path of `id` and makes it idle, also after an error. Without a host cache the path stays pinned.
    ///
    /// # Errors
    /// [`Error::PinsFull`] if pins would take more than half of the host cache or, without one, of the device cache or the ids,
    /// or an id that a slot needs.
    pub(crate) fn pin(&mut self, id: KvSeqId) -> Result<PinnedPrefix, Error> {
        let n_tokens = self.n_held(id);
        let node = self.cut_at(id, n_tokens);
        let adapters = self.path(id).adapters.prefix(n_tokens);
        if let Err(error) = self.check_pin(n_tokens) {
            self.unpin(id);
            return Err(error);
        }
        let n_bytes = self.bytes_of_pin(n_tokens);
        self.drop_longer_entries(node);
        self.tree.change_upwards(node, |node| node.n_pins += 1);
        self.refresh_upwards(node, None);
        let holder = if self.has_host_cache() {
            self.unpin(id);
            None
        } else {
            Some(id)
        };
        let pin_id = self.n_pinned_ever;
        self.n_pinned_ever += 1;
        let pin = Pin { node, holder, adapters, n_bytes };
        let pinned = self.describe(pin_id, &pin);
        self.pins.insert(pin_id, pin);
        self.n_pinned_bytes += n_bytes;
        Ok(pinned)
    }

    /// Checks whether another prefix of `n_tokens` tokens can be pinned. Fails like [`KvCache::pin`].
    pub(crate) fn check_pin(&self, n_tokens: u32) -> Result<(), Error> {
        let n_bytes = self.bytes_of_pin(n_tokens);
        let (_, n_pinned_bytes) = self.pinned_size();
        let (limit, fits) = if self.has_host_cache() {
            let limit = self.host_cache.size().1.map_or(u64::MAX, |max| max / 2);
            (limit, n_bytes + n_pinned_bytes <= limit)
        } else {
            // Half of the cells, and the states of the ids that pins may hold.
            let n_cell_bytes = self.cell_runs.cells().n_total() as u64 * self.kind.bytes_per_token / 2;
            let limit = n_cell_bytes + self.max_pinned_ids() as u64 * self.kind.bytes_per_state;
            (limit, self.can_hold(n_tokens))
        };
        if fits { Ok(()) } else { Err(Error::PinsFull { n_bytes, n_pinned_bytes, limit }) }
    }

    /// Half of the ids, and none that a slot needs: a beam search that starts in all slots together would block the queue.
    fn max_pinned_ids(&self) -> usize {
        (self.paths.len() / 2).min(self.paths.len().saturating_sub(self.n_ids_for_slots))
    }

    fn can_hold(&self, n_tokens: u32) -> bool {
        let holders = || self.pins.values().filter_map(|pin| pin.holder);
        let n_cells = n_tokens as usize + holders().map(|id| self.n_held(id) as usize).sum::<usize>();
        2 * n_cells <= self.cell_runs.cells().n_total() && holders().count() < self.max_pinned_ids()
    }

    pub(super) fn is_end_of_pin(&self, node: NodeId) -> bool {
        self.tree.node(node).n_pins > 0 && self.pins.values().any(|pin| pin.node == node)
    }

    /// Pins the idle path of `id` in the device cache, because a pinned prefix that contains `node` could not be saved. Returns
    /// `false` if too little would remain for others, or another path already holds the prefix.
    pub(super) fn pin_on_device(&mut self, id: KvSeqId, node: NodeId) -> bool {
        if !self.can_hold(self.n_held(id)) {
            return false;
        }
        let tree = &self.tree;
        let contains = |pin: &&mut Pin| pin.holder.is_none() && tree.is_within(pin.node, node);
        let Some(pin) = self.pins.values_mut().find(contains) else { return false };
        pin.holder = Some(id);
        self.cell_runs.pin(id);
        true
    }

    fn bytes_of_pin(&self, n_tokens: u32) -> u64 {
        self.kind.bytes_of(n_tokens).max(u64::from(n_tokens))
    }

    /// Drops entries of `node` and its ancestors that extend past its end, so that a new pin is saved separately.
    fn drop_longer_entries(&mut self, node: NodeId) {
        let end = self.tree.node(node).end();
        let is_longer_entry = |&id: &NodeId| {
            let node = self.tree.node(id);
            // A window in the device cache may move on and leave other sequences only the entry.
            let is_needed = !self.kind.forks.can_truncate() && node.n_pins + node.n_reserved > 0;
            !is_needed && node.host_entry.as_ref().is_some_and(|entry| entry.range.end > end)
        };
        for id in self.tree.upwards(node).filter(is_longer_entry).collect::<Vec<_>>() {
            self.set_host_entry(id, None);
        }
    }

    pub(crate) fn unpin_prefix(&mut self, pin_id: u64) -> bool {
        let Some(Pin { node, holder, n_bytes, .. }) = self.pins.remove(&pin_id) else { return false };
        self.n_pinned_bytes -= n_bytes;
        self.tree.change_upwards(node, |node| node.n_pins -= 1);
        self.refresh_upwards(node, None);
        // The path may hold only a part of the prefix.
        self.prune(node);
        if let Some(id) = holder {
            self.unpin(id);
        }
        true
    }

    pub(crate) fn pinned(&self) -> Vec<PinnedPrefix> {
        self.pins.iter().map(|(&id, pin)| self.describe(id, pin)).collect()
    }

    pub(crate) fn pinned_size(&self) -> (usize, u64) {
        (self.pins.len(), self.n_pinned_bytes)
    }

    fn describe(&self, id: u64, pin: &Pin) -> PinnedPrefix {
        let adapters = pin.adapters.adapters().collect();
        PinnedPrefix {
            id,
            tokens: self.tree.tokens_to(pin.node),
            n_bytes: pin.n_bytes,
            adapters,
            invoked_at: pin.adapters.change(),
        }
    }

    /// Makes the path of `id` idle and reserves its first `n_kept` tokens (`None` for all), or nothing of a private path.
    pub(crate) fn reserve(&mut self, id: KvSeqId, n_kept: Option<u32>) -> Reservation {
        let n_kept = if self.is_private(id) { 0 } else { n_kept.unwrap_or_else(|| self.n_held(id)) };
        let node = self.cut_at(id, n_kept);
        self.tree.change_upwards(node, |node| node.n_reserved += 1);
        self.unpin(id);
        self.refresh_upwards(node, None);
        Reservation(node)
    }

    pub(crate) fn release(&mut self, reservation: Reservation) {
        let Reservation(node) = reservation;
        self.tree.change_upwards(node, |node| node.n_reserved -= 1);
        self.refresh_upwards(node, None);
        self.prune(node);
    }

    /// Erases `tokens` from both tiers, from their end up to `n_kept` or to a node that something else needs.
    pub(crate) fn erase(&mut self, adapters: &AdapterSchedule, tokens: &[Token], n_kept: u32) {
        if let Some((node, n)) = self.tree.match_tokens(adapters, &tokens[..n_kept as usize]).partial {
            self.split(node, n);
        }
        let tree_match = self.tree.match_tokens(adapters, tokens);
        if tree_match.partial.is_some() {
            return;
        }
        for id in tree_match.nodes.into_iter().skip(1).rev() {
            // The node may have been removed with its last descendant, or joined with another continuation.
            if !self.tree.contains(id) {
                continue;
            }
            let node = self.tree.node(id);
            let is_running = node.tips.iter().any(|&tip| self.is_pinned(tip));
            let is_needed = !node.children.is_empty() || is_running || node.n_pins > 0 || node.n_reserved > 0;
            if is_needed || node.start < n_kept {
                return;
            }
            self.log_eviction(id, EvictionCause::Erased);
            // The reservation keeps the node alive until everything that it holds is removed.
            self.tree.change_upwards(id, |node| node.n_reserved += 1);
            for tip in self.tree.node(id).tips.clone() {
                self.drop_last_node(tip);
            }
            if self.tree.node(id).host_entry.is_some() {
                self.drop_host_entry(id);
            }
            self.release(Reservation(id));
        }
    }
}
