//! Room in the store: what gives way is enough, or nothing does.

use super::*;

/// Bytes of a piece in the store, as the shadow writes them.
fn n_bytes(n_tokens: u64) -> u64 {
    (1 + n_tokens) * 4 + 512
}

#[test]
fn nothing_is_dropped_where_all_that_gives_way_is_too_little() {
    let mut bench = Bench::new(400, 8, ForkRule::Anywhere, Some(2 * n_bytes(30)));
    let old = text(1, 30);
    let id = bench.write(&old).expect("there is room");
    bench.end(id);
    assert!(bench.evict(u64::MAX));
    // A preempted sequence comes back for this one.
    let id = bench.write(&text(2, 30)).expect("there is room");
    let reservation = bench.cache.reserve(id);
    assert!(bench.evict(u64::MAX));
    assert_eq!(bench.cache.host_cache_size().2, 2);
    // Both would have to go.
    let id = bench.write(&text(3, 60)).expect("there is room");
    bench.end(id);
    assert_eq!(
        bench.cache.next_removal(u64::MAX, EvictionReason::Pressed).expect("it is idle").saves,
        None,
        "nothing is copied in vain"
    );
    assert!(bench.evict(u64::MAX));
    bench.check();
    assert_eq!([30, 30, 0], [1, 2, 3].map(|seed| bench.find(&text(seed, 60)[..], 16).n_tokens()));
    // With the last one gone, one is enough.
    bench.cache.release(reservation);
    let id = bench.write(&text(4, 30)).expect("there is room");
    bench.end(id);
    assert!(bench.evict(u64::MAX));
    bench.check();
    assert_eq!([0, 30, 30], [1, 2, 4].map(|seed| bench.find(&text(seed, 60)[..], 16).n_tokens()));
}

#[test]
fn a_piece_that_came_out_larger_than_was_thought_drops_nothing_in_vain() {
    let mut bench = Bench::new(400, 8, ForkRule::Anywhere, Some(2 * n_bytes(30)));
    for seed in [1, 2] {
        let id = bench.write(&text(seed, 30)).expect("there is room");
        if seed == 1 {
            bench.end(id);
        } else {
            bench.cache.reserve(id);
        }
        assert!(bench.evict(u64::MAX));
    }
    let id = bench.write(&text(3, 30)).expect("there is room");
    bench.end(id);
    let departure = bench.cache.next_removal(u64::MAX, EvictionReason::Pressed).expect("it is idle");
    assert_eq!(departure.saves, Some(0..30));
    bench.shadow.follow(&mut bench.cache);
    let bytes = vec![0; usize::try_from(n_bytes(60)).expect("small")].into();
    bench.cache.remove_tail(&departure, Some(SavedState { bytes, whole_from: 0 }), EvictionReason::Pressed);
    bench.shadow.follow(&mut bench.cache);
    bench.check();
    assert_eq!([30, 30, 0], [1, 2, 3].map(|seed| bench.find(&text(seed, 30), 16).n_tokens()));
}

#[test]
fn a_chain_of_pieces_gives_way_from_its_end_on() {
    let mut bench = Bench::new(400, 8, ForkRule::Anywhere, Some(4 * n_bytes(60)));
    let chain = text(1, 60);
    let id = bench.write(&chain).expect("there is room");
    bench.end(id);
    // Three pieces of about 20 tokens; each is needed by what follows it.
    while bench.evict(22) {}
    assert_eq!(bench.cache.host_cache_size().2, 3);
    let id = bench.write(&text(2, 300)).expect("there is room");
    bench.end(id);
    assert!(bench.evict(u64::MAX));
    bench.check();
    assert_eq!(bench.find(&text(2, 300), 16).n_tokens(), 300);
    let n_left = bench.find(&chain, 1).n_tokens();
    assert!(n_left > 0 && n_left < 60, "{n_left} of 60 are left: its end went first, and no more than was needed");
}
