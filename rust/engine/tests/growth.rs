//! The cost of a step does not grow with waiting requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::engine::WakeHandle;

/// Creates a request for two completions of its own long prompt.
fn pair(seed: u64) -> Request {
    drawn(&prompt(seed, 2_000), 2, 4)
}

#[test]
fn waiting_prompts_are_not_compared_while_none_can_start() {
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
fn each_waiting_prompt_is_compared_only_a_few_times() {
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
fn open_requests_for_several_completions_are_limited_by_the_slots() {
    // The device cache has room for two prompts. Starting all of them would compute most of them twice or more.
    let (engine, control) = start(limits(1, 512));
    let streams: Vec<_> = (0..8).map(|seed| engine.submit(drawn(&prompt(seed, 200), 4, 1), None).unwrap()).collect();
    for stream in streams {
        collect(stream).unwrap();
    }
    assert_eq!(control.n_computed(), 8 * 200);
}

#[test]
fn a_request_for_one_completion_starts_despite_many_open_requests() {
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

/// Counts its calls: one for each step with events.
struct Counting(AtomicUsize);

impl WakeHandle for Counting {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_step_starts_a_bounded_number_of_branches_each_in_constant_time() {
    let limits = Limits { n_seq_max: 256, ..limits(128, 65_536) };
    let (engine, control) = start(limits);
    let wake_handle = Arc::new(Counting(AtomicUsize::new(0)));
    let stream = engine.submit(drawn(&prompt(1, 20_000), 256, 1), Some(Arc::clone(&wake_handle) as Arc<dyn WakeHandle>)).unwrap();
    assert_eq!(collect(stream).unwrap().len(), 256);
    assert_eq!(control.n_computed(), 20_000);
    // Up to 64 before a decode and as many after it, if there is one.
    assert!(wake_handle.0.load(Ordering::Relaxed) >= 3, "one step started all of them");
    let n_compared = engine.stats().n_compared;
    assert!(n_compared <= 3 * 20_000, "{n_compared} tokens were compared for 256 branches of one prompt");
}

#[test]
fn the_worker_sleeps_while_a_slot_is_reserved_for_erasing() {
    let (engine, control) = start(limits(1, 1024));
    control.allow(Some(0));
    let first = engine.submit(greedy(&prompt(1, 50), 3), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted > 0);
    let second = engine.submit(greedy(&prompt(2, 50), 3), None).unwrap();
    assert_eq!(answer_while_held(&control, || engine.erase_slot(0).unwrap()), None);
    control.allow(None);
    collect(first).unwrap();
    collect(second).unwrap();
    let stats = engine.stats();
    assert!(stats.n_steps < 100, "{} steps for {} decodes", stats.n_steps, stats.n_decodes);
}

#[test]
fn the_stages_of_a_step_add_up_to_its_time() {
    let (engine, _) = start_with_host_cache(4, 1024);
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
fn held_back_text_is_published_when_a_branch_ends_without_a_token() {
    // The device cache stays full: the rest has no room for another token.
    let (engine, _) = start(limits(2, 512));
    pin(&engine, &prompt(9, 200));
    let free = run(&engine, greedy(&prompt(1, 100), 2_000)).remove(0);
    assert_eq!(free.finished.reason, FinishReason::ContextFull);
    let mut request = greedy(&prompt(1, 100), 2_000);
    // It may always be about to start.
    request.stop = vec![format!("{}!!", &free.text[free.text.len() - 20..])];
    let held = run(&engine, request).remove(0);
    assert_eq!(held.finished.text, free.text[free.text.len() - 20..]);
    assert_eq!(held.text, free.text);
}
