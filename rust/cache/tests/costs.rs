//! What a call looks at where everything is large: no more than the nodes of a path, the ids, and the cells that it moves.

use super::*;

/// Tokens that all ids share.
const N_SHARED: usize = 131_072;

/// Ids that share them.
const N_IDS: u16 = 254;

/// Texts that wait in the store, each of them after the shared one.
const N_STORED: usize = 2_000;

/// What is moved, or leaves, in one call.
const MAX_UNITS: u64 = 64;

/// A text of one word, but for the first.
fn words(first: usize, n: usize) -> Vec<Token> {
    let first = Token::try_from(first).expect("small");
    std::iter::once(first).chain(std::iter::repeat_n(1, n - 1)).collect()
}

/// Without a shadow, which would remember every token of every id.
struct Large {
    cache: KvCache,
    variants: AdapterSchedule,
}

impl Large {
    fn find(&self, tokens: &[Token]) -> (u64, PrefixMatch) {
        let at_most = length(tokens);
        let wanted = PrefixQuery { variants: &self.variants, tokens, at_least: 1, at_most, takes_logits: false };
        visit_counter::of(|| self.cache.find(&wanted, |_, n_held, n| n <= n_held).unwrap_or_default())
    }

    /// What placing it looks at, and its id.
    fn write(&mut self, tokens: &[Token]) -> (u64, KvSeqId) {
        let (_, matched) = self.find(tokens);
        let (n_looked_at, id) = visit_counter::of(|| self.cache.place(&self.variants, Some(&matched)).expect("an id is free"));
        self.cache.extend([(id, &tokens[matched.n_pool as usize..])]);
        (n_looked_at, id)
    }

    fn evict(&mut self, max_units: u64) -> Option<u64> {
        let departure = self.cache.next_removal(max_units, EvictionReason::Pressed)?;
        let saved =
            departure.saves.clone().map(|range| SavedState { bytes: vec![0; range.len()].into(), whole_from: range.start });
        self.cache.take_ops().count();
        let (n_looked_at, _) = visit_counter::of(|| self.cache.remove_tail(&departure, saved, EvictionReason::Pressed));
        Some(n_looked_at)
    }
}

/// 254 ids share a text that lies above as many cells that are free, each with a token of its own; many others after the same text
/// are stored.
fn shared_by_all() -> (Large, Vec<KvSeqId>) {
    let kind = MemoryKind { bytes_per_token: 1, ..memory(ForkRule::Anywhere) };
    let mut large = Large { cache: KvCache::new(420_000, 256, kind, None), variants: AdapterSchedule::default() };
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
        let (n_looked_at, id) = large.write(&[&shared[..], &words(100_000 + branch, 1)].concat());
        assert!(n_looked_at < 50, "a fork of {N_SHARED} tokens looks at {n_looked_at} things");
        ids.push(id);
    }
    large.cache.check_integrity();
    (large, ids)
}

#[test]
fn a_look_for_cells_to_move_costs_what_may_be_moved() {
    let (mut large, ids) = shared_by_all();
    let budget = 2 * (MAX_UNITS + u64::from(N_IDS) + 16);
    for _ in 0..3 {
        let (n_looked_at, relocation) = visit_counter::of(|| large.cache.next_relocation(MAX_UNITS));
        let relocation = relocation.expect("half of the cells below are free");
        assert!(
            n_looked_at < budget,
            "{n_looked_at} looks for {} tokens of {} ids",
            relocation.range.len(),
            relocation.ids.len()
        );
        let n_reached = large.cache.n_reached();
        // Words of bits that are full are passed once per move.
        let (n_looked_at, ()) = visit_counter::of(|| large.cache.relocated(&relocation));
        assert!(n_looked_at < budget + N_SHARED as u64 / 64, "{n_looked_at} looks for a move");
        assert!(large.cache.n_reached() < n_reached);
    }
    // Those that are left share the rest of the text, which is one long stretch.
    for id in ids {
        large.cache.unpin(id);
    }
    for _ in 1..N_IDS {
        large.evict(u64::MAX).expect("each has a token of its own");
    }
    let (n_looked_at, relocation) = visit_counter::of(|| large.cache.next_relocation(MAX_UNITS));
    assert!(relocation.is_some() && n_looked_at < budget, "{n_looked_at} looks");
    large.cache.check_integrity();
}

#[test]
fn a_listing_of_few_nodes_costs_nothing_for_the_others() {
    let (large, ids) = shared_by_all();
    let slot_of = |id: KvSeqId| (id == ids[0]).then_some(0);
    for limit in [0, 1, 10, 100] {
        let (n_looked_at, (nodes, n_nodes)) = visit_counter::of(|| large.cache.recently_used(limit, slot_of));
        assert_eq!(nodes.len(), limit);
        assert!(n_nodes > N_STORED, "{n_nodes}");
        assert!(n_looked_at < 10 * limit as u64 + 50, "{n_looked_at} looks for {limit} of {n_nodes} nodes");
    }
}

#[test]
fn an_end_costs_nothing_for_what_others_share() {
    let (mut large, ids) = shared_by_all();
    for &id in &ids[1..] {
        let (n_looked_at, ()) = visit_counter::of(|| large.cache.unpin(id));
        assert!(n_looked_at < 50, "{n_looked_at} looks for an end");
        let (n_looked_at, _) =
            visit_counter::of(|| large.cache.next_removal(MAX_UNITS, EvictionReason::Pressed).expect("it is idle"));
        assert!(n_looked_at < u64::from(N_IDS) + MAX_UNITS + 50, "{n_looked_at} looks for what leaves next");
    }
    for _ in &ids[1..] {
        let n_looked_at = large.evict(MAX_UNITS).expect("it is idle");
        assert!(n_looked_at < 50, "{n_looked_at} looks for a token that leaves");
    }
}

#[test]
fn what_is_found_does_not_depend_on_what_is_stored_beside_it() {
    let (large, _) = shared_by_all();
    let shared = words(8, N_SHARED);
    for tokens in [&shared[..], &[&shared[..], &words(1000, 20)].concat()] {
        let (n_looked_at, matched) = large.find(tokens);
        assert_eq!(matched.n_tokens(), length(tokens));
        assert!(n_looked_at < 50 + 2 * u64::from(N_IDS), "{n_looked_at} looks");
    }
}

/// A text that leaves in `n_pieces` and comes back; returns what all restores together look at.
fn restored_in_pieces(forks: ForkRule, n_pieces: u32) -> u64 {
    let kind = MemoryKind { bytes_per_token: 1, ..memory(forks) };
    let n_tokens = 16 * n_pieces;
    let mut large = Large { cache: KvCache::new(n_tokens, 8, kind, None), variants: AdapterSchedule::default() };
    let tokens = words(8, n_tokens as usize);
    let (_, id) = large.write(&tokens);
    large.cache.unpin(id);
    while large.evict(1).is_some() {}
    let (n_looked_at, matched) = large.find(&tokens);
    assert_eq!((matched.n_tokens(), matched.restores.len()), (n_tokens, n_pieces as usize));
    assert!(n_looked_at < 50, "{n_looked_at} looks beside the nodes of the text");
    let id = large
        .cache
        .place(&large.variants, Some(&PrefixMatch { restores: Vec::new(), ..matched.clone() }))
        .expect("an id is free");
    let (n_looked_at, ()) = visit_counter::of(|| {
        for restore in &matched.restores {
            let kept = restore.kept.start as usize..restore.kept.end as usize;
            large.cache.restored(id, &tokens[kept], &restore.piece);
        }
    });
    large.cache.check_integrity();
    n_looked_at
}

#[test]
fn restoring_twice_as_many_pieces_costs_twice_as_much() {
    for forks in [ForkRule::Anywhere, ForkRule::InWindow] {
        let (few, many) = (restored_in_pieces(forks, 500), restored_in_pieces(forks, 1000));
        assert!(many < 3 * few, "{few} looks for 500 pieces, {many} for 1000: {forks:?}");
        assert!(many < 20 * 1000, "{many} looks for 1000 pieces: {forks:?}");
    }
}

#[test]
fn a_full_store_is_not_searched_for_what_gives_way() {
    let kind = MemoryKind { bytes_per_token: 1, ..memory(ForkRule::Anywhere) };
    let max_bytes = N_STORED as u64 * (20 + 512);
    let mut large = Large { cache: KvCache::new(1000, 8, kind, Some(max_bytes)), variants: AdapterSchedule::default() };
    for seed in 0..N_STORED + 100 {
        let (_, id) = large.write(&words(1000 + seed, 20));
        large.cache.unpin(id);
        let n_looked_at = large.evict(u64::MAX).expect("it is idle");
        assert!(n_looked_at < 100, "{n_looked_at} looks for one piece");
    }
    assert_eq!(large.cache.host_cache_size().2, N_STORED);
    assert_eq!(large.cache.counts().n_forgotten, 100 * 20, "as many as came");
}
