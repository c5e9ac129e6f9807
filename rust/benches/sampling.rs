//! Time to choose one token from a row of logits, by vocabulary and parameters, and time to choose one from each of many rows, by
//! threads.
//!
//! The rows are normally distributed, and eight of them take turns, as the rows of eight sequences do. Many rows are sampled as the
//! worker does between two decodes: the threads beside it have slept meanwhile.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use weft::request::{SamplingParams, Token};
use weft::sampling::threads::MIN_LOGITS;
use weft::sampling::{Sampler, Threads, logprobs};

const N_ROWS: usize = 8;
/// As many pieces as Qwen2.5 has, Llama 2 and a small model.
const VOCABULARIES: [usize; 3] = [152_064, 32_000, 2_048];

/// Standard normal numbers from splitmix64 and the Box-Muller transform, times 3: the spread that logits of real models have.
fn rows(n_vocab: usize) -> Vec<Vec<f32>> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        f64::from(u32::try_from((word ^ (word >> 31)) >> 32).expect("32 bits")) / 4_294_967_296.0
    };
    let mut normal = || {
        let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * uniform()).cos()
    };
    #[expect(clippy::cast_possible_truncation, reason = "logits are single precision")]
    let row = |_| (0..n_vocab).map(|_| (3.0 * normal()) as f32).collect();
    (0..N_ROWS).map(row).collect()
}

fn benchmark(c: &mut Criterion) {
    let defaults = SamplingParams::default();
    let cases = [
        ("default", defaults.clone()),
        ("penalties", SamplingParams { repeat_penalty: 1.1, frequency_penalty: 0.1, ..defaults.clone() }),
        ("top_k 1000", SamplingParams { top_k: 1_000, ..defaults.clone() }),
        ("greedy", SamplingParams { temperature: 0.0, ..defaults.clone() }),
        ("top_k off", SamplingParams { top_k: 0, ..defaults }),
    ];
    for n_vocab in VOCABULARIES {
        let rows = rows(n_vocab);
        let mut group = c.benchmark_group(format!("sample/{n_vocab}"));
        for (name, params) in &cases {
            let mut sampler = Sampler::new(params, 1, &[], 4_096);
            let history = (0..64_usize).map(|i| Token::try_from(i * 1_237 % n_vocab).expect("below the vocabulary"));
            history.for_each(|token| sampler.accept(token));
            let mut turn = rows.iter().cycle();
            group.bench_function(BenchmarkId::from_parameter(name), |b| {
                b.iter(|| sampler.sample(black_box(turn.next().expect("rows cycle"))));
            });
        }
        let mut turn = rows.iter().cycle();
        group.bench_function("logprobs of 5", |b| b.iter(|| logprobs(black_box(turn.next().expect("rows cycle")), 7, 5)));
        group.finish();
    }
}

/// Long enough for every thread that has nothing to do to fall asleep.
const DECODE: Duration = Duration::from_micros(500);

/// As many rows of as many logits.
const SHAPES: [(usize, usize); 8] =
    [(2, 2_048), (8, 2_048), (32, 2_048), (128, 2_048), (2, 32_000), (8, 32_000), (2, 152_064), (32, 152_064)];

fn many_rows(c: &mut Criterion) {
    let n_cores = thread::available_parallelism().map_or(1, usize::from);
    for (n_rows, n_vocab) in SHAPES {
        let rows = rows(n_vocab);
        let mut group = c.benchmark_group(format!("rows/{n_rows} x {n_vocab}"));
        for n_threads in [1, 2, 4, 8].into_iter().filter(|&n| n <= n_cores) {
            let name = BenchmarkId::new("threads", n_threads);
            group.bench_function(name, |b| b.iter_custom(|n_rounds| time_rows(&rows, n_rows, n_threads, n_rounds)));
        }
        group.finish();
    }
}

/// The time of `n_rounds` rounds of `n_rows` rows, without what lies between them.
fn time_rows(rows: &[Vec<f32>], n_rows: usize, n_threads: usize, n_rounds: u64) -> Duration {
    let work = || {
        let threads = Threads::new(n_threads);
        let sampler = Sampler::new(&SamplingParams::default(), 1, &[], 4_096);
        let mut taken: Vec<_> = rows.iter().cycle().take(n_rows).map(|row| (sampler.clone(), row, 0)).collect();
        let mut elapsed = Duration::ZERO;
        for _ in 0..n_rounds {
            let started = Instant::now();
            while started.elapsed() < DECODE {
                std::hint::spin_loop();
            }
            let started = Instant::now();
            // Shared out however few they are: this is where it is found out from where on that pays.
            threads.for_each(&mut taken, MIN_LOGITS, |(sampler, row, token)| *token = sampler.sample(black_box(row)));
            elapsed += started.elapsed();
        }
        elapsed
    };
    // A thread belongs to one set of threads in its life.
    thread::scope(|scope| scope.spawn(work).join()).expect("sampling does not fail")
}

criterion_group!(benches, benchmark, many_rows);
criterion_main!(benches);
