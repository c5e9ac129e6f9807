//! Slow consumers are waited for, without delaying other streams.

use super::*;
use crate::engine::{MAX_BYTES_BEHIND, MAX_EVENTS_BEHIND, ReadyEvents};
use crate::fake_runner::N_VOCAB;

/// More tokens than may be unread.
const LONG: u32 = 10_500;

/// One event more than may be unread.
const TOO_MANY: u64 = MAX_EVENTS_BEHIND as u64 + 1;

fn start_long(n_slots: u32, slow_consumer_timeout: Duration) -> Engine {
    let limits = Limits { slow_consumer_timeout, ..limits(n_slots, 16_384) };
    start_with(limits, FakeRunner::without_record).0
}

/// A stream whose unread events exceed the limit in bytes long before the limit in number.
fn with_probabilities() -> Request {
    let mut request = greedy(&prompt(1, 20), LONG);
    request.sampling.logprobs = Some(u32::try_from(N_VOCAB).unwrap());
    request
}

/// Waits until the worker has had nothing to do for a while.
fn wait_for_sleeps(engine: &Engine) {
    let n_idle = |stats: &Stats| stats.n_steps - stats.n_decodes;
    let before = n_idle(&engine.stats());
    wait_until(engine, |stats| n_idle(stats) > before + 3);
}

#[test]
fn a_stream_pauses_until_its_reader_has_caught_up_and_loses_nothing() {
    let engine = start_long(1, SLOW_CONSUMER_TIMEOUT);
    let stream = engine.submit(greedy(&prompt(1, 20), LONG), None).unwrap();
    wait_for_sleeps(&engine);
    assert_eq!(engine.stats().n_predicted, TOO_MANY);
    let branch = collect(stream).unwrap().remove(0);
    assert_eq!(branch.tokens.len(), LONG as usize);
    assert_eq!(branch.finished.reason, FinishReason::Length);
}

#[test]
fn unread_bytes_are_limited_too() {
    let engine = start_long(1, SLOW_CONSUMER_TIMEOUT);
    let stream = engine.submit(with_probabilities(), None).unwrap();
    wait_for_sleeps(&engine);
    let ReadyEvents::Events(events) = stream.try_events(usize::MAX).unwrap() else { panic!("nothing was told") };
    let n_bytes: usize = events.iter().map(Event::n_bytes).sum();
    assert!(events.len() < MAX_EVENTS_BEHIND);
    assert!((MAX_BYTES_BEHIND..MAX_BYTES_BEHIND + 32_768).contains(&n_bytes), "{n_bytes} bytes waited");
    let n_more: usize = stream.map(|event| usize::from(matches!(event.unwrap(), Event::Token(_)))).sum();
    assert_eq!(events.len() + n_more, LONG as usize);
}

#[test]
fn other_streams_continue_while_one_is_held_back() {
    let engine = start_long(2, SLOW_CONSUMER_TIMEOUT);
    let held = engine.submit(with_probabilities(), None).unwrap();
    wait_for_sleeps(&engine);
    let before = engine.stats().n_predicted;
    for seed in 2..5 {
        run(&engine, greedy(&prompt(seed, 20), 500));
    }
    assert_eq!(engine.stats().n_predicted, before + 3 * 500);
    drop(held);
    wait_until(&engine, is_idle);
}

#[test]
fn the_worker_sleeps_while_it_only_waits_for_readers() {
    let engine = start_long(1, SLOW_CONSUMER_TIMEOUT);
    let held = engine.submit(with_probabilities(), None).unwrap();
    wait_for_sleeps(&engine);
    let (started, n_steps) = (Instant::now(), engine.stats().n_steps);
    wait_for_sleeps(&engine);
    let n_more = engine.stats().n_steps - n_steps;
    // A worker that does not sleep makes more in a millisecond.
    assert!(u128::from(n_more) <= 4 + started.elapsed().as_millis() / 10, "more than one step in ten milliseconds");
    drop(held);
}

#[test]
fn a_reader_that_reads_nothing_eventually_gets_an_error() {
    let engine = start_long(1, Duration::ZERO);
    let stream = engine.submit(greedy(&prompt(1, 20), LONG), None).unwrap();
    wait_until(&engine, is_idle);
    let (n_behind, limit) = (MAX_EVENTS_BEHIND + 1, MAX_EVENTS_BEHIND);
    let events: Vec<_> = stream.collect();
    assert_eq!(events.len(), n_behind + 1);
    assert_eq!(events.last(), Some(&Err(Error::SlowConsumer { n_behind, limit, unit: "events" })));
    run(&engine, greedy(&prompt(2, 20), 5));
}

#[test]
fn the_error_names_the_unit_of_the_exceeded_limit() {
    let engine = start_long(1, Duration::ZERO);
    let stream = engine.submit(with_probabilities(), None).unwrap();
    wait_until(&engine, is_idle);
    let (events, errors): (Vec<_>, Vec<_>) = stream.partition(Result::is_ok);
    let n_behind = events.into_iter().flatten().map(|event| event.n_bytes()).sum();
    assert_eq!(errors, [Err(Error::SlowConsumer { n_behind, limit: MAX_BYTES_BEHIND, unit: "bytes" })]);
}
