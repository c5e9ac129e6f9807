//! Time to sample one token from a row of logits, by vocabulary and parameters; of each single sampler compared to llama.cpp's;
//! and of many rows, by number of threads.
//!
//! The rows are normally distributed, and eight of them are used round-robin, like the rows of eight sequences. Many rows are
//! sampled as the worker does between two decodes: the other threads have slept meanwhile.

#[cfg(feature = "llama")]
#[path = "support/llama_samplers.rs"]
mod llama_samplers;

use std::borrow::Cow;
use std::hint::black_box;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use weft::request::{Dry, Mirostat, SamplerKind, SamplingParams, Token};
use weft::sampling::threads::MIN_LOGITS;
use weft::sampling::{Sampler, Threads, TokenStrings, Vocabulary, logprobs};

const N_ROWS: usize = 8;
/// Vocabulary sizes of Qwen2.5, SmolLM2, Llama 2 and a small model.
const VOCABULARIES: [usize; 4] = [152_064, 49_152, 32_000, 2_048];

/// Returns standard normal numbers from splitmix64 and the Box-Muller transform, times 3: the spread of real models' logits.
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

/// Words of lower-case letters that encode the token's number; the last one is the end token.
struct Words(Vec<Vec<u8>>);

impl Words {
    fn token_strings(n_vocab: usize) -> TokenStrings {
        let word = |mut number: usize| {
            let mut word = vec![b' '];
            while number > 0 {
                word.push(b'a' + u8::try_from(number % 26).expect("a letter"));
                number /= 26;
            }
            word
        };
        TokenStrings::new(Self((0..n_vocab).map(word).collect()))
    }
}

impl Vocabulary for Words {
    fn n_vocab(&self) -> usize {
        self.0.len()
    }

    fn spelling(&self, token: Token) -> &[u8] {
        &self.0[usize::try_from(token).expect("a token of the vocabulary")]
    }

    fn spelling_alone(&self, token: Token) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.spelling(token))
    }

    fn piece(&self, token: Token) -> &[u8] {
        self.spelling(token)
    }

    fn tokenize(&self, text: &[u8]) -> Vec<Token> {
        text.iter().map(|&byte| Token::from(byte)).collect()
    }

    fn newline(&self) -> Option<Token> {
        None
    }

    fn opening(&self) -> Option<Token> {
        None
    }

    fn is_end(&self, token: Token) -> bool {
        usize::try_from(token) == Ok(self.0.len() - 1)
    }

    fn end_tokens(&self) -> &[Token] {
        &[]
    }

    fn end_of_turn(&self) -> Option<Token> {
        Some(0)
    }
}

fn benchmark(c: &mut Criterion) {
    let defaults = SamplingParams::default();
    let cases = [
        ("default", defaults.clone()),
        ("penalties", penalties()),
        ("top_k 1000", SamplingParams { top_k: 1_000, ..defaults.clone() }),
        ("greedy", SamplingParams { temperature: 0.0, ..defaults.clone() }),
        ("top_k off", SamplingParams { top_k: 0, ..defaults }),
    ];
    for n_vocab in VOCABULARIES {
        let rows = rows(n_vocab);
        let mut group = c.benchmark_group(format!("sample/{n_vocab}"));
        for (name, params) in &cases {
            let mut sampler = Sampler::new(params, 1, &Words::token_strings(n_vocab), 4_096);
            sampler.accept_prompt(history(n_vocab));
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

fn penalties() -> SamplingParams {
    SamplingParams { repeat_penalty: 1.1, frequency_penalty: 0.1, ..SamplingParams::default() }
}

/// Returns earlier tokens that repeat with a period of 48.
fn history(n_vocab: usize) -> Vec<Token> {
    (0..1_024_usize).map(|i| Token::try_from(i % 48 * 1_237 % n_vocab).expect("below the vocabulary")).collect()
}

/// Returns each sampler, alone before the draw except for samplers that are designed to follow others.
fn alone() -> Vec<(&'static str, SamplingParams)> {
    let of = |letters: &str| SamplingParams {
        samplers: letters.chars().map(|letter| SamplerKind::parse(&letter.to_string()).expect("a letter")).collect(),
        ..SamplingParams::default()
    };
    let dry = |last_n| Dry { multiplier: 0.8, penalty_last_n: last_n, sequence_breakers: Vec::new(), ..Dry::default() };
    vec![
        ("default chain", of("edskypmxt")),
        ("penalties", SamplingParams { repeat_penalty: 1.1, ..of("e") }),
        ("dry", SamplingParams { dry: dry(64), ..of("d") }),
        ("dry of 1024", SamplingParams { dry: dry(1_024), ..of("d") }),
        ("top_n_sigma", SamplingParams { top_n_sigma: 1.0, ..of("s") }),
        ("top_k", of("k")),
        ("tfs_z", SamplingParams { tfs_z: 0.95, ..of("f") }),
        ("tfs_z after top_k", SamplingParams { tfs_z: 0.95, ..of("kf") }),
        ("typ_p", SamplingParams { typical_p: 0.95, ..of("y") }),
        ("typ_p after top_k", SamplingParams { typical_p: 0.95, ..of("ky") }),
        ("top_p", of("p")),
        ("min_p", of("m")),
        ("xtc", SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.01, ..of("x") }),
        ("xtc after top_k", SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.01, ..of("kx") }),
        ("temperature", of("t")),
        ("dynamic temperature", SamplingParams { dynatemp_range: 0.5, ..of("t") }),
        ("dynamic temperature after top_k", SamplingParams { dynatemp_range: 0.5, ..of("kt") }),
        ("mirostat", SamplingParams { mirostat: Mirostat::V1, ..of("") }),
        ("mirostat 2", SamplingParams { mirostat: Mirostat::V2, ..of("") }),
        ("adaptive_p", SamplingParams { adaptive_target: 0.3, ..of("a") }),
        ("adaptive_p after min_p", SamplingParams { adaptive_target: 0.3, ..of("ma") }),
        ("infill", of("i")),
        ("infill after top_k", of("ki")),
    ]
}

fn each_sampler(c: &mut Criterion) {
    for n_vocab in [152_064, 2_048] {
        let rows = rows(n_vocab);
        let token_strings = Words::token_strings(n_vocab);
        let mut group = c.benchmark_group(format!("sampler/{n_vocab}"));
        for (name, params) in alone() {
            let mut ours = Sampler::new(&params, 1, &token_strings, 4_096);
            ours.accept_prompt(history(n_vocab));
            let mut turn = rows.iter().cycle();
            group.bench_function(BenchmarkId::new(name, "ours"), |b| {
                b.iter(|| ours.sample(black_box(turn.next().expect("rows cycle"))));
            });
            #[cfg(feature = "llama")]
            if let Some(mut theirs) = llama_samplers::Chain::new(&params, 1, n_vocab) {
                for token in history(n_vocab) {
                    theirs.accept(token);
                }
                let mut turn = rows.iter().cycle();
                group.bench_function(BenchmarkId::new(name, "llama.cpp"), |b| {
                    b.iter(|| theirs.sample(black_box(turn.next().expect("rows cycle"))));
                });
            }
        }
        let dry = Dry { multiplier: 0.8, ..Dry::default() };
        let params = SamplingParams { dry, ..SamplingParams::default() };
        group.bench_function("breakers of dry, looked up", |b| {
            b.iter_batched_ref(
                || Words::token_strings(n_vocab),
                |token_strings| Sampler::new(&params, 1, black_box(token_strings), 4_096),
                criterion::BatchSize::PerIteration,
            );
        });
        group.finish();
    }
}

/// A context length of current models.
const N_LONG: u32 = 131_072;

/// Returns a prompt of `N_LONG` pseudo-random tokens with `n_distinct` different values.
fn long_prompt(n_distinct: usize) -> Vec<Token> {
    let mut state = 1_usize;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Token::try_from((state >> 33) % n_distinct).expect("below the vocabulary")
    };
    (0..N_LONG).map(|_| next()).collect()
}

/// Returns parameters that read the whole of a long context, and the context.
fn long_windows(n_vocab: usize) -> Vec<(&'static str, SamplingParams, Vec<Token>)> {
    let window = SamplingParams { repeat_penalty: 1.1, frequency_penalty: 0.1, repeat_last_n: -1, ..SamplingParams::default() };
    let dry = Dry { multiplier: 0.8, penalty_last_n: -1, ..Dry::default() };
    let dry = SamplingParams { dry, ..SamplingParams::default() };
    let biased = |n| {
        let bias = (0..).take(n).map(|token| (token, 0.5));
        SamplingParams { logit_bias: bias.collect(), ..SamplingParams::default() }
    };
    let phrase: Vec<Token> = (0..48).cycle().take(N_LONG as usize).collect();
    vec![
        ("nothing on", SamplingParams::default(), long_prompt(n_vocab)),
        ("penalties, 500 tokens", window.clone(), long_prompt(500)),
        ("penalties, 5000 tokens", window.clone(), long_prompt(5_000)),
        ("penalties, any tokens", window, long_prompt(n_vocab)),
        ("dry, 5000 tokens", dry.clone(), long_prompt(5_000)),
        ("dry, 50 tokens", dry.clone(), long_prompt(50)),
        ("dry, a phrase again and again", dry, phrase),
        ("bias of 300 tokens", biased(300), long_prompt(n_vocab)),
        ("bias of every token", biased(n_vocab), long_prompt(n_vocab)),
    ]
}

/// Measures the cost of a long context: of accepting a request, on the submitting thread; of starting 256 branches of one
/// request; and of sampling and accepting a token.
fn long_contexts(c: &mut Criterion) {
    let n_vocab = VOCABULARIES[0];
    let (rows, token_strings) = (rows(n_vocab), Words::token_strings(n_vocab));
    let mut group = c.benchmark_group(format!("context of {N_LONG}"));
    for (name, params, prompt) in long_windows(n_vocab) {
        let prompt: Arc<[Token]> = prompt.into();
        let request = || {
            let mut sampler = Sampler::new(&params, 1, &token_strings, N_LONG);
            sampler.accept_prompt(Arc::clone(&prompt));
            sampler
        };
        group.bench_function(BenchmarkId::new(name, "a request comes"), |b| b.iter(request));
        let mut sampler = request();
        group.bench_function(BenchmarkId::new(name, "256 branches start"), |b| {
            b.iter(|| (0..256).map(|seed| sampler.branch(seed)).collect::<Vec<_>>());
        });
        let (mut turn, mut tokens) = (rows.iter().cycle(), prompt.iter().cycle());
        group.bench_function(BenchmarkId::new(name, "a token"), |b| {
            b.iter(|| {
                let token = sampler.sample(black_box(turn.next().expect("rows cycle")));
                // A fixed token instead of the sampled one, so that the context stays the same.
                sampler.accept(*tokens.next().expect("tokens cycle"));
                token
            });
        });
    }
    group.finish();
}

/// Long enough for every idle thread to fall asleep.
const DECODE: Duration = Duration::from_micros(500);

/// Numbers of rows and logits.
const SHAPES: [(usize, usize); 9] =
    [(2, 2_048), (8, 2_048), (32, 2_048), (128, 2_048), (2, 32_000), (8, 32_000), (2, 152_064), (8, 152_064), (32, 152_064)];

fn many_rows(c: &mut Criterion) {
    let n_cores = thread::available_parallelism().map_or(1, usize::from);
    for (n_rows, n_vocab) in SHAPES {
        let rows = rows(n_vocab);
        let mut group = c.benchmark_group(format!("rows/{n_rows} x {n_vocab}"));
        for (name, params) in [("threads", SamplingParams::default()), ("threads, with penalties", penalties())] {
            let mut sampler = Sampler::new(&params, 1, &Words::token_strings(n_vocab), 4_096);
            sampler.accept_prompt(history(n_vocab));
            for n_threads in [1, 2, 4, 8].into_iter().filter(|&n| n <= n_cores) {
                let taken: Vec<_> = rows.iter().cycle().take(n_rows).map(|row| (sampler.clone(), row, 0)).collect();
                let time = |n_rounds| time_rows(taken.clone(), n_threads, n_rounds);
                group.bench_function(BenchmarkId::new(name, n_threads), |b| b.iter_custom(time));
            }
        }
        group.finish();
    }
}

/// Returns the time of `n_rounds` rounds of samplers with their rows and results, without the pauses between them.
fn time_rows(mut taken: Vec<(Sampler, &Vec<f32>, Token)>, n_threads: usize, n_rounds: u64) -> Duration {
    let work = || {
        let threads = Threads::new(n_threads);
        let mut elapsed = Duration::ZERO;
        for _ in 0..n_rounds {
            let started = Instant::now();
            while started.elapsed() < DECODE {
                std::hint::spin_loop();
            }
            let started = Instant::now();
            // Always distributed over the threads: this benchmark determines the minimum size that makes it worthwhile.
            threads.for_each(&mut taken, MIN_LOGITS, |(sampler, row, token)| *token = sampler.sample(black_box(row)));
            elapsed += started.elapsed();
        }
        elapsed
    };
    // A thread belongs to one set of threads for its lifetime.
    thread::scope(|scope| scope.spawn(work).join()).expect("sampling does not fail")
}

criterion_group!(benches, benchmark, each_sampler, long_contexts, many_rows);
criterion_main!(benches);
