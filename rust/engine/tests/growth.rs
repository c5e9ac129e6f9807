//! What a step costs does not grow with what only waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::engine::WakeHandle;

/// A request for two completions of a long prompt of its own.
fn pair(seed: u64) -> Request {
    drawn(&prompt(seed, 2_000), 2, 4)
}

#[test]
fn prompts_that_wait_are_not_looked_at_while_nothing_can_start() {
    let (engine, control) = start(Limits { max_queue: 1_000, ..limits(2, 16_384) });
    control.allow(Some(0));
    let running: Vec<_> = (0..2).map(|seed| engine.submit(drawn(&prompt(seed, 100), 1, 4_000), None).unwrap()).collect();
    step_until(&engine, &control, |stats| stats.n_predicted >= 2);
    let waiting: Vec<_> = (10..410).map(|seed| engine.submit(pair(seed), None).unwrap()).collect();
    step(&engine, &control);
    let before = engine.stats();
    for _ in 0..20 {
        step(&engine, &control);
    }
    let after = engine.stats();
    assert_eq!((after.n_waiting, after.n_compared - before.n_compared), (400, 0));
    control.allow(None);
    drop((running, waiting));
}

#[test]
fn each_prompt_that_waited_is_looked_at_a_few_times_in_all() {
    let (engine, _) = start(Limits { max_queue: 1_000, ..limits(2, 16_384) });
    let streams: Vec<_> = (0..50).map(|seed| engine.submit(pair(seed % 5), None).unwrap()).collect();
    for stream in streams {
        collect(stream).unwrap();
    }
    let n_prompts = 50 * 2_000;
    let n_compared = engine.stats().n_compared;
    assert!(n_compared <= 8 * n_prompts, "{n_compared} tokens were compared for {n_prompts} of prompts");
}

#[test]
fn requests_for_several_completions_are_finished_before_as_many_others_are_begun_as_there_are_slots() {
    // The pool has room for two prompts. Whoever begins them all computes most of them twice and more.
    let (engine, control) = start(limits(1, 512));
    let streams: Vec<_> = (0..8).map(|seed| engine.submit(drawn(&prompt(seed, 200), 4, 1), None).unwrap()).collect();
    for stream in streams {
        collect(stream).unwrap();
    }
    assert_eq!(control.n_computed(), 8 * 200);
}

#[test]
fn a_request_for_one_completion_starts_however_many_others_are_open() {
    let (engine, control) = start(limits(1, 1024));
    control.allow(Some(0));
    let many: Vec<_> = (0..3).map(|seed| engine.submit(drawn(&prompt(seed, 50), 50, 2), None).unwrap()).collect();
    step_until(&engine, &control, |stats| stats.n_predicted > 0);
    let one = engine.submit(greedy(&prompt(9, 50), 2), None).unwrap();
    let n_predicted = engine.stats().n_predicted;
    let stats = step_until(&engine, &control, |stats| {
        stats.slots[0].running.as_ref().is_some_and(|running| running.request_id == one.request_id())
    });
    assert!(stats.n_predicted - n_predicted <= 5, "it waited for {}", stats.n_predicted - n_predicted);
    control.allow(None);
    drop((many, one));
}

/// Counts how often it is rung: once for each step that tells something.
struct Counting(AtomicUsize);

impl WakeHandle for Counting {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_step_starts_a_bounded_number_of_branches_and_none_of_them_walks_its_prompt() {
    let limits = Limits { n_seq_max: 256, ..limits(128, 65_536) };
    let (engine, control) = start(limits);
    let bell = Arc::new(Counting(AtomicUsize::new(0)));
    let stream = engine.submit(drawn(&prompt(1, 20_000), 256, 1), Some(Arc::clone(&bell) as Arc<dyn WakeHandle>)).unwrap();
    assert_eq!(collect(stream).unwrap().len(), 256);
    assert_eq!(control.n_computed(), 20_000);
    // Up to 64 before a decode and as many after it, where there is one.
    assert!(bell.0.load(Ordering::Relaxed) >= 3, "one step started all of them");
    let n_compared = engine.stats().n_compared;
    assert!(n_compared <= 3 * 20_000, "{n_compared} tokens were compared for 256 branches of one prompt");
}

#[test]
fn a_worker_that_waits_for_a_slot_to_be_erased_sleeps() {
    let (engine, control) = start(limits(1, 1024));
    control.allow(Some(0));
    let first = engine.submit(greedy(&prompt(1, 50), 3), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted > 0);
    let second = engine.submit(greedy(&prompt(2, 50), 3), None).unwrap();
    assert_eq!(asked(&control, || engine.erase_slot(0).unwrap()), None);
    control.allow(None);
    collect(first).unwrap();
    collect(second).unwrap();
    let stats = engine.stats();
    assert!(stats.n_steps < 100, "{} steps for {} decodes", stats.n_steps, stats.n_decodes);
}

#[test]
fn the_parts_of_a_step_add_up_to_it() {
    let (engine, _) = start_stored(4, 1024);
    for seed in 0..6 {
        run(&engine, drawn(&prompt(seed, 300), 3, 5));
    }
    let steps = engine.recent_steps();
    assert!(steps.len() > 20);
    for step in steps {
        assert_eq!(step.times.sum(), step.took, "{step:?}");
    }
}

#[test]
fn text_that_was_held_back_is_told_where_no_token_ends_the_branch() {
    // The pool is full for good: what is left cannot hold another token.
    let (engine, _) = start(limits(2, 512));
    pin(&engine, &prompt(9, 200));
    let free = run(&engine, greedy(&prompt(1, 100), 2_000)).remove(0);
    assert_eq!(free.finished.reason, FinishReason::ContextFull);
    let mut request = greedy(&prompt(1, 100), 2_000);
    // It may always be about to begin.
    request.stop = vec![format!("{}!!", &free.text[free.text.len() - 20..])];
    let held = run(&engine, request).remove(0);
    assert_eq!(held.finished.text, free.text[free.text.len() - 20..]);
    assert_eq!(held.text, free.text);
}
