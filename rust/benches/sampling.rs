//! Time to choose one token from a row of logits, by vocabulary and parameters.
//!
//! The rows are normally distributed, and eight of them take turns, as the rows of eight sequences do.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use weft::request::{SamplingParams, Token};
use weft::sampling::{Sampler, logprobs};

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

criterion_group!(benches, benchmark);
criterion_main!(benches);
