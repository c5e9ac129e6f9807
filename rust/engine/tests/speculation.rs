//! Speculative decoding: it changes no event, whatever is drafted, and takes no cells, rows or slots from anything else.

use std::sync::Arc;

use super::fuzz::{Dice, number_of};
use super::*;
use crate::config::Grouping;
use crate::engine::{DraftSource, DraftStats};
use crate::fake_runner::{END, FailureMode, N_VOCAB, spelling_of};
use crate::grammar::{Grammar, Spellings, TokenLookup};
use crate::request::{BeamSearch, ContextShift, Diversity, Dry, Mirostat, Replay, SamplerKind, SharedConstraint, Speculation};

/// Rounds of 50 requests of `make test`; the environment variable `WEFT_FUZZ_ROUNDS` sets another number.
const N_ROUNDS: u64 = 12;

fn speculating(limits: Limits) -> Limits {
    Limits { speculation: SpeculationMode::Auto.into(), ..limits }
}

/// Returns `request` with drafts of its own completions, of which a share is wrong.
fn replaying(request: Request, branches: &[BranchState], error_rate: f64, max_draft: u32) -> Request {
    let branches = branches.iter().map(|branch| branch.tokens.clone()).collect();
    let replay = Replay { branches, error_rate, seed: u64::from(request.seed), is_forced: true };
    Request {
        speculation: Speculation { max_draft: Some(max_draft), replay: Some(Arc::new(replay)), ..Speculation::default() },
        ..request
    }
}

fn drafts(engine: &Engine) -> DraftStats {
    engine.stats().speculation.by_source[DraftSource::Replay as usize]
}

/// Runs a greedy request without drafts and with a draft that is right, and returns the second run's engine.
fn with_right_drafts(request: &Request, limits: Limits, max_draft: u32) -> (Engine, FakeControl) {
    let expected = run(&start(limits).0, request.clone());
    let (engine, control) = start(speculating(limits));
    let branches = run(&engine, replaying(request.clone(), &expected, 0.0, max_draft));
    for (branch, expected) in branches.iter().zip(&expected) {
        assert_eq!((&branch.tokens, &branch.text), (&expected.tokens, &expected.text));
        assert_eq!(branch.finished.reason, expected.finished.reason);
        assert_eq!(branch.finished.usage.n_context, expected.finished.usage.n_context);
    }
    (engine, control)
}

/// Returns the number of rows of each decode of one sequence after its prompt.
fn n_rows(control: &FakeControl, n_prompt: u32) -> Vec<usize> {
    let plans = control.plans();
    plans.iter().filter(|plan| plan.rows[0].position >= n_prompt).map(|plan| plan.rows.len()).collect()
}

#[test]
fn accepted_tokens_share_a_step() {
    let (engine, control) = with_right_drafts(&greedy(&prompt(1, 30), 21), limits(1, 1024), 4);
    // The first token is not drafted.
    assert_eq!(n_rows(&control, 30), [5, 5, 5, 5]);
    let DraftStats { n_drafts, n_drafted, n_accepted, n_cut, .. } = drafts(&engine);
    assert_eq!((n_drafts, n_drafted, n_accepted, n_cut), (4, 16, 16, 0));
    assert_eq!(engine.stats().speculation.n_accepted_at[..5], [4, 4, 4, 4, 0]);
    assert_eq!(engine.stats().n_computed, 30, "drafted tokens are no tokens of prompts");
}

#[test]
fn a_draft_stops_before_the_last_token_of_the_request() {
    let (_, control) = with_right_drafts(&greedy(&prompt(1, 30), 8), limits(1, 1024), 4);
    assert_eq!(n_rows(&control, 30), [5, 2]);
}

#[test]
fn a_draft_stops_at_the_end_of_the_context() {
    let request = Request { max_tokens: None, ..greedy(&prompt(1, 50), 1) };
    let (engine, control) = with_right_drafts(&request, limits(1, 64), 8);
    assert_eq!(n_rows(&control, 50), [9, 4]);
    assert_eq!(drafts(&engine).n_cut, 0);
}

#[test]
fn a_draft_stops_where_the_context_is_shifted() {
    let shift = ContextShift { n_keep: Some(10), n_discard: 30 };
    let request = Request { context_shift: Some(shift), ..greedy(&prompt(1, 50), 40) };
    let (engine, control) = with_right_drafts(&request, limits(1, 64), 8);
    // 14 tokens fill the context. The shift keeps 10 and the last 24, of which 23 are computed again.
    let starts_and_rows: Vec<_> = control.plans().iter().map(|plan| (plan.rows[0].position, plan.rows.len())).collect();
    assert_eq!(starts_and_rows[2..5], [(50, 9), (59, 4), (10, 24)]);
    assert_eq!(drafts(&engine).n_cut, 0);
}

#[test]
fn a_draft_stops_where_tokens_are_grouped() {
    let grouping = Grouping { n: 4, width: 32, n_batch: 50 };
    let limits = Limits { grouping: Some(grouping), ..limits(1, 1024) };
    let (engine, control) = with_right_drafts(&greedy(&prompt(1, 30), 80), limits, 8);
    let ends: Vec<u32> = control.plans().iter().map(|plan| plan.rows[plan.rows.len() - 1].position + 1).collect();
    assert!((32..100).step_by(32).all(|border| ends.contains(&border)), "{ends:?}");
    assert_eq!(drafts(&engine).n_cut, 0);
}

#[test]
fn a_stop_string_ends_a_text_in_the_middle_of_a_draft() {
    let plain = run(&start(limits(1, 1024)).0, greedy(&prompt(1, 30), 40)).remove(0);
    let request = Request { stop: vec![plain.text[9..11].to_owned()], ..greedy(&prompt(1, 30), 40) };
    let expected = run(&start(limits(1, 1024)).0, request.clone());
    let (engine, control) = start(speculating(limits(1, 1024)));
    // What follows the stop string is drafted too.
    let found = run(&engine, replaying(request, &[plain], 0.0, 8)).remove(0);
    assert_eq!((&found.text, &found.tokens), (&expected[0].text, &expected[0].tokens));
    assert_eq!(found.finished.reason, expected[0].finished.reason);
    assert_eq!(found.finished.usage.n_context, expected[0].finished.usage.n_context);
    assert!(drafts(&engine).n_cut == 1, "{:?}", drafts(&engine));
    assert_eq!(settled(&engine, &control).n_cells_used, 30 + found.tokens.len() - 1);
}

#[test]
fn rejected_tokens_leave_the_cache_and_are_never_matched() {
    let text = prompt(1, 30);
    let expected = run(&start(limits(1, 1024)).0, greedy(&text, 20));
    let (engine, control) = start(speculating(limits(1, 1024)));
    let branch = run(&engine, replaying(greedy(&text, 20), &expected, 1.0, 4)).remove(0);
    assert_eq!(branch.tokens, expected[0].tokens);
    assert_eq!((drafts(&engine).n_drafts, drafts(&engine).n_accepted), (18, 0));
    assert_eq!(settled(&engine, &control).n_cells_used, 30 + 19);
    let usage = branch.finished.usage;
    assert_eq!((usage.n_drafted, usage.n_draft_accepted), (66, 0));
    let cached: Vec<Token> = engine.cached().unwrap().iter().flat_map(|node| node.tokens.clone()).collect();
    assert_eq!(cached, [&tokens_of(&text)[..], &expected[0].tokens[..19]].concat());
}

#[test]
fn the_suffix_of_each_branch_is_indexed() {
    let n_index_bytes = |suffixes: &[String]| {
        let (engine, _) = start(speculating(limits(2, 2048)));
        let request = |suffix: &String| Request { suffix: tokens_of(suffix), ..greedy(&prompt(1, 30), 4) };
        seen(engine.submit_branches(suffixes.iter().map(request).collect(), None).unwrap());
        engine.stats().speculation.n_index_bytes
    };
    let suffixes = [prompt(2, 400), prompt(3, 400)];
    let (of_one, of_both) = (n_index_bytes(&suffixes[..1]), n_index_bytes(&suffixes));
    assert!(of_both > of_one + 400, "{of_one} {of_both}");
}

#[test]
fn speculation_is_off_where_it_is_not_wanted_or_impossible() {
    let text = prompt(1, 30);
    let expected = run(&start(limits(2, 1024)).0, greedy(&text, 20));
    let replayed = |engine: &Engine, max_draft| {
        let branches = run(engine, replaying(greedy(&text, 20), &expected, 0.0, max_draft));
        assert_eq!(branches[0].tokens, expected[0].tokens);
        drafts(engine).n_drafts
    };
    assert_eq!(replayed(&start(limits(2, 1024)).0, 4), 0, "it is off by default here");
    assert_eq!(replayed(&start(speculating(limits(2, 1024))).0, 0), 0, "the request turned it off");
    assert_eq!(replayed(&start(speculating(limits(2, 1024))).0, 4), 4);
    let memory = |forks, n_window| MemoryKind { forks, n_window, ..MEMORY };
    for memory in [memory(ForkRule::AtEnd, 0), memory(ForkRule::InWindow, 16)] {
        let limits = Limits { speculation: SpeculationMode::On.into(), ..limits(2, 1024) };
        let (engine, _) = start_with(limits, move |runner| runner.with_memory(memory));
        assert_eq!(replayed(&engine, 4), 0, "{memory:?}");
    }
}

#[test]
fn drafts_take_only_what_a_step_leaves() {
    let text = prompt(1, 30);
    let expected = run(&start(limits(2, 1024)).0, greedy(&text, 200));
    // No more cells than the text needs.
    let (engine, control) = start(speculating(limits(1, 230)));
    run(&engine, replaying(greedy(&text, 200), &expected, 0.3, 8));
    assert_eq!((engine.stats().n_preempted, engine.stats().host_cache.n_evicted), (0, 0));
    assert!(control.n_cells_reached() <= 230);
    // A prompt beside it gets all of the rows that it wants.
    let limits = Limits { n_ubatch: 24, ..limits(2, 1024) };
    let (engine, control) = start(speculating(limits));
    control.allow(Some(3));
    let first = engine.submit(replaying(greedy(&text, 60), &expected, 0.0, 8), None).unwrap();
    wait_until(&engine, |stats| stats.n_decodes == 3);
    let second = engine.submit(greedy(&prompt(2, 100), 1), None).unwrap();
    control.allow(None);
    collect(first).unwrap();
    collect(second).unwrap();
    let plans = control.plans();
    let n_of_prompt = |tokens: &[Token]| {
        plans.iter().filter(|plan| plan.rows.iter().filter(|row| tokens.contains(&row.token)).count() > 0).count()
    };
    assert!(n_of_prompt(&tokens_of(&prompt(2, 100))) > 0);
    assert!(plans.iter().all(|plan| plan.rows.len() <= 24));
}

#[test]
fn a_decode_that_fails_with_drafts_is_repeated_without() {
    let text = prompt(1, 30);
    let expected = run(&start(limits(1, 1024)).0, greedy(&text, 20));
    let (engine, control) = start(speculating(limits(1, 1024)));
    control.allow(Some(2));
    let completions = engine.submit(replaying(greedy(&text, 20), &expected, 0.0, 8), None).unwrap();
    wait_until(&engine, |stats| stats.n_decodes == 2);
    control.fail(Some(FailureMode::MoreRowsThan(1)));
    control.allow(None);
    assert_eq!(collect(completions).unwrap()[0].tokens, expected[0].tokens);
    assert_eq!(drafts(&engine).n_drafts, 0, "no draft was computed");
    settled(&engine, &control);
}

/// A token event: its branch, token, text and the bits of its logprobs.
type SeenToken = (Token, String, Vec<(Token, u32)>);

/// What a client sees of a branch, but for the times and the slot.
#[derive(Debug, Clone, PartialEq, Default)]
struct Seen {
    tokens: Vec<SeenToken>,
    /// The finish reason, the rest of the text, whether it is truncated, and the numbers of predicted and held tokens.
    finished: Option<(FinishReason, String, bool, u32, u32)>,
    score: Option<u64>,
}

/// The reports about a prompt, and the branches of a stream.
type SeenStream = (Vec<(Token, u32)>, Vec<Seen>);

/// Reads a stream to its end.
fn seen(completions: Completions) -> SeenStream {
    let (mut reports, mut branches) = (Vec::new(), Vec::<Seen>::new());
    for event in completions {
        let event = event.expect("nothing fails");
        let index = match &event {
            Event::Token(token) => token.index,
            Event::Finished(finished) => finished.index,
            Event::Progress(_) => continue,
            Event::PromptLogprobs(report) => {
                let chosen = report.logprobs.iter().flatten().map(|one| (one.chosen.token, one.chosen.logprob.to_bits()));
                reports.extend(chosen);
                continue;
            }
        } as usize;
        branches.resize_with(branches.len().max(index + 1), Seen::default);
        let branch = &mut branches[index];
        match event {
            Event::Token(TokenEvent { token, text, logprobs, .. }) => {
                let logprobs = logprobs.into_iter().flat_map(|logprobs| [vec![logprobs.chosen], logprobs.top].concat());
                let bits = logprobs.map(|one| (one.token, one.logprob.to_bits())).collect();
                branch.tokens.push((token, text.to_string(), bits));
            }
            Event::Finished(Finished { reason, text, usage, is_truncated, score, .. }) => {
                branch.finished = Some((reason, text.to_string(), is_truncated, usage.n_predicted, usage.n_context));
                branch.score = score.map(f64::to_bits);
            }
            _ => unreachable!("they are of no branch"),
        }
    }
    (reports, branches)
}

/// The fake vocabulary, in which no text is one token.
struct Lookup;

impl TokenLookup for Lookup {
    fn find_token(&self, _: &str) -> Option<Token> {
        None
    }

    fn n_vocab(&self) -> usize {
        N_VOCAB
    }
}

fn grammar(text: &str) -> SharedConstraint {
    let spellings = (0..N_VOCAB).map(|token| spelling_of(Token::try_from(token).unwrap()));
    let grammar = Grammar::new(text, &Lookup, Arc::new(Spellings::new(spellings, &[END])));
    SharedConstraint(Arc::new(grammar.expect("the grammar is valid")))
}

const GRAMMARS: [&str; 4] = [
    r#"root ::= "{" pair ("," pair)* "}"
pair ::= "'" [a-z]+ "':" ("true" | "false" | "null" | [0-9]+)"#,
    r"root ::= ([a-m] [n-z])+",
    r#"root ::= "the answer is " [0-9]{1,8} "." "#,
    r"root ::= [^e]{3,40}",
];

impl Dice {
    fn samplers(&mut self) -> SamplingParams {
        let mut samplers = SamplerKind::DEFAULT.to_vec();
        if self.one_in(8) {
            samplers.push(SamplerKind::AdaptiveP);
        }
        if self.one_in(20) {
            samplers = vec![SamplerKind::Penalties, SamplerKind::Infill, SamplerKind::Temperature];
        }
        SamplingParams {
            samplers,
            temperature: self.of(&[0.0, 0.2, 0.7, 1.0, 1.5]),
            dynatemp_range: self.of(&[0.0, 0.0, 0.5]),
            top_k: self.of(&[0, 1, 5, 40]),
            top_p: self.of(&[1.0, 0.95, 0.5]),
            min_p: self.of(&[0.0, 0.05, 0.3]),
            typical_p: self.of(&[1.0, 1.0, 0.8]),
            top_n_sigma: self.of(&[-1.0, -1.0, 1.5]),
            tfs_z: self.of(&[1.0, 1.0, 0.9]),
            xtc_probability: self.of(&[0.0, 0.0, 0.5]),
            xtc_threshold: 0.02,
            repeat_penalty: self.of(&[1.0, 1.0, 1.3]),
            repeat_last_n: self.of(&[-1, 0, 8, 64]),
            presence_penalty: self.of(&[0.0, 0.0, 0.7]),
            frequency_penalty: self.of(&[0.0, 0.0, 0.2]),
            dry: Dry { multiplier: self.of(&[0.0, 0.0, 0.8]), ..Dry::default() },
            mirostat: self.of(&[Mirostat::Off, Mirostat::Off, Mirostat::Off, Mirostat::Off, Mirostat::V1, Mirostat::V2]),
            adaptive_target: self.of(&[-1.0, 0.2]),
            logit_bias: if self.one_in(4) { vec![(self.of(&[7, 40, 61]), 2.5), (17, f32::NEG_INFINITY)] } else { Vec::new() },
            logprobs: self.of(&[None, Some(0), Some(3)]),
            post_sampling_probs: self.one_in(4),
            ..SamplingParams::default()
        }
    }

    fn request(&mut self, seed: u32) -> Request {
        let text = format!(
            "{}{}",
            prompt(self.below(4), self.of(&[20, 28, 36, 44])),
            prompt(self.below(9), self.of(&[0, 1, 5, 12, 19]))
        );
        let mut request = Request { seed, n: self.of(&[1, 1, 1, 2, 3, 8]), ..greedy(&text, 1 + self.number(60)) };
        request.sampling = self.samplers();
        request.constraint = self.one_in(4).then(|| grammar(self.of(&GRAMMARS)));
        if self.one_in(5) {
            request.stop = vec!["e".into(), "xyz".into(), "qu".into()];
        }
        if self.one_in(5) {
            request.context_shift =
                Some(ContextShift { n_keep: Some(self.number(60)), n_discard: self.number(2) * self.number(40) });
            request.max_tokens = Some(1 + self.number(200));
        }
        if request.context_shift.is_none() && self.one_in(10) {
            request.max_tokens = None;
        }
        request.prompt_logprobs = self.one_in(6).then(|| self.number(3)); // feature: prompt_logprobs
        request.uses_cache = !self.one_in(6);
        request.priority = self.of(&[0, 0, 0, 1, -1]);
        request.n_indent = self.of(&[0, 0, 0, 0, 2]);
        request.diversity = self.of(&[Diversity::None, Diversity::None, Diversity::Arithmetic, Diversity::Distinct]); // feature: diversity
        let is_exclusive =
            request.sampling.mirostat != Mirostat::Off || request.sampling.samplers.contains(&SamplerKind::AdaptiveP);
        if is_exclusive {
            request.diversity = Diversity::None;
        }
        // feature: beams
        if self.one_in(12) {
            let search = BeamSearch { width: request.n.max(2), length_penalty: 1.0, is_stochastic: false };
            request = Request { n: request.n.min(4), ..drawn(&text, request.n.min(4), 1 + self.number(30)) };
            request.diversity = Diversity::Beams(BeamSearch { width: search.width.min(4), ..search });
        }
        request
    }
}

/// Runs requests, several at a time.
fn run_all(engine: &Engine, requests: &[Request]) -> Vec<SeenStream> {
    let mut results = Vec::new();
    for requests in requests.chunks(12) {
        let submit = |request: &Request| match engine.submit(request.clone(), None) {
            Ok(completions) => completions,
            Err(error) => panic!("{error} of {request:?}"),
        };
        let streams: Vec<Completions> = requests.iter().map(submit).collect();
        results.extend(streams.into_iter().map(seen));
    }
    results
}

#[test]
#[expect(clippy::print_stderr, reason = "the counts show that the drafts are accepted and rejected")]
fn speculation_changes_no_event() {
    let (n_rounds, n_requests) = (number_of("WEFT_FUZZ_ROUNDS").unwrap_or(N_ROUNDS), 50_u32);
    let mut totals = [DraftStats::default(); DraftSource::ALL.len()];
    let (mut n_two, mut n_preempted) = (0, 0);
    for round in 1..=n_rounds {
        let mut dice = Dice::new(round);
        let requests: Vec<Request> = (0..n_requests).map(|seed| dice.request(seed)).collect();
        let n_slots = dice.of(&[4, 6, 8]);
        let n_ctx_slot = 160;
        let (n_ctx, ends_at) = (dice.of(&[700, 800, 4096]), dice.of(&[150, 10_000]));
        let limits = Limits {
            n_ctx_slot,
            n_ubatch: dice.of(&[24, 64, 512]),
            n_seq_max: n_slots + dice.of(&[2, 8, 64]),
            max_host_cache_bytes: dice.of(&[Some(0), Some(20_000), STORE]),
            ..limits(n_slots, n_ctx)
        };
        // Cells do not limit the results that are compared with.
        let ample = Limits { n_seq_max: n_slots + 64, ..Limits { n_ctx: 8192, ..limits } };
        let prepare = move |runner: FakeRunner| runner.ending_at(ends_at);
        let expected = run_all(&start_with(ample, prepare).0, &requests);
        let (engine, control) = start_with(speculating(limits), prepare);
        let requests: Vec<Request> = requests
            .into_iter()
            .zip(&expected)
            .map(|(request, (_, branches))| {
                let branches = branches.iter().map(|branch| branch.tokens.iter().map(|(token, ..)| *token).collect()).collect();
                let error_rate = dice.of(&[0.0, 0.1, 0.1, 0.2, 0.4]);
                let replay = Replay { branches, error_rate, seed: round, is_forced: !dice.one_in(8) };
                let max_draft = Some(dice.of(&[1, 4, 8, 8, 8, 20, 20]));
                // The others draft from their texts and constraints, as much as measured times allow.
                let replay = (!dice.one_in(8)).then(|| Arc::new(replay));
                Request { speculation: Speculation { max_draft, replay, ..Speculation::default() }, ..request }
            })
            .collect();
        for (nth, (found, expected)) in run_all(&engine, &requests).into_iter().zip(expected).enumerate() {
            assert_eq!(found, expected, "round {round}, request {nth}: {:?}", requests[nth]);
        }
        settled(&engine, &control);
        // The worker checks its invariants before it waits for a request.
        engine.cached().expect("the worker runs");
        engine.cached().expect("the worker runs");
        for (total, of_source) in totals.iter_mut().zip(engine.stats().speculation.by_source) {
            total.n_drafts += of_source.n_drafts;
            total.n_drafted += of_source.n_drafted;
            total.n_accepted += of_source.n_accepted;
            total.n_cut += of_source.n_cut;
        }
        n_two += engine.stats().speculation.n_accepted_at[1];
        n_preempted += engine.stats().n_preempted;
    }
    let [n_drafts, n_cut] =
        [|of: &DraftStats| of.n_drafts, |of: &DraftStats| of.n_cut].map(|n| totals.iter().map(n).sum::<u64>());
    let share = |n: u64| 100 * n / n_drafts;
    eprintln!(
        "{} requests, {n_preempted} preemptions, {n_drafts} drafts, of which {} % are cut and {} % have two accepted tokens or more; \
         by source: {totals:?}",
        n_rounds * u64::from(n_requests),
        share(n_cut),
        share(n_two)
    );
    assert!(share(n_cut) >= 30 && share(n_two) >= 30 && n_preempted > 0);
}
