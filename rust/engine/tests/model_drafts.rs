//! Drafts of a draft model: they change no event, and their source is reported.

use super::fuzz::Dice;
use super::*;
use crate::config::SpeculationConfig;
use crate::engine::{DraftSource, DraftStats};
use crate::fake_runner::FakeDraftModel;
use crate::request::{ContextShift, Speculation};

/// Drafts in every step, whatever is expected.
fn forced(limits: Limits) -> Limits {
    let speculation = SpeculationConfig { mode: SpeculationMode::Auto, row_percent: Some(0), ..SpeculationConfig::default() };
    Limits { speculation, ..limits }
}

fn start_drafting(limits: Limits, max_draft: u32, wrong_one_in: u64) -> (Engine, FakeControl) {
    start_with(limits, move |runner| runner.with_draft_model(FakeDraftModel { max_draft, wrong_one_in }))
}

fn of_model(engine: &Engine) -> DraftStats {
    engine.stats().speculation.by_source[DraftSource::Model as usize]
}

#[test]
fn tokens_that_a_model_drafts_share_a_step() {
    let expected = run(&start(limits(1, 1024)).0, greedy(&prompt(1, 30), 21));
    let (engine, control) = start_drafting(forced(limits(1, 1024)), 4, 0);
    let branches = run(&engine, greedy(&prompt(1, 30), 21));
    assert_eq!((&branches[0].tokens, &branches[0].text), (&expected[0].tokens, &expected[0].text));
    let after_prompt = control.plans().into_iter().filter(|plan| plan.rows[0].position >= 30);
    assert_eq!(after_prompt.map(|plan| plan.rows.len()).collect::<Vec<_>>(), [5, 5, 5, 5]);
    let DraftStats { n_drafts, n_drafted, n_accepted, n_cut, time } = of_model(&engine);
    assert_eq!((n_drafts, n_drafted, n_accepted, n_cut), (4, 16, 16, 0));
    assert!(time > Duration::ZERO);
    let usage = branches[0].finished.usage;
    assert_eq!((usage.n_drafted, usage.n_draft_accepted), (16, 16));
}

#[test]
fn a_request_may_turn_drafts_of_a_model_off_or_shorten_them() {
    for (max_draft, n_drafts) in [(0, 0..=0), (1, 8..=10)] {
        let (engine, _) = start_drafting(forced(limits(1, 1024)), 4, 0);
        let speculation = Speculation { max_draft: Some(max_draft), ..Speculation::default() };
        run(&engine, Request { speculation, ..greedy(&prompt(1, 30), 21) });
        let DraftStats { n_drafts: found, n_drafted, .. } = of_model(&engine);
        assert!(n_drafts.contains(&found) && n_drafted == found, "{max_draft}: {:?}", of_model(&engine));
    }
}

#[test]
fn a_long_prompt_is_caught_up_in_parts_before_drafts() {
    let (engine, _) = start_drafting(forced(paced(1, 4096)), 4, 0);
    let expected = run(&start(limits(1, 4096)).0, greedy(&prompt(1, 3000), 100));
    let branches = run(&engine, greedy(&prompt(1, 3000), 100));
    assert_eq!(branches[0].tokens, expected[0].tokens);
    assert!(of_model(&engine).n_accepted > 20 && of_model(&engine).n_cut == 0, "{:?}", of_model(&engine));
}

#[test]
fn without_gain_a_model_drafts_rarely() {
    // The first token of every draft is wrong.
    let (engine, _) = start_drafting(Limits { speculation: SpeculationMode::Auto.into(), ..limits(1, 4096) }, 4, 1);
    run(&engine, greedy(&prompt(1, 30), 2000));
    let DraftStats { n_drafts, n_accepted, .. } = of_model(&engine);
    assert!(n_drafts < 200 && n_accepted == 0, "{:?}", of_model(&engine));
}

/// Runs requests, several at a time, and returns the tokens of each branch.
fn run_all(engine: &Engine, requests: &[Request]) -> Vec<Vec<Vec<Token>>> {
    let mut results = Vec::new();
    for requests in requests.chunks(8) {
        let streams: Vec<_> = requests.iter().map(|request| engine.submit(request.clone(), None).unwrap()).collect();
        let tokens = |stream| collect(stream).unwrap().into_iter().map(|branch: BranchState| branch.tokens).collect();
        results.extend(streams.into_iter().map(tokens));
    }
    results
}

#[test]
fn drafts_of_a_model_change_no_token() {
    let mut totals = DraftStats::default();
    for round in 1..=6 {
        let mut dice = Dice::new(round);
        let mut request = |seed| {
            let text =
                format!("{}{}", prompt(dice.below(4), dice.of(&[20, 36, 44])), prompt(dice.below(9), dice.of(&[0, 5, 19])));
            let n = dice.of(&[1, 1, 2, 4]);
            let sampling = SamplingParams { temperature: dice.of(&[0.0, 0.0, 0.3]), ..SamplingParams::default() };
            let shift = ContextShift { n_keep: Some(5), n_discard: 40 };
            let context_shift = dice.one_in(5).then_some(shift);
            let max_tokens = 1 + dice.number(if context_shift.is_some() { 200 } else { 60 });
            Request { seed, n, sampling, context_shift, uses_cache: !dice.one_in(6), ..greedy(&text, max_tokens) }
        };
        let requests: Vec<Request> = (0..40).map(&mut request).collect();
        let limits =
            Limits { n_ctx_slot: 160, max_host_cache_bytes: dice.of(&[Some(0), STORE]), ..limits(4, dice.of(&[700, 4096])) };
        let expected = run_all(&start(Limits { n_ctx: 8192, ..limits }).0, &requests);
        let (engine, control) = start_drafting(forced(limits), dice.of(&[1, 3, 8]), dice.of(&[0, 2, 5]));
        assert_eq!(run_all(&engine, &requests), expected, "round {round}");
        settled(&engine, &control);
        let DraftStats { n_drafts, n_drafted, n_accepted, n_cut, .. } = of_model(&engine);
        totals.n_drafts += n_drafts;
        totals.n_drafted += n_drafted;
        totals.n_accepted += n_accepted;
        totals.n_cut += n_cut;
    }
    assert!(totals.n_cut > 500 && totals.n_accepted > 1000, "{totals:?}");
}
