//! Bounds on the visits of a call when everything is large: the nodes of a path, the ids, and the cells that it moves.

use super::*;

/// Number of tokens that all ids share.
const N_SHARED: usize = 131_072;

/// Number of ids that share them.
const N_IDS: u16 = 254;

/// Number of texts in the host cache, each a continuation of the shared text.
const N_STORED: usize = 2_000;

/// Cost limit of a move or removal.
const MAX_UNITS: u64 = 64;

/// Returns a text that repeats one word after its first.
fn words(first: usize, n: usize) -> Vec<Token> {
    let first = Token::try_from(first).expect("small");
    std::iter::once(first).chain(std::iter::repeat_n(1, n - 1)).collect()
}

/// A cache without a shadow memory, which would store every token of every id.
struct Large {
    cache: KvCache,
    adapters: AdapterSchedule,
}

impl Large {
    fn find(&self, tokens: &[Token]) -> (u64, PrefixMatch) {
        let at_most = length(tokens);
        let query = PrefixQuery { adapters: &self.adapters, tokens, at_least: 1, at_most, takes_logits: false };
        visit_counter::count_visits(|| self.cache.find(&query, |_, n_held, n| n <= n_held).unwrap_or_default())
    }

    /// Places and computes a text; returns the number of visits of the placement, and the id.
    fn write(&mut self, tokens: &[Token]) -> (u64, KvSeqId) {
        let (_, matched) = self.find(tokens);
        let (n_visited, id) =
            visit_counter::count_visits(|| self.cache.place(&self.adapters, Some(&matched)).expect("an id is free"));
        self.cache.extend([(id, &tokens[matched.n_device as usize..])]);
        (n_visited, id)
    }

    fn evict(&mut self, max_units: u64) -> Option<u64> {
        let removal = self.cache.next_removal(max_units, EvictionReason::MemoryPressure)?;
        let saved = removal.saves.clone().map(|range| SavedState { bytes: vec![0; range.len()].into(), whole_from: range.start });
        self.cache.take_ops().count();
        let (n_visited, _) =
            visit_counter::count_visits(|| self.cache.remove_tail(&removal, saved, EvictionReason::MemoryPressure));
        Some(n_visited)
    }
}

/// Returns a cache in which 254 ids share a text whose cells are above as many free ones, each with one more token, and in
/// which many other continuations of the text are in the host cache.
fn large_shared_text() -> (Large, Vec<KvSeqId>) {
    let kind = MemoryKind { bytes_per_token: 1, ..memory(ForkRule::Anywhere) };
    let mut large = Large { cache: KvCache::new(420_000, 256, kind, None), adapters: AdapterSchedule::default() };
    let (_, low) = large.write(&words(9, N_SHARED + 4096));
    let shared = words(8, N_SHARED);
    let (_, first) = large.write(&shared);
    large.cache.unpin(low);
    large.evict(u64::MAX);
    for seed in 0..N_STORED {
        let (_, id) = large.write(&[&shared[..], &words(1000 + seed, 20)].concat());
        large.cache.unpin(id);
        large.evict(u64::MAX);
    }
    let mut ids = vec![first];
    for branch in 1..usize::from(N_IDS) {
        let (n_visited, id) = large.write(&[&shared[..], &words(100_000 + branch, 1)].concat());
        assert!(n_visited < 50, "a fork of {N_SHARED} tokens visits {n_visited} items");
        ids.push(id);
    }
    large.cache.check_integrity();
    (large, ids)
}

#[test]
fn the_cost_of_a_relocation_is_bounded_by_its_limit() {
    let (mut large, ids) = large_shared_text();
    let budget = 2 * (MAX_UNITS + u64::from(N_IDS) + 16);
    for _ in 0..3 {
        let (n_visited, relocation) = visit_counter::count_visits(|| large.cache.next_relocation(MAX_UNITS));
        let relocation = relocation.expect("half of the lower cells are free");
        assert!(n_visited < budget, "{n_visited} visits for {} tokens of {} ids", relocation.range.len(), relocation.ids.len());
        let n_cells_reached = large.cache.n_cells_reached();
        // Full words of the bitmap are passed once per move.
        let (n_visited, ()) = visit_counter::count_visits(|| large.cache.record_relocation(&relocation));
        assert!(n_visited < budget + N_SHARED as u64 / 64, "{n_visited} visits for a move");
        assert!(large.cache.n_cells_reached() < n_cells_reached);
    }
    // The remaining ids share the rest of the text, which is one long node.
    for id in ids {
        large.cache.unpin(id);
    }
    for _ in 1..N_IDS {
        large.evict(u64::MAX).expect("each path has one unshared token");
    }
    let (n_visited, relocation) = visit_counter::count_visits(|| large.cache.next_relocation(MAX_UNITS));
    assert!(relocation.is_some() && n_visited < budget, "{n_visited} visits");
    large.cache.check_integrity();
}

#[test]
fn the_cost_of_a_listing_does_not_depend_on_unlisted_nodes() {
    let (large, ids) = large_shared_text();
    let slot_of = |id: KvSeqId| (id == ids[0]).then_some(0);
    for limit in [0, 1, 10, 100] {
        let (n_visited, (nodes, n_nodes)) = visit_counter::count_visits(|| large.cache.list_recently_used(limit, slot_of));
        assert_eq!(nodes.len(), limit);
        assert!(n_nodes > N_STORED, "{n_nodes}");
        assert!(n_visited < 10 * limit as u64 + 50, "{n_visited} visits for {limit} of {n_nodes} nodes");
    }
}

#[test]
fn the_cost_of_ending_a_path_does_not_depend_on_its_shared_prefix() {
    let (mut large, ids) = large_shared_text();
    for &id in &ids[1..] {
        let (n_visited, ()) = visit_counter::count_visits(|| large.cache.unpin(id));
        assert!(n_visited < 50, "{n_visited} visits for an end");
        let (n_visited, _) = visit_counter::count_visits(|| {
            large.cache.next_removal(MAX_UNITS, EvictionReason::MemoryPressure).expect("it is idle")
        });
        assert!(n_visited < u64::from(N_IDS) + MAX_UNITS + 50, "{n_visited} visits for the next removal");
    }
    for _ in &ids[1..] {
        let n_visited = large.evict(MAX_UNITS).expect("it is idle");
        assert!(n_visited < 50, "{n_visited} visits for the removal of a token");
    }
}

#[test]
fn the_cost_of_a_match_does_not_depend_on_the_size_of_the_host_cache() {
    let (large, _) = large_shared_text();
    let shared = words(8, N_SHARED);
    for tokens in [&shared[..], &[&shared[..], &words(1000, 20)].concat()] {
        let (n_visited, matched) = large.find(tokens);
        assert_eq!(matched.n_tokens(), length(tokens));
        assert!(n_visited < 50 + 2 * u64::from(N_IDS), "{n_visited} visits");
    }
}

/// Offloads a text in `n_entries` parts and reloads it; returns the number of visits of all reloads.
fn visits_of_reloads(forks: ForkRule, n_entries: u32) -> u64 {
    let kind = MemoryKind { bytes_per_token: 1, ..memory(forks) };
    let n_tokens = 16 * n_entries;
    let mut large = Large { cache: KvCache::new(n_tokens, 8, kind, None), adapters: AdapterSchedule::default() };
    let tokens = words(8, n_tokens as usize);
    let (_, id) = large.write(&tokens);
    large.cache.unpin(id);
    while large.evict(1).is_some() {}
    let (n_visited, matched) = large.find(&tokens);
    assert_eq!((matched.n_tokens(), matched.reloads.len()), (n_tokens, n_entries as usize));
    assert!(n_visited < 50, "{n_visited} visits in addition to the nodes of the text");
    let id =
        large.cache.place(&large.adapters, Some(&PrefixMatch { reloads: Vec::new(), ..matched.clone() })).expect("an id is free");
    let (n_visited, ()) = visit_counter::count_visits(|| {
        for reload in &matched.reloads {
            let kept = reload.kept.start as usize..reload.kept.end as usize;
            large.cache.record_reload(id, &tokens[kept], &reload.range);
        }
    });
    large.cache.check_integrity();
    n_visited
}

#[test]
fn the_cost_of_reloads_is_linear_in_their_number() {
    for forks in [ForkRule::Anywhere, ForkRule::InWindow] {
        let (few, many) = (visits_of_reloads(forks, 500), visits_of_reloads(forks, 1000));
        assert!(many < 3 * few, "{few} visits for 500 entries, {many} for 1000: {forks:?}");
        assert!(many < 20 * 1000, "{many} visits for 1000 entries: {forks:?}");
    }
}

#[test]
fn an_eviction_does_not_search_the_whole_host_cache() {
    let kind = MemoryKind { bytes_per_token: 1, ..memory(ForkRule::Anywhere) };
    let max_bytes = N_STORED as u64 * (20 + 512);
    let mut large = Large { cache: KvCache::new(1000, 8, kind, Some(max_bytes)), adapters: AdapterSchedule::default() };
    for seed in 0..N_STORED + 100 {
        let (_, id) = large.write(&words(1000 + seed, 20));
        large.cache.unpin(id);
        let n_visited = large.evict(u64::MAX).expect("it is idle");
        assert!(n_visited < 100, "{n_visited} visits for one entry");
    }
    assert_eq!(large.cache.host_cache_size().2, N_STORED);
    assert_eq!(large.cache.counts().n_evicted, 100 * 20, "one eviction per new entry");
}
