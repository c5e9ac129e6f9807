//! Tests of the whole engine on [`FakeRunner`]: exact texts, and every computed token counted.

mod adapters;
mod beams;
mod branches;
mod cancelling;
mod checkpoints;
mod constraints;
mod context_shift;
mod diversity;
mod explanations;
mod failing;
mod forks;
mod fuzz;
mod growth;
mod histograms;
mod limits;
mod many_completions;
mod media;
mod model_drafts; // feature: speculation
mod pins;
mod preemption;
mod pressure;
mod priorities;
mod prompt_logprobs;
mod queries;
mod random_fields;
mod reasoning;
mod resumption;
mod self_extend;
mod sharing;
mod slot_order;
mod slots;
mod slow_consumers;
mod speculation;
mod steps;
mod stopping;
mod tiers;
mod wake_handles;
mod windows;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::cache::{ForkRule, IdleCost, MemoryKind};
use crate::config::{Checkpoints, Limits, SLOW_CONSUMER_TIMEOUT, SpeculationMode, TokenGap};
use crate::engine::{Completions, Engine, Stats};
use crate::error::Error;
use crate::fake_runner::{FakeControl, FakeRunner, MEMORY, tokens_of};
use crate::request::{
    Event, FinishReason, Finished, PinnedPrefix, Prompt, Request, SamplingParams, SavedPrefix, Task, TaskResult, Token,
    TokenEvent,
};

/// Events of one branch.
#[derive(Debug, Clone, PartialEq)]
struct BranchState {
    text: String,
    tokens: Vec<Token>,
    finished: Finished,
}

/// Steps have as many rows as they may, as long as they stay within half a second.
fn limits(n_slots: u32, n_ctx: u32) -> Limits {
    Limits {
        n_slots,
        n_ctx,
        n_ctx_slot: n_ctx,
        n_ubatch: 512,
        grouping: None,
        n_seq_max: n_slots + 64,
        n_outputs: n_slots + 64,
        max_host_cache_bytes: Some(0),
        max_queue: 256,
        max_token_gap: TokenGap::AtMost(Duration::from_secs(3600)),
        checkpoints: Checkpoints::NONE,
        slow_consumer_timeout: SLOW_CONSUMER_TIMEOUT,
        speculation: SpeculationMode::Off.into(),
    }
}

/// Steps have as many rows as there is time for, as in a server.
fn paced(n_slots: u32, n_ctx: u32) -> Limits {
    Limits { max_token_gap: TokenGap::Auto, ..limits(n_slots, n_ctx) }
}

fn start(limits: Limits) -> (Engine, FakeControl) {
    start_with(limits, |runner| runner)
}

fn start_with(limits: Limits, prepare: impl FnOnce(FakeRunner) -> FakeRunner + Send + 'static) -> (Engine, FakeControl) {
    let (runner, control) = FakeRunner::new(limits.n_ctx, limits.n_seq_max);
    // The fake model has a row of logits for each id.
    let limits = Limits { n_outputs: limits.n_outputs.min(limits.n_seq_max), ..limits };
    let engine = Engine::start(limits, move || Ok(prepare(runner))).expect("a fake runner always starts");
    (engine, control)
}

/// A host cache that is never full.
const STORE: Option<u64> = Some(16 << 20);

/// With a host cache.
fn start_with_host_cache(n_slots: u32, n_ctx: u32) -> (Engine, FakeControl) {
    start(Limits { max_host_cache_bytes: STORE, ..limits(n_slots, n_ctx) })
}

/// Recurrent memory: two ids in addition to those of the slots.
fn start_recurrent(n_slots: u32, n_ctx: u32) -> (Engine, FakeControl) {
    start_recurrent_with(limits(n_slots, n_ctx))
}

/// As above, with other limits.
fn start_recurrent_with(limits: Limits) -> (Engine, FakeControl) {
    let limits = Limits { max_host_cache_bytes: STORE, n_seq_max: limits.n_slots + 2, ..limits };
    start_with(limits, |runner| runner.with_memory(MemoryKind { forks: ForkRule::AtEnd, ..MEMORY }))
}

/// Creates a greedy request for `max_tokens` more tokens.
fn greedy(prompt: &str, max_tokens: u32) -> Request {
    let mut request = Request::new(Prompt::from_tokens(tokens_of(prompt)), 0);
    request.max_tokens = Some(max_tokens);
    request.sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    request
}

/// Creates a request for `n` sampled completions of `max_tokens` tokens each.
fn drawn(prompt: &str, n: u32, max_tokens: u32) -> Request {
    let mut request = greedy(prompt, max_tokens);
    request.n = n;
    request.sampling.temperature = 1.0;
    request
}

/// Returns printable text of `n` characters, different for each `seed`.
fn prompt(seed: u64, n: usize) -> String {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + u8::try_from((state >> 33) % 26).expect("a letter"))
    };
    (0..n).map(|_| next()).collect()
}

/// Reads a stream to its end.
fn collect(completions: Completions) -> Result<Vec<BranchState>, Error> {
    let mut texts: Vec<(String, Vec<Token>, Option<Finished>)> = Vec::new();
    for event in completions {
        let event = event?;
        let index = match &event {
            Event::Token(token) => token.index,
            Event::Finished(finished) => finished.index,
            Event::Progress(_) | Event::PromptLogprobs(_) => continue,
        } as usize;
        texts.resize_with(texts.len().max(index + 1), Default::default);
        let (text, tokens, end) = &mut texts[index];
        assert!(end.is_none(), "nothing comes after the end of branch {index}");
        match event {
            Event::Token(TokenEvent { token, text: more, n_predicted, .. }) => {
                text.push_str(&more);
                tokens.push(token);
                assert_eq!(n_predicted as usize, tokens.len());
            }
            Event::Finished(finished) => {
                text.push_str(&finished.text);
                *end = Some(finished);
            }
            Event::Progress(_) | Event::PromptLogprobs(_) => unreachable!("they are of no branch"),
        }
    }
    let branch = |(text, tokens, finished): (_, _, Option<_>)| BranchState {
        text,
        tokens,
        finished: finished.expect("every branch ends"),
    };
    Ok(texts.into_iter().map(branch).collect())
}

fn run(engine: &Engine, request: Request) -> Vec<BranchState> {
    collect(engine.submit(request, None).expect("the request is valid")).expect("nothing fails")
}

/// Creates a greedy request for `n_more` tokens after the text of a branch.
fn continued(prompt: &str, branch: &BranchState, n_more: u32) -> Request {
    let mut tokens = tokens_of(prompt);
    tokens.extend(&branch.tokens);
    let mut request = greedy("", n_more);
    request.prompt = Prompt::from_tokens(tokens);
    request
}

/// Returns the result of a task.
fn made(engine: &Engine, request: Request) -> TaskResult {
    *run(engine, request).remove(0).finished.result.expect("the task makes something")
}

fn task(prompt: &str, task: Task) -> Request {
    Request::for_task(Prompt::from_tokens(tokens_of(prompt)), task)
}

fn save(engine: &Engine, prompt: &str) -> SavedPrefix {
    match made(engine, task(prompt, Task::Save { computes: true })) {
        TaskResult::Saved(saved) => saved,
        TaskResult::Pinned(_) => panic!("a save pins nothing"),
    }
}

fn pin(engine: &Engine, prompt: &str) -> PinnedPrefix {
    match made(engine, task(prompt, Task::Pin)) {
        TaskResult::Pinned(pinned) => pinned,
        TaskResult::Saved(_) => panic!("a pin saves nothing"),
    }
}

/// Returns the expected continuation of `prompt` by `n` tokens.
fn expected(prompt: &str, n: usize) -> Vec<Token> {
    let mut tokens = tokens_of(prompt);
    for _ in 0..n {
        tokens.push(FakeRunner::next_token(&tokens));
    }
    tokens.split_off(prompt.len())
}

/// Waits until the engine's metrics satisfy `condition`.
fn wait_until(engine: &Engine, condition: impl Fn(&Stats) -> bool) -> Stats {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let stats = engine.stats();
        if condition(&stats) {
            return stats;
        }
        assert!(Instant::now() < deadline, "still {stats:?}");
        std::thread::yield_now();
    }
}

/// Lets decodes run one by one until the engine's metrics satisfy `condition`.
fn step_until(engine: &Engine, control: &FakeControl, mut condition: impl FnMut(&Stats) -> bool) -> Stats {
    loop {
        let stats = engine.stats();
        if condition(&stats) {
            return stats;
        }
        step(engine, control);
    }
}

/// Lets one decode run.
fn step(engine: &Engine, control: &FakeControl) {
    let n_decodes = engine.stats().n_decodes;
    control.allow(Some(1));
    wait_until(engine, |stats| stats.n_decodes > n_decodes);
}

/// Returns the worker's answer to a query while decodes are held. The worker answers between two decodes; to run as few as
/// possible, each is released after twice the wait of the previous one, the first once the query thread has started.
fn answer_while_held<T: Send>(control: &FakeControl, ask: impl FnOnce() -> T + Send) -> T {
    let ((reply, answer), (start, started)) = (mpsc::channel(), mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            start.send(()).expect("the start is awaited");
            reply.send(ask()).expect("the answer is awaited");
        });
        started.recv().expect("the thread begins");
        let mut patience = Duration::from_millis(1);
        loop {
            match answer.recv_timeout(patience) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) => control.allow(Some(1)),
                Err(RecvTimeoutError::Disconnected) => panic!("the query has failed"),
            }
            patience *= 2;
        }
    })
}

fn is_idle(stats: &Stats) -> bool {
    stats.slots.iter().all(|slot| slot.running.is_none()) && stats.n_waiting == 0
}

/// Waits until nothing runs or waits, and the cache and the model count the same cells.
fn settled(engine: &Engine, control: &FakeControl) -> Stats {
    wait_until(engine, |stats| is_idle(stats) && stats.n_cells_used == control.n_cells_used())
}

fn reasons(branches: &[BranchState]) -> Vec<FinishReason> {
    branches.iter().map(|branch| branch.finished.reason.clone()).collect()
}
