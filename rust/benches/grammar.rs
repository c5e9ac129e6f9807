//! Cost of a grammar: parsing it, checking one token or the tokens of a draft, masking a row, and tokens per second.
//!
//! A branch checks one token in every step, and masks a row only if its sampled token is rejected. The synthetic vocabularies
//! have as many pieces as a small model and as Qwen2.5: single bytes, words, and characters of several bytes.
//!
//! `scripts/bench_grammar.py` compares with llguidance. It passes a folder in `WEFT_GRAMMAR_CASES`, and [`measure_cases`] prints
//! the costs of the documents there.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group};
use weft::grammar::{Grammar, Spellings, TokenLookup, to_gbnf};
use weft::request::{Constraint, ConstraintSource, Spacing, Token};

/// JSON that never ends: members follow members.
const ENDLESS: &str = r#"root ::= "{" ws member ("," ws member){1000,}
member ::= string ":" ws value
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( member ("," ws member)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [1-9] [0-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

struct Vocabulary {
    spellings: Vec<Vec<u8>>,
}

impl Vocabulary {
    /// Creates 256 single bytes, then two words of letters per word of three-byte characters.
    fn synthetic(n_vocab: usize) -> Self {
        let mut state = 1_u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let mut spellings: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        while spellings.len() < n_vocab {
            let n_characters = 2 + below(7);
            let first = if below(2) == 0 { " " } else { "" };
            let is_far = below(3) == 0;
            let character = |_| {
                let code = if is_far { 0x4E00 + below(2_000) } else { 97 + below(26) };
                char::from_u32(u32::try_from(code).expect("a code point")).expect("a character")
            };
            let word: String = (0..n_characters).map(character).collect();
            spellings.push(format!("{first}{word}").into_bytes());
        }
        Self { spellings }
    }
}

impl TokenLookup for Vocabulary {
    fn find_token(&self, _: &str) -> Option<Token> {
        None
    }

    fn n_vocab(&self) -> usize {
        self.spellings.len()
    }
}

/// Returns a branch after `text`, accepted as single bytes.
fn after(grammar: &Grammar, text: &str, byte: impl Fn(u8) -> Token) -> Box<dyn Constraint> {
    let mut branch = grammar.start();
    for character in text.bytes() {
        assert!(branch.allows(byte(character)), "the grammar allows {text}");
        branch.accept(byte(character));
    }
    branch
}

/// States of a branch in which most tokens, or hardly any, are rejected.
const STATES: [(&str, &str); 3] = [("at the start", ""), ("in a string", "{\"a"), ("before a value", "{\"a\": ")];

fn synthetic(c: &mut Criterion) {
    for n_vocab in [2_048, 151_936] {
        let vocabulary = Vocabulary::synthetic(n_vocab);
        let spellings = || Arc::new(Spellings::new(vocabulary.spellings.iter().map(Vec::as_slice), &[0]));
        let mut group = c.benchmark_group(format!("grammar/{n_vocab}"));
        group.bench_function("sort the vocabulary", |b| b.iter(spellings));
        let spellings = spellings();
        let read = || Grammar::new(ENDLESS, &vocabulary, Arc::clone(&spellings)).expect("the grammar is valid");
        group.bench_function("read", |b| b.iter(read));
        let grammar = read();
        group.bench_function("begin a branch", |b| b.iter(|| grammar.start()));
        for (name, text) in STATES {
            let mut branch = after(&grammar, text, Token::from);
            let word = Token::try_from(n_vocab - 1).expect("token ids have 31 bits");
            group.bench_function(BenchmarkId::new("allows", name), |b| b.iter(|| branch.allows(black_box(word))));
            let mut row = vec![0.0; n_vocab];
            group.bench_function(BenchmarkId::new("mask", name), |b| b.iter(|| branch.mask(black_box(&mut row))));
            let spacing = Spacing::default();
            group.bench_function(BenchmarkId::new("forced text", name), |b| {
                b.iter(|| branch.forced_text(black_box(&spacing), 64));
            });
            let draft: Vec<Token> = b"\"a\": 1, \"b\": 2".iter().map(|&byte| Token::from(byte)).collect();
            group
                .bench_function(BenchmarkId::new("allowed of a draft", name), |b| b.iter(|| branch.n_allowed(black_box(&draft))));
            let first = || after(&grammar, text, Token::from);
            let mask = |mut branch: Box<dyn Constraint>| branch.mask(&mut vec![0.0; n_vocab]);
            group.bench_function(BenchmarkId::new("first mask", name), |b| {
                b.iter_batched(first, mask, criterion::BatchSize::SmallInput);
            });
        }
        group.finish();
    }
}

#[cfg(feature = "llama")]
mod demo_model {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use criterion::{Criterion, Throughput};
    use weft::config::{EngineConfig, ModelConfig};
    use weft::engine::Engine;
    use weft::llama::{Model, start};
    use weft::request::{Event, Prompt, Request, SamplingParams};

    use super::ENDLESS;

    fn demo() -> Arc<Model> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/weft/models/storyteller-q8_0.gguf");
        let config = ModelConfig { n_gpu_layers: Some(0), ..ModelConfig::at(path) };
        Arc::new(Model::load(&config, |_| ()).expect("the demo model loads"))
    }

    /// Tokens that each of eight branches generates.
    const N_TOKENS: u32 = 128;

    pub(super) fn engine(c: &mut Criterion) {
        let model = demo();
        // One thread: two threads that share their cores with other processes wait for each other most of the time.
        let config = EngineConfig { n_slots: Some(8), n_threads: Some(1), ..EngineConfig::default() };
        let engine = start(&model, &config).expect("the demo model runs");
        let prompt = model.tokenize(b"Once upon a time, there was a little cow", true, true).expect("it is short");
        let mut group = c.benchmark_group("8 branches of the demo model");
        group.throughput(Throughput::Elements(u64::from(8 * N_TOKENS)));
        group.sample_size(10).measurement_time(Duration::from_secs(10));
        for (name, grammar) in [("free", None), ("any text", Some("root ::= .*")), ("JSON", Some(ENDLESS))] {
            let constraint = grammar.map(|text| model.grammar(text).expect("the grammar is valid"));
            let mut seed = 0;
            group.bench_function(name, |b| {
                b.iter(|| {
                    seed += 8;
                    let sampling = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
                    let request = Request::new(Prompt::from_tokens(prompt.clone()), seed);
                    let request =
                        Request { n: 8, max_tokens: Some(N_TOKENS), sampling, constraint: constraint.clone(), ..request };
                    assert_eq!(n_tokens(&engine, request), u64::from(8 * N_TOKENS), "every branch reaches its limit");
                });
            });
        }
        group.finish();
    }

    fn n_tokens(engine: &Engine, request: Request) -> u64 {
        let events = engine.submit(request, None).expect("the request is valid").map(|event| event.expect("nothing fails"));
        events.filter(|event| matches!(event, Event::Token(_))).count() as u64
    }
}

/// Reads the vocabulary of a folder, of which each line has a token in hexadecimal digits.
fn read_vocabulary(folder: &Path) -> Vocabulary {
    let byte = |digits: &[u8]| u8::from_str_radix(str::from_utf8(digits).expect("digits"), 16).expect("hexadecimal digits");
    let text = fs::read_to_string(folder.join("vocabulary")).expect("the folder has a vocabulary");
    Vocabulary { spellings: text.lines().map(|line| line.as_bytes().chunks(2).map(byte).collect()).collect() }
}

/// Prints a line for each document of `folder`: the microseconds to compile its grammar; per mask, on average and at most; and
/// per token that is checked and accepted without a mask. Each is the best of `n_rounds` rounds, each with a new branch.
#[expect(clippy::print_stdout, reason = "the script reads the standard output")]
fn measure_cases(folder: &Path, n_rounds: usize) {
    let vocabulary = read_vocabulary(folder);
    let end = Token::try_from(vocabulary.n_vocab() - 1).expect("token ids have 31 bits");
    let spellings = Arc::new(Spellings::new(vocabulary.spellings.iter().map(Vec::as_slice), &[end]));
    for number in 0.. {
        let read = |kind: &str| fs::read_to_string(folder.join(format!("{number}.{kind}"))).ok();
        let Some(tokens) = read("tokens") else { return };
        let tokens: Vec<Token> = tokens.split(' ').map(|token| token.parse().expect("a token")).collect();
        let (gbnf, schema) = (read("gbnf"), read("schema").unwrap_or_default());
        let compile = || {
            let gbnf = gbnf.clone().unwrap_or_else(|| to_gbnf(&schema).expect("a valid schema"));
            Grammar::new(&gbnf, &vocabulary, Arc::clone(&spellings)).expect("a valid grammar")
        };
        let rounds: Vec<_> = (0..n_rounds).map(|_| measure_round(compile, &tokens, vocabulary.n_vocab())).collect();
        let best =
            [0, 1, 2, 3].map(|nth| rounds.iter().map(|times| times[nth].as_secs_f64() * 1e6).fold(f64::INFINITY, f64::min));
        println!("{} {} {} {}", best[0], best[1], best[2], best[3]);
    }
}

/// Returns the times of one round: to compile, of a mask, of the slowest mask, and to accept a token.
fn measure_round(compile: impl Fn() -> Grammar, tokens: &[Token], n_vocab: usize) -> [Duration; 4] {
    let started = Instant::now();
    let grammar = compile();
    let compiled = started.elapsed();
    let n_tokens = u32::try_from(tokens.len()).expect("a short document");
    let mut row = vec![0.0; n_vocab];
    let (mut total, mut slowest) = (Duration::ZERO, Duration::ZERO);
    let mut branch = grammar.start();
    for &token in tokens {
        row.fill(0.0);
        let started = Instant::now();
        branch.mask(black_box(&mut row));
        let elapsed = started.elapsed();
        (total, slowest) = (total + elapsed, slowest.max(elapsed));
        assert!(row[usize::try_from(token).expect("an id")] == 0.0 && branch.allows(token), "the document follows the grammar");
        branch.accept(token);
    }
    let mut branch = grammar.start();
    let started = Instant::now();
    for &token in tokens {
        assert!(branch.allows(black_box(token)), "the document follows the grammar");
        branch.accept(token);
    }
    [compiled, total / n_tokens, slowest, started.elapsed() / n_tokens]
}

criterion_group!(benches, synthetic);
#[cfg(feature = "llama")]
criterion_group!(engine_benches, demo_model::engine);

fn main() {
    if let Some(folder) = std::env::var_os("WEFT_GRAMMAR_CASES") {
        let n_rounds = std::env::var("WEFT_GRAMMAR_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
        return measure_cases(Path::new(&folder), n_rounds);
    }
    benches();
    #[cfg(feature = "llama")]
    engine_benches();
    Criterion::default().configure_from_args().final_summary();
}
