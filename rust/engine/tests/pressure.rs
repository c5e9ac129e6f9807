//! Requests that do not fit the device cache together.

use super::*;

#[test]
fn a_prompt_that_fills_the_context_is_refused_with_both_numbers() {
    let (engine, _) = start(limits(1, 256));
    let refused = engine.submit(greedy(&prompt(1, 256), 1), None).err();
    assert_eq!(refused, Some(Error::ContextOverflow { n_prompt: 256, n_ctx: 256 }));
    assert_eq!(run(&engine, greedy(&prompt(1, 255), 9))[0].tokens.len(), 1);
}

#[test]
fn prompt_and_prediction_together_reach_exactly_the_context() {
    let (engine, _) = start(limits(1, 256));
    for max_tokens in [None, Some(1_000)] {
        let mut request = greedy(&prompt(1, 100), 0);
        request.max_tokens = max_tokens;
        let branches = run(&engine, request);
        assert_eq!(branches[0].tokens, expected(&prompt(1, 100), 156));
        assert_eq!(reasons(&branches), [FinishReason::ContextFull]);
    }
}

#[test]
fn eight_sequences_that_each_grow_to_the_whole_pool_all_end_well() {
    let (engine, control) = start(limits(8, 256));
    control.allow(Some(0));
    let streams: Vec<_> = (0..8).map(|seed| engine.submit(greedy(&prompt(seed, 20), 1_000), None).unwrap()).collect();
    control.allow(None);
    for (seed, stream) in (0..).zip(streams) {
        let branches = collect(stream).unwrap();
        assert_eq!(branches[0].tokens, expected(&prompt(seed, 20), 236), "sequence {seed}");
        assert_eq!(reasons(&branches), [FinishReason::ContextFull]);
    }
    let stats = settled(&engine, &control);
    assert!(stats.n_preempted > 0, "they did not fit together");
}

#[test]
fn eight_branches_that_each_grow_to_the_whole_pool_all_end_well() {
    let (engine, _) = start(limits(8, 256));
    let branches = run(&engine, drawn(&prompt(1, 20), 8, 1_000));
    assert!(branches.iter().all(|branch| branch.tokens.len() == 236));
}

#[test]
fn a_preempted_sequence_generates_the_same_text() {
    let (engine, control) = start(limits(4, 256));
    control.allow(Some(0));
    let requests: Vec<_> = (0..4).map(|seed| drawn(&prompt(seed, 50), 1, 150)).collect();
    let streams: Vec<_> = requests.iter().map(|request| engine.submit(request.clone(), None).unwrap()).collect();
    control.allow(None);
    let together: Vec<_> = streams.into_iter().map(|stream| collect(stream).unwrap().remove(0).tokens).collect();
    assert!(engine.stats().n_preempted > 0, "they did not fit together");
    for (request, tokens) in requests.into_iter().zip(together) {
        assert_eq!(run(&engine, request)[0].tokens, tokens);
    }
}

#[test]
fn two_sequences_that_do_not_fit_together_alternate() {
    let (engine, control) = start(limits(2, 256));
    control.allow(Some(0));
    let streams: Vec<_> = (0..2).map(|seed| engine.submit(greedy(&prompt(seed, 50), 150), None).unwrap()).collect();
    control.allow(None);
    for (seed, stream) in (0..).zip(streams) {
        assert_eq!(collect(stream).unwrap()[0].tokens, expected(&prompt(seed, 50), 150));
    }
    assert_eq!(engine.stats().n_preempted, 1, "the younger gave way once");
    assert!(control.n_computed() <= 4 * 200, "and computed again what it had, no more");
}

#[test]
fn a_preempted_request_is_not_overtaken() {
    let (engine, control) = start(limits(3, 256));
    control.allow(Some(0));
    let old: Vec<_> = (0..2).map(|seed| engine.submit(greedy(&prompt(seed, 50), 150), None).unwrap()).collect();
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while engine.stats().n_preempted == 0 {
        assert!(std::time::Instant::now() < deadline, "nobody gives way");
        control.allow(Some(1));
    }
    let young = engine.submit(greedy(&prompt(9, 20), 3), None).unwrap();
    control.allow(None);
    assert_eq!(collect(young).unwrap()[0].tokens, expected(&prompt(9, 20), 3));
    let n_left: Vec<_> = engine.stats().slots.iter().flat_map(|slot| &slot.running).map(|running| running.request_id).collect();
    assert!(!n_left.contains(&0), "the oldest had ended before: {n_left:?}");
    for stream in old {
        collect(stream).unwrap();
    }
}

#[test]
fn a_full_queue_refuses_requests_with_its_length() {
    let mut limits = limits(1, 256);
    limits.max_queue = 3;
    let (engine, control) = start(limits);
    control.allow(Some(2));
    let running = engine.submit(greedy(&prompt(0, 20), 50), None).unwrap();
    wait_until(&engine, |stats| stats.n_waiting == 0);
    let waiting: Vec<_> = (1..4).map(|seed| engine.submit(greedy(&prompt(seed, 20), 5), None).unwrap()).collect();
    assert_eq!(engine.submit(greedy(&prompt(4, 20), 5), None).err(), Some(Error::QueueFull { n_waiting: 3, unit: "requests" }));
    control.allow(None);
    collect(running).unwrap();
    for stream in waiting {
        collect(stream).unwrap();
    }
    run(&engine, greedy(&prompt(5, 20), 5));
}

#[test]
fn running_streams_get_a_token_in_every_step_during_a_long_prompt() {
    let (engine, control) = start(limits(2, 4096));
    control.allow(Some(5));
    let stream = engine.submit(greedy(&prompt(1, 20), 400), None).unwrap();
    wait_until(&engine, |stats| stats.n_decodes == 5);
    let long = engine.submit(greedy(&prompt(2, 2_000), 1), None).unwrap();
    control.allow(None);
    collect(long).unwrap();
    collect(stream).unwrap();
    let mixed = control.plans().into_iter().filter(|plan| plan.rows.len() > 1);
    assert!(mixed.skip(1).all(|plan| plan.rows.iter().any(|row| row.sequence == plan.rows[0].sequence && row.wants_logits)));
}
