//! Self-extend: the text depends on where tokens are grouped, and grouped tokens are never shared.

use super::*;
use crate::config::Grouping;
use crate::request::ContextShift;

/// Prompts of 100 tokens and more are grouped while they are computed, in batches; all others afterwards.
const GROUPING: Grouping = Grouping { n: 4, width: 32, n_batch: 50 };

fn grouped(n_slots: u32, n_ctx: u32) -> Limits {
    Limits { grouping: Some(GROUPING), max_host_cache_bytes: STORE, ..limits(n_slots, n_ctx) }
}

/// Returns the expected greedy continuation of `text` by `n` tokens, if all of `text` is a prompt.
fn expected_grouped(text: &str, n: usize) -> Vec<Token> {
    expected_of(GROUPING, text, n)
}

fn expected_of(grouping: Grouping, text: &str, n: usize) -> Vec<Token> {
    let mut tokens = tokens_of(text);
    let n_prompt = u32::try_from(tokens.len()).unwrap();
    for _ in 0..n {
        tokens.push(FakeRunner::next_token_grouped(grouping, n_prompt, &tokens));
    }
    tokens.split_off(text.len())
}

/// Returns the cached and the computed tokens of a branch's prompt.
fn found(branch: &BranchState) -> (u32, u32) {
    let usage = branch.finished.usage;
    (usage.n_cached, usage.n_prompt_computed)
}

#[test]
fn a_text_is_grouped_at_the_same_positions_for_every_chunk_size() {
    for n_prompt in [20, 50, 51, 100, 230] {
        let text = prompt(1, n_prompt);
        assert_ne!(expected_grouped(&text, 60), expected(&text, 60), "groups show in what is drawn");
        for max_chunk in [None, Some(1), Some(7), Some(64)] {
            let (engine, _) = start(grouped(1, 1024));
            let branches = run(&engine, Request { max_chunk, ..greedy(&text, 60) });
            assert_eq!(branches[0].tokens, expected_grouped(&text, 60), "a prompt of {n_prompt}, {max_chunk:?} at once");
        }
    }
}

#[test]
fn short_texts_share_cells() {
    let (engine, control) = start(grouped(2, 1024));
    let text = prompt(1, 24);
    let branch = run(&engine, greedy(&text, 8)).remove(0);
    assert_eq!(branch.tokens, expected(&text, 8));
    let before = control.n_computed();
    assert_eq!(found(&run(&engine, continued(&text, &branch, 1))[0]), (31, 1));
    assert_eq!(control.n_computed() - before, 1);
}

#[test]
fn only_the_ungrouped_beginning_of_a_long_text_is_shared() {
    let (engine, control) = start(grouped(2, 1024));
    let text = prompt(1, 230);
    run(&engine, greedy(&text, 40));
    assert_eq!(control.n_computed(), 230 + 39, "what is copied is not computed again");
    // The first batch.
    let longer = format!("{text}{}", prompt(2, 70));
    let branch = run(&engine, greedy(&longer, 40)).remove(0);
    assert_eq!((found(&branch), branch.tokens), ((50, 250), expected_grouped(&longer, 40)));
    // The whole prompt, which is grouped once it is computed, without the tokens after it.
    let text = prompt(3, 45);
    let branch = run(&engine, greedy(&text, 40)).remove(0);
    assert_eq!(branch.tokens, expected_grouped(&text, 40));
    assert_eq!(found(&run(&engine, greedy(&text, 40))[0]), (44, 1));
    let tokens = Prompt::from_tokens([tokens_of(&text), branch.tokens].concat());
    let continued = run(&engine, Request { prompt: tokens, ..greedy("", 10) }).remove(0);
    assert_eq!(found(&continued), (45, 40));
    assert!(engine.cached().unwrap().iter().all(|node| node.start + u32::try_from(node.tokens.len()).unwrap() <= 50));
}

#[test]
fn branches_share_their_prompt_and_continue_separately() {
    let (engine, control) = start(grouped(2, 2048));
    let text = prompt(1, 45);
    let branches = run(&engine, Request { n: 5, ..greedy(&text, 30) });
    assert!(branches.iter().all(|branch| branch.tokens == expected_grouped(&text, 30)));
    assert_eq!(branches.iter().map(|branch| found(branch).1).collect::<Vec<_>>(), [45, 0, 0, 0, 0]);
    assert_eq!(control.n_computed(), 45 + 5 * 29);
}

#[test]
fn branches_of_a_grouped_prompt_share_only_its_beginning() {
    for n_slots in [1, 2, 8] {
        let (engine, control) = start(grouped(n_slots, 4096));
        let text = prompt(1, 230);
        let branches = run(&engine, Request { n: 5, ..greedy(&text, 30) });
        assert!(branches.iter().all(|branch| branch.tokens == expected_grouped(&text, 30)));
        assert_eq!(branches.iter().map(found).collect::<Vec<_>>(), [(0, 230), (50, 180), (50, 180), (50, 180), (50, 180)]);
        assert_eq!(control.n_computed(), 50 + 5 * (180 + 29), "{n_slots} slots");
        assert_eq!(engine.stats().n_computed, 50 + 5 * 180);
    }
}

#[test]
fn a_request_waits_only_for_the_ungrouped_part_of_a_pending_prefix() {
    let (engine, control) = start(grouped(2, 2048));
    control.allow(Some(0));
    let text = prompt(1, 300);
    let streams: Vec<_> = [1, 2].map(|max_tokens| engine.submit(greedy(&text, max_tokens), None).unwrap()).into();
    control.allow(None);
    let usages: Vec<_> = streams.into_iter().map(|stream| found(&collect(stream).unwrap()[0])).collect();
    assert_eq!(usages, [(0, 300), (50, 250)]);
}

#[test]
fn texts_that_do_not_fit_together_alternate() {
    for max_host_cache_bytes in [Some(0), STORE] {
        let (engine, control) = start(Limits { max_host_cache_bytes, ..grouped(4, 256) });
        control.allow(Some(0));
        let texts: Vec<String> = (0..4).map(|seed| prompt(seed, 40 + 40 * usize::try_from(seed).unwrap())).collect();
        let streams: Vec<_> = texts.iter().map(|text| engine.submit(greedy(text, 90), None).unwrap()).collect();
        control.allow(None);
        for (text, stream) in texts.iter().zip(streams) {
            let branch = collect(stream).unwrap().remove(0);
            let n = 90.min(256 - text.len());
            assert_eq!(branch.tokens, expected_grouped(text, n), "a prompt of {}", text.len());
        }
        let stats = settled(&engine, &control);
        assert!(stats.n_preempted > 0, "they did not fit together");
    }
}

#[test]
fn a_text_that_cannot_be_copied_is_computed_again() {
    let text = prompt(1, 150);
    let grouping = Grouping { n_batch: 200, ..GROUPING };
    for (n_ctx, fails, n_computed) in [(256, false, 2 * 150 + 29), (512, true, 2 * 150 + 29), (512, false, 150 + 29)] {
        let (engine, control) = start(Limits { grouping: Some(grouping), ..grouped(1, n_ctx) });
        control.fail_states(fails);
        let branch = run(&engine, greedy(&text, 30)).remove(0);
        assert_eq!(branch.tokens, expected_of(grouping, &text, 30));
        assert_eq!((control.n_computed(), found(&branch)), (n_computed, (0, 150)), "{n_ctx} cells, fails: {fails}");
        assert_eq!(wait_until(&engine, is_idle).n_preempted, 0);
    }
}

#[test]
fn a_copy_does_not_wait_when_ids_are_scarce() {
    let (engine, control) = start(Limits { n_seq_max: 4, ..grouped(3, 2048) });
    control.allow(Some(0));
    let texts: Vec<String> = (0..3).map(|seed| prompt(seed, 40)).collect();
    let streams: Vec<_> = texts.iter().map(|text| engine.submit(greedy(text, 60), None).unwrap()).collect();
    control.allow(None);
    for (text, stream) in texts.iter().zip(streams) {
        assert_eq!(collect(stream).unwrap()[0].tokens, expected_grouped(text, 60));
    }
    wait_until(&engine, is_idle);
}

#[test]
fn a_stream_continues_when_a_concurrent_prompt_fails() {
    let (engine, control) = start(grouped(2, 1024));
    control.allow(Some(3));
    let text = prompt(1, 40);
    let stream = engine.submit(greedy(&text, 80), None).unwrap();
    wait_until(&engine, |stats| stats.n_decodes == 3);
    let doomed = engine.submit(greedy(&prompt(2, 300), 5), None).unwrap();
    control.fail(Some(crate::fake_runner::FailureMode::MoreRowsThan(1)));
    control.allow(None);
    assert!(collect(doomed).is_err());
    assert_eq!(collect(stream).unwrap()[0].tokens, expected_grouped(&text, 80));
}

#[test]
fn saved_and_pinned_prefixes_are_never_grouped() {
    let (engine, _) = start(grouped(2, 2048));
    let text = prompt(1, 300);
    let saved = save(&engine, &text);
    assert_eq!(saved.tokens, tokens_of(&text));
    pin(&engine, &text);
    let branch = run(&engine, greedy(&text, 40)).remove(0);
    assert_eq!((found(&branch), branch.tokens), ((50, 250), expected_grouped(&text, 40)));
    run(&engine, Request { slot: Some(1), ..task(&text, Task::Load(saved.into())) });
    assert_eq!(run(&engine, greedy(&text, 40))[0].tokens, expected_grouped(&text, 40));
}

#[test]
fn a_grouped_context_cannot_be_shifted() {
    let (engine, _) = start(grouped(1, 256));
    let request = Request { context_shift: Some(ContextShift::default()), ..greedy("text", 10) };
    let refused = engine.submit(request, None).err();
    assert!(matches!(refused, Some(Error::InvalidRequest { param: "context_shift", .. })), "{refused:?}");
}

#[test]
fn concurrent_texts_are_the_same_as_separate_ones() {
    let mut state = 7_u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    for round in 0..60 {
        let n_ctx = 256 + 256 * u32::try_from(below(3)).unwrap();
        let max_host_cache_bytes = [Some(0), STORE][usize::try_from(below(2)).unwrap()];
        let (engine, control) =
            start(Limits { max_host_cache_bytes, n_seq_max: 6, max_token_gap: TokenGap::Auto, ..grouped(4, n_ctx) });
        let mut waiting = Vec::new();
        for _ in 0..12 {
            let n_of = |n| usize::try_from(n).unwrap();
            let text = format!("{}{}", prompt(below(2), n_of(10 + below(100))), prompt(below(9), n_of(1 + below(90))));
            let n_tokens = u32::try_from(below(40)).unwrap();
            let n = 1 + u32::try_from(below(3)).unwrap();
            let priority = i32::try_from(below(3)).unwrap();
            let stream = engine.submit(Request { n, priority, ..greedy(&text, n_tokens) }, None).unwrap();
            if below(8) > 0 {
                waiting.push((text, n_tokens, stream));
            }
        }
        for (text, n_tokens, stream) in waiting {
            for branch in collect(stream).unwrap() {
                let n = (n_tokens as usize).min(n_ctx as usize - text.len());
                assert_eq!(branch.tokens, expected_grouped(&text, n), "round {round}, a prompt of {}", text.len());
            }
        }
        settled(&engine, &control);
    }
}
