//! The host cache: saved cells and states in host memory, bounded in bytes.

use std::ops::Range;
use std::sync::Arc;

/// Bytes that an entry takes in addition to its data: its node in the tree and the indices that refer to it.
const OVERHEAD: u64 = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HostEntryId(usize);

/// Saved cells of a run of tokens, or a whole saved state.
#[derive(Debug, Clone)]
pub(super) struct HostEntry {
    /// Range of the saved tokens in their text.
    pub(super) range: Range<u32>,
    pub(super) bytes: Arc<[u8]>,
    /// The logits after the last token, if the entry is a whole state.
    pub(super) logits: Option<Arc<[f32]>>,
    /// Number of nodes of the tree that are reloaded from it.
    n_nodes: u32,
}

impl HostEntry {
    /// Number of nodes of the tree that are reloaded from it.
    pub(super) fn n_nodes(&self) -> u32 {
        self.n_nodes
    }

    fn n_bytes(&self) -> u64 {
        let n_logits = self.logits.as_ref().map_or(0, |logits| logits.len());
        (self.bytes.len() + n_logits * size_of::<f32>()) as u64 + OVERHEAD
    }
}

#[derive(Debug)]
pub(super) struct HostCache {
    entries: Vec<Option<HostEntry>>,
    free: Vec<usize>,
    n_bytes: u64,
    max_bytes: Option<u64>,
}

impl HostCache {
    /// Creates a host cache of at most `max_bytes`; `None` is no limit.
    pub(super) fn new(max_bytes: Option<u64>) -> Self {
        Self { entries: Vec::new(), free: Vec::new(), n_bytes: 0, max_bytes }
    }

    pub(super) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    pub(super) fn max_bytes(&self) -> Option<u64> {
        self.max_bytes
    }

    pub(super) fn n_entries(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn is_on(&self) -> bool {
        self.max_bytes != Some(0)
    }

    /// Returns whether an entry of `n_bytes` fits into the empty host cache.
    pub(super) fn can_ever_hold(&self, n_bytes: u64) -> bool {
        self.max_bytes.is_none_or(|max| n_bytes + OVERHEAD <= max)
    }

    /// Bytes that must be freed before an entry of `n_bytes` fits.
    pub(super) fn n_missing_bytes(&self, n_bytes: u64) -> u64 {
        self.max_bytes.map_or(0, |max| (self.n_bytes + n_bytes + OVERHEAD).saturating_sub(max))
    }

    /// Adds an entry that one node refers to.
    pub(super) fn add(&mut self, range: Range<u32>, bytes: Arc<[u8]>, logits: Option<Arc<[f32]>>) -> HostEntryId {
        let entry = HostEntry { range, bytes, logits, n_nodes: 1 };
        self.n_bytes += entry.n_bytes();
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[index] = Some(entry);
        HostEntryId(index)
    }

    pub(super) fn entry(&self, id: HostEntryId) -> &HostEntry {
        self.entries[id.0].as_ref().expect("a node refers to an existing entry")
    }

    /// Adds a node that refers to this entry.
    pub(super) fn share(&mut self, id: HostEntryId) {
        self.entries[id.0].as_mut().expect("a node refers to an existing entry").n_nodes += 1;
    }

    /// Removes a node that refers to this entry; the last one frees its bytes.
    pub(super) fn release(&mut self, id: HostEntryId) {
        let entry = self.entries[id.0].as_mut().expect("a node refers to an existing entry");
        entry.n_nodes -= 1;
        if entry.n_nodes == 0 {
            self.n_bytes -= entry.n_bytes();
            self.entries[id.0] = None;
            self.free.push(id.0);
        }
    }

    pub(super) fn bytes_of(&self, id: HostEntryId) -> u64 {
        self.entry(id).n_bytes()
    }

    /// Compares every count with a recount of the entries that `nodes` refer to; panics if one differs.
    pub(super) fn check_integrity(&self, nodes: impl Iterator<Item = HostEntryId>) {
        let mut counts = vec![0_u32; self.entries.len()];
        for HostEntryId(index) in nodes {
            counts[index] += 1;
        }
        for (index, (entry, count)) in self.entries.iter().zip(counts).enumerate() {
            assert_eq!(entry.as_ref().map_or(0, |entry| entry.n_nodes), count, "nodes of entry {index}");
        }
        assert_eq!(self.entries.iter().flatten().map(HostEntry::n_bytes).sum::<u64>(), self.n_bytes, "bytes of the host cache");
        assert_eq!(self.entries.iter().filter(|entry| entry.is_none()).count(), self.free.len(), "free indices");
        assert!(self.max_bytes.is_none_or(|max| self.n_bytes <= max), "the host cache is bounded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_kept_until_its_last_node_releases_it() {
        let mut host_cache = HostCache::new(Some(2000));
        let entry = host_cache.add(0..4, vec![7; 1000].into(), None);
        assert_eq!((host_cache.n_bytes(), host_cache.n_entries()), (1000 + OVERHEAD, 1));
        assert_eq!(host_cache.n_missing_bytes(1000), 2 * (1000 + OVERHEAD) - 2000);
        assert!(host_cache.can_ever_hold(1000) && !host_cache.can_ever_hold(2000));
        host_cache.share(entry);
        host_cache.release(entry);
        assert_eq!(host_cache.entry(entry).bytes.len(), 1000);
        host_cache.release(entry);
        assert_eq!((host_cache.n_bytes(), host_cache.n_entries()), (0, 0));
        host_cache.check_integrity(std::iter::empty());
    }

    #[test]
    fn an_unlimited_and_a_disabled_host_cache_have_the_right_space() {
        assert_eq!(HostCache::new(None).n_missing_bytes(u64::MAX / 2), 0);
        assert!(!HostCache::new(Some(0)).is_on() && HostCache::new(Some(0)).n_missing_bytes(0) > 0);
    }
}
