//! Eviction from the host cache frees enough, or drops nothing.

use super::*;

/// Bytes of an entry in the host cache, as the shadow memory writes them.
fn n_bytes(n_tokens: u64) -> u64 {
    (1 + n_tokens) * 4 + 512
}

#[test]
fn no_entry_is_dropped_if_dropping_all_evictable_ones_is_not_enough() {
    let mut bench = Bench::new(400, 8, ForkRule::Anywhere, Some(2 * n_bytes(30)));
    let old = text(1, 30);
    let id = bench.write(&old).expect("cells and ids are free");
    bench.end(id);
    assert!(bench.evict(u64::MAX));
    // A preempted sequence reserves this text.
    let id = bench.write(&text(2, 30)).expect("cells and ids are free");
    let reservation = bench.cache.reserve(id, None);
    assert!(bench.evict(u64::MAX));
    assert_eq!(bench.cache.host_cache_size().2, 2);
    // Both entries would have to be dropped.
    let id = bench.write(&text(3, 60)).expect("cells and ids are free");
    bench.end(id);
    assert_eq!(
        bench.cache.next_removal(u64::MAX, EvictionReason::MemoryPressure).expect("it is idle").saves,
        None,
        "no tokens are saved in vain"
    );
    assert!(bench.evict(u64::MAX));
    bench.check();
    assert_eq!([30, 30, 0], [1, 2, 3].map(|seed| bench.find(&text(seed, 60)[..], 16).n_tokens()));
    // Without the reservation, dropping one entry is enough.
    bench.cache.release(reservation);
    let id = bench.write(&text(4, 30)).expect("cells and ids are free");
    bench.end(id);
    assert!(bench.evict(u64::MAX));
    bench.check();
    assert_eq!([0, 30, 30], [1, 2, 4].map(|seed| bench.find(&text(seed, 60)[..], 16).n_tokens()));
}

#[test]
fn an_entry_that_is_larger_than_estimated_drops_no_others_in_vain() {
    let mut bench = Bench::new(400, 8, ForkRule::Anywhere, Some(2 * n_bytes(30)));
    for seed in [1, 2] {
        let id = bench.write(&text(seed, 30)).expect("cells and ids are free");
        if seed == 1 {
            bench.end(id);
        } else {
            bench.cache.reserve(id, None);
        }
        assert!(bench.evict(u64::MAX));
    }
    let id = bench.write(&text(3, 30)).expect("cells and ids are free");
    bench.end(id);
    let removal = bench.cache.next_removal(u64::MAX, EvictionReason::MemoryPressure).expect("it is idle");
    assert_eq!(removal.saves, Some(0..30));
    bench.shadow.follow(&mut bench.cache);
    let bytes = vec![0; usize::try_from(n_bytes(60)).expect("small")].into();
    bench.cache.remove_tail(&removal, Some(SavedState { bytes, whole_from: 0 }), EvictionReason::MemoryPressure);
    bench.shadow.follow(&mut bench.cache);
    bench.check();
    assert_eq!([30, 30, 0], [1, 2, 3].map(|seed| bench.find(&text(seed, 30), 16).n_tokens()));
}

#[test]
fn a_chain_of_entries_is_dropped_from_its_end() {
    let mut bench = Bench::new(400, 8, ForkRule::Anywhere, Some(4 * n_bytes(60)));
    let chain = text(1, 60);
    let id = bench.write(&chain).expect("cells and ids are free");
    bench.end(id);
    // Three entries of about 20 tokens; each depends on the one before it.
    while bench.evict(22) {}
    assert_eq!(bench.cache.host_cache_size().2, 3);
    let id = bench.write(&text(2, 300)).expect("cells and ids are free");
    bench.end(id);
    assert!(bench.evict(u64::MAX));
    bench.check();
    assert_eq!(bench.find(&text(2, 300), 16).n_tokens(), 300);
    let n_left = bench.find(&chain, 1).n_tokens();
    assert!(n_left > 0 && n_left < 60, "{n_left} of 60 are left: only as much of the end as needed is dropped");
}
