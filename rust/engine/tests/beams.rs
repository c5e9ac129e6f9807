//! Beam searches: their results, computed tokens and slots.

use super::*;
use crate::request::{BeamSearch, Constraint, ConstraintSource, ContextShift, Diversity, SharedConstraint};

const SEARCH: BeamSearch = BeamSearch { width: 4, length_penalty: 1.0, is_stochastic: false };

/// Creates a search without sampling filters.
fn beams(prompt: &str, n: u32, max_tokens: u32, search: BeamSearch) -> Request {
    let mut request = Request { diversity: Diversity::Beams(search), ..drawn(prompt, n, max_tokens) };
    (request.sampling.top_k, request.sampling.top_p, request.sampling.min_p) = (0, 1.0, 0.0);
    request
}

fn logprobs_after(tokens: &[Token]) -> Vec<(Token, f64)> {
    let row: Vec<f64> = FakeRunner::logits_after(tokens).into_iter().map(f64::from).collect();
    let possible: Vec<(Token, f64)> = (0..).zip(row).filter(|&(token, _)| token != 3).collect();
    let total = possible.iter().map(|(_, logit)| logit.exp()).sum::<f64>().ln();
    possible.into_iter().map(|(token, logit)| (token, logit - total)).collect()
}

/// Returns the results of a search of this width with a model that never ends a text: by definition, over all successors.
fn searched(prompt: &str, width: usize, n_tokens: usize) -> Vec<(Vec<Token>, f64)> {
    let mut live = vec![(Vec::new(), 0.0)];
    for _ in 0..n_tokens {
        let longer = |(text, logprob): &(Vec<Token>, f64)| {
            let after = logprobs_after(&[tokens_of(prompt), text.clone()].concat());
            let longer = |(token, more)| ([&text[..], &[token]].concat(), logprob + more);
            after.into_iter().map(longer).collect::<Vec<_>>()
        };
        let mut all: Vec<(Vec<Token>, f64)> = live.iter().flat_map(longer).collect();
        all.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        all.truncate(width);
        live = all;
    }
    live
}

#[test]
fn a_beam_search_matches_its_definition_and_computes_one_token_per_beam_and_step() {
    for (width, n_tokens) in [(2, 12), (4, 20), (8, 9)] {
        let (engine, control) = start_with(limits(8, 4096), FakeRunner::without_end);
        let search = BeamSearch { width, ..SEARCH };
        let branches = run(&engine, beams(&prompt(1, 100), width, n_tokens, search));
        let expected = searched(&prompt(1, 100), width as usize, n_tokens as usize);
        for (branch, (text, logprob)) in branches.iter().zip(&expected) {
            assert_eq!(&branch.tokens, text);
            let score = branch.finished.score.expect("what is found is ranked");
            assert!((score - logprob / f64::from(n_tokens)).abs() < 1e-5, "{score} of {logprob}");
        }
        assert_eq!(reasons(&branches), vec![FinishReason::Length; width as usize]);
        // The first step has one beam, and the last token of each beam is never computed.
        assert_eq!(control.n_computed(), 100 + (width * (n_tokens - 1)) as usize);
        assert!(is_idle(&wait_until(&engine, is_idle)));
    }
}

#[test]
fn a_search_may_return_fewer_texts_than_beams_and_is_repeatable() {
    let (engine, _) = start_with(limits(6, 4096), FakeRunner::without_end);
    let all = run(&engine, beams(&prompt(1, 60), 4, 10, SEARCH));
    for n in 1..4 {
        let some = run(&engine, beams(&prompt(1, 60), n, 10, SEARCH));
        assert_eq!(some.len(), n as usize);
        for (one, other) in some.iter().zip(&all) {
            assert_eq!((&one.tokens, &one.text), (&other.tokens, &other.text));
        }
    }
}

#[test]
fn a_greater_length_penalty_ranks_longer_texts_higher() {
    let lengths = |length_penalty| {
        let (engine, _) = start(limits(4, 4096));
        let request = beams(&prompt(3, 50), 4, 40, BeamSearch { length_penalty, ..SEARCH });
        let branches = run(&engine, request);
        let scores: Vec<f64> = branches.iter().filter_map(|branch| branch.finished.score).collect();
        assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
        branches[0].tokens.len()
    };
    assert!(lengths(-2.0) <= lengths(3.0));
}

#[test]
fn a_finished_text_includes_its_end_token() {
    let (engine, control) = start_with(limits(4, 4096), |runner| runner.ending_at(58));
    let branches = run(&engine, beams(&prompt(1, 50), 4, 100, SEARCH));
    assert!(branches.iter().all(|branch| branch.tokens.len() == 9 && branch.tokens[8] == 0));
    assert_eq!(reasons(&branches), vec![FinishReason::End(Some(0)); 4]);
    assert!(control.n_computed() <= 50 + 4 * 9);
}

#[test]
fn each_beam_ends_at_its_own_stop_string() {
    let (engine, _) = start_with(limits(4, 4096), FakeRunner::without_end);
    let free = run(&engine, beams(&prompt(1, 50), 4, 30, SEARCH));
    let stop = free[0].text.chars().nth(6).unwrap().to_string();
    let mut request = beams(&prompt(1, 50), 4, 30, SEARCH);
    request.stop = vec![stop.clone()];
    for branch in run(&engine, request) {
        assert!(!branch.text.contains(&stop), "{branch:?}");
        assert!(branch.finished.reason == FinishReason::Stop(stop.clone()) || branch.tokens.len() == 30);
    }
}

#[test]
fn tokens_common_to_all_beams_are_published_before_the_end() {
    let (engine, control) = start_with(limits(4, 4096), FakeRunner::without_end);
    control.allow(Some(60));
    let mut request = beams(&prompt(1, 50), 2, 200, SEARCH);
    // Some tokens are nearly certain.
    request.sampling.temperature = 0.2;
    let completions = engine.submit(request, None).unwrap();
    wait_until(&engine, |stats| stats.n_decodes >= 60);
    let mut n_tokens = [0, 0];
    while completions.is_ready() {
        match completions.wait() {
            Some(Ok(Event::Token(token))) => n_tokens[token.index as usize] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(n_tokens[0] > 10 && n_tokens[0] == n_tokens[1], "{n_tokens:?}");
    control.allow(None);
    assert!(completions.collect::<Result<Vec<_>, _>>().is_ok());
}

/// Allows the odd tokens after an even number of tokens, and the even ones otherwise.
#[derive(Debug, Clone)]
struct Alternating(i32);

impl ConstraintSource for Alternating {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Constraint for Alternating {
    fn allows(&mut self, token: Token) -> bool {
        token % 2 != self.0 % 2
    }

    fn mask(&mut self, logits: &mut [f32]) {
        let banned = usize::try_from(self.0 % 2).unwrap();
        logits.iter_mut().skip(banned).step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
    }

    fn accept(&mut self, token: Token) {
        assert!(self.allows(token));
        self.0 += 1;
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_constraint_applies_to_each_beam() {
    let (engine, _) = start_with(limits(4, 4096), FakeRunner::without_end);
    let mut request = beams(&prompt(1, 50), 4, 20, SEARCH);
    request.constraint = Some(SharedConstraint(std::sync::Arc::new(Alternating(0))));
    request.sampling.logit_bias = vec![(9, f32::NEG_INFINITY)];
    for branch in run(&engine, request) {
        assert!((0..).zip(&branch.tokens).all(|(at, token): (i32, &Token)| token % 2 != at % 2 && *token != 9));
    }
}

#[test]
fn penalties_apply_to_the_text_of_their_own_beam() {
    let (engine, _) = start_with(limits(4, 4096), FakeRunner::without_end);
    let mut request = beams(&prompt(1, 50), 4, 40, SEARCH);
    (request.sampling.presence_penalty, request.sampling.repeat_last_n) = (50.0, -1);
    for branch in run(&engine, request) {
        let mut tokens = branch.tokens.clone();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 40, "nothing is said twice");
    }
}

#[test]
fn texts_are_sampled_without_replacement_and_depend_only_on_the_seed() {
    let search = BeamSearch { is_stochastic: true, ..SEARCH };
    let texts = |seed, n_slots| {
        let (engine, control) = start(limits(n_slots, 4096));
        let branches = run(&engine, Request { seed, ..beams(&prompt(1, 50), 4, 12, search) });
        assert!(control.n_computed() <= 50 + 4 * 11);
        for branch in &branches {
            let mut text = tokens_of(&prompt(1, 50));
            let of_token = |&token: &Token| {
                let logprobs = logprobs_after(&text);
                text.push(token);
                logprobs.iter().find(|(other, _)| *other == token).unwrap().1
            };
            let logprob: f64 = branch.tokens.iter().map(of_token).sum();
            assert!((branch.finished.score.unwrap() - logprob).abs() < 1e-4, "the score is the text's log-probability");
        }
        branches.into_iter().map(|branch| branch.tokens).collect::<Vec<_>>()
    };
    let first = texts(7, 4);
    assert_eq!(first, texts(7, 9));
    assert_ne!(first, texts(8, 4));
    for (at, text) in first.iter().enumerate() {
        assert!(!first[..at].contains(text), "none comes twice");
    }
}

#[test]
fn branches_without_a_text_have_no_score() {
    for is_stochastic in [false, true] {
        let (engine, _) = start_with(limits(4, 4096), FakeRunner::without_end);
        let mut request = beams(&prompt(1, 50), 4, 1, BeamSearch { is_stochastic, ..SEARCH });
        request.sampling.top_k = 3;
        let branches = run(&engine, request);
        assert_eq!(branches.iter().map(|branch| branch.finished.score.is_some()).collect::<Vec<_>>(), [true, true, true, false]);
        assert!(branches[3].tokens.is_empty());
        assert_eq!(branches[3].finished.reason, FinishReason::Cancelled);
    }
}

#[test]
fn a_search_waits_for_all_of_its_slots_and_takes_them_together() {
    let (engine, control) = start_with(limits(4, 4096), FakeRunner::without_end);
    control.allow(Some(1));
    let others: Vec<_> = (0..2).map(|seed| engine.submit(greedy(&prompt(10 + seed, 40), 30), None).unwrap()).collect();
    let n_busy = |stats: &Stats| stats.slots.iter().filter(|slot| slot.running.is_some()).count();
    step_until(&engine, &control, |stats| n_busy(stats) == 2);
    let search = engine.submit(beams(&prompt(1, 50), 4, 10, SEARCH), None).unwrap();
    (0..10).for_each(|_| step(&engine, &control));
    assert_eq!(n_busy(&engine.stats()), 2, "half of the slots are no use");
    control.allow(None);
    let found = collect(search).unwrap();
    assert_eq!(found[0].tokens, searched(&prompt(1, 50), 4, 10)[0].0);
    for (seed, other) in (0..).zip(others) {
        assert_eq!(collect(other).unwrap()[0].tokens, expected(&prompt(10 + seed, 40), 30));
    }
}

#[test]
fn a_search_is_preempted_and_resumes_as_a_whole() {
    for store in [Some(0), STORE] {
        let limits = Limits { max_host_cache_bytes: store, ..limits(4, 4096) };
        let (engine, control) = start_with(limits, FakeRunner::without_end);
        control.allow(Some(6));
        let search = engine.submit(beams(&prompt(1, 50), 4, 24, SEARCH), None).unwrap();
        wait_until(&engine, |stats| stats.n_decodes >= 6);
        let urgent = engine.submit(Request { priority: 5, ..greedy(&prompt(2, 30), 5) }, None).unwrap();
        control.allow(None);
        assert_eq!(collect(urgent).unwrap()[0].tokens, expected(&prompt(2, 30), 5));
        let found = collect(search).unwrap();
        let by_definition = searched(&prompt(1, 50), 4, 24);
        for (branch, (text, _)) in found.iter().zip(&by_definition) {
            assert_eq!(&branch.tokens, text);
        }
        assert_eq!(engine.stats().n_preempted, 4, "all beams leave together");
    }
}

#[test]
fn searches_share_a_small_device_cache_with_other_requests() {
    // The texts together exceed the device cache.
    let limits = Limits { n_ctx_slot: 160, ..limits(6, 480) };
    let (engine, _) = start_with(limits, FakeRunner::without_end);
    let searches: Vec<_> = (0..4).map(|seed| engine.submit(beams(&prompt(seed, 60), 2, 60, SEARCH), None).unwrap()).collect();
    let others: Vec<_> = (0..6).map(|seed| engine.submit(greedy(&prompt(20 + seed, 50), 80), None).unwrap()).collect();
    for (seed, search) in (0..).zip(searches) {
        let found = collect(search).unwrap();
        assert_eq!(found[0].tokens, searched(&prompt(seed, 60), 4, 60)[0].0);
    }
    for (seed, other) in (0..).zip(others) {
        assert_eq!(collect(other).unwrap()[0].tokens, expected(&prompt(20 + seed, 50), 80));
    }
    wait_until(&engine, is_idle);
}

#[test]
fn a_search_that_fills_the_device_cache_ends_with_its_current_texts() {
    let limits = Limits { n_ctx_slot: 200, ..limits(4, 200) };
    let (engine, _) = start_with(limits, FakeRunner::without_end);
    let branches = run(&engine, beams(&prompt(1, 150), 4, 100, SEARCH));
    for branch in &branches {
        assert_eq!(branch.finished.reason, FinishReason::ContextFull);
        assert!(branch.tokens.len() >= 12 && branch.finished.is_truncated, "{branch:?}");
    }
    wait_until(&engine, is_idle);
}

#[test]
fn beams_are_the_same_with_memory_that_forks_only_at_its_end() {
    let limits = Limits { max_host_cache_bytes: STORE, n_seq_max: 6, ..limits(4, 4096) };
    let prepare = |runner: FakeRunner| runner.without_end().with_memory(MemoryKind { forks: ForkRule::AtEnd, ..MEMORY });
    let (engine, control) = start_with(limits, prepare);
    let found = run(&engine, beams(&prompt(1, 100), 4, 20, SEARCH));
    for (branch, (text, _)) in found.iter().zip(searched(&prompt(1, 100), 4, 20)) {
        assert_eq!(branch.tokens, text);
    }
    assert_eq!(control.n_computed(), 100 + 4 * 19);
}

#[test]
fn a_search_reuses_the_cached_part_of_its_prompt() {
    let (engine, control) = start_with(limits(4, 4096), FakeRunner::without_end);
    run(&engine, greedy(&prompt(1, 100), 1));
    run(&engine, beams(&prompt(1, 100), 2, 10, SEARCH));
    assert_eq!(control.n_computed(), 100 + 1 + 4 * 9);
}

#[test]
fn a_cancelled_search_releases_everything() {
    let (engine, control) = start_with(limits(4, 4096), FakeRunner::without_end);
    control.allow(Some(8));
    let dropped = engine.submit(beams(&prompt(1, 50), 4, 100, SEARCH), None).unwrap();
    wait_until(&engine, |stats| stats.n_decodes >= 8);
    drop(dropped);
    control.allow(None);
    wait_until(&engine, is_idle);
    control.allow(Some(0));
    let kept = engine.submit(beams(&prompt(2, 50), 3, 4_000, SEARCH), None).unwrap();
    step_until(&engine, &control, |stats| stats.slots.iter().all(|slot| slot.running.is_some()));
    kept.cancel_branch(3);
    kept.cancel_branch(1);
    control.allow(None);
    let branches = collect(kept).unwrap();
    assert_eq!(reasons(&branches), vec![FinishReason::Cancelled; 3], "a branch of a search is the whole search");
    wait_until(&engine, is_idle);
}

#[test]
fn a_waiting_search_can_be_cancelled() {
    let (engine, control) = start_with(limits(2, 4096), FakeRunner::without_end);
    control.allow(Some(1));
    let other = engine.submit(greedy(&prompt(1, 50), 20), None).unwrap();
    wait_until(&engine, |stats| stats.n_decodes >= 1);
    let waiting = engine.submit(beams(&prompt(2, 50), 2, 9, BeamSearch { width: 2, ..SEARCH }), None).unwrap();
    waiting.cancel_branch(0);
    control.allow(None);
    assert_eq!(reasons(&collect(waiting).unwrap()), vec![FinishReason::Cancelled; 2]);
    assert_eq!(collect(other).unwrap()[0].tokens.len(), 20);
}

#[test]
fn more_beams_than_slots_are_refused() {
    let (engine, _) = start(limits(3, 256));
    let refused = engine.submit(beams("hello", 1, 2, SEARCH), None).err();
    let Some(Error::InvalidRequest { param: "beam_width", message }) = refused else { panic!("{refused:?}") };
    assert!(message.contains("beam_width is 4") && message.contains("at most 3"), "{message}");
    let shifted =
        Request { context_shift: Some(ContextShift::default()), ..beams("hello", 1, 2, BeamSearch { width: 2, ..SEARCH }) };
    assert!(matches!(engine.submit(shifted, None).err(), Some(Error::InvalidRequest { param: "context_shift", .. })));
}

/// Returns the results of a search that is alone in the engine.
fn expected_search(limits: Limits, request: Request, memory: MemoryKind) -> Vec<BranchState> {
    let (engine, _) = start_with(limits, move |runner| runner.without_end().with_memory(memory));
    run(&engine, request)
}

fn assert_same_texts(found: &[BranchState], alone: &[BranchState], case: &str) {
    for (branch, expected) in found.iter().zip(alone) {
        assert_eq!((&branch.tokens, &branch.finished.reason), (&expected.tokens, &expected.finished.reason), "{case}");
    }
}

#[test]
fn a_preempted_search_whose_texts_exceed_the_device_cache_finds_the_same_texts() {
    for forks in [ForkRule::Anywhere, ForkRule::InWindow, ForkRule::AtEnd] {
        for max_host_cache_bytes in [Some(0), Some(3_000), STORE] {
            for max_tokens in [190, 245] {
                let case = format!("{forks:?}, a store of {max_host_cache_bytes:?} bytes, {max_tokens} tokens");
                let n_window = if forks == ForkRule::InWindow { 8 } else { 0 };
                let memory = MemoryKind { forks, n_window, ..MEMORY };
                let limits = Limits { max_host_cache_bytes, n_ctx_slot: 400, n_seq_max: 12, ..limits(6, 512) };
                let search = beams(&prompt(1, 150), 4, max_tokens, SEARCH);
                let alone = expected_search(limits, search.clone(), memory);
                let (engine, control) = start_with(limits, move |runner| runner.without_end().with_memory(memory));
                control.allow(Some(0));
                let senior = engine.submit(greedy(&prompt(2, 40), 350), None).unwrap();
                let search = engine.submit(search, None).unwrap();
                control.allow(None);
                assert_eq!(collect(senior).unwrap()[0].tokens.len(), 350, "{case}");
                assert_same_texts(&collect(search).unwrap(), &alone, &case);
                assert!(settled(&engine, &control).n_preempted >= 4, "{case}: they fit together");
            }
        }
    }
}
