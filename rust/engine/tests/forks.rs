//! Forks of branches that run, wait or have ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::constraints::held_to;
use super::*;
use crate::engine::features::forks::builder::MAX_EMPTY_TOKENS;
use crate::engine::features::forks::request::{MAX_COPIED_TOKENS, REPLAY_COST};
use crate::engine::{Fork, ForkDestination, ForkKind, ForkPoint, ForkResult, ForkTextBoundary, PendingFork};
use crate::fake_runner::{END, spelling_of};
use crate::request::{BeamSearch, Constraint, ConstraintSource, ContextShift, Diversity, SharedConstraint};

/// Maximum number of tokens that a step replays for forks.
const MAX_READ: usize = MAX_COPIED_TOKENS / REPLAY_COST;

/// The token that [`Counting`] rejects.
const FORBIDDEN: Token = 9;

/// Allows all but one token, and counts the accepted tokens of all copies.
#[derive(Debug, Clone, Default)]
struct Counting {
    n_accepted: Arc<AtomicUsize>,
}

impl ConstraintSource for Counting {
    fn start(&self) -> Box<dyn Constraint> {
        self.copy()
    }
}

impl Constraint for Counting {
    fn allows(&mut self, token: Token) -> bool {
        token != FORBIDDEN
    }

    fn mask(&mut self, logits: &mut [f32]) {
        logits[FORBIDDEN as usize] = f32::NEG_INFINITY;
    }

    fn accept(&mut self, _token: Token) {
        self.n_accepted.fetch_add(1, Ordering::Relaxed);
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// Returns the request with its branches constrained to almost nothing, and the counter of accepted tokens.
fn counted(request: Request) -> (Request, Arc<AtomicUsize>) {
    let counting = Counting::default();
    let n_accepted = Arc::clone(&counting.n_accepted);
    (Request { constraint: Some(SharedConstraint(Arc::new(counting))), ..request }, n_accepted)
}

/// Steps until a fork is answered; returns the number of steps. Each replays at most the limit, plus one token for each branch
/// that samples.
fn n_steps_of(engine: &Engine, control: &FakeControl, fork: &PendingFork, n_accepted: &AtomicUsize) -> usize {
    let mut n_steps = 0;
    control.hold();
    while !fork.is_ready() {
        let (n_before, n_predicted) = (n_accepted.load(Ordering::Relaxed), engine.stats().n_predicted);
        step(engine, control);
        // All that the worker reads for the next decode has been read by then.
        control.hold();
        n_steps += 1;
        let n_read = n_accepted.load(Ordering::Relaxed) - n_before;
        assert!(n_read <= MAX_READ + 9, "{n_read} tokens in step {n_steps}");
        assert!(engine.stats().n_predicted > n_predicted, "others go on");
    }
    n_steps
}

/// Creates `n` forks of branch 0 at its end with its parameters.
fn same_params(n: u32) -> Fork {
    Fork {
        branch: 0,
        at: ForkPoint::End,
        append: Vec::new(),
        kind: ForkKind::Continue(n),
        destination: ForkDestination::SameStream,
    }
}

fn in_own_stream(fork: Fork) -> Fork {
    Fork { destination: ForkDestination::OwnStream(None), ..fork }
}

/// Creates a greedy request with which forks may continue.
fn with_params(max_tokens: u32) -> Request {
    Request { prompt: Prompt::default(), ..greedy("x", max_tokens) }
}

fn restart(requests: Vec<Request>) -> ForkKind {
    ForkKind::Restart { requests, with_own_seeds: true }
}

/// Returns branch 0 of a request, after it has sampled `n` tokens; decodes are held.
fn drawing(engine: &Engine, control: &FakeControl, request: Request, n: u32) -> Completions {
    control.allow(Some(0));
    let completions = engine.submit(request, None).unwrap();
    step_until(engine, control, |stats| {
        stats.slots.iter().flat_map(|slot| &slot.running).any(|running| running.index == 0 && running.n_predicted >= n)
    });
    completions
}

/// Forks while decodes are held: as few run as the worker needs to answer.
fn forked(control: &FakeControl, completions: &Completions, fork: Fork) -> Result<ForkResult, Error> {
    let requested = completions.request_fork(fork, None)?;
    while !requested.is_ready() {
        control.allow(Some(1));
        std::thread::sleep(Duration::from_millis(1));
    }
    requested.wait()
}

/// Returns the expected greedy continuation of `tokens` by `n` tokens.
fn expected_after(mut tokens: Vec<Token>, n: usize) -> Vec<Token> {
    let start = tokens.len();
    (0..n).for_each(|_| tokens.push(FakeRunner::next_token(&tokens)));
    tokens.split_off(start)
}

fn bytes_of(tokens: &[Token]) -> Vec<u8> {
    tokens.iter().flat_map(|&token| spelling_of(token)).copied().collect()
}

fn n_computed(branch: &BranchState) -> u32 {
    branch.finished.usage.n_prompt_computed
}

#[test]
fn forks_at_the_end_of_a_running_branch_compute_nothing() {
    for (n_slots, length, recurrent) in [(4, 60, false), (1, 60, false), (4, 5, false), (8, 60, true)] {
        let (engine, control) = if recurrent { start_recurrent(n_slots, 4096) } else { start_with_host_cache(n_slots, 4096) };
        let text = prompt(1, length);
        let completions = drawing(&engine, &control, greedy(&text, 20), 6);
        let made = forked(&control, &completions, same_params(2)).unwrap();
        assert_eq!((made.branches, made.stream.is_none()), (1..3, true));
        let n_sampled = made.n_sampled as usize;
        control.allow(None);
        let branches = collect(completions).unwrap();
        let n_at = branches[1].finished.usage.n_cached as usize - length;
        assert!((6..20).contains(&n_at), "{n_at}");
        assert_eq!(n_sampled, n_at);
        for fork in &branches[1..] {
            assert_eq!((n_computed(fork), fork.finished.usage.n_cached as usize), (0, length + n_at));
            assert_eq!(fork.tokens, expected(&text, n_at + 20)[n_at..]);
            assert_eq!(fork.text, String::from_utf8_lossy(&bytes_of(&fork.tokens)));
        }
        // All sampled tokens but the last are computed by its branch.
        assert_eq!(control.n_computed(), length + 3 * 19, "{n_slots} slots, {length} tokens, recurrent: {recurrent}");
        let stats = wait_until(&engine, is_idle).branches;
        assert_eq!((stats.n_started, stats.n_forked, stats.n_computed), (3, 2, 0));
        assert_eq!(stats.n_shared, 2 * (length + n_at) as u64);
    }
}

#[test]
fn forks_before_the_end_compute_one_token() {
    let (engine, control) = start(limits(4, 4096));
    let text = prompt(1, 60);
    let completions = drawing(&engine, &control, greedy(&text, 20), 9);
    let n_bytes = bytes_of(&expected(&text, 7)).len();
    let places = [(ForkPoint::Token(4), 4), (ForkPoint::Byte(n_bytes), 7), (ForkPoint::Token(0), 0)];
    let forks = places.map(|(at, n)| {
        let made = forked(&control, &completions, in_own_stream(Fork { at, ..same_params(1) })).unwrap();
        let stream = made.stream.unwrap();
        assert_eq!((stream.n_prompt(), made.n_sampled as usize), (60 + n, n));
        (stream, n)
    });
    control.allow(None);
    for (stream, n) in forks {
        let branches = collect(stream).unwrap();
        assert_eq!((n_computed(&branches[0]), branches[0].finished.usage.n_cached as usize), (1, 59 + n));
        assert_eq!(branches[0].tokens, expected(&text, n + 20)[n..]);
    }
}

#[test]
fn forks_with_appended_tokens_compute_only_those() {
    let (engine, control) = start(limits(4, 4096));
    let text = prompt(1, 60);
    let completions = drawing(&engine, &control, greedy(&text, 40), 6);
    let more = "and then?";
    let made = forked(&control, &completions, in_own_stream(Fork { append: tokens_of(more), ..same_params(3) })).unwrap();
    let stream = made.stream.unwrap();
    let n_at = stream.n_prompt() - 60 - more.len();
    control.allow(None);
    let branches = collect(stream).unwrap();
    assert_eq!(branches.iter().map(n_computed).sum::<u32>() as usize, more.len());
    let whole = [tokens_of(&text), expected(&text, n_at), tokens_of(more)].concat();
    assert!(branches.iter().all(|branch| branch.tokens == expected_after(whole.clone(), 40)));
    assert_eq!(collect(completions).unwrap()[0].tokens, expected(&text, 40));
}

#[test]
fn a_checkpoint_is_saved_for_forks_that_start_after_their_branch_has_advanced() {
    let many = 2 * MAX_READ + 1;
    // No slot is free, and few ids; the appended tokens take several steps to replay; both, at an earlier position.
    for (n_slots, n_orders, n_appended) in [(1, 1, 10), (1, 4, 0), (2, 3, 10), (4, 1, many), (1, 2, many), (4, 2, many)] {
        let (engine, control) = start_recurrent(n_slots, 40_000);
        let text = prompt(1, 60);
        let completions = drawing(&engine, &control, greedy(&text, 40), 6);
        let append = vec![30; n_appended];
        let fork = || {
            in_own_stream(Fork { append: append.clone(), kind: restart(vec![with_params(3), with_params(2)]), ..same_params(1) })
        };
        let requested: Vec<PendingFork> = (0..n_orders).map(|_| completions.request_fork(fork(), None).unwrap()).collect();
        (0..5).for_each(|_| step(&engine, &control));
        control.allow(None);
        for fork in requested {
            let made = fork.wait().unwrap();
            let branches = collect(made.stream.unwrap()).unwrap();
            let beginning = [tokens_of(&text), expected(&text, made.n_sampled as usize), append.clone()].concat();
            assert_eq!(branches[0].tokens, expected_after(beginning, 3));
            let n: u32 = branches.iter().map(n_computed).sum();
            assert!(n as usize <= n_appended, "{n} of {n_appended}: {n_slots} slots, {n_orders} forks");
        }
        assert_eq!(collect(completions).unwrap()[0].tokens, expected(&text, 40));
        wait_until(&engine, is_idle);
    }
}

#[test]
fn a_checkpoint_is_saved_for_forks_that_find_a_slot_but_no_cells() {
    // The appended tokens do not fit with another branch running; a preempted branch goes first.
    for (n_appended, is_preempted) in [(140, false), (10, true)] {
        let (engine, control) = start_recurrent(4, if is_preempted { 330 } else { 420 });
        let text = prompt(1, 60);
        let completions = drawing(&engine, &control, greedy(&text, 60), 6);
        let others: Vec<Completions> = if is_preempted { &[(2, 60, 60), (3, 60, 100)][..] } else { &[(2, 150, 60)] }
            .iter()
            .map(|&(seed, length, n)| engine.submit(greedy(&prompt(seed, length), n), None).unwrap())
            .collect();
        step_until(&engine, &control, |stats| {
            let n_running = stats.slots.iter().filter(|slot| slot.running.is_some()).count();
            if is_preempted { stats.n_preempted == 1 } else { n_running == 2 }
        });
        let append = vec![30; n_appended];
        let fork = in_own_stream(Fork { append: append.clone(), kind: restart(vec![with_params(3)]), ..same_params(1) });
        let requested = completions.request_fork(fork, None).unwrap();
        (0..5).for_each(|_| step(&engine, &control));
        let stats = engine.stats();
        assert!(stats.slots.iter().any(|slot| slot.running.is_none()), "{stats:?}");
        control.allow(None);
        let made = requested.wait().unwrap();
        assert!(made.n_sampled < 59, "its branch goes on");
        let branches = collect(made.stream.unwrap()).unwrap();
        let beginning = [tokens_of(&text), expected(&text, made.n_sampled as usize), append].concat();
        assert_eq!(branches[0].tokens, expected_after(beginning, 3));
        assert_eq!(n_computed(&branches[0]) as usize, n_appended);
        assert_eq!(collect(completions).unwrap()[0].tokens, expected(&text, 60));
        for other in others {
            drop(collect(other).unwrap());
        }
        wait_until(&engine, is_idle);
    }
}

#[test]
fn ended_branches_can_be_forked_while_their_stream_is_held() {
    let (engine, control) = start(limits(4, 4096));
    let text = prompt(1, 60);
    let completions = engine.submit(greedy(&text, 12), None).unwrap();
    wait_until(&engine, |stats| stats.n_predicted == 12 && is_idle(stats));
    let before = control.n_computed();
    let stream = completions.fork(in_own_stream(same_params(2))).unwrap().stream.unwrap();
    let branches = collect(stream).unwrap();
    assert!(branches.iter().all(|branch| branch.tokens == expected(&text, 24)[12..]));
    // The last token was sampled and never computed.
    assert_eq!(control.n_computed() - before, 1 + 2 * 11);
    let Err(Error::InvalidRequest { param: "stream", .. }) = forked(&control, &completions, same_params(1)) else {
        panic!("it has ended")
    };
    let Err(Error::InvalidRequest { param: "branch", .. }) =
        forked(&control, &completions, Fork { branch: 1, ..in_own_stream(same_params(1)) })
    else {
        panic!("there is none")
    };
}

#[test]
fn forks_with_new_parameters_restart_after_the_text() {
    let (engine, control) = start(limits(6, 4096));
    let text = prompt(1, 60);
    let completions = drawing(&engine, &control, drawn(&text, 1, 60), 8);
    let ways = vec![
        Request { n: 2, seed: 9, ..Request { sampling: SamplingParams::default(), ..with_params(10) } },
        Request { stop: vec!["e".to_owned()], ..with_params(90) },
        with_params(4),
    ];
    let made =
        forked(&control, &completions, Fork { at: ForkPoint::Token(5), kind: restart(ways.clone()), ..same_params(1) }).unwrap();
    assert_eq!((made.branches, made.seed), (1..5, 9));
    control.allow(None);
    let branches = collect(completions).unwrap();
    let mut beginning = tokens_of(&text);
    beginning.extend(&branches[0].tokens[..5]);
    let requested = ways.into_iter().map(|params| Request { prompt: Prompt::from_tokens(beginning.clone()), ..params });
    let alone: Vec<BranchState> = requested.flat_map(|request| run(&engine, request)).collect();
    for (fork, alone) in branches[1..].iter().zip(&alone) {
        assert_eq!((&fork.tokens, &fork.text), (&alone.tokens, &alone.text));
        assert_eq!(fork.finished.reason, alone.finished.reason);
    }
}

#[test]
fn the_texts_of_a_branch_and_its_fork_join_as_their_text_boundary_reports() {
    let (engine, control) = start(limits(4, 4096));
    let request = greedy(&prompt(1, 60), 30);
    let text = String::from_utf8(expected(&prompt(1, 60), 50).into_iter().flat_map(spelling_of).copied().collect()).unwrap();
    // After five tokens the last one may be the start of a stop string, which the next one rules out.
    let other = ('a'..='z').find(|&letter| !text.contains(&format!("{}{letter}", &text[4..5]))).unwrap();
    let request = Request { stop: vec![format!("{}{other}", &text[4..5])], ..request };
    let held = |unshown: bool| ForkTextBoundary {
        unshown: if unshown { text[4..5].to_owned() } else { String::new() },
        n_shown_again: 0,
    };
    let cases = [
        (same_params(1), held(false)),
        (Fork { kind: restart(vec![with_params(10)]), ..same_params(1) }, held(true)),
        (Fork { append: vec![30], ..same_params(1) }, held(true)),
        (Fork { append: vec![30], kind: restart(vec![with_params(10)]), ..same_params(1) }, held(true)),
    ];
    for (nth, (fork, text_boundary)) in cases.into_iter().enumerate() {
        let is_appended = !fork.append.is_empty();
        let completions = drawing(&engine, &control, request.clone(), 8);
        let made = forked(&control, &completions, in_own_stream(Fork { at: ForkPoint::Token(5), ..fork })).unwrap();
        assert_eq!(made.text_boundary, text_boundary, "{nth}");
        control.allow(None);
        let own = collect(made.stream.unwrap()).unwrap().remove(0).text;
        let shown: String = completions.take(5).map(|event| text_of(event.unwrap())).collect();
        assert_eq!(shown, text[..4]);
        if !is_appended {
            assert!(own.len() > 5 && text.starts_with(&(shown + &text_boundary.unshown + &own)), "{nth}");
        }
        wait_until(&engine, is_idle);
    }
    // An ended branch has published the text it held back; a fork with its parameters may still complete the stop string there.
    let mut completions = engine.submit(Request { max_tokens: Some(5), ..request }, None).unwrap();
    let shown: String = completions.by_ref().map(|event| text_of(event.unwrap())).take_while(|text| !text.is_empty()).collect();
    wait_until(&engine, is_idle);
    assert_eq!(shown, text[..5]);
    let cases = [
        (same_params(1), ForkTextBoundary { n_shown_again: 1, ..ForkTextBoundary::default() }),
        (Fork { kind: restart(vec![with_params(10)]), ..same_params(1) }, ForkTextBoundary::default()),
        (Fork { append: vec![30], ..same_params(1) }, ForkTextBoundary::default()),
    ];
    for (nth, (fork, text_boundary)) in cases.into_iter().enumerate() {
        let made = completions.fork(in_own_stream(fork)).unwrap();
        assert_eq!(made.text_boundary, text_boundary, "{nth} of a branch that has ended");
    }
}

/// Generates one letter, and then only tokens without text.
#[derive(Debug, Clone, Default)]
struct Silent {
    has_begun: bool,
}

impl ConstraintSource for Silent {
    fn start(&self) -> Box<dyn Constraint> {
        self.copy()
    }
}

impl Constraint for Silent {
    fn allows(&mut self, token: Token) -> bool {
        token == if self.has_begun { END } else { FORBIDDEN }
    }

    fn mask(&mut self, logits: &mut [f32]) {
        for (token, logit) in (0..).zip(logits) {
            if !self.allows(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn accept(&mut self, _token: Token) {
        self.has_begun = true;
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn held_back_text_is_found_behind_a_bounded_number_of_tokens_without_text() {
    let (engine, _) = start_with(limits(1, 4096), FakeRunner::without_end);
    let letter = String::from_utf8(spelling_of(FORBIDDEN).to_vec()).unwrap();
    let constraint = Some(SharedConstraint(Arc::new(Silent::default())));
    let request = Request { constraint, stop: vec![format!("{letter}!")], ..greedy(&prompt(1, 60), 2 * MAX_EMPTY_TOKENS) };
    let completions = engine.submit(request, None).unwrap();
    wait_until(&engine, |stats| stats.n_predicted == 2 * u64::from(MAX_EMPTY_TOKENS) && is_idle(stats));
    for (n_sampled, unshown) in
        [(1, &*letter), (MAX_EMPTY_TOKENS, &letter), (MAX_EMPTY_TOKENS + 1, ""), (2 * MAX_EMPTY_TOKENS - 1, "")]
    {
        let fork = Fork { at: ForkPoint::Token(n_sampled), kind: restart(vec![with_params(1)]), ..same_params(1) };
        let text_boundary = completions.fork(in_own_stream(fork)).unwrap().text_boundary;
        assert_eq!(text_boundary, ForkTextBoundary { unshown: unshown.to_owned(), n_shown_again: 0 }, "{n_sampled}");
    }
}

/// Reads a fork with a separate stream and one branch to its end.
fn only_branch(forked: ForkResult) -> BranchState {
    let mut branches = collect(forked.stream.expect("the fork has a stream of its own")).unwrap();
    assert_eq!(branches.len(), 1);
    branches.remove(0)
}

/// The first and the second byte of "é".
const HALVES: [Token; 2] = [1, 2];

/// Returns a finished stream that ends with the first byte of "é", and its finished fork. The grammar of the fork allows only
/// `éXYé!` from that byte on, and the fork stops at `stop`.
fn fork_with_a_grammar(engine: &Engine, stop: &[&str]) -> (Completions, ForkResult) {
    let (request, _) = held_to(greedy(&prompt(1, 60), 1), vec![HALVES[0]]);
    let completions = engine.submit(request, None).unwrap();
    let script = [&[HALVES[1]][..], &tokens_of("XY"), &HALVES, &tokens_of("!")].concat();
    let (params, _) = held_to(with_params(40), script);
    let params = Request { stop: stop.iter().map(|&stop| stop.to_owned()).collect(), ..params };
    wait_until(engine, is_idle);
    let fork =
        completions.fork(in_own_stream(Fork { at: ForkPoint::Token(1), kind: restart(vec![params]), ..same_params(1) })).unwrap();
    wait_until(engine, is_idle);
    (completions, fork)
}

#[test]
fn a_fork_of_a_fork_continues_its_grammar_and_incomplete_character() {
    let (engine, _) = start(limits(4, 4096));
    let (_first, fork) = fork_with_a_grammar(&engine, &[]);
    let fork_stream = fork.stream.unwrap();
    for (n_drawn, text) in [(0, "éXYé!"), (1, "XYé!"), (2, "Yé!"), (3, "é!"), (4, "é!"), (5, "!"), (6, "")] {
        let second = fork_stream.fork(in_own_stream(Fork { at: ForkPoint::Token(n_drawn), ..same_params(1) })).unwrap();
        let second_stream = second.stream.unwrap();
        wait_until(&engine, is_idle);
        let third = second_stream.fork(in_own_stream(Fork { at: ForkPoint::Token(0), ..same_params(1) })).unwrap();
        assert_eq!(only_branch(third).text, text, "a fork of the fork of the fork, which was forked after {n_drawn} tokens");
        assert_eq!(collect(second_stream).unwrap()[0].text, text, "after {n_drawn} tokens");
    }
    assert_eq!(collect(fork_stream).unwrap()[0].text, "éXYé!");
}

#[test]
fn a_fork_of_a_running_fork_continues_its_grammar() {
    let (engine, control) = start(limits(4, 4096));
    let completions = drawing(&engine, &control, greedy(&prompt(1, 60), 400), 3);
    let script = tokens_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ").repeat(4);
    let (params, _) = held_to(with_params(200), script.clone());
    let fork = in_own_stream(Fork { kind: restart(vec![params]), ..same_params(1) });
    let fork_stream = forked(&control, &completions, fork).unwrap().stream.unwrap();
    step_until(&engine, &control, |stats| {
        stats.slots.iter().flat_map(|slot| &slot.running).any(|running| running.request_id > 0 && running.n_predicted >= 5)
    });
    let requested = [ForkPoint::Token(2), ForkPoint::End]
        .map(|at| forked(&control, &fork_stream, in_own_stream(Fork { at, ..same_params(1) })).unwrap());
    control.allow(None);
    for fork in requested {
        let n_drawn = fork.n_sampled as usize;
        assert_eq!(only_branch(fork).tokens, [&script[n_drawn..], &[END]].concat(), "forked after {n_drawn} tokens");
    }
}

#[test]
fn a_fork_of_a_fork_completes_a_stop_string_that_its_branch_began() {
    let (engine, _) = start(limits(4, 4096));
    let (_first, fork) = fork_with_a_grammar(&engine, &["Yé"]);
    let fork_stream = fork.stream.unwrap();
    for (n_drawn, text) in [(1, "X"), (2, ""), (3, ""), (4, "")] {
        let second = fork_stream.fork(in_own_stream(Fork { at: ForkPoint::Token(n_drawn), ..same_params(1) })).unwrap();
        let BranchState { text: shown, finished, .. } = only_branch(second);
        assert_eq!((&*shown, finished.reason), (text, FinishReason::Stop("Yé".into())), "after {n_drawn} tokens");
    }
}

#[test]
fn text_appended_to_a_fork_of_a_fork_must_match_its_grammar() {
    let (engine, _) = start(limits(4, 4096));
    let (_first, fork) = fork_with_a_grammar(&engine, &[]);
    let fork_stream = fork.stream.unwrap();
    let append = |text: &str| {
        let append = tokens_of(text);
        fork_stream.fork(in_own_stream(Fork { at: ForkPoint::Token(1), append, ..same_params(1) }))
    };
    assert_eq!(only_branch(append("XY").unwrap()).text, "é!");
    let refused = append("Y").err();
    assert!(matches!(refused, Some(Error::InvalidRequest { param: "append", .. })), "{refused:?}");
}

fn text_of(event: Event) -> String {
    match event {
        Event::Token(token) => token.text.to_string(),
        Event::Finished(finished) => finished.text.to_string(),
        Event::Progress(_) | Event::PromptLogprobs(_) => String::new(),
    }
}

#[test]
fn a_fork_samples_with_the_streams_seed_and_its_index_and_penalises_earlier_tokens() {
    let (engine, control) = start(limits(4, 4096));
    let text = prompt(1, 60);
    let mut request = drawn(&text, 1, 30);
    request.seed = 40;
    request.sampling.repeat_penalty = 1.8;
    request.sampling.repeat_last_n = 64;
    let completions = drawing(&engine, &control, request.clone(), 10);
    let at = Fork { at: ForkPoint::Token(10), ..same_params(1) };
    assert_eq!(forked(&control, &completions, at).unwrap().seed, 41);
    let own = forked(&control, &completions, in_own_stream(Fork { at: ForkPoint::Token(10), ..same_params(2) })).unwrap();
    assert_eq!(own.seed, 40 + 256);
    control.allow(None);
    let own = collect(own.stream.unwrap()).unwrap();
    let branches = collect(completions).unwrap();
    // Penalties treat a prompt that contains the earlier text like the generated text itself.
    let mut beginning = tokens_of(&text);
    beginning.extend(&branches[0].tokens[..10]);
    let seeded = |seed| Request { prompt: Prompt::from_tokens(beginning.clone()), seed, ..request.clone() };
    assert_eq!(branches[1].tokens, run(&engine, seeded(41))[0].tokens);
    assert_eq!(own[0].tokens, run(&engine, seeded(296))[0].tokens);
    assert_eq!(own[1].tokens, run(&engine, seeded(297))[0].tokens);
}

#[test]
fn a_fork_of_a_preempted_branch_continues_its_text() {
    let (engine, control) = start_with_host_cache(2, 200);
    let text = prompt(1, 60);
    let completions = drawing(&engine, &control, greedy(&text, 40), 5);
    let urgent: Vec<Completions> =
        (0..2).map(|i| engine.submit(Request { priority: 9, ..greedy(&prompt(5 + i, 60), 30) }, None).unwrap()).collect();
    step_until(&engine, &control, |stats| stats.n_preempted > 0);
    let made = forked(&control, &completions, in_own_stream(same_params(2))).unwrap();
    let stream = made.stream.unwrap();
    let n_at = stream.n_prompt() - 60;
    completions.cancel_branch(0);
    control.allow(None);
    assert!(urgent.into_iter().all(|stream| collect(stream).unwrap()[0].tokens.len() == 30));
    let branches = collect(stream).unwrap();
    assert!(branches.iter().all(|branch| branch.tokens == expected(&text, n_at + 40)[n_at..]));
    assert!(branches.iter().map(n_computed).sum::<u32>() <= 1, "it was kept in the store");
    assert_eq!(reasons(&collect(completions).unwrap()), [FinishReason::Cancelled]);
    wait_until(&engine, is_idle);
}

#[test]
fn a_shifted_branch_can_be_forked_only_within_its_remaining_text() {
    let (engine, control) = start(Limits { n_ctx_slot: 64, ..limits(3, 512) });
    let text = prompt(1, 30);
    let shift = ContextShift { n_keep: Some(10), n_discard: 0 };
    let request = Request { context_shift: Some(shift), ..greedy(&text, 100) };
    let completions = drawing(&engine, &control, request, 40);
    let made = forked(&control, &completions, in_own_stream(same_params(1))).unwrap();
    let stream = made.stream.unwrap();
    assert!(stream.n_prompt() < 64);
    let near = forked(&control, &completions, in_own_stream(Fork { at: ForkPoint::Token(38), ..same_params(1) }));
    let Err(Error::InvalidRequest { param: "at", message }) =
        forked(&control, &completions, in_own_stream(Fork { at: ForkPoint::Token(2), ..same_params(1) }))
    else {
        panic!("that is gone")
    };
    assert!(message.contains("was shifted"), "{message}");
    control.allow(None);
    let whole = collect(completions).unwrap().remove(0).tokens;
    let fork = collect(stream).unwrap().remove(0).tokens;
    let at = whole.windows(40).position(|part| part == &fork[..40]).expect("it draws what its branch draws");
    assert!(at >= 40);
    assert_eq!(collect(near.unwrap().stream.unwrap()).unwrap()[0].tokens[..2], whole[38..40]);
}

#[test]
fn a_branch_shifted_several_times_can_be_forked_only_within_its_remaining_text() {
    let (engine, _) = start(Limits { n_ctx_slot: 64, ..limits(2, 512) });
    let shift = ContextShift { n_keep: Some(10), n_discard: 0 };
    let n_drawn = 400;
    let request = Request { context_shift: Some(shift), ..greedy(&prompt(1, 30), n_drawn) };
    let completions = engine.submit(request, None).unwrap();
    wait_until(&engine, |stats| stats.n_predicted == u64::from(n_drawn) && is_idle(stats));
    let fork_at = |n_drawn: u32| completions.fork(in_own_stream(Fork { at: ForkPoint::Token(n_drawn), ..same_params(1) }));
    let n_left = (0..n_drawn).rev().take_while(|&at| fork_at(at).is_ok()).count();
    assert!((1..54).contains(&n_left), "{n_left}");
    for at in [0, 5, 100, n_drawn - 54] {
        let refused = fork_at(at).err();
        assert!(
            matches!(&refused, Some(Error::InvalidRequest { param: "at", message }) if message.contains("was shifted")),
            "{at}: {refused:?}"
        );
    }
    wait_until(&engine, is_idle);
}

#[test]
fn forks_of_a_branch_that_shifts_before_its_next_token_continue_the_unshifted_text() {
    // The branch has 88 of the cells; a pinned prompt has the others.
    let (engine, control) = start(limits(1, 128));
    let pinned = pin(&engine, &prompt(9, 40));
    let text = prompt(1, 30);
    let shift = ContextShift { n_keep: Some(10), n_discard: 0 };
    let request = Request { context_shift: Some(shift), ..greedy(&text, 120) };
    let completions = drawing(&engine, &control, request, 58);
    control.hold();
    // The decode that is held samples the token that finds no cell. The fork is made in the next step, before the shift.
    let pending = completions
        .request_fork(in_own_stream(Fork { kind: restart(vec![Request { n: 3, ..with_params(4) }]), ..same_params(1) }), None)
        .unwrap();
    step(&engine, &control);
    step(&engine, &control);
    let made = pending.wait().unwrap();
    assert_eq!(made.n_sampled, 59);
    // With more cells, the branch becomes as long as it was at the fork, with another text, before the forks get its slot.
    assert!(answer_while_held(&control, || engine.unpin(pinned.id).unwrap()));
    control.allow(None);
    assert_eq!(collect(completions).unwrap()[0].tokens.len(), 120);
    let beginning = [tokens_of(&text), expected(&text, 59)].concat();
    for fork in collect(made.stream.unwrap()).unwrap() {
        assert_eq!(fork.tokens, expected_after(beginning.clone(), 4));
    }
}

#[test]
fn forks_and_waiting_branches_can_be_forked() {
    let (engine, control) = start(limits(2, 4096));
    let text = prompt(1, 60);
    let completions = drawing(&engine, &control, greedy(&text, 30), 5);
    let first = forked(&control, &completions, Fork { at: ForkPoint::Token(5), ..same_params(3) }).unwrap();
    assert_eq!(first.branches, 1..4);
    // It was never in a slot.
    let second = forked(&control, &completions, Fork { branch: 3, ..same_params(1) }).unwrap();
    assert_eq!(second.branches, 4..5);
    control.allow(None);
    let branches = collect(completions).unwrap();
    assert!(branches[1..].iter().all(|branch| branch.tokens == expected(&text, 35)[5..]));
}

#[test]
fn invalid_forks_are_refused_and_release_everything() {
    let (engine, control) = start(Limits { max_queue: 3, ..limits(1, 128) });
    let text = prompt(1, 60);
    let completions = drawing(&engine, &control, greedy(&text, 50), 5);
    let param = |fork| match forked(&control, &completions, fork) {
        Err(Error::InvalidRequest { param, .. }) => param,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was forked"),
    };
    assert_eq!(param(Fork { branch: 7, ..same_params(1) }), "branch");
    assert_eq!(param(Fork { at: ForkPoint::Token(1_000), ..same_params(1) }), "at");
    assert_eq!(param(Fork { at: ForkPoint::Byte(1_000), ..same_params(1) }), "at");
    assert_eq!(param(Fork { append: vec![-3], ..same_params(1) }), "append");
    assert_eq!(param(same_params(0)), "n");
    assert_eq!(param(same_params(257)), "n");
    assert_eq!(param(same_params(256)), "n", "with the one that is there");
    assert_eq!(param(Fork { kind: restart(vec![greedy("with a prompt", 1)]), ..same_params(1) }), "prompt");
    assert_eq!(param(Fork { kind: restart(vec![Request { slot: Some(9), ..with_params(1) }]), ..same_params(1) }), "slot");
    assert!(matches!(
        forked(&control, &completions, Fork { append: vec![30; 90], ..same_params(1) }),
        Err(Error::ContextOverflow { n_ctx: 128, .. })
    ));
    let waiting: Vec<ForkResult> = (0..3).map(|_| forked(&control, &completions, same_params(1)).unwrap()).collect();
    assert!(matches!(forked(&control, &completions, same_params(1)), Err(Error::QueueFull { n_waiting: 3, .. })));
    assert_eq!(waiting[2].branches, 3..4);
    drop(completions);
    control.allow(None);
    wait_until(&engine, is_idle);
    assert_eq!(run(&engine, greedy(&text, 3))[0].tokens, expected(&text, 3));
}

#[test]
fn beam_searches_cannot_be_forked_and_forks_cannot_be_beam_searches() {
    let search = Diversity::Beams(BeamSearch { width: 2, length_penalty: 1.0, is_stochastic: false });
    let (engine, control) = start_with_host_cache(4, 2048);
    let searching = Request { diversity: search, ..drawn(&prompt(1, 60), 2, 50) };
    let completions = drawing(&engine, &control, searching, 5);
    for branch in 0..2 {
        let refused = forked(&control, &completions, Fork { branch, ..same_params(1) }).err();
        assert!(matches!(refused, Some(Error::InvalidRequest { param: "branch", .. })), "{refused:?}");
    }
    drop(completions);
    control.allow(None);
    wait_until(&engine, is_idle);
    let completions = drawing(&engine, &control, greedy(&prompt(1, 60), 50), 5);
    let kind = restart(vec![Request { diversity: search, n: 2, ..with_params(5) }]);
    let refused = forked(&control, &completions, Fork { kind, ..same_params(1) }).err();
    assert!(matches!(refused, Some(Error::InvalidRequest { param: "beam_width", .. })), "{refused:?}");
    drop(completions);
    control.allow(None);
    wait_until(&engine, is_idle);
}

#[test]
fn a_byte_inside_a_character_is_refused_with_the_nearest_valid_positions() {
    let (engine, control) = start(limits(2, 4096));
    let text = prompt(1, 40);
    let mut halves = drawn(&text, 1, 300);
    halves.sampling.logit_bias = vec![(1, 200.0), (2, 200.0)];
    let completions = drawing(&engine, &control, halves, 40);
    let refused = (0..40).find_map(|at| {
        match forked(&control, &completions, in_own_stream(Fork { at: ForkPoint::Byte(at), ..same_params(1) })) {
            Err(Error::InvalidRequest { param: "at", message }) => Some(message),
            Err(other) => panic!("{other:?}"),
            Ok(_) => None,
        }
    });
    let message = refused.expect("some character has two bytes");
    assert!(message.contains("the nearest positions are"), "{message}");
    drop(completions);
    control.allow(None);
    wait_until(&engine, is_idle);
}

#[test]
fn a_fork_whose_branch_is_cancelled_computes_the_rest() {
    let (engine, control) = start(limits(4, 4096));
    let text = prompt(1, 60);
    for leave in [true, false] {
        let completions = drawing(&engine, &control, greedy(&text, 60), 5);
        let stream = forked(&control, &completions, in_own_stream(same_params(2))).unwrap().stream.unwrap();
        let n_at = stream.n_prompt() - 60;
        if leave {
            drop(completions);
        } else {
            completions.cancel_branch(0);
        }
        control.allow(None);
        let branches = collect(stream).unwrap();
        assert!(branches.iter().all(|branch| branch.tokens == expected(&text, n_at + 60)[n_at..]));
        assert!(branches.iter().map(n_computed).sum::<u32>() <= 1);
        wait_until(&engine, is_idle);
    }
}

#[test]
fn a_step_copies_a_bounded_number_of_forks_and_the_rest_wait() {
    let (engine, control) = start(limits(4, 16_384));
    let completions = drawing(&engine, &control, greedy(&prompt(1, 4_000), 400), 3);
    // Each of them replays the prompt, so that two fill a step.
    let fork = || in_own_stream(Fork { kind: restart(vec![with_params(1); 32]), ..same_params(1) });
    let requested: Vec<PendingFork> = (0..12).map(|_| completions.request_fork(fork(), None).unwrap()).collect();
    let n_made = || requested.iter().filter(|fork| fork.is_ready()).count();
    for n_steps in 1..=7 {
        step(&engine, &control);
        // The worker may have reached some before the first of these steps.
        assert!((2 * (n_steps - 1)..=2 * (n_steps + 1)).contains(&n_made()), "{} after {n_steps} steps", n_made());
    }
    control.allow(None);
    for fork in requested {
        let branches = collect(fork.wait().unwrap().stream.unwrap()).unwrap();
        assert_eq!(branches.len(), 32);
    }
    drop(completions);
    wait_until(&engine, is_idle);
}

#[test]
fn a_long_replay_takes_several_steps_while_other_streams_continue() {
    let (engine, control) = start(limits(4, 200_000));
    let n_drawn = 5 * u32::try_from(MAX_READ).unwrap() / 2;
    let (request, n_accepted) = counted(greedy(&prompt(1, 60), n_drawn));
    let mut completions = engine.submit(request, None).unwrap();
    // It samples more tokens than may be unread.
    assert!(completions.any(|event| matches!(event, Ok(Event::Finished(_)))));
    assert_eq!(wait_until(&engine, is_idle).n_predicted, u64::from(n_drawn));
    let other = drawing(&engine, &control, greedy(&prompt(2, 60), 1_000), 3);
    let n_read = || n_accepted.load(Ordering::Relaxed);
    let fork = |at, append| Fork { at, append, ..in_own_stream(same_params(2)) };
    let n_at = n_drawn - 5;
    // The appended tokens are replayed too, and finding a byte position is one more replay.
    let cases = [
        (fork(ForkPoint::Token(n_at), Vec::new()), n_at as usize, 0),
        (fork(ForkPoint::Token(n_at), vec![30; 2 * MAX_READ]), n_at as usize + 2 * MAX_READ, 0),
        (fork(ForkPoint::Token(0), vec![30; 2 * MAX_READ]), 2 * MAX_READ, 0),
        (fork(ForkPoint::Byte(n_at as usize), Vec::new()), n_at as usize, n_at as usize),
    ];
    for (fork, n_expected, n_found) in cases {
        control.hold();
        let n_before = n_read();
        let requested = completions.request_fork(fork, None).unwrap();
        let n_steps = n_steps_of(&engine, &control, &requested, &n_accepted);
        let n_least = (n_expected + n_found).div_ceil(MAX_READ);
        assert!((n_least..=n_least + 1).contains(&n_steps), "{n_steps} steps for {n_expected} tokens");
        assert!((n_expected..n_expected + 9).contains(&(n_read() - n_before)), "{} for {n_expected}", n_read() - n_before);
        drop(requested);
    }
    drop((completions, other));
    control.allow(None);
    wait_until(&engine, is_idle);
}

#[test]
fn commands_behind_a_long_fork_wait_in_order_only_within_their_stream() {
    let (engine, control) = start(limits(6, 100_000));
    let (request, n_accepted) = counted(greedy(&prompt(1, 60), 5_000));
    let completions = drawing(&engine, &control, request, 3);
    let other = engine.submit(greedy(&prompt(2, 60), 5_000), None).unwrap();
    step(&engine, &control);
    let append = vec![30; 4 * MAX_READ];
    let long = completions.request_fork(Fork { append, at: ForkPoint::Token(2), ..same_params(1) }, None).unwrap();
    let short = completions.request_fork(same_params(1), None).unwrap();
    completions.cancel_branch(0);
    let elsewhere = other.request_fork(same_params(1), None).unwrap();
    n_steps_of(&engine, &control, &elsewhere, &n_accepted);
    assert!(!long.is_ready() && !short.is_ready());
    n_steps_of(&engine, &control, &short, &n_accepted);
    assert!(long.is_ready());
    assert_eq!((long.wait().unwrap().branches, short.wait().unwrap().branches), (1..2, 2..3));
    completions.cancel_branch(1);
    completions.cancel_branch(2);
    drop(other);
    control.allow(None);
    assert_eq!(reasons(&collect(completions).unwrap()), [const { FinishReason::Cancelled }; 3]);
    wait_until(&engine, is_idle);
}

#[test]
fn an_unfinished_fork_releases_everything() {
    let half = |append: Vec<Token>, max_tokens: u32, fork: fn(Fork) -> Fork| {
        let (engine, control) = start(Limits { max_queue: 1, ..limits(2, 100_000) });
        let completions = drawing(&engine, &control, counted(greedy(&prompt(1, 60), max_tokens)).0, 3);
        let requested = completions.request_fork(fork(Fork { append, at: ForkPoint::Token(2), ..same_params(2) }), None).unwrap();
        (0..2).for_each(|_| step(&engine, &control));
        assert!(!requested.is_ready());
        (engine, control, completions, requested)
    };
    let check = |engine: &Engine, control: &FakeControl| {
        control.allow(None);
        wait_until(engine, is_idle);
        // The queue has room for one request.
        assert_eq!(run(engine, greedy(&prompt(3, 60), 3))[0].tokens, expected(&prompt(3, 60), 3));
        settled(engine, control);
    };
    let append = vec![30; 6 * MAX_READ];
    // The reader of the stream leaves.
    let (engine, control, completions, requested) = half(append.clone(), 5_000, |fork| fork);
    drop(completions);
    control.allow(None);
    assert!(matches!(requested.wait(), Err(Error::InvalidRequest { param: "stream", .. })));
    check(&engine, &control);
    // The client that requested them leaves.
    let (engine, control, completions, requested) = half(append.clone(), 40, in_own_stream);
    drop(requested);
    check(&engine, &control);
    assert_eq!(collect(completions).unwrap().len(), 1);
    // The grammar rejects the last of the appended tokens, and by then the branch has ended.
    let forbidden = [&append[..], &[FORBIDDEN]].concat();
    for fork in [in_own_stream as fn(Fork) -> Fork, |fork| fork] {
        let (engine, control, completions, requested) = half(forbidden.clone(), 6, fork);
        control.allow(None);
        assert!(matches!(requested.wait(), Err(Error::InvalidRequest { param: "append", .. })));
        assert_eq!(collect(completions).unwrap().len(), 1, "the stream ends");
        check(&engine, &control);
    }
}

#[test]
fn dropping_the_stream_of_forks_does_not_end_their_branch() {
    let (engine, control) = start(limits(4, 4096));
    let text = prompt(1, 60);
    let completions = drawing(&engine, &control, greedy(&text, 60), 5);
    drop(forked(&control, &completions, in_own_stream(same_params(3))).unwrap());
    control.allow(None);
    assert_eq!(collect(completions).unwrap()[0].tokens, expected(&text, 60));
    wait_until(&engine, is_idle);
}

/// Source of random operations.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(n)).unwrap()
    }

    fn text(&mut self, n_kinds: u32, n: u32) -> String {
        prompt(self.below(n_kinds).into(), self.below(n) as usize)
    }

    /// Creates a fork of some branch, which may not exist.
    fn fork(&mut self) -> Fork {
        let at = match self.below(4) {
            0 => ForkPoint::Token(self.below(20)),
            1 => ForkPoint::Byte(self.below(20) as usize),
            _ => ForkPoint::End,
        };
        let n = 1 + self.below(3);
        let params = Request { n, priority: i32::try_from(self.below(3)).unwrap(), ..with_params(self.below(20)) };
        let kind = if self.below(3) == 0 { restart(vec![params, with_params(self.below(9))]) } else { ForkKind::Continue(n) };
        let destination = if self.below(2) == 0 { ForkDestination::SameStream } else { ForkDestination::OwnStream(None) };
        let append = if self.below(3) == 0 { tokens_of(&self.text(4, 20)) } else { Vec::new() };
        if self.below(64) == 0 {
            // Too much for a step together with other forks.
            let kind = restart((0..=self.below(255)).map(|_| with_params(self.below(2))).collect());
            return Fork { branch: self.below(6), at, append, kind, destination: ForkDestination::OwnStream(None) };
        }
        Fork { branch: self.below(6), at, append, kind, destination }
    }

    /// Creates requests that continue one of few texts, cut anywhere.
    fn requests(&mut self) -> Vec<Request> {
        let stem = format!("{}{}", prompt(self.below(3).into(), 20), self.text(3, 60));
        let context_shift = (self.below(6) == 0).then_some(ContextShift { n_keep: Some(8), n_discard: 0 });
        let request = |dice: &mut Self| Request {
            n: 1 + dice.below(3),
            max_tokens: Some(dice.below(40)),
            priority: i32::try_from(dice.below(2)).unwrap(),
            context_shift,
            suffix: tokens_of(&dice.text(5, 30)),
            ..greedy(&stem, 1)
        };
        (0..=self.below(3)).map(|_| request(self)).collect()
    }
}

/// Reads a stream to its end, and checks that each branch ends once.
fn read_to_end_of(stream: Completions) {
    let mut ended = std::collections::BTreeSet::new();
    for event in stream {
        if let Event::Finished(finished) = event.expect("nothing fails") {
            assert!(ended.insert(finished.index), "branch {} has ended before", finished.index);
        }
    }
    assert_eq!(ended.last().map(|&last| last as usize + 1), Some(ended.len()), "every branch ends");
}

/// Submits some branches; if the queue is full, reads one of its own streams to its end first.
fn submitted(engine: &Engine, open: &mut Vec<Completions>, requests: &[Request]) -> Completions {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match engine.submit_branches(requests.to_vec(), None) {
            Err(Error::QueueFull { .. }) if !open.is_empty() => read_to_end_of(open.swap_remove(0)),
            // The queue is full of requests of other clients and of abandoned ones, which end by themselves.
            Err(Error::QueueFull { .. }) if Instant::now() < deadline => std::thread::yield_now(),
            made => return made.unwrap(),
        }
    }
}

/// Runs `n` operations of a client that grows trees of texts; returns how many of its forks were made.
fn grow(engine: &Engine, seed: u64, n: usize) -> (usize, usize) {
    let mut dice = Dice(seed);
    let (mut open, mut pins): (Vec<Completions>, Vec<u64>) = (Vec::new(), Vec::new());
    let mut requested: Vec<PendingFork> = Vec::new();
    let mut forks = (0, 0);
    for _ in 0..n {
        let some = if open.is_empty() { 0 } else { dice.below(u32::try_from(open.len()).unwrap()) as usize };
        match dice.below(16) {
            0..3 => {
                let stream = submitted(engine, &mut open, &dice.requests());
                open.push(stream);
            }
            3..9 if !open.is_empty() => {
                forks.1 += 1;
                if dice.below(8) == 0 {
                    // It may be made, unfinished or not started when it is abandoned.
                    requested.extend(open[some].request_fork(dice.fork(), None).ok());
                    requested.truncate(dice.below(4) as usize);
                    continue;
                }
                match open[some].fork(dice.fork()) {
                    Ok(made) => {
                        forks.0 += 1;
                        open.extend(made.stream);
                    }
                    Err(Error::InvalidRequest { .. } | Error::ContextOverflow { .. } | Error::QueueFull { .. }) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
            9..12 if !open.is_empty() => open[some].cancel_branch(dice.below(8)),
            12 if !open.is_empty() => drop(open.swap_remove(some)),
            13 if pins.len() < 2 && dice.below(20) == 0 => {
                let pin = task(&prompt(dice.below(3).into(), 20), Task::Pin);
                if let Ok(branches) = collect(submitted(engine, &mut open, &[pin]))
                    && let Some(TaskResult::Pinned(pinned)) = branches[0].finished.result.as_deref()
                {
                    pins.push(pinned.id);
                }
            }
            14 if dice.below(20) == 0 => drop(pins.pop().map(|id| engine.unpin(id))),
            _ if open.len() > 6 => read_to_end_of(open.swap_remove(0)),
            _ => {}
        }
    }
    open.into_iter().for_each(read_to_end_of);
    for id in pins {
        assert!(engine.unpin(id).unwrap());
    }
    forks
}

#[test]
fn a_hundred_thousand_random_tree_operations_lose_no_cell() {
    let kinds = [(ForkRule::Anywhere, 64), (ForkRule::InWindow, 64), (ForkRule::AtEnd, 2)];
    let tiers = [(Some(0), 400), (STORE, 400), (Some(20_000), 240), (STORE, 2_000)];
    let n_each = 100_000_usize.div_ceil(kinds.len() * tiers.len() * 2);
    for (kind, (forks, n_more)) in (1_u64..).zip(kinds) {
        for (tier, (max_host_cache_bytes, n_ctx)) in (1_u64..).zip(tiers) {
            let limits =
                Limits { n_ctx_slot: 160, n_seq_max: 3 + n_more, max_host_cache_bytes, max_queue: 64, ..paced(3, n_ctx) };
            let (engine, control) = start_with(limits, move |runner| runner.with_memory(MemoryKind { forks, ..MEMORY }));
            let made: Vec<(usize, usize)> = std::thread::scope(|scope| {
                let growing: Vec<_> = (1..3)
                    .map(|thread| {
                        let engine = &engine;
                        scope.spawn(move || grow(engine, 100 * kind + 10 * tier + thread, n_each))
                    })
                    .collect();
                growing.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(made.iter().all(|(made, requested)| made * 10 > *requested), "{made:?}");
            // The idle worker checks the cache, and that no cells are in use.
            let stats = settled(&engine, &control);
            assert!(engine.is_running());
            assert!(max_host_cache_bytes.is_none_or(|max| max > 20_000) || stats.n_preempted > 0, "the pool was never short");
            assert_eq!(run(&engine, greedy("still there, and serving?", 3))[0].tokens, expected("still there, and serving?", 3));
        }
    }
}
