//! Number of steps until the tokens of a request are published. Each step has one decode, so that a first token that is one
//! step late costs one more decode.

use super::*;
use crate::engine::{Fork, ForkDestination, ForkKind, ForkPoint};
use crate::request::{BeamSearch, Diversity};

const N_PROMPT: usize = 100;

fn text() -> String {
    prompt(1, N_PROMPT)
}

/// An engine with steps of maximum size; otherwise the first ones are small, while their cost is unknown.
fn warm((engine, control): (Engine, FakeControl)) -> (Engine, FakeControl) {
    run(&engine, greedy(&prompt(99, 400), 2));
    (engine, control)
}

/// Counts the decodes during `work`.
fn n_decodes<T>(control: &FakeControl, work: impl FnOnce() -> T) -> usize {
    let n_before = control.plans().len();
    work();
    control.plans().len() - n_before
}

/// Counts the decodes until both requests have ended, if the second arrives during the first decode of the first.
fn n_decodes_of_two(engine: &Engine, control: &FakeControl, first: Request, second: Request) -> usize {
    n_decodes(control, || {
        control.allow(Some(0));
        let first = engine.submit(first, None).unwrap();
        control.hold();
        let second = engine.submit(second, None).unwrap();
        control.allow(None);
        (collect(first).unwrap(), collect(second).unwrap())
    })
}

#[test]
fn the_first_token_is_sampled_in_the_step_that_computes_the_end_of_the_prompt() {
    let (engine, control) = warm(start(limits(2, 1024)));
    assert_eq!(n_decodes(&control, || run(&engine, greedy(&text(), 5))), 5);
    assert_eq!(n_decodes(&control, || run(&engine, greedy(&text(), 5))), 5, "its last token is computed again");
    let (engine, control) = warm(start(Limits { n_ubatch: 32, ..limits(2, 1024) }));
    assert_eq!(n_decodes(&control, || run(&engine, greedy(&text(), 5))), N_PROMPT.div_ceil(32) + 4);
}

#[test]
fn all_branches_sample_their_first_token_in_the_step_that_computes_the_end_of_their_prompt() {
    for n in [2, 8] {
        let (engine, control) = warm(start(limits(8, 4096)));
        assert_eq!(n_decodes(&control, || run(&engine, drawn(&text(), n, 5))), 5, "{n} branches");
    }
}

#[test]
fn branches_of_one_token_take_no_further_step_with_one_slot() {
    let (engine, control) = warm(start(limits(1, 4096)));
    assert_eq!(n_decodes(&control, || run(&engine, drawn(&text(), 50, 1))), 1);
}

#[test]
fn a_slot_that_becomes_free_is_filled_in_the_same_step() {
    let (engine, control) = warm(start(limits(1, 4096)));
    assert_eq!(n_decodes(&control, || run(&engine, drawn(&text(), 3, 5))), 5 + 2 * 4, "its prompt's logits are stored");
    let (first, second) = (greedy(&prompt(2, 50), 5), greedy(&prompt(3, 50), 5));
    assert_eq!(n_decodes_of_two(&engine, &control, first, second), 5 + 5);
}

#[test]
fn a_prompt_whose_logits_are_stored_is_not_decoded() {
    let (engine, control) = warm(start_recurrent(2, 1024));
    assert_eq!(n_decodes(&control, || run(&engine, greedy(&text(), 5))), 5);
    assert_eq!(n_decodes(&control, || run(&engine, greedy(&text(), 5))), 4);
    assert_eq!(n_decodes(&control, || run(&engine, greedy(&text(), 1))), 0);
}

#[test]
fn an_offloaded_prefix_is_reloaded_without_an_extra_step() {
    let (engine, control) = warm(start_with_host_cache(1, 512));
    let mut first = run(&engine, greedy(&text(), 5));
    run(&engine, greedy(&prompt(2, 450), 5));
    wait_until(&engine, |stats| stats.host_cache.n_offloaded > 0);
    let next = continued(&text(), &first.remove(0), 5);
    assert_eq!(n_decodes(&control, || run(&engine, next)), 5);
    assert!(engine.stats().n_reloaded > 0);
}

#[test]
fn a_prompt_that_another_sequence_computes_is_not_a_step_behind() {
    let (engine, control) = warm(start(limits(2, 1024)));
    // The second arrives during the decode that computes the prompt for both, and computes the last token again in the next
    // one.
    assert_eq!(n_decodes_of_two(&engine, &control, greedy(&text(), 5), greedy(&text(), 5)), 6);
    // In chunks: it waits until all but the last token is computed.
    let (engine, control) = warm(start(Limits { n_ubatch: 32, ..limits(2, 1024) }));
    assert_eq!(n_decodes_of_two(&engine, &control, greedy(&text(), 5), greedy(&text(), 5)), N_PROMPT.div_ceil(32) + 5);
}

// feature: forks
#[test]
fn a_fork_at_the_end_of_a_branch_samples_in_the_same_step_as_the_branch() {
    let (engine, control) = warm(start(limits(4, 1024)));
    control.allow(Some(0));
    let stream = engine.submit(greedy(&text(), 6), None).unwrap();
    let n_before = engine.stats().n_predicted;
    step_until(&engine, &control, |stats| stats.n_predicted == n_before + 2);
    control.hold();
    let fork = Fork {
        branch: 0,
        at: ForkPoint::End,
        append: Vec::new(),
        kind: ForkKind::Continue(2),
        destination: ForkDestination::SameStream,
    };
    let pending = stream.request_fork(fork, None).unwrap();
    let n = n_decodes(&control, || {
        control.allow(None);
        collect(stream).unwrap()
    });
    assert_eq!(pending.take().unwrap().unwrap().n_sampled, 3, "it was forked during the third decode");
    assert_eq!(
        n, 7,
        "the third decode, and one for each of the six tokens of the fork, which begin beside the fourth of the branch"
    );
}

// feature: beams
#[test]
fn a_search_takes_a_step_for_each_token() {
    let (engine, control) = warm(start_with(limits(4, 1024), FakeRunner::without_end));
    let search = BeamSearch { width: 4, length_penalty: 1.0, is_stochastic: false };
    let mut request = Request { diversity: Diversity::Beams(search), ..drawn(&text(), 4, 5) };
    (request.sampling.top_k, request.sampling.top_p, request.sampling.min_p) = (0, 1.0, 0.0);
    assert_eq!(n_decodes(&control, || run(&engine, request)), 5);
}

#[test]
fn a_preempted_sequence_continues_in_the_step_that_frees_its_slot() {
    let (engine, control) = warm(start_with_host_cache(1, 1024));
    let urgent = Request { priority: 1, ..greedy(&prompt(2, 50), 5) };
    assert_eq!(n_decodes_of_two(&engine, &control, greedy(&text(), 10), urgent), 10 + 5);
    assert_eq!(engine.stats().n_preempted, 1);
}
