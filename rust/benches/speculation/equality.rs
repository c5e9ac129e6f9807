//! Proof that drafts change no bit of a result: seeded requests of all kinds run on llama.cpp without drafts, and again with drafts
//! that are verified in every step, of which a share is wrong. The crate's tests run some of them.
//!
//! The second engine has as few cells as its sequences need, so that it also preempts, offloads and reloads them, and it computes
//! with another number of threads.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use weft::config::{EngineConfig, KernelChoice, ResolvedConfig, SpeculationMode};
use weft::engine::{DraftSource, Engine, Fork, ForkDestination, ForkKind, ForkPoint, PendingFork};
use weft::grammar::to_gbnf;
use weft::llama::{self, Model};
use weft::request::{
    ContextShift, Dry, Event, FinishReason, Finished, Mirostat, Prompt, Replay, Request, SamplerKind, SamplingParams,
    SharedConstraint, Speculation, Token, TokenEvent,
};

/// Requests that run on the same two engines.
const N_PER_ROUND: u32 = 40;

/// Clients that submit requests at the same time.
const N_CLIENTS: usize = 8;

/// Maximum tokens of a sequence.
const N_CTX_SLOT: u32 = 256;

const GRAMMARS: [&str; 3] = [
    r#"root ::= "{" pair ("," pair)* "}"
pair ::= "\"" [a-z]+ "\": " ("true" | "false" | "null" | [0-9]+)"#,
    r#"root ::= "The answer is " [0-9]{1,8} "." "#,
    r"root ::= [^e]{3,80}",
];

const SCHEMAS: [&str; 2] = [
    r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"},
        "is_kind": {"type": "boolean"}}, "required": ["name", "age", "is_kind"], "additionalProperties": false}"#,
    r#"{"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 9}"#,
];

const WORDS: [&str; 20] = [
    "the", "dog", "cat", "bird", "saw", "a", "red", "ball", "and", "ran", "to", "big", "house", "old", "friend", "happy", "said",
    "one", "day", "girl",
];

/// Random choices of a seed.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(n)).expect("below n")
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        let n = u32::try_from(choices.len()).expect("there are few choices");
        choices[self.below(n) as usize].clone()
    }

    fn text(&mut self, n_words: u32) -> String {
        (0..n_words).flat_map(|_| [" ", self.of(&WORDS)]).collect()
    }

    /// Returns every sampler's parameters, in a chain of random order.
    fn samplers(&mut self) -> SamplingParams {
        let mut samplers = SamplerKind::DEFAULT.to_vec();
        match self.below(8) {
            0 => samplers.push(SamplerKind::AdaptiveP),
            1 => samplers.insert(4, SamplerKind::Infill),
            2 | 3 => {
                for nth in (1..samplers.len()).rev() {
                    let other = self.below(u32::try_from(nth + 1).expect("there are few samplers"));
                    samplers.swap(nth, other as usize);
                }
            }
            _ => {}
        }
        SamplingParams {
            samplers,
            temperature: self.of(&[0.0, 0.0, 0.3, 0.7, 1.0, 1.3, 1.5]),
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
            logit_bias: if self.one_in(4) {
                vec![(self.of(&[300, 310, 330]), 2.5), (301, f32::NEG_INFINITY)]
            } else {
                Vec::new()
            },
            logprobs: self.of(&[None, Some(0), Some(3)]),
            post_sampling_probs: self.one_in(4),
            ignore_eos: self.one_in(4),
            ..SamplingParams::default()
        }
    }

    fn constraint(&mut self, model: &Model) -> Result<Option<SharedConstraint>, String> {
        let grammar = match self.below(6) {
            0 => self.of(&GRAMMARS).to_owned(),
            1 => to_gbnf(self.of(&SCHEMAS)).map_err(|error| error.to_string())?,
            _ => return Ok(None),
        };
        model.grammar(&grammar).map(Some).map_err(|error| error.to_string())
    }

    fn trial(&mut self, model: &Model, seed: u32) -> Result<Trial, String> {
        let n_words = self.of(&[2, 8, 20, 40]);
        let text = format!("Once upon a time{}", self.text(n_words));
        let tokens = model.tokenize(text.as_bytes(), true, false).map_err(|error| error.to_string())?;
        let mut request = Request { n: self.of(&[1, 1, 1, 2, 3, 5, 8]), ..Request::new(Prompt::from_tokens(tokens), seed) };
        request.max_tokens = Some(1 + self.below(60));
        request.sampling = self.samplers();
        request.constraint = self.constraint(model)?;
        if self.one_in(5) {
            request.stop = vec![" was".into(), "ing".into(), "xyz".into()];
        }
        request.n_indent = self.of(&[0, 0, 0, 0, 2]);
        request.uses_cache = !self.one_in(6);
        request.priority = self.of(&[0, 0, 0, 1, -1]);
        request.prompt_logprobs = self.one_in(8).then(|| self.below(3));
        let action = match self.below(8) {
            0 | 1 => {
                // A fork at an earlier token has no state of these two, and one at the last token has, drafts or not.
                request.sampling.mirostat = Mirostat::Off;
                request.sampling.samplers.retain(|kind| *kind != SamplerKind::AdaptiveP);
                Action::Fork { at: 1 + self.below(30), n: 1 + self.below(3) }
            }
            2 => Action::Cancel { at: 1 + self.below(30) },
            3 => {
                request.context_shift = Some(ContextShift { n_keep: Some(self.below(20)), n_discard: self.of(&[0, 40]) });
                request.max_tokens = Some(N_CTX_SLOT + self.below(60));
                request.n = self.of(&[1, 2]);
                Action::Read
            }
            _ => Action::Read,
        };
        Ok(Trial { request, action })
    }
}

/// A request, and what its client does.
struct Trial {
    request: Request,
    action: Action,
}

/// What a client does when branch 0 has `at` tokens.
#[derive(Debug, Clone, Copy)]
enum Action {
    Read,
    Fork { at: u32, n: u32 },
    Cancel { at: u32 },
}

/// A token, its text, and its logprobs in bits.
type SeenToken = (Token, String, Vec<(Token, u32)>);

/// All that a client receives of a branch, except times and the slot.
#[derive(Debug, Clone, PartialEq, Default)]
struct Branch {
    tokens: Vec<SeenToken>,
    /// The finish reason, the rest of the text, whether it is truncated, and the numbers of predicted and held tokens.
    finished: Option<(FinishReason, String, bool, u32, u32)>,
}

#[derive(Default)]
struct Outcome {
    branches: Vec<Branch>,
    prompt_logprobs: Vec<u32>,
    /// Number of forks.
    n_forks: u32,
}

impl Outcome {
    fn branch(&mut self, index: u32) -> &mut Branch {
        let index = index as usize;
        self.branches.resize_with(self.branches.len().max(index + 1), Branch::default);
        &mut self.branches[index]
    }

    fn add(&mut self, event: Event) {
        match event {
            Event::Token(TokenEvent { index, token, text, logprobs, .. }) => {
                let logprobs = logprobs.into_iter().flat_map(|logprobs| [vec![logprobs.chosen], logprobs.top].concat());
                let bits = logprobs.map(|one| (one.token, one.logprob.to_bits())).collect();
                self.branch(index).tokens.push((token, text.to_string(), bits));
            }
            Event::Finished(Finished { index, reason, text, usage, is_truncated, .. }) => {
                let finished = (reason, text.to_string(), is_truncated, usage.n_predicted, usage.n_context);
                self.branch(index).finished = Some(finished);
            }
            Event::PromptLogprobs(report) => {
                self.prompt_logprobs.extend(report.logprobs.iter().flatten().map(|one| one.chosen.logprob.to_bits()));
            }
            Event::Progress(_) => {}
        }
    }

    /// Runs a request to its end.
    fn of(engine: &Engine, request: Request, action: Action) -> Result<Self, String> {
        let completions = engine.submit(request, None).map_err(|error| error.to_string())?;
        let (mut outcome, mut pending) = (Self::default(), None);
        while let Some(event) = completions.wait() {
            let event = event.map_err(|error| error.to_string())?;
            let n_seen = match &event {
                Event::Token(token) if token.index == 0 => token.n_predicted,
                _ => 0,
            };
            match action {
                Action::Fork { at, n } if n_seen == at => pending = Some(completions.request_fork(fork(at, n), None)),
                Action::Cancel { at } if n_seen == at => completions.cancel_branch(0),
                _ => {}
            }
            outcome.add(event);
        }
        // A stream may have ended before the fork was handled.
        let forked = pending.and_then(|pending| pending.and_then(PendingFork::wait).ok());
        outcome.n_forks = forked.map_or(0, |forked| forked.branches.len().try_into().expect("there are few forks"));
        Ok(outcome)
    }
}

fn fork(at: u32, n: u32) -> Fork {
    let (kind, destination) = (ForkKind::Continue(n), ForkDestination::SameStream);
    Fork { branch: 0, at: ForkPoint::Token(at), append: Vec::new(), kind, destination }
}

/// Runs all trials, [`N_CLIENTS`] at a time.
fn run(engine: &Engine, trials: &[Trial]) -> Result<Vec<Outcome>, String> {
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Option<Outcome>>> = Mutex::new(trials.iter().map(|_| None).collect());
    let client = || -> Result<(), String> {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            let Some(trial) = trials.get(nth) else { return Ok(()) };
            let outcome = Outcome::of(engine, trial.request.clone(), trial.action)
                .map_err(|error| format!("{error}, of {:?}", trial.request))?;
            outcomes.lock().unwrap_or_else(PoisonError::into_inner)[nth] = Some(outcome);
        }
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..N_CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("no client panics"))
    })?;
    let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(outcomes.into_iter().map(|outcome| outcome.expect("every trial ran")).collect())
}

/// Compares two runs of a request, and returns a description of a difference.
fn difference(trial: &Trial, off: &Outcome, on: &Outcome) -> Option<String> {
    if off.prompt_logprobs != on.prompt_logprobs {
        return Some("logprobs of the prompt".to_owned());
    }
    let is_cancelled = |index: usize| index == 0 && matches!(trial.action, Action::Cancel { .. });
    let differs = |(index, (off, on)): (usize, (&Branch, &Branch))| {
        let n = if is_cancelled(index) { off.tokens.len().min(on.tokens.len()) } else { usize::MAX };
        let [first, second] = [off, on].map(|branch| &branch.tokens[..n.min(branch.tokens.len())]);
        if first != second {
            let at = first.iter().zip(second).take_while(|(a, b)| a == b).count();
            return Some(format!("token {at} of branch {index}: {:?}, then {:?}", first.get(at), second.get(at)));
        }
        let is_equal = is_cancelled(index) || off.finished == on.finished;
        (!is_equal).then(|| format!("the end of branch {index}: {:?}, then {:?}", off.finished, on.finished))
    };
    off.branches.iter().zip(&on.branches).enumerate().find_map(differs)
}

/// Counts of what was compared.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// A description of each request whose results differ.
    pub(crate) differences: Vec<String>,
    pub(crate) n_requests: u32,
    pub(crate) n_branches: u64,
    pub(crate) n_tokens: u64,
    pub(crate) n_forks: u64,
    pub(crate) n_cancelled: u64,
    pub(crate) n_preempted: u64,
    pub(crate) n_drafts: u64,
    pub(crate) n_drafted: u64,
    pub(crate) n_accepted: u64,
    /// Drafts that were rejected, wholly or after some tokens.
    pub(crate) n_cut: u64,
    /// Drafts with at least two accepted tokens.
    pub(crate) n_two: u64,
}

impl Counts {
    pub(crate) fn percent_of_drafts(&self, n: u64) -> u64 {
        100 * n / self.n_drafts.max(1)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n_requests, n_branches, n_tokens, n_forks, n_cancelled, n_preempted, n_drafts, n_drafted, n_accepted, .. } =
            self;
        let [cut, two] = [self.n_cut, self.n_two].map(|n| self.percent_of_drafts(n));
        let n_different = self.differences.len();
        writeln!(f, "{n_requests} requests, {n_branches} branches, {n_tokens} tokens; {n_different} requests differ in a bit")?;
        writeln!(f, "{n_forks} forks, {n_cancelled} cancellations, {n_preempted} preemptions")?;
        write!(f, "{n_drafts} drafts of {n_drafted} tokens, of which {n_accepted} were accepted; ")?;
        write!(f, "{cut} % of the drafts were rejected at a token, {two} % had two accepted tokens or more")
    }
}

/// Runs `n_requests` requests without drafts and with them.
///
/// # Errors
/// A message, if the model cannot run as is needed.
pub(crate) fn check(model: &Arc<Model>, n_requests: u32, seed: u64) -> Result<Counts, String> {
    let mut counts = Counts::default();
    let n_rounds = n_requests.div_ceil(N_PER_ROUND);
    for round in 0..n_rounds {
        let first = round * N_PER_ROUND;
        check_round(model, seed + u64::from(round), first..n_requests.min(first + N_PER_ROUND), &mut counts)?;
    }
    Ok(counts)
}

fn check_round(model: &Arc<Model>, seed: u64, seeds: std::ops::Range<u32>, counts: &mut Counts) -> Result<(), String> {
    let mut dice = Dice::new(seed);
    let n_threads = dice.of(&[1, 2]);
    let mut trials = seeds.map(|seed| dice.trial(model, seed)).collect::<Result<Vec<_>, _>>()?;
    let ample = start(model, 8, 8192, 3 - n_threads, SpeculationMode::Off)?;
    let off = run(&ample, &trials)?;
    drop(ample);
    for (trial, outcome) in trials.iter_mut().zip(&off) {
        let branches = outcome.branches.iter().map(|branch| branch.tokens.iter().map(|(token, ..)| *token).collect()).collect();
        let replay = Replay { branches, error_rate: dice.of(&[0.0, 0.1, 0.1, 0.2, 0.4]), seed, is_forced: true };
        let max_draft = Some(dice.of(&[1, 4, 8, 8, 8, 20]));
        trial.request.speculation = Speculation { max_draft, replay: Some(Arc::new(replay)), ..Speculation::default() };
    }
    let crowded = start(model, dice.of(&[5, 6, 8]), dice.of(&[768, 1024]), n_threads, SpeculationMode::Auto)?;
    crowded.check_speculation()?;
    let on = run(&crowded, &trials)?;
    for (nth, ((trial, off), on)) in trials.iter().zip(&off).zip(&on).enumerate() {
        if let Some(difference) = difference(trial, off, on) {
            let Trial { request, action } = trial;
            counts.differences.push(format!("request {nth} of seed {seed}: {difference}\n{action:?} of {request:?}"));
        }
        counts.n_branches += off.branches.len().min(on.branches.len()) as u64;
        counts.n_tokens += on.branches.iter().map(|branch| branch.tokens.len() as u64).sum::<u64>();
        counts.n_forks += u64::from(off.n_forks.min(on.n_forks));
        let is_cancelled = on.branches[0].finished.as_ref().is_some_and(|finished| finished.0 == FinishReason::Cancelled);
        counts.n_cancelled += u64::from(is_cancelled);
    }
    let stats = crowded.stats();
    let replayed = stats.speculation.by_source[DraftSource::Replay as usize];
    counts.n_requests += u32::try_from(trials.len()).expect("a round is short");
    counts.n_preempted += stats.n_preempted;
    counts.n_drafts += replayed.n_drafts;
    counts.n_drafted += replayed.n_drafted;
    counts.n_accepted += replayed.n_accepted;
    counts.n_cut += replayed.n_cut;
    counts.n_two += stats.speculation.n_accepted_at[1];
    Ok(())
}

fn start(model: &Arc<Model>, n_slots: u32, n_ctx: u32, n_threads: u32, mode: SpeculationMode) -> Result<Engine, String> {
    let config = EngineConfig {
        n_slots: Some(n_slots),
        n_ctx: Some(n_ctx),
        kv_unified: Some(true),
        n_threads: Some(n_threads),
        kernels: KernelChoice::Weft,
        speculation: mode.into(),
        ..EngineConfig::default()
    };
    let mut resolved: ResolvedConfig = llama::resolve(model, &config, None).map_err(|error| error.to_string())?;
    resolved.limits.n_ctx_slot = N_CTX_SLOT;
    llama::start_resolved(model, &resolved).map_err(|error| error.to_string())
}
