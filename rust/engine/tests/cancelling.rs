//! Cancelled branches, closed streams and a stopped engine.

use super::*;
use crate::engine::ReadyEvents;

#[test]
fn a_dropped_stream_frees_its_slots_before_the_next_decode() {
    let (engine, control) = start(limits(4, 4096));
    control.allow(Some(10));
    let stream = engine.submit(drawn(&prompt(1, 20), 4, 1_000), None).unwrap();
    wait_until(&engine, |stats| stats.n_decodes == 10);
    drop(stream);
    control.allow(None);
    wait_until(&engine, is_idle);
    assert!(control.plans().len() <= 11, "at most the decode that was about to run");
}

#[test]
fn a_stream_dropped_during_a_long_prefill_stops_at_its_chunk() {
    let mut limits = limits(1, 4096);
    limits.n_ubatch = 64;
    let (engine, control) = start(limits);
    control.allow(Some(2));
    let stream = engine.submit(greedy(&prompt(1, 2_000), 5), None).unwrap();
    wait_until(&engine, |stats| stats.n_decodes == 2);
    drop(stream);
    control.allow(None);
    wait_until(&engine, is_idle);
    assert!(control.n_computed() <= 3 * 64);
    assert_eq!(run(&engine, greedy(&prompt(1, 2_000), 5))[0].tokens, expected(&prompt(1, 2_000), 5));
}

#[test]
fn a_waiting_request_that_is_dropped_leaves_the_queue() {
    let (engine, control) = start(limits(1, 256));
    control.allow(Some(0));
    let running = engine.submit(greedy(&prompt(1, 20), 5), None).unwrap();
    let waiting = engine.submit(greedy(&prompt(2, 20), 5), None).unwrap();
    drop(waiting);
    control.allow(None);
    collect(running).unwrap();
    wait_until(&engine, is_idle);
    assert_eq!(engine.stats().n_predicted, 5);
}

#[test]
fn many_readers_that_leave_at_random_release_everything() {
    let (engine, control) = start(paced(4, 1024));
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0..50 {
                    let seed = thread * 50 + round;
                    let stream = engine.submit(drawn(&prompt(seed % 9, 100), 3, 40), None).unwrap();
                    let n_read = usize::try_from(seed % 60).unwrap();
                    assert!(stream.take(n_read).all(|event| event.is_ok()));
                }
            });
        }
    });
    settled(&engine, &control);
}

#[test]
fn a_closed_stream_has_ended() {
    let (engine, control) = start(limits(1, 256));
    control.allow(Some(3));
    let stream = engine.submit(greedy(&prompt(1, 20), 100), None).unwrap();
    wait_until(&engine, |stats| stats.n_decodes == 3);
    stream.close();
    assert_eq!(stream.try_events(1), Ok(ReadyEvents::Ended));
    control.allow(None);
    wait_until(&engine, is_idle);
}

#[test]
fn stopping_the_engine_ends_every_stream_with_an_error() {
    let (engine, control) = start(limits(1, 4096));
    control.allow(Some(3));
    let running = engine.submit(greedy(&prompt(1, 20), 4_000), None).unwrap();
    let waiting = engine.submit(greedy(&prompt(2, 20), 100), None).unwrap();
    wait_until(&engine, |stats| stats.n_decodes == 3);
    answer_while_held(&control, || engine.stop());
    assert_eq!(collect(running), Err(Error::Stopped));
    assert_eq!(collect(waiting), Err(Error::Stopped));
    assert_eq!(engine.submit(greedy(&prompt(1, 20), 1), None).err(), Some(Error::Stopped));
    assert!(!engine.is_running());
}

#[test]
fn a_stopped_engine_does_not_report_a_full_queue() {
    let mut limits = limits(1, 4096);
    limits.max_queue = 2;
    let (engine, control) = start(limits);
    control.allow(Some(1));
    let streams: Vec<_> = (0..2).map(|seed| engine.submit(greedy(&prompt(seed, 20), 4_000), None).unwrap()).collect();
    let stopper = std::thread::spawn({
        let engine = engine.clone();
        move || engine.stop()
    });
    let mut patience = Duration::from_millis(1);
    while !stopper.is_finished() {
        std::thread::sleep(patience);
        control.allow(Some(1));
        patience *= 2;
    }
    for _ in 0..5 {
        assert_eq!(engine.submit(greedy(&prompt(9, 20), 1), None).err(), Some(Error::Stopped));
    }
    drop(streams);
}

#[test]
fn every_thread_that_waits_for_a_stream_receives_events() {
    let (engine, _) = start(limits(8, 4096));
    let stream = engine.submit(drawn(&prompt(1, 20), 8, 200), None).unwrap();
    let n_read: usize = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4).map(|_| scope.spawn(|| std::iter::from_fn(|| stream.wait()).count())).collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert_eq!(n_read, 8 * 201);
}
