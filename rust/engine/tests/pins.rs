//! Pinned prefixes are found again, wherever their cells are.

use super::*;
use crate::cache::{ForkRule, MemoryKind};
use crate::fake_runner::MEMORY;
use crate::request::{BeamSearch, Diversity, PinnedPrefix, Task, TaskResult};

fn start_with_host_cache(kind: MemoryKind) -> (Engine, FakeControl) {
    let limits = Limits { max_host_cache_bytes: Some(16 << 20), ..limits(2, 1024) };
    start_with(limits, move |runner| runner.with_memory(kind))
}

fn pin(engine: &Engine, prompt: &str) -> Result<PinnedPrefix, Error> {
    let request = Request::for_task(Prompt::from_tokens(tokens_of(prompt)), Task::Pin);
    let finished = collect(engine.submit(request, None).expect("the request is valid"))?.remove(0).finished;
    match *finished.result.expect("a pin makes something") {
        TaskResult::Pinned(pinned) => Ok(pinned),
        TaskResult::Saved(_) => panic!("a pin saves nothing"),
    }
}

/// Memory with states of 100,000 bytes, in 4 sequence ids, without a host cache.
fn start_recurrent_without_a_store(bytes_per_token: u64) -> (Engine, FakeControl) {
    let kind = MemoryKind { forks: ForkRule::AtEnd, bytes_per_token, bytes_per_state: 100_000, ..MEMORY };
    start_with(Limits { n_seq_max: 4, ..limits(2, 1024) }, move |runner| runner.with_memory(kind))
}

/// Computes other texts that exceed the device cache.
fn flood(engine: &Engine) {
    for seed in 20..30 {
        run(engine, greedy(&prompt(seed, 300), 5));
    }
}

/// Returns how many tokens a prompt of `pinned` and 20 more computes.
fn n_computed_after(engine: &Engine, control: &FakeControl, pinned: &str) -> usize {
    let before = control.n_computed();
    run(engine, greedy(&format!("{pinned}{}", prompt(50, 20)), 1));
    control.n_computed() - before
}

#[test]
fn a_pinned_prefix_that_cannot_be_saved_stays_in_the_device_cache() {
    for forks in [ForkRule::Anywhere, ForkRule::InWindow] {
        let (engine, control) = start_with_host_cache(MemoryKind { forks, ..MEMORY });
        control.fail_states(true);
        let pinned = pin(&engine, &prompt(1, 200)).unwrap();
        flood(&engine);
        assert_eq!(n_computed_after(&engine, &control, &prompt(1, 200)), 20, "{forks:?}");
        assert!(engine.unpin(pinned.id).unwrap());
        flood(&engine);
        assert_eq!(n_computed_after(&engine, &control, &prompt(1, 200)), 220, "unpinned, it goes as others do");
    }
}

#[test]
fn unsaved_pinned_prefixes_leave_half_of_the_device_cache_to_others() {
    let (engine, control) = start_with_host_cache(MEMORY);
    control.fail_states(true);
    for seed in 0..4 {
        pin(&engine, &prompt(seed, 200)).unwrap();
    }
    flood(&engine);
    let n_kept = (0..4).filter(|&seed| n_computed_after(&engine, &control, &prompt(seed, 200)) == 20).count();
    assert_eq!(n_kept, 2);
}

#[test]
fn memory_that_cannot_be_saved_keeps_pins_in_the_device_cache_without_a_host_cache() {
    let (engine, control) = start_with_host_cache(MemoryKind { can_be_saved: false, ..MEMORY });
    control.fail_states(true);
    pin(&engine, &prompt(1, 200)).unwrap();
    flood(&engine);
    assert_eq!(n_computed_after(&engine, &control, &prompt(1, 200)), 20);
    assert_eq!(engine.stats().host_cache.max_bytes, Some(0));
    assert!(matches!(pin(&engine, &prompt(2, 400)), Err(Error::PinsFull { .. })), "half of the pool is for others");
}

#[test]
fn without_a_host_cache_pinned_states_take_at_most_half_of_the_sequence_ids() {
    for bytes_per_token in [0, 20] {
        let (engine, control) = start_recurrent_without_a_store(bytes_per_token);
        for seed in [1, 2] {
            pin(&engine, &prompt(seed, 100)).unwrap();
        }
        flood(&engine);
        for seed in [1, 2] {
            assert_eq!(n_computed_after(&engine, &control, &prompt(seed, 100)), 20, "a state of {bytes_per_token} a token");
        }
        let n_pinned_bytes = 2 * (100_000 + 100 * bytes_per_token);
        let limit = 2 * 100_000 + 512 * bytes_per_token;
        match pin(&engine, &prompt(3, 100)).unwrap_err() {
            Error::PinsFull { n_bytes, n_pinned_bytes: found, limit: known } => {
                assert_eq!((n_bytes, found, known), (n_pinned_bytes / 2, n_pinned_bytes, limit));
            }
            error => panic!("{error}"),
        }
    }
}

// feature: beams
#[test]
fn pins_leave_an_id_for_every_slot_so_that_a_search_over_all_slots_starts() {
    let memory = MemoryKind { forks: ForkRule::AtEnd, bytes_per_state: 100_000, ..MEMORY };
    let limits = Limits { n_seq_max: 10, ..limits(8, 2048) };
    let (engine, control) = start_with(limits, move |runner| runner.without_end().with_memory(memory));
    let n_pinned = (0..5).take_while(|&seed| pin(&engine, &prompt(seed, 50)).is_ok()).count();
    assert_eq!(n_pinned, 2, "8 of 10 ids are left to 8 slots");
    let search = BeamSearch { width: 8, length_penalty: 1.0, is_stochastic: false };
    let request = Request { diversity: Diversity::Beams(search), ..drawn(&prompt(9, 60), 1, 10) };
    assert_eq!(run(&engine, request)[0].tokens.len(), 10);
    let streams: Vec<_> = (10..18).map(|seed| engine.submit(greedy(&prompt(seed, 50), 10), None).unwrap()).collect();
    for (seed, stream) in (10..).zip(streams) {
        assert_eq!(collect(stream).unwrap()[0].tokens, expected(&prompt(seed, 50), 10));
    }
    for seed in 0..2 {
        assert_eq!(n_computed_after(&engine, &control, &prompt(seed, 50)), 20, "a pinned prefix stays");
    }
}

#[test]
fn a_pinned_prefix_outlives_the_failure_of_the_only_sequence_that_holds_it() {
    let (engine, control) = start_with_host_cache(MEMORY);
    let pinned = prompt(1, 200);
    pin(&engine, &pinned).unwrap();
    control.allow(Some(0));
    let running = engine.submit(greedy(&format!("{pinned}{}", prompt(2, 50)), 50), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted > 0);
    control.fail(Some(crate::fake_runner::FailureMode::All));
    control.allow(None);
    assert!(matches!(collect(running), Err(Error::Decode { .. })));
    control.fail(None);
    assert_eq!(n_computed_after(&engine, &control, &pinned), 20);
}

#[test]
fn a_prefix_pinned_for_a_reader_that_left_is_unpinned() {
    let (engine, _) = start_with_host_cache(MEMORY);
    let request = Request::for_task(Prompt::from_tokens(tokens_of(&prompt(1, 100))), Task::Pin);
    let stream = engine.submit(request, None).unwrap();
    while !stream.is_ready() {
        std::thread::yield_now();
    }
    assert_eq!(engine.pinned().unwrap().len(), 1, "it may still be read");
    drop(stream);
    assert_eq!(engine.pinned().unwrap(), []);
    let pinned = pin(&engine, &prompt(1, 100)).unwrap();
    assert_eq!(engine.pinned().unwrap(), [pinned]);
}
