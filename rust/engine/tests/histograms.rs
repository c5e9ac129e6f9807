//! Histograms count the branches of requests, in slots of their own or not.

use super::*;

#[test]
fn each_branch_is_counted_once_and_each_token_after_its_first() {
    let (engine, _) = start(limits(2, 4096));
    run(&engine, Request { n: 4, ..greedy(&prompt(1, 20), 5) });
    run(&engine, greedy(&prompt(2, 30), 1));
    let histograms = wait_until(&engine, is_idle).histograms;
    assert_eq!(histograms.queue_time.n(), 5);
    assert_eq!(histograms.time_to_first_token.n(), 5);
    assert_eq!(histograms.inter_token_latency.n(), 4 * 4);
    assert_eq!(histograms.end_to_end_latency.n(), 5);
    assert_eq!((histograms.prompt_tokens.n(), histograms.prompt_tokens.sum()), (5, 4 * 20 + 30));
    assert_eq!((histograms.generation_tokens.n(), histograms.generation_tokens.sum()), (5, 4 * 5 + 1));
    assert!(histograms.end_to_end_latency.sum() >= histograms.time_to_first_token.sum());
}

#[test]
fn waiting_for_a_slot_is_part_of_the_time_to_the_first_token() {
    let (engine, control) = start(limits(1, 4096));
    control.allow(Some(0));
    let streams: Vec<Completions> = (0..3).map(|seed| engine.submit(greedy(&prompt(seed, 20), 4), None).unwrap()).collect();
    control.allow(None);
    for stream in streams {
        collect(stream).unwrap();
    }
    let histograms = wait_until(&engine, is_idle).histograms;
    assert_eq!((histograms.queue_time.n(), histograms.time_to_first_token.n()), (3, 3));
    assert!(histograms.time_to_first_token.sum() >= histograms.queue_time.sum());
}

#[test]
fn cancelled_branches_and_prompts_without_answers_are_not_finished_requests() {
    let (engine, control) = start(limits(1, 4096));
    let stream = engine.submit(greedy(&prompt(1, 20), 1_000), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted > 2);
    drop(stream);
    control.allow(None);
    let histograms = wait_until(&engine, is_idle).histograms;
    assert_eq!((histograms.time_to_first_token.n(), histograms.end_to_end_latency.n()), (1, 0));
    run(&engine, Request { task: Task::Save { computes: true }, ..greedy(&prompt(3, 20), 0) });
    let histograms = wait_until(&engine, is_idle).histograms;
    assert_eq!((histograms.queue_time.n(), histograms.end_to_end_latency.n()), (1, 0));
}
