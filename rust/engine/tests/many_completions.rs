//! Requests with several completions.

use super::*;

fn n_computed(branches: &[BranchState]) -> Vec<u32> {
    branches.iter().map(|branch| branch.finished.usage.n_prompt_computed).collect()
}

#[test]
fn eight_completions_compute_their_prompt_once() {
    let (engine, control) = start(limits(8, 4096));
    let branches = run(&engine, drawn(&prompt(1, 200), 8, 10));
    // The last token of each branch is sampled and never computed.
    assert_eq!(control.n_computed(), 200 + 8 * 9);
    assert_eq!(n_computed(&branches), [200, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(engine.stats().n_computed, 200);
}

#[test]
fn completions_beyond_the_slots_start_without_prefill() {
    let (engine, control) = start(limits(4, 4096));
    let branches = run(&engine, drawn(&prompt(1, 200), 32, 10));
    assert_eq!(control.n_computed(), 200 + 32 * 9);
    assert_eq!(branches.len(), 32);
    assert_eq!(n_computed(&branches).iter().sum::<u32>(), 200);
}

#[test]
fn a_prompt_too_short_to_share_across_requests_is_still_computed_once_for_its_own_branches() {
    let (engine, control) = start(limits(2, 256));
    run(&engine, drawn("hi", 7, 5));
    assert_eq!(control.n_computed(), 2 + 7 * 4);
}

#[test]
fn an_evicted_prompt_is_computed_again_once_for_all_branches() {
    for n_prompt in [8, 200] {
        let (engine, _) = start_with_host_cache(8, 4096);
        let again = || n_computed(&run(&engine, drawn(&prompt(1, n_prompt), 8, 10)));
        assert_eq!(again(), [u32::try_from(n_prompt).unwrap(), 0, 0, 0, 0, 0, 0, 0]);
        for _ in 0..2 {
            wait_until(&engine, |stats| stats.n_cells_used == 0);
            let expected = if n_prompt == 8 { 8 } else { 1 };
            assert_eq!(again(), [expected, 0, 0, 0, 0, 0, 0, 0], "a prompt of {n_prompt}");
        }
    }
}

#[test]
fn each_branch_samples_with_its_own_seed() {
    let (engine, _) = start(limits(8, 4096));
    let mut request = drawn(&prompt(1, 50), 4, 20);
    request.seed = 7;
    let together = run(&engine, request.clone());
    for (index, branch) in together.iter().enumerate() {
        let mut alone = request.clone();
        alone.n = 1;
        alone.seed = 7 + u32::try_from(index).unwrap();
        assert_eq!(run(&engine, alone)[0].tokens, branch.tokens, "branch {index}");
    }
    let mut texts: Vec<_> = together.iter().map(|branch| &branch.text).collect();
    texts.dedup();
    assert_eq!(texts.len(), 4, "and they differ");
}

#[test]
fn the_seed_wraps_around() {
    let (engine, _) = start(limits(8, 4096));
    let mut request = drawn(&prompt(1, 50), 2, 20);
    request.seed = u32::MAX;
    let wrapped = run(&engine, request)[1].tokens.clone();
    assert_eq!(run(&engine, drawn(&prompt(1, 50), 1, 20))[0].tokens, wrapped);
}

#[test]
fn every_branch_counts_the_whole_prompt_as_computed_or_cached() {
    let (engine, _) = start(limits(3, 4096));
    for branch in run(&engine, drawn(&prompt(2, 100), 8, 3)) {
        let usage = branch.finished.usage;
        assert_eq!(usage.n_prompt_computed + usage.n_cached, 100);
        assert_eq!(usage.n_predicted, 3);
    }
}

#[test]
fn without_tokens_to_predict_the_prompt_is_only_computed() {
    let (engine, control) = start(limits(2, 256));
    let branches = run(&engine, drawn(&prompt(1, 30), 3, 0));
    assert_eq!(control.n_computed(), 30);
    assert_eq!(reasons(&branches), vec![FinishReason::Length; 3]);
    assert!(branches.iter().all(|branch| branch.tokens.is_empty()));
}
