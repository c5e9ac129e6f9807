//! Overhead of the engine around its decodes as waiting, running and shared sequences increase: the rows of `docs/benchmarks/growth.md`.
//!
//! `cargo bench --no-default-features --features fake-runner --bench growth` takes half a minute. The model computes and stores
//! nothing, so that all time between two of its decodes is the engine's: receiving, admission, planning, sampling, publishing.
#![allow(clippy::print_stdout, reason = "a bench answers on the standard output")]
#![allow(clippy::cast_precision_loss, reason = "a bench's counts are small")]

mod measures {
    pub(crate) mod weightless;
}

use std::fs;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use measures::weightless::{Decode, Decodes, Weightless};
use weft::config::{Checkpoints, Limits, SLOW_CONSUMER_TIMEOUT, SpeculationMode, TokenGap};
use weft::engine::{Completions, Engine, WakeHandle};
use weft::request::{Event, Finished, Prompt, Request, SamplingParams, Token};

/// Tokens of a waiting prompt.
const N_PROMPT: usize = 2_000;

/// Steps that are measured.
const N_STEPS: usize = 400;

/// Preceding steps, in which new sequences settle.
const N_WARM: usize = 50;

/// Maximum slowdown of a step due to waiting requests.
const MAX_GROWTH: f64 = 1.25;

/// Longest step in which branches start, in milliseconds, and longest total overhead of the last load, in seconds.
const MAX_START_MS: f64 = 5.0;
const MAX_TOTAL_S: f64 = 0.2;

/// Repetitions, of which the best counts: on a shared machine the others include interference.
const N_ROUNDS: usize = 5;

fn main() {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "growth: time of the engine outside of its decodes, best of {N_ROUNDS} rounds; load average before: {}",
        load.get(..4).unwrap_or("?")
    );
    println!("\n  {:<56} │ median, µs   99 %, µs │ target", format!("one step while requests (n = 2, {N_PROMPT} tokens) wait"));
    for n_streams in [8, 254] {
        let costs = alternate([0, 100, 1_000], |n_waiting| step_cost(n_streams, n_waiting, Duration::ZERO));
        for (n_waiting, Steps { median_us, high_us, .. }) in &costs {
            let title = format!("{n_streams} streams, {n_waiting} waiting requests");
            let max_us = costs[0].1.median_us * MAX_GROWTH;
            println!(
                "  {title:<56} │ {median_us:>10.1} {high_us:>9.1} │ {max_us:.1}: {MAX_GROWTH} × the median without waiting requests"
            );
        }
    }
    println!("\n  {:<56} │ share of a step, %    │ target", "8 streams with decodes of 1 ms");
    let shares = alternate([0, 1_000], |n_waiting| step_cost(8, n_waiting, Duration::from_millis(1)));
    let [none, many] = [0, 1].map(|nth: usize| 100.0 * shares[nth].1.share);
    println!("  {:<56} │ {none:>20.2} │", "no waiting requests");
    println!("  {:<56} │ {many:>20.2} │ 2 more than without waiting requests", "1,000 waiting requests");
    println!("\n  {:<56} │ longest, ms    steps │ target", "256 branches of one token start while a stream runs");
    for n_prompt in [2_000, 131_072] {
        let (longest_ms, n_steps) = starts(n_prompt);
        let title = format!("a prompt of {n_prompt} tokens");
        println!("  {title:<56} │ {longest_ms:>10.2} {n_steps:>9} │ {MAX_START_MS}");
    }
    println!("\n  {:<56} │ total, s             │ target", "requests in 8 slots, all steps");
    let title = format!("400 requests (n = 2, {N_PROMPT} tokens), 32 tokens per branch");
    println!("  {title:<56} │ {:>16.2}     │ {MAX_TOTAL_S}", throughput());
}

/// Time that the engine took between decodes.
#[derive(Clone, Copy)]
struct Steps {
    median_us: f64,
    high_us: f64,
    /// Fraction of the total time.
    share: f64,
}

impl Steps {
    fn best(self, other: Self) -> Self {
        Self {
            median_us: self.median_us.min(other.median_us),
            high_us: self.high_us.min(other.high_us),
            share: self.share.min(other.share),
        }
    }
}

/// Returns the best of several rounds of each measurement. The measurements alternate, because a shared machine drifts.
fn alternate<const N: usize>(of: [usize; N], measure: impl Fn(usize) -> Steps) -> Vec<(usize, Steps)> {
    let round = || of.map(|n| (n, measure(n)));
    let rounds = (1..N_ROUNDS).map(|_| round());
    let first = Vec::from(round());
    rounds.fold(first, |best, round| best.into_iter().zip(round).map(|((n, a), (_, b))| (n, a.best(b))).collect())
}

/// Measures steps with `n_streams` running in as many slots, and `n_waiting` requests in the queue.
fn step_cost(n_streams: u32, n_waiting: usize, decode: Duration) -> Steps {
    let decodes = Decodes::default();
    // Below the limit of a slow consumer, because nothing reads here.
    let n_tokens = 4_000;
    let engine = start(n_streams, n_streams * 4_352, decode, &decodes);
    let streams: Vec<_> = (0..n_streams).map(|seed| submit(&engine, request(seed, 16, 1, n_tokens), None)).collect();
    let all_decode = |last: Decode| last.n_rows == n_streams as usize;
    while engine.stats().n_waiting > 0 || !decodes.last().is_some_and(all_decode) {
        decodes.run(1);
    }
    let request = |seed| request(1_000 + seed, N_PROMPT, 2, 4);
    let waiting: Vec<_> = (0..n_waiting).map(|seed| submit(&engine, request(number(seed)), None)).collect();
    let first = decodes.len() + N_WARM;
    decodes.run(N_WARM + N_STEPS + 1);
    let n_left = engine.stats().n_waiting;
    let steps = &decodes.take()[first..];
    assert_eq!(n_left, n_waiting, "a stream ended too early");
    drop((engine, streams, waiting));
    let mut between: Vec<f64> = between(steps).collect();
    let all = (steps[N_STEPS].started - steps[0].started).as_secs_f64();
    let share = between.iter().sum::<f64>() / all;
    between.sort_by(f64::total_cmp);
    Steps { median_us: between[N_STEPS / 2] * 1e6, high_us: between[N_STEPS * 99 / 100] * 1e6, share }
}

/// Returns the longest step while 256 branches start and end and another stream is running, in milliseconds, and the number of
/// steps that published their events.
fn starts(n_prompt: usize) -> (f64, usize) {
    let rounds = (0..N_ROUNDS).map(|_| {
        let decodes = Decodes::default();
        let n_ctx = (number(n_prompt) + 256 * 128).next_multiple_of(256);
        let engine = start(254, n_ctx, Duration::from_micros(100), &decodes);
        let stream = submit(&engine, request(0, 16, 1, 5_000), None);
        decodes.run(N_WARM);
        let wake_log = Arc::new(WakeLog { decodes: decodes.clone(), at: Mutex::default() });
        let branches = submit(&engine, request(1, n_prompt, 256, 1), Some(Arc::clone(&wake_log) as Arc<dyn WakeHandle>));
        decodes.run_freely();
        assert_eq!(finish(branches), 256, "a branch has one token");
        let wakes = wake_log.at.lock().expect("no code that holds the log can panic").clone();
        let (first, last) = (wakes[0], wakes[wakes.len() - 1]);
        while decodes.len() <= last {
            thread::yield_now();
        }
        let decodes = decodes.take();
        drop((engine, stream));
        let longest = between(&decodes[first - 1..=last]).fold(0.0, f64::max);
        (longest * 1e3, wakes.len())
    });
    rounds.reduce(|a, b| if b.0 < a.0 { b } else { a }).expect("there is a round")
}

/// Returns the total time of the engine outside of its decodes, in seconds.
fn throughput() -> f64 {
    let rounds = (0..2).map(|_| {
        let decodes = Decodes::default();
        // All prompts stay in the device cache, so that all of them are in the prefix tree.
        let engine = start(8, 400 * 2_304, Duration::ZERO, &decodes);
        let streams: Vec<_> = (0..400).map(|seed| submit(&engine, request(seed, N_PROMPT, 2, 32), None)).collect();
        // All requests are queued before the first step is computed.
        decodes.run_freely();
        assert_eq!(streams.into_iter().map(finish).sum::<usize>(), 400 * 2 * 32, "each is written to its end");
        drop(engine);
        between(&decodes.take()).sum::<f64>()
    });
    rounds.fold(f64::INFINITY, f64::min)
}

/// Returns the seconds between each decode and the next.
fn between(decodes: &[Decode]) -> impl Iterator<Item = f64> {
    decodes.windows(2).map(|pair| (pair[1].started - pair[0].ended).as_secs_f64())
}

/// Records, on the worker's thread, the last decode before each wake-up.
struct WakeLog {
    decodes: Decodes,
    at: Mutex<Vec<usize>>,
}

impl WakeHandle for WakeLog {
    fn wake(&self) {
        self.at.lock().expect("no code that holds the log can panic").push(self.decodes.len());
    }

    fn min_interval(&self, _: usize) -> Duration {
        Duration::ZERO
    }
}

fn start(n_slots: u32, n_ctx: u32, decode: Duration, decodes: &Decodes) -> Engine {
    let limits = Limits {
        n_slots,
        n_ctx,
        n_ctx_slot: n_ctx,
        n_ubatch: 512,
        grouping: None,
        n_seq_max: (n_slots + 64).min(256),
        n_outputs: (n_slots + 64).min(256),
        max_host_cache_bytes: Some(0),
        max_queue: 1_024,
        max_token_gap: TokenGap::Auto,
        checkpoints: Checkpoints::NONE,
        slow_consumer_timeout: SLOW_CONSUMER_TIMEOUT,
        speculation: SpeculationMode::Off.into(),
    };
    let runner = Weightless::new(decode, decodes.clone());
    Engine::start(limits, move || Ok(runner)).expect("an engine without a model starts")
}

/// Returns a request for `n` completions of exactly `n_predict` tokens; prompts of different seeds share no prefix.
fn request(seed: u32, n_prompt: usize, n: u32, n_predict: u32) -> Request {
    let mut state = u64::from(seed) + 1;
    let prompt = (0..n_prompt).map(|_| {
        // splitmix64 (Steele et al.) with half of its mixing: tokens need only differ.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        4 + Token::try_from((mixed >> 33) % 90).expect("a small number")
    });
    let mut request = Request::new(Prompt::from_tokens(prompt.collect()), seed);
    request.n = n;
    request.max_tokens = Some(n_predict);
    request.sampling = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
    request
}

fn submit(engine: &Engine, request: Request, wake_handle: Option<Arc<dyn WakeHandle>>) -> Completions {
    engine.submit(request, wake_handle).expect("the request is valid")
}

/// Reads a stream to its end; returns the total number of tokens of its branches.
fn finish(completions: Completions) -> usize {
    let ends = completions.map(|event| event.expect("nothing fails here")).filter_map(|event| match event {
        Event::Finished(Finished { usage, .. }) => Some(usage.n_predicted as usize),
        _ => None,
    });
    ends.sum()
}

fn number(n: usize) -> u32 {
    u32::try_from(n).expect("a bench's counts are small")
}
