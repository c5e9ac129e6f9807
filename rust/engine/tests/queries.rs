//! Queries of the cache while streams are running: how many of them a step answers.

use std::sync::mpsc::{Receiver, sync_channel};

use super::*;
use crate::engine::queries::{MAX_EXCESS_STEPS, Query, WORK_PER_ANSWER, WORK_PER_STEP};
use crate::engine::worker::Command;

/// Creates an engine whose prefix tree has `n` nodes, and a stream whose next decode is held.
fn with_tree_of(n: usize) -> (Engine, FakeControl, Completions) {
    let (engine, control) = start_with_host_cache(2, 4096);
    for seed in 0..n {
        run(&engine, greedy(&prompt(1 + seed as u64, 20), 1));
    }
    control.allow(Some(0));
    let stream = engine.submit(greedy(&prompt(0, 30), 2_000), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted > n as u64);
    control.hold();
    (engine, control, stream)
}

/// Sends a query without waiting for the answer.
fn ask<T>(engine: &Engine, query: impl FnOnce(std::sync::mpsc::SyncSender<T>) -> Query) -> Receiver<T> {
    let (answer, answered) = sync_channel(1);
    engine.inner.commands.send(Command::Ask(query(answer))).expect("the worker runs");
    answered
}

/// Lets one decode run and the next one begin; the stream has one token more.
fn step_stream(engine: &Engine, control: &FakeControl) {
    let n_predicted = engine.stats().n_predicted;
    step(engine, control);
    control.hold();
    assert_eq!(engine.stats().n_predicted, n_predicted + 1, "the stream continues in each step");
}

#[test]
fn a_step_answers_a_bounded_number_of_queries_in_order() {
    let (engine, control, stream) = with_tree_of(100);
    let asked: Vec<_> = (0..100).map(|_| ask(&engine, |answer| Query::RecentlyUsed(1, answer))).collect();
    let later = ask(&engine, Query::Pinned);
    let n_per_step = WORK_PER_STEP / WORK_PER_ANSWER;
    for some in asked.chunks(n_per_step) {
        assert!(some.iter().all(|answered| answered.try_recv().is_err()), "too early");
        step_stream(&engine, &control);
        for answered in some {
            let (nodes, n_nodes) = answered.try_recv().expect("it is its turn");
            assert!((nodes.len(), n_nodes) >= (1, 100));
        }
    }
    step_stream(&engine, &control);
    assert_eq!(later.try_recv(), Ok(Vec::new()));
    drop(stream);
    control.allow(None);
}

#[test]
fn an_expensive_answer_is_compensated_before_the_next_one() {
    let (engine, control, stream) = with_tree_of(2 * WORK_PER_STEP);
    let asked: Vec<_> = (0..3).map(|_| ask(&engine, Query::Cached)).collect();
    let (mut answered_at, mut n_nodes) = (Vec::new(), 0);
    for nth_step in 0..24 {
        step_stream(&engine, &control);
        for nodes in asked.iter().filter_map(|answered| answered.try_recv().ok()) {
            n_nodes = nodes.len();
            answered_at.push(nth_step);
        }
    }
    // Each takes the work of some steps, and the next one waits for as many.
    let n_steps = n_nodes / WORK_PER_STEP;
    assert!((2..8).contains(&n_steps), "{n_nodes} nodes");
    let pauses: Vec<usize> = answered_at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!((answered_at[0], pauses.len()), (0, 2));
    assert!(pauses.iter().all(|pause| (n_steps..n_steps + 2).contains(pause)), "{pauses:?} for {n_nodes} nodes");
    // Commands do not wait behind queries.
    let asked: Vec<_> = (0..40).map(|_| ask(&engine, Query::Cached)).collect();
    let other = engine.submit(greedy(&prompt(5_000, 30), 1), None).unwrap();
    for _ in 0..5 {
        step_stream_among_others(&engine, &control);
    }
    assert!(asked.iter().filter(|answered| answered.try_recv().is_ok()).count() < 4);
    assert_eq!(other.count(), 2);
    drop(stream);
    // Without requests, all are answered.
    control.allow(None);
    assert!(asked[4..].iter().all(|answered| answered.recv().is_ok()));
}

/// As [`step_stream`], while other requests run.
fn step_stream_among_others(engine: &Engine, control: &FakeControl) {
    step(engine, control);
    control.hold();
}

#[test]
fn the_work_that_an_answer_owes_is_bounded() {
    let mut queries = crate::engine::queries::QueryQueue::default();
    let n_left = queries.take_budget();
    assert_eq!((n_left, queries.spend(n_left, usize::MAX / 2)), (WORK_PER_STEP, 0));
    for _ in 0..MAX_EXCESS_STEPS {
        assert_eq!(queries.take_budget(), 0);
    }
    assert_eq!(queries.take_budget(), WORK_PER_STEP);
}
