//! Overhead of the worker per step: planning, admission, sampling, text and events, with a model that takes no time.
//!
//! `cargo bench --no-default-features --features fake-runner --bench scheduler`. The time of a step on `FakeRunner` is compared
//! with the time of the runner alone for the same rows: the difference is the worker's.
#![allow(clippy::cast_precision_loss, reason = "a bench's counts are small")]

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use weft::config::{Checkpoints, Limits, SLOW_CONSUMER_TIMEOUT, SpeculationMode, TokenGap};
use weft::engine::Engine;
use weft::engine::runner::{KvSeqId, Plan, Row, Runner};
use weft::fake_runner::FakeRunner;
use weft::request::{Event, Prompt, Request};

/// Decodes per run; criterion's iterations consist of whole runs.
const N_STEPS: u32 = 64;

/// A prompt of the minimum length for sharing.
const N_PROMPT: u32 = 16;

/// Numbers of running sequences; the last is the maximum of slots.
const SEQUENCES: [u32; 3] = [1, 32, 254];

fn step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("step");
    for n in SEQUENCES {
        group.throughput(Throughput::Elements(n.into()));
        group.bench_function(BenchmarkId::new("worker and runner", n), |bencher| {
            bencher.iter_custom(|iterations| scaled(iterations, || time_worker(n)));
        });
        group.bench_function(BenchmarkId::new("runner alone", n), |bencher| {
            bencher.iter_custom(|iterations| scaled(iterations, || time_runner(n)));
        });
    }
    group.finish();
}

/// Returns the time of `n_steps` steps, extrapolated from whole runs of [`N_STEPS`].
fn scaled(n_steps: u64, mut run: impl FnMut() -> Duration) -> Duration {
    let n_runs = n_steps.div_ceil(N_STEPS.into());
    let elapsed: Duration = (0..n_runs).map(|_| run()).sum();
    let scale = n_steps as f64 / (n_runs * u64::from(N_STEPS)) as f64;
    elapsed.mul_f64(scale)
}

/// Times one run of the engine, from the last branch's first token on, when the prompt is computed and forked.
fn time_worker(n: u32) -> Duration {
    let n_ctx = n_cells(n);
    let limits = Limits {
        n_slots: n,
        n_ctx,
        n_ctx_slot: n_ctx,
        n_ubatch: 512,
        grouping: None,
        n_seq_max: n_ids(n),
        n_outputs: n_ids(n),
        max_host_cache_bytes: Some(0),
        max_queue: 1,
        max_token_gap: TokenGap::Auto,
        checkpoints: Checkpoints::NONE,
        slow_consumer_timeout: SLOW_CONSUMER_TIMEOUT,
        speculation: SpeculationMode::Off.into(),
    };
    let engine = Engine::start(limits, move || Ok(FakeRunner::new(n_ctx, n_ids(n)).0.without_record()))
        .expect("an engine without a model starts");
    let mut request = Request::new(Prompt::from_tokens(prompt()), 0);
    request.n = n;
    request.max_tokens = Some(N_STEPS + 1);
    let completions = engine.submit(request, None).expect("the request is valid");
    let last = completions.map(|event| event.expect("nothing fails here")).find_map(|event| match event {
        Event::Finished(end) if end.index + 1 == n => Some(end.usage),
        _ => None,
    });
    let usage = last.expect("every branch finishes");
    assert_eq!(usage.n_predicted, N_STEPS + 1, "no branch ends before its limit");
    Duration::from_secs_f64(usage.predicted_ms / 1e3)
}

/// Times the same rows as in [`time_worker`] on the runner directly.
fn time_runner(n: u32) -> Duration {
    let (runner, _control) = FakeRunner::new(n_cells(n), n_ids(n));
    let mut runner = runner.without_record();
    let row = |sequence, position, token| Row { sequence, token, position, wants_logits: true };
    let first = KvSeqId(0);
    let rows = (0..).zip(prompt()).map(|(position, token)| row(first, position, token)).collect();
    runner.decode(&Plan { rows, ..Plan::default() }).expect("the pool holds the prompt");
    let ids: Vec<_> = (0..n).map(|id| KvSeqId(u16::try_from(id).expect("there are at most 256 ids"))).collect();
    for &id in &ids[1..] {
        runner.fork(first, id, N_PROMPT);
    }
    let started = Instant::now();
    for position in N_PROMPT..N_PROMPT + N_STEPS {
        let rows = ids.iter().map(|&id| row(id, position, 3)).collect();
        runner.decode(&Plan { rows, ..Plan::default() }).expect("the pool holds every step");
    }
    started.elapsed()
}

/// Returns the cells for the prompt, for the tokens of `n` branches, and for the headroom that admission requires.
fn n_cells(n: u32) -> u32 {
    (N_PROMPT + n * (N_STEPS + 1 + 64)).next_multiple_of(256)
}

/// Returns the number of sequence ids as with a model: some more than slots, but at most 256.
fn n_ids(n: u32) -> u32 {
    (n + 64).min(256)
}

fn prompt() -> Vec<i32> {
    (0..N_PROMPT).map(|token| i32::try_from(token).expect("the prompt is short") + 3).collect()
}

criterion_group!(benches, step);
criterion_main!(benches);
