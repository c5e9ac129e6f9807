//! Priorities.

use super::*;
use crate::engine::runner::Row;

fn with_priority(priority: i32, request: Request) -> Request {
    Request { priority, ..request }
}

fn runs(stats: &Stats, request_id: u64) -> bool {
    stats.slots.iter().flat_map(|slot| &slot.running).any(|running| running.request_id == request_id)
}

#[test]
fn the_waiting_request_of_the_highest_priority_starts_first() {
    let (engine, control) = start(limits(1, 4096));
    control.allow(Some(0));
    let first = engine.submit(with_priority(5, greedy(&prompt(1, 20), 5)), None).unwrap();
    let batch: Vec<_> =
        (2..6).map(|seed| engine.submit(with_priority(-3, greedy(&prompt(seed, 20), 5)), None).unwrap()).collect();
    let normal = engine.submit(greedy(&prompt(7, 20), 5), None).unwrap();
    let stats = step_until(&engine, &control, |stats| !runs(stats, 0) && stats.n_predicted > 0);
    assert!(runs(&stats, normal.request_id()), "{stats:?}");
    control.allow(None);
    for stream in batch.into_iter().chain([first, normal]) {
        collect(stream).unwrap();
    }
}

#[test]
fn a_sequence_preempted_by_a_higher_priority_resumes_without_computing_anything_again() {
    for engine in [start(limits(2, 4096)), start_with_host_cache(2, 4096)] {
        let (engine, control) = engine;
        control.allow(Some(0));
        let batch: Vec<_> =
            (0..2).map(|seed| engine.submit(with_priority(-1, greedy(&prompt(seed, 50), 40)), None).unwrap()).collect();
        step_until(&engine, &control, |stats| stats.n_predicted >= 10);
        let chat = engine.submit(greedy(&prompt(9, 30), 3), None).unwrap();
        step(&engine, &control);
        step(&engine, &control);
        let stats = engine.stats();
        assert!(runs(&stats, 2) && runs(&stats, 0) && stats.n_preempted == 1, "{stats:?}");
        control.allow(None);
        assert_eq!(collect(chat).unwrap()[0].tokens, expected(&prompt(9, 30), 3));
        for (seed, stream) in (0..).zip(batch) {
            assert_eq!(collect(stream).unwrap()[0].tokens, expected(&prompt(seed, 50), 40));
        }
        // Every token but the last of each is computed once.
        assert_eq!(control.n_computed(), 2 * (50 + 39) + 30 + 2);
    }
}

#[test]
fn equal_priorities_never_take_a_slot_from_each_other() {
    let (engine, control) = start(limits(1, 4096));
    control.allow(Some(0));
    let first = engine.submit(with_priority(2, greedy(&prompt(1, 20), 30)), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted >= 3);
    let other = engine.submit(with_priority(2, greedy(&prompt(2, 20), 3)), None).unwrap();
    control.allow(None);
    collect(first).unwrap();
    collect(other).unwrap();
    assert_eq!(engine.stats().n_preempted, 0);
}

#[test]
fn a_higher_priority_also_gets_cells_of_lower_ones() {
    let (engine, control) = start(limits(4, 512));
    control.allow(Some(0));
    let batch: Vec<_> =
        (0..2).map(|seed| engine.submit(with_priority(-1, greedy(&prompt(seed, 150), 60)), None).unwrap()).collect();
    step_until(&engine, &control, |stats| stats.n_predicted >= 4);
    let chat = engine.submit(greedy(&prompt(9, 200), 3), None).unwrap();
    step(&engine, &control);
    step(&engine, &control);
    assert!(runs(&engine.stats(), 2), "{:?}", engine.stats());
    control.allow(None);
    assert_eq!(collect(chat).unwrap()[0].tokens, expected(&prompt(9, 200), 3));
    for (seed, stream) in (0..).zip(batch) {
        assert_eq!(collect(stream).unwrap()[0].tokens, expected(&prompt(seed, 150), 60));
    }
}

#[test]
fn the_prompt_of_a_higher_priority_is_computed_first() {
    let (engine, control) = start(Limits { n_ubatch: 64, ..limits(4, 8192) });
    control.allow(Some(0));
    let batch = engine.submit(with_priority(-1, greedy(&prompt(1, 2_000), 3)), None).unwrap();
    step(&engine, &control);
    let chat = engine.submit(greedy(&prompt(2, 150), 3), None).unwrap();
    let n_steps = engine.stats().n_decodes;
    let stats = step_until(&engine, &control, |stats| stats.n_predicted > 0);
    assert!(stats.n_decodes - n_steps <= 5, "{} decodes for 150 tokens of 64 at most each", stats.n_decodes - n_steps);
    control.allow(None);
    drop((batch, chat));
}

/// Returns how many tokens of lower-priority streams, which together would slow it down, are computed during a chat.
fn n_computed_during_a_chat() -> usize {
    let (engine, control) = start(limits(16, 8192));
    control.slow_rows(Duration::from_micros(300));
    let batch: Vec<_> =
        (0..12).map(|seed| engine.submit(with_priority(-1, greedy(&prompt(seed, 8), 40)), None).unwrap()).collect();
    let chat = engine.submit(greedy(&prompt(90, 8), 60), None).unwrap();
    assert_eq!(collect(chat).unwrap()[0].tokens, expected(&prompt(90, 8), 60));
    for (seed, stream) in (0..).zip(batch) {
        assert_eq!(collect(stream).unwrap()[0].tokens, expected(&prompt(seed, 8), 40));
    }
    assert_eq!(control.n_computed(), 13 * 8 + 12 * 39 + 59, "nothing is computed twice");
    let (plans, asked) = (control.plans(), tokens_of(&prompt(90, 8)));
    let of_chat = |rows: &[Row]| rows.iter().map(|row| row.token).eq(asked.iter().copied()).then(|| rows[0].sequence);
    let chat = plans.iter().find_map(|plan| plan.rows.windows(8).find_map(of_chat)).expect("its prompt is computed at once");
    let with_chat = plans.iter().filter(|plan| plan.rows.iter().any(|row| row.sequence == chat));
    with_chat.flat_map(|plan| &plan.rows).filter(|row| row.sequence != chat).count()
}

#[test]
fn streams_of_a_lower_priority_yield_in_rotation_if_they_would_slow_down_a_higher_one() {
    // Otherwise the chat would have waited for nearly all of them in each of its first 40 steps. On a busy machine a row may
    // seem to cost nothing: it is tried again.
    let n_beside = || (0..5).map(|_| n_computed_during_a_chat()).find(|&n| n < 59 * 6);
    assert!(n_beside().is_some(), "the batch is computed beside the chat");
}

#[test]
fn a_priority_out_of_range_is_refused() {
    let (engine, _) = start(limits(1, 256));
    for priority in [101, -101, i32::MIN] {
        let refused = engine.submit(with_priority(priority, greedy("text", 1)), None).err();
        assert!(matches!(refused, Some(Error::InvalidRequest { param: "priority", .. })), "{priority}: {refused:?}");
    }
    for gap in [Duration::ZERO, Duration::from_secs(61)] {
        let refused = engine.submit(Request { max_token_gap: Some(gap), ..greedy("text", 1) }, None).err();
        assert!(matches!(refused, Some(Error::InvalidRequest { param: "max_token_gap_ms", .. })), "{gap:?}: {refused:?}");
    }
}
