//! The host cache: saved cells and states in host memory, bounded in bytes.

use std::ops::Range;
use std::sync::Arc;

/// Bytes that an entry takes in addition to its data: its node in the tree and the indices that refer to it.
const OVERHEAD: u64 = 512;

/// Saved cells or a saved state. Each node of the tree that is reloaded from the entry holds an [`Arc`] of it.
#[derive(Debug)]
pub(crate) struct HostEntry {
    pub(super) range: Range<u32>,
    pub(super) bytes: Arc<[u8]>,
    pub(crate) logits: Option<Arc<[f32]>>,
    /// Position from which the entry holds what a sliding window sees.
    pub(super) whole_from: u32,
}

impl HostEntry {
    pub(super) fn n_bytes(&self) -> u64 {
        (self.bytes.len() + self.logits.as_deref().map_or(0, size_of_val)) as u64 + OVERHEAD
    }
}

#[derive(Debug)]
pub(super) struct HostCache {
    n_bytes: u64,
    n_entries: usize,
    /// `None` is no limit.
    max_bytes: Option<u64>,
}

impl HostCache {
    pub(super) fn new(max_bytes: Option<u64>) -> Self {
        Self { n_bytes: 0, n_entries: 0, max_bytes }
    }

    /// Returns the size in bytes, its limit, and the number of entries.
    pub(super) fn size(&self) -> (u64, Option<u64>, usize) {
        (self.n_bytes, self.max_bytes, self.n_entries)
    }

    pub(super) fn is_on(&self) -> bool {
        self.max_bytes != Some(0)
    }

    pub(super) fn can_ever_hold(&self, n_bytes: u64) -> bool {
        self.max_bytes.is_none_or(|max| n_bytes + OVERHEAD <= max)
    }

    pub(super) fn n_missing_bytes(&self, n_bytes: u64) -> u64 {
        self.max_bytes.map_or(0, |max| (self.n_bytes + n_bytes + OVERHEAD).saturating_sub(max))
    }

    pub(super) fn add(&mut self, entry: HostEntry) -> Arc<HostEntry> {
        self.n_bytes += entry.n_bytes();
        self.n_entries += 1;
        Arc::new(entry)
    }

    pub(super) fn release(&mut self, entry: Arc<HostEntry>) {
        if let Some(entry) = Arc::into_inner(entry) {
            self.n_bytes -= entry.n_bytes();
            self.n_entries -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    impl HostCache {
        pub(in crate::cache) fn check_integrity<'a>(&self, nodes: impl Iterator<Item = &'a Arc<HostEntry>>) {
            let mut entries: BTreeMap<*const HostEntry, (&Arc<HostEntry>, usize)> = BTreeMap::new();
            for entry in nodes {
                entries.entry(Arc::as_ptr(entry)).or_insert((entry, 0)).1 += 1;
            }
            assert!(entries.values().all(|(entry, n)| Arc::strong_count(entry) == *n), "only nodes refer to entries");
            assert_eq!(entries.len(), self.n_entries, "entries of the host cache");
            assert_eq!(entries.values().map(|(entry, _)| entry.n_bytes()).sum::<u64>(), self.n_bytes, "bytes of the host cache");
            assert!(self.max_bytes.is_none_or(|max| self.n_bytes <= max), "the host cache is bounded");
        }
    }

    #[test]
    fn an_entry_is_kept_until_its_last_node_releases_it() {
        let mut host_cache = HostCache::new(Some(2000));
        let entry = HostEntry { range: 0..4, bytes: vec![7; 1000].into(), logits: None, whole_from: 0 };
        let entry = host_cache.add(entry);
        assert_eq!(host_cache.size(), (1000 + OVERHEAD, Some(2000), 1));
        assert_eq!(host_cache.n_missing_bytes(1000), 2 * (1000 + OVERHEAD) - 2000);
        assert!(host_cache.can_ever_hold(1000) && !host_cache.can_ever_hold(2000));
        host_cache.release(Arc::clone(&entry));
        assert_eq!(entry.bytes.len(), 1000);
        host_cache.release(entry);
        assert_eq!(host_cache.size(), (0, Some(2000), 0));
        host_cache.check_integrity(std::iter::empty());
    }

    #[test]
    fn an_unlimited_and_a_disabled_host_cache_have_the_right_space() {
        assert_eq!(HostCache::new(None).n_missing_bytes(u64::MAX / 2), 0);
        assert!(!HostCache::new(Some(0)).is_on() && HostCache::new(Some(0)).n_missing_bytes(0) > 0);
    }
}
