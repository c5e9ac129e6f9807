//! The second tier: saved pieces in host memory, bounded in bytes.

use std::ops::Range;
use std::sync::Arc;

/// Bytes that a piece takes beside its own: its node in the tree and the entries that find it.
const OVERHEAD: u64 = 512;

/// Names a piece of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HostEntryId(usize);

/// A saved piece.
#[derive(Debug, Clone)]
pub(super) struct HostEntry {
    /// The tokens that it was saved of.
    pub(super) range: Range<u32>,
    pub(super) bytes: Arc<[u8]>,
    /// The logits after the last of them, where the piece is a whole state.
    pub(super) logits: Option<Arc<[f32]>>,
    /// Nodes of the tree that are restored from it.
    n_nodes: u32,
}

impl HostEntry {
    /// How many nodes of the tree are restored from it.
    pub(super) fn n_nodes(&self) -> u32 {
        self.n_nodes
    }

    fn n_bytes(&self) -> u64 {
        let n_logits = self.logits.as_ref().map_or(0, |logits| logits.len());
        (self.bytes.len() + n_logits * size_of::<f32>()) as u64 + OVERHEAD
    }
}

/// Pieces, and the bytes that they take.
#[derive(Debug)]
pub(super) struct HostCache {
    pieces: Vec<Option<HostEntry>>,
    free: Vec<usize>,
    n_bytes: u64,
    max_bytes: Option<u64>,
}

impl HostCache {
    /// At most `max_bytes`; `None` is no limit.
    pub(super) fn new(max_bytes: Option<u64>) -> Self {
        Self { pieces: Vec::new(), free: Vec::new(), n_bytes: 0, max_bytes }
    }

    pub(super) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    pub(super) fn max_bytes(&self) -> Option<u64> {
        self.max_bytes
    }

    pub(super) fn n_pieces(&self) -> usize {
        self.pieces.len() - self.free.len()
    }

    /// Whether anything can ever be kept.
    pub(super) fn is_on(&self) -> bool {
        self.max_bytes != Some(0)
    }

    /// Whether `n_bytes` more would fit into an empty store.
    pub(super) fn can_ever_hold(&self, n_bytes: u64) -> bool {
        self.max_bytes.is_none_or(|max| n_bytes + OVERHEAD <= max)
    }

    /// Bytes that must be freed before a piece of `n_bytes` fits.
    pub(super) fn n_missing_bytes(&self, n_bytes: u64) -> u64 {
        self.max_bytes.map_or(0, |max| (self.n_bytes + n_bytes + OVERHEAD).saturating_sub(max))
    }

    /// Keeps a piece for one node.
    pub(super) fn add(&mut self, range: Range<u32>, bytes: Arc<[u8]>, logits: Option<Arc<[f32]>>) -> HostEntryId {
        let piece = HostEntry { range, bytes, logits, n_nodes: 1 };
        self.n_bytes += piece.n_bytes();
        let index = self.free.pop().unwrap_or_else(|| {
            self.pieces.push(None);
            self.pieces.len() - 1
        });
        self.pieces[index] = Some(piece);
        HostEntryId(index)
    }

    pub(super) fn piece(&self, id: HostEntryId) -> &HostEntry {
        self.pieces[id.0].as_ref().expect("a node names a piece that is kept")
    }

    /// One more node is restored from this piece.
    pub(super) fn share(&mut self, id: HostEntryId) {
        self.pieces[id.0].as_mut().expect("a node names a piece that is kept").n_nodes += 1;
    }

    /// A node needs this piece no more; the last one frees its bytes.
    pub(super) fn release(&mut self, id: HostEntryId) {
        let piece = self.pieces[id.0].as_mut().expect("a node names a piece that is kept");
        piece.n_nodes -= 1;
        if piece.n_nodes == 0 {
            self.n_bytes -= piece.n_bytes();
            self.pieces[id.0] = None;
            self.free.push(id.0);
        }
    }

    /// What the piece takes, for the node that is listed with it.
    pub(super) fn bytes_of(&self, id: HostEntryId) -> u64 {
        self.piece(id).n_bytes()
    }

    /// Compares every count with one made anew from the pieces that `nodes` name.
    ///
    /// # Panics
    /// Where one differs.
    pub(super) fn check_integrity(&self, nodes: impl Iterator<Item = HostEntryId>) {
        let mut counted = vec![0_u32; self.pieces.len()];
        for HostEntryId(index) in nodes {
            counted[index] += 1;
        }
        for (index, (piece, counted)) in self.pieces.iter().zip(counted).enumerate() {
            assert_eq!(piece.as_ref().map_or(0, |piece| piece.n_nodes), counted, "nodes of piece {index}");
        }
        assert_eq!(self.pieces.iter().flatten().map(HostEntry::n_bytes).sum::<u64>(), self.n_bytes, "bytes of the store");
        assert_eq!(self.pieces.iter().filter(|piece| piece.is_none()).count(), self.free.len(), "free places");
        assert!(self.max_bytes.is_none_or(|max| self.n_bytes <= max), "the store is bounded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_kept_until_its_last_node_has_gone() {
        let mut store = HostCache::new(Some(2000));
        let piece = store.add(0..4, vec![7; 1000].into(), None);
        assert_eq!((store.n_bytes(), store.n_pieces()), (1000 + OVERHEAD, 1));
        assert_eq!(store.n_missing_bytes(1000), 2 * (1000 + OVERHEAD) - 2000);
        assert!(store.can_ever_hold(1000) && !store.can_ever_hold(2000));
        store.share(piece);
        store.release(piece);
        assert_eq!(store.piece(piece).bytes.len(), 1000);
        store.release(piece);
        assert_eq!((store.n_bytes(), store.n_pieces()), (0, 0));
        store.check_integrity(std::iter::empty());
    }

    #[test]
    fn no_limit_and_no_store() {
        assert_eq!(HostCache::new(None).n_missing_bytes(u64::MAX / 2), 0);
        assert!(!HostCache::new(Some(0)).is_on() && HostCache::new(Some(0)).n_missing_bytes(0) > 0);
    }
}
