//! Prefixes that requests share.

use super::*;

#[test]
fn a_second_request_computes_only_its_suffix() {
    let (engine, control) = start(limits(2, 1024));
    let first = prompt(1, 200);
    let answer = run(&engine, greedy(&first, 10))[0].text.clone();
    let before = control.n_computed();
    let longer = format!("{first}{answer}{}", prompt(2, 30));
    let usage = run(&engine, greedy(&longer, 1))[0].finished.usage;
    // The last token of the first answer was sampled and never computed.
    assert_eq!(control.n_computed() - before, 1 + 30);
    assert_eq!((usage.n_cached, usage.n_prompt_computed), (209, 31));
}

#[test]
fn the_same_prompt_again_computes_its_last_token_for_the_logits() {
    let (engine, control) = start(limits(2, 1024));
    run(&engine, greedy(&prompt(1, 200), 5));
    let before = control.n_computed();
    let branch = run(&engine, greedy(&prompt(1, 200), 1)).remove(0);
    assert_eq!(control.n_computed() - before, 1);
    assert_eq!(branch.tokens, expected(&prompt(1, 200), 1));
}

#[test]
fn any_branch_can_be_continued_not_only_the_first() {
    let (engine, control) = start(limits(8, 4096));
    let first = prompt(1, 100);
    for branch in run(&engine, drawn(&first, 8, 20)) {
        let before = control.n_computed();
        let mut tokens = tokens_of(&first);
        tokens.extend(&branch.tokens);
        let mut request = greedy("", 1);
        request.prompt = Prompt::from_tokens(tokens);
        run(&engine, request);
        assert_eq!(control.n_computed() - before, 1, "branch {}", branch.finished.index);
    }
}

#[test]
fn a_running_sequence_shares_what_it_has_computed() {
    let (engine, control) = start(limits(2, 1024));
    control.allow(Some(0));
    let first = engine.submit(greedy(&prompt(1, 100), 50), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted == 3);
    let second = engine.submit(greedy(&prompt(1, 100), 5), None).unwrap();
    control.allow(None);
    assert_eq!(collect(second).unwrap()[0].finished.usage.n_cached, 99);
    assert_eq!(collect(first).unwrap()[0].tokens, expected(&prompt(1, 100), 50));
}

#[test]
fn fewer_than_sixteen_tokens_are_not_shared() {
    let (engine, _) = start(limits(2, 1024));
    let shared = prompt(1, 15);
    run(&engine, greedy(&format!("{shared}{}", prompt(2, 30)), 1));
    let usage = run(&engine, greedy(&format!("{shared}{}", prompt(3, 30)), 1))[0].finished.usage;
    assert_eq!(usage.n_cached, 0);
}

#[test]
fn the_least_recently_used_branch_is_evicted_first() {
    let (engine, _) = start(limits(1, 512));
    for seed in [1, 2] {
        run(&engine, greedy(&prompt(seed, 200), 1));
    }
    run(&engine, greedy(&prompt(1, 200), 1));
    run(&engine, greedy(&prompt(3, 200), 1));
    let n_cached = |seed| run(&engine, greedy(&prompt(seed, 200), 1))[0].finished.usage.n_cached;
    assert_eq!(n_cached(1), 199);
    assert_eq!(n_cached(2), 0);
}

#[test]
fn more_branches_than_ids_stay_correct() {
    let mut limits = limits(2, 4096);
    limits.n_seq_max = 5;
    let (engine, _) = start(limits);
    for seed in 0..40 {
        assert_eq!(run(&engine, greedy(&prompt(seed % 7, 40), 5))[0].tokens, expected(&prompt(seed % 7, 40), 5));
    }
}

#[test]
fn requests_with_many_completions_work_with_one_id_more_than_slots() {
    let (engine, _) = start(Limits { n_seq_max: 5, ..paced(4, 256) });
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0..40 {
                    let text = prompt((thread + round) % 5, 30);
                    let mut request = greedy(&text, 15);
                    request.n = 2 + u32::try_from((thread + round) % 4).unwrap();
                    let stream = engine.submit(request, None).unwrap();
                    if round % 3 == 0 {
                        assert!(stream.take(20).all(|event| event.is_ok()));
                        continue;
                    }
                    for branch in collect(stream).unwrap() {
                        assert_eq!(branch.tokens, expected(&text, 15), "thread {thread}, round {round}");
                    }
                }
            });
        }
    });
    wait_until(&engine, is_idle);
}

#[test]
fn a_prompt_of_several_runs_is_one_prompt() {
    let (engine, _) = start(limits(1, 256));
    let whole = prompt(1, 60);
    let mut request = greedy("", 8);
    request.prompt = Prompt::default();
    for part in [&whole[..20], &whole[20..21], &whole[21..]] {
        request.prompt.push(crate::request::PromptRun::Tokens(tokens_of(part)));
    }
    assert_eq!(run(&engine, request)[0].tokens, expected(&whole, 8));
}

#[test]
fn random_requests_generate_the_same_text_as_with_an_empty_cache() {
    let (engine, control) = start(paced(4, 512));
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0..60 {
                    let stem = prompt((thread + round) % 3, 30 + usize::try_from(round % 5).unwrap() * 20);
                    let text = format!("{stem}{}", prompt(round % 4, usize::try_from(round % 40).unwrap()));
                    let n = u32::try_from(1 + round % 3).unwrap();
                    let mut request = greedy(&text, 30);
                    request.n = n;
                    for branch in run(engine, request) {
                        assert_eq!(branch.tokens, expected(&text, 30), "thread {thread}, round {round}");
                    }
                }
            });
        }
    });
    settled(&engine, &control);
}
