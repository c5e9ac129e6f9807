//! Pinned prefixes of sliding-window memory are kept, whatever other paths lose of them.

use super::*;

fn bench() -> Bench {
    Bench::new(400, 8, ForkRule::InWindow, Some(1 << 20))
}

fn pin(bench: &mut Bench, text: &[Token]) {
    let id = bench.write(text).expect("cells and ids are free");
    bench.cache.pin(id).expect("half of the host cache is free");
    bench.shadow.follow(&mut bench.cache);
}

/// Computes `text` and moves its window to its end.
fn pass(bench: &mut Bench, text: &[Token]) {
    let id = bench.write(text).expect("cells and ids are free");
    bench.shadow.move_on(id);
    bench.end(id);
}

fn empty_device_cache(bench: &mut Bench) {
    while bench.evict(u64::MAX) {}
    bench.check();
    assert_eq!(bench.cache.n_used(), 0);
}

#[test]
fn a_pin_is_saved_completely_if_another_path_holds_its_prefix() {
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
fn a_pin_is_saved_completely_if_another_path_has_saved_its_prefix_without_the_window() {
    let mut bench = bench();
    let trunk = text(1, 70);
    let short = [&trunk[..], &text(2, 5)].concat();
    let long = bench.write(&[&trunk[..], &text(3, 50)].concat()).expect("cells and ids are free");
    pin(&mut bench, &short);
    bench.shadow.move_on(long);
    bench.end(long);
    // The longer path is removed first; the prefix that it shares with the pin stays.
    bench.cache.touch(&bench.adapters, &short);
    empty_device_cache(&mut bench);
    assert_eq!(bench.find(&short, 1).n_tokens(), 75);
}

#[test]
fn an_offloaded_pin_is_matched_while_another_path_holds_its_prefix() {
    let mut bench = bench();
    let pinned = text(1, 70);
    pin(&mut bench, &pinned);
    empty_device_cache(&mut bench);
    for n_common in [1, 20, 60, 69] {
        pass(&mut bench, &[&pinned[..n_common], &text(2 + n_common as u64, 60)].concat());
        let found = bench.find(&[&pinned[..], &text(3, 9)].concat(), 1);
        assert_eq!((found.n_tokens(), found.reloads.len()), (70, 1), "split after {n_common}, reloaded once");
        bench.check();
    }
    empty_device_cache(&mut bench);
    assert_eq!(bench.find(&pinned, 1).n_tokens(), 70);
}

#[test]
fn a_path_that_ends_soon_after_a_split_entry_keeps_its_window() {
    let mut bench = bench();
    let stored = text(1, 70);
    pass(&mut bench, &stored);
    empty_device_cache(&mut bench);
    let short = [&stored[..40], &text(2, 5)].concat();
    let id = bench.write(&short).expect("cells and ids are free");
    bench.end(id);
    empty_device_cache(&mut bench);
    for text in [&short, &stored] {
        assert_eq!(bench.find(text, 1).n_tokens(), length(text));
    }
}

#[test]
fn a_full_host_cache_drops_other_texts_before_the_prefix_of_an_entry() {
    // The host cache holds two of the three saved texts.
    let mut bench = Bench::new(400, 8, ForkRule::InWindow, Some(2900));
    let stored = text(1, 70);
    pass(&mut bench, &text(5, 100));
    pass(&mut bench, &stored);
    empty_device_cache(&mut bench);
    let id = bench.write(&[&stored[..30], &text(2, 60)].concat()).expect("cells and ids are free");
    bench.shadow.move_on(id);
    pass(&mut bench, &text(6, 200));
    while bench.evict(u64::MAX) {}
    bench.check();
    assert_eq!([&stored, &text(5, 100)].map(|text| bench.find(text, 1).n_tokens()), [70, 0]);
}

#[test]
fn a_preempted_window_is_reloaded_completely_if_another_path_holds_its_prefix() {
    let mut bench = bench();
    let trunk = text(1, 70);
    let short = [&trunk[..], &text(2, 5)].concat();
    let id = bench.write(&short).expect("cells and ids are free");
    let reservation = bench.cache.reserve(id, None);
    pass(&mut bench, &[&trunk[..], &text(3, 50)].concat());
    empty_device_cache(&mut bench);
    assert_eq!(bench.find(&short, 1).n_tokens(), 75);
    bench.cache.release(reservation);
}

#[test]
fn a_pin_that_is_a_prefix_of_an_offloaded_text_is_saved_separately() {
    let mut bench = bench();
    let long = text(1, 100);
    pass(&mut bench, &long);
    empty_device_cache(&mut bench);
    pin(&mut bench, &long[..40]);
    empty_device_cache(&mut bench);
    bench.cache.erase(&bench.adapters, &long, 0);
    bench.check();
    let (n_bytes, _, n_entries) = bench.cache.host_cache_size();
    assert!(n_entries == 1 && n_bytes < 700, "{n_bytes} bytes in {n_entries} entries");
    assert_eq!(bench.find(&long, 1).n_tokens(), 40);
}
