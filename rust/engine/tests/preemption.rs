//! Preemption for other requests, and its cost.

use super::*;
use crate::request::ContextShift;

fn with_priority(priority: i32, request: Request) -> Request {
    Request { priority, ..request }
}

fn n_running(stats: &Stats) -> usize {
    stats.slots.iter().filter(|slot| slot.running.is_some()).count()
}

#[test]
fn no_sequence_is_preempted_for_a_request_that_would_still_not_fit() {
    let (engine, control) = start(limits(4, 1024));
    control.allow(Some(0));
    let senior = engine.submit(with_priority(1, greedy(&prompt(1, 600), 100)), None).unwrap();
    let batch: Vec<_> = (2..4).map(|seed| engine.submit(greedy(&prompt(seed, 50), 100), None).unwrap()).collect();
    step_until(&engine, &control, |stats| n_running(stats) == 3 && stats.n_predicted >= 9);
    let large = engine.submit(with_priority(1, greedy(&prompt(9, 500), 3)), None).unwrap();
    for _ in 0..3 {
        step(&engine, &control);
    }
    let stats = engine.stats();
    assert_eq!((stats.n_preempted, n_running(&stats)), (0, 3), "slots stand empty, and nobody is served for it");
    control.allow(None);
    for stream in batch.into_iter().chain([senior, large]) {
        collect(stream).unwrap();
    }
}

#[test]
fn no_sequence_is_preempted_for_a_request_that_waits_for_a_prefix() {
    let (engine, control) = start(Limits { n_ubatch: 64, ..limits(2, 8192) });
    control.allow(Some(0));
    let batch: Vec<_> =
        (1..3).map(|seed| engine.submit(with_priority(-1, greedy(&prompt(seed, 50), 200)), None).unwrap()).collect();
    step_until(&engine, &control, |stats| n_running(stats) == 2 && stats.n_predicted >= 6);
    let chats: Vec<_> = (0..2).map(|_| engine.submit(greedy(&prompt(9, 1_000), 3), None).unwrap()).collect();
    for _ in 0..3 {
        step(&engine, &control);
    }
    assert_eq!(engine.stats().n_preempted, 1, "the second one only waits for what the first one computes");
    control.allow(None);
    for stream in batch.into_iter().chain(chats) {
        collect(stream).unwrap();
    }
}

#[test]
fn freeing_an_id_never_evicts_the_prefix_of_the_same_request() {
    let (engine, _) = start(Limits { n_seq_max: 4, ..limits(1, 4096) });
    let first = run(&engine, greedy(&prompt(1, 100), 5)).remove(0);
    for seed in 2..5 {
        run(&engine, greedy(&prompt(seed, 100), 5));
    }
    assert_eq!(engine.stats().n_ids_used, 4);
    let next = run(&engine, continued(&prompt(1, 100), &first, 5)).remove(0);
    assert_eq!(next.finished.usage.n_cached, 104);
}

#[test]
fn a_prompt_is_not_compared_again_for_each_sequence_preempted_for_it() {
    let (engine, control) = start(limits(100, 14_000));
    run(&engine, greedy(&prompt(999, 2_000), 1));
    control.allow(Some(0));
    let batch: Vec<_> = (0..99).map(|seed| engine.submit(greedy(&prompt(seed, 50), 2_000), None).unwrap()).collect();
    step_until(&engine, &control, |stats| n_running(stats) == 99 && stats.n_predicted >= 99);
    let before = engine.stats().n_compared;
    let large = format!("{}{}", prompt(999, 2_000), prompt(998, 8_500));
    let large = engine.submit(with_priority(1, greedy(&large, 1)), None).unwrap();
    step(&engine, &control);
    step(&engine, &control);
    let stats = engine.stats();
    assert!(stats.n_preempted > 64, "{} gave way", stats.n_preempted);
    let n_compared = stats.n_compared - before;
    assert!(n_compared <= 8 * 2_000, "{n_compared} tokens were compared, of which 2,000 are known");
    control.allow(None);
    drop((batch, large));
}

#[test]
fn the_worker_does_not_sleep_while_its_only_sequence_shifts() {
    let (engine, control) = start(limits(1, 512));
    pin(&engine, &prompt(9, 200));
    let shift = ContextShift { n_keep: Some(100), n_discard: 4 };
    let request = Request { context_shift: Some(shift), ..greedy(&prompt(1, 100), 800) };
    let (started, before) = (Instant::now(), control.n_computed());
    run(&engine, request);
    let took = started.elapsed();
    assert!(control.n_computed() - before > 10_000, "it shifts often");
    assert!(took < Duration::from_millis(700), "{took:?} for {} steps", engine.stats().n_steps);
}

#[test]
fn a_preempted_save_of_an_uncached_prompt_saves_nothing() {
    for forks in [ForkRule::Anywhere, ForkRule::AtEnd] {
        let (engine, control) = start_with(limits(1, 256), move |runner| runner.with_memory(MemoryKind { forks, ..MEMORY }));
        control.allow(Some(0));
        let first = engine.submit(greedy(&prompt(1, 20), 2), None).unwrap();
        let save = engine.submit(task(&prompt(2, 20), Task::Save { computes: false }), None).unwrap();
        step_until(&engine, &control, |stats| stats.n_predicted == 1);
        // It gets the slot at the end of the step that is held, and loses it at the beginning of the next one.
        control.hold();
        let urgent = engine.submit(with_priority(9, greedy(&prompt(3, 20), 5)), None).unwrap();
        control.allow(None);
        let Some(TaskResult::Saved(saved)) = collect(save).unwrap().remove(0).finished.result.map(|made| *made) else {
            panic!("a save makes a saved prefix")
        };
        assert!(saved.tokens.is_empty());
        assert_eq!(engine.stats().n_preempted, 1);
        assert_eq!(collect(urgent).unwrap()[0].tokens, expected(&prompt(3, 20), 5));
        collect(first).unwrap();
    }
}
