use super::*;
use crate::engine::Ready;

fn n_computed(branches: &[Branch]) -> Vec<u32> {
    branches.iter().map(|branch| branch.finished.usage.n_computed).collect()
}

#[test]
fn eight_completions_compute_their_prompt_once() {
    let (engine, control) = start(limits(8, 4096));
    let branches = run(&engine, drawn(&prompt(1, 200), 8, 10));
    // The last token of each branch is drawn and never computed.
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
fn each_branch_draws_from_its_own_seed() {
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
        assert_eq!(usage.n_computed + usage.n_cached, 100);
        assert_eq!(usage.n_predicted, 3);
    }
}

#[test]
fn a_request_for_one_gets_the_next_slot_while_one_for_many_runs() {
    let (engine, control) = start(limits(2, 4096));
    control.allow(Some(0));
    let many = engine.submit(drawn(&prompt(1, 20), 16, 50), None).unwrap();
    let one = engine.submit(drawn(&prompt(2, 20), 1, 5), None).unwrap();
    let has_ended = || matches!(one.try_events(1), Ok(Ready::Events(events)) if matches!(events[0], Event::Finished(_)));
    while !has_ended() {
        control.allow(Some(1));
    }
    let n_left = engine.stats().slots.iter().flat_map(|slot| &slot.running).map(|running| running.index).max();
    assert!(n_left.is_some_and(|index| index < 15), "the request for many is far from its end: {n_left:?}");
    control.allow(None);
    assert_eq!(collect(many).unwrap().len(), 16);
}

#[test]
fn on_one_slot_a_request_for_one_takes_its_turn_between_the_branches_of_one_for_many() {
    let (engine, control) = start(limits(1, 4096));
    control.allow(Some(0));
    let many = engine.submit(drawn(&prompt(1, 20), 64, 20), None).unwrap();
    let one = engine.submit(drawn(&prompt(2, 20), 1, 20), None).unwrap();
    control.allow(None);
    let n_before = collect(one).unwrap().len() as u64;
    assert_eq!(n_before, 1);
    let n_many = many.take_while(|event| matches!(event, Ok(Event::Token(token)) if token.index < 2)).count();
    assert!(n_many >= 20, "the first branch came before");
    let order: Vec<_> = control.plans().iter().map(|plan| plan.rows[0].sequence).collect();
    let first_switch = order.windows(2).position(|pair| pair[0] != pair[1]);
    assert!(first_switch.is_some_and(|at| at < 30), "the slot changed hands after one branch: {first_switch:?}");
}

#[test]
fn a_request_for_many_moves_on_beside_a_stream_of_requests_for_one() {
    let (engine, _) = start(limits(2, 4096));
    let many = engine.submit(drawn(&prompt(1, 20), 6, 20), None).unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            collect(many).unwrap();
            done.send(()).unwrap();
        });
        for seed in 2.. {
            if is_done.try_recv().is_ok() {
                break;
            }
            assert!(seed < 10_000, "the request for many starves");
            run(&engine, drawn(&prompt(seed, 20), 1, 20));
        }
    });
}

#[test]
fn without_tokens_to_predict_the_prompt_is_only_computed() {
    let (engine, control) = start(limits(2, 256));
    let branches = run(&engine, drawn(&prompt(1, 30), 3, 0));
    assert_eq!(control.n_computed(), 30);
    assert_eq!(reasons(&branches), vec![FinishReason::Length; 3]);
    assert!(branches.iter().all(|branch| branch.tokens.is_empty()));
}
