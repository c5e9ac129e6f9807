//! Cost of a grammar: parsing it, checking one token, masking a row, and tokens per second.
//!
//! A branch checks one token in every step, and masks a row only if its sampled token is rejected. The synthetic vocabularies
//! have as many pieces as a small model and as Qwen2.5: single bytes, words, and characters of several bytes.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use weft::config::{EngineConfig, ModelConfig};
use weft::engine::Engine;
use weft::grammar::{Grammar, Spellings, TokenLookup};
use weft::llama::{Model, start};
use weft::request::{Constraint, ConstraintSource, Event, Prompt, Request, SamplingParams, Token};

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
    fn spelt(&self, _: &str) -> Option<Token> {
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
        let read = || Grammar::new(ENDLESS, &vocabulary, Arc::clone(&spellings)).expect("the grammar is right");
        group.bench_function("read", |b| b.iter(read));
        let grammar = read();
        group.bench_function("begin a branch", |b| b.iter(|| grammar.start()));
        for (name, text) in STATES {
            let mut branch = after(&grammar, text, Token::from);
            let word = Token::try_from(n_vocab - 1).expect("token ids have 31 bits");
            group.bench_function(BenchmarkId::new("allows", name), |b| b.iter(|| branch.allows(black_box(word))));
            let mut row = vec![0.0; n_vocab];
            group.bench_function(BenchmarkId::new("mask", name), |b| b.iter(|| branch.mask(black_box(&mut row))));
            let first = || after(&grammar, text, Token::from);
            let mask = |mut branch: Box<dyn Constraint>| branch.mask(&mut vec![0.0; n_vocab]);
            group.bench_function(BenchmarkId::new("first mask", name), |b| {
                b.iter_batched(first, mask, criterion::BatchSize::SmallInput);
            });
        }
        group.finish();
    }
}

fn demo() -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/weft/models/storyteller-q8_0.gguf");
    let config = ModelConfig { n_gpu_layers: Some(0), ..ModelConfig::at(path) };
    Arc::new(Model::load(&config, |_| ()).expect("the demo model loads"))
}

/// Tokens that each of eight branches generates.
const N_TOKENS: u32 = 128;

fn engine(c: &mut Criterion) {
    let model = demo();
    // One thread: two threads that share their cores with other processes wait for each other most of the time.
    let config = EngineConfig { n_slots: Some(8), n_threads: Some(1), ..EngineConfig::default() };
    let engine = start(&model, &config).expect("the demo model runs");
    let prompt = model.tokenize(b"Once upon a time, there was a little cow", true, true).expect("it is short");
    let mut group = c.benchmark_group("8 branches of the demo model");
    group.throughput(Throughput::Elements(u64::from(8 * N_TOKENS)));
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    for (name, grammar) in [("free", None), ("any text", Some("root ::= .*")), ("JSON", Some(ENDLESS))] {
        let constraint = grammar.map(|text| model.grammar(text).expect("the grammar is right"));
        let mut seed = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                seed += 8;
                let sampling = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
                let request = Request::new(Prompt::from_tokens(prompt.clone()), seed);
                let request = Request { n: 8, max_tokens: Some(N_TOKENS), sampling, constraint: constraint.clone(), ..request };
                assert_eq!(n_tokens(&engine, request), u64::from(8 * N_TOKENS), "every branch writes to its limit");
            });
        });
    }
    group.finish();
}

fn n_tokens(engine: &Engine, request: Request) -> u64 {
    let events = engine.submit(request, None).expect("the request is valid").map(|event| event.expect("nothing fails"));
    events.filter(|event| matches!(event, Event::Token(_))).count() as u64
}

criterion_group!(benches, synthetic, engine);
criterion_main!(benches);
