//! Pinned prefixes of a memory that sees a sliding window, whatever other paths lose of it.

use super::*;

fn bench() -> Bench {
    Bench::new(400, 8, ForkRule::InWindow, Some(1 << 20))
}

fn pin(bench: &mut Bench, text: &[Token]) {
    let id = bench.write(text).expect("there is room");
    bench.cache.pin(id).expect("half of the store is free");
    bench.shadow.follow(&mut bench.cache);
}

/// Computes `text`, until its window has moved on.
fn pass(bench: &mut Bench, text: &[Token]) {
    let id = bench.write(text).expect("there is room");
    bench.shadow.move_on(id);
    bench.end(id);
}

fn empty_the_pool(bench: &mut Bench) {
    while bench.evict(u64::MAX) {}
    bench.check();
    assert_eq!(bench.cache.n_used(), 0);
}

#[test]
fn a_pin_is_saved_whole_though_another_path_holds_its_beginning() {
    for n_units in [1, u64::MAX] {
        let mut bench = bench();
        let trunk = text(1, 70);
        let short = [&trunk[..], &text(2, 5)].concat();
        pin(&mut bench, &short);
        pass(&mut bench, &[&trunk[..], &text(3, 50)].concat());
        while bench.evict(n_units) {}
        bench.check();
        assert_eq!(bench.find(&short, 1).n_tokens(), 75);
    }
}

#[test]
fn a_pin_is_saved_whole_though_another_path_has_left_its_beginning_without_the_window() {
    let mut bench = bench();
    let trunk = text(1, 70);
    let short = [&trunk[..], &text(2, 5)].concat();
    let long = bench.write(&[&trunk[..], &text(3, 50)].concat()).expect("there is room");
    pin(&mut bench, &short);
    bench.shadow.move_on(long);
    bench.end(long);
    // The longer path is the first to leave, and what it shares with the pin stays.
    bench.cache.touch(&bench.variants, &short);
    empty_the_pool(&mut bench);
    assert_eq!(bench.find(&short, 1).n_tokens(), 75);
}

#[test]
fn a_stored_pin_is_found_while_another_path_holds_its_beginning() {
    let mut bench = bench();
    let pinned = text(1, 70);
    pin(&mut bench, &pinned);
    empty_the_pool(&mut bench);
    for n_common in [1, 20, 60, 69] {
        pass(&mut bench, &[&pinned[..n_common], &text(2 + n_common as u64, 60)].concat());
        let found = bench.find(&[&pinned[..], &text(3, 9)].concat(), 1);
        assert_eq!((found.n_tokens(), found.restores.len()), (70, 1), "cut after {n_common}, restored once");
        bench.check();
    }
    empty_the_pool(&mut bench);
    assert_eq!(bench.find(&pinned, 1).n_tokens(), 70);
}

#[test]
fn what_ends_soon_after_a_stored_prefix_was_cut_keeps_its_window() {
    let mut bench = bench();
    let stored = text(1, 70);
    pass(&mut bench, &stored);
    empty_the_pool(&mut bench);
    let short = [&stored[..40], &text(2, 5)].concat();
    let id = bench.write(&short).expect("there is room");
    bench.end(id);
    empty_the_pool(&mut bench);
    for text in [&short, &stored] {
        assert_eq!(bench.find(text, 1).n_tokens(), length(text));
    }
}

#[test]
fn a_full_store_drops_others_before_the_beginning_of_what_it_holds() {
    // Room for two of the three that are saved.
    let mut bench = Bench::new(400, 8, ForkRule::InWindow, Some(2900));
    let stored = text(1, 70);
    pass(&mut bench, &text(5, 100));
    pass(&mut bench, &stored);
    empty_the_pool(&mut bench);
    let id = bench.write(&[&stored[..30], &text(2, 60)].concat()).expect("there is room");
    bench.shadow.move_on(id);
    pass(&mut bench, &text(6, 200));
    while bench.evict(u64::MAX) {}
    bench.check();
    assert_eq!([&stored, &text(5, 100)].map(|text| bench.find(text, 1).n_tokens()), [70, 0]);
}

#[test]
fn a_preempted_window_comes_back_whole_though_another_path_holds_its_beginning() {
    let mut bench = bench();
    let trunk = text(1, 70);
    let short = [&trunk[..], &text(2, 5)].concat();
    let id = bench.write(&short).expect("there is room");
    let reservation = bench.cache.reserve(id);
    pass(&mut bench, &[&trunk[..], &text(3, 50)].concat());
    empty_the_pool(&mut bench);
    assert_eq!(bench.find(&short, 1).n_tokens(), 75);
    bench.cache.release(reservation);
}

#[test]
fn a_pin_that_begins_as_a_longer_stored_text_is_saved_on_its_own() {
    let mut bench = bench();
    let long = text(1, 100);
    pass(&mut bench, &long);
    empty_the_pool(&mut bench);
    pin(&mut bench, &long[..40]);
    empty_the_pool(&mut bench);
    bench.cache.erase(&bench.variants, &long, 0);
    bench.check();
    let (n_bytes, _, n_pieces) = bench.cache.host_cache_size();
    assert!(n_pieces == 1 && n_bytes < 700, "{n_bytes} bytes in {n_pieces} pieces");
    assert_eq!(bench.find(&long, 1).n_tokens(), 40);
}
