//! Tests batch invariance: a row depends on its own text alone, bit by bit, whatever else is in the batch and wherever its cells
//! are.
#![expect(clippy::cast_possible_truncation, reason = "numbers are small")]

use std::sync::{Arc, OnceLock};

use super::quantised::{Layers, quantised};
use super::runner::prompt;
use super::tiny::{Kind, tiny};
use super::{demo_path, resolve_llama_cpp};
use crate::config::{
    EnabledKernels, EngineConfig, FlashAttention, KernelChoice, KvType, ModelConfig, ResolvedConfig, SpeculationMode,
};
use crate::engine::DraftSource;
use crate::engine::runner::{KvSeqId, Plan, Row, Runner};
use crate::llama::{LlamaRunner, Model, kernels, start};
use crate::request::{Event, Prompt, Replay, Request, Speculation, Token};

/// The demo model and two in formats with blocks of 256, one with experts, with the file's weight layout on every processor, so
/// that our kernels compute all products.
fn models() -> &'static [Arc<Model>; 3] {
    static MODELS: OnceLock<[Arc<Model>; 3]> = OnceLock::new();
    MODELS.get_or_init(|| {
        let demo = Model::load(&ModelConfig { kernels: KernelChoice::Weft, ..ModelConfig::at(demo_path()) }, |_| ());
        [Arc::new(demo.expect("the demo model loads")), quantised(Layers::Dense), quantised(Layers::Experts)]
    })
}

/// Returns the first `n` tokens of a text in the vocabulary of `model`.
fn text(model: &Model, n: usize) -> Vec<Token> {
    let n_vocab = Token::try_from(model.n_vocab()).expect("it is small");
    prompt(n).into_iter().map(|token| token % n_vocab).collect()
}

/// Returns a runner with our attention and products.
fn ours(model: &Arc<Model>, change: impl FnOnce(&mut EngineConfig)) -> LlamaRunner {
    let mut config = EngineConfig {
        flash_attention: FlashAttention::On,
        n_slots: Some(8),
        n_ctx: Some(4096),
        n_threads: Some(1),
        ..EngineConfig::default()
    };
    change(&mut config);
    let config = resolve_llama_cpp(model, &config).expect("the configuration is valid");
    let config = ResolvedConfig { kernels: EnabledKernels::ALL, ..config };
    let runner = LlamaRunner::new(Arc::clone(model), &config).expect("the model runs");
    assert_eq!(runner.is_repeatable(), kernels::install().usable == EnabledKernels::ALL, "{}", model.path().display());
    runner
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Computes `tokens` from `position` on, `n` rows per decode, and returns the bits of the last row of logits.
fn compute(runner: &mut LlamaRunner, id: u16, position: u32, tokens: &[Token], n: usize) -> Vec<u32> {
    let mut last = Vec::new();
    for (i, chunk) in tokens.chunks(n).enumerate() {
        let rows = crate::llama::context::batch::rows_of(KvSeqId(id), position + (i * n) as u32, chunk);
        runner.decode(&rows).expect("the plan is valid");
        last = bits(runner.logits(chunk.len() - 1));
    }
    last
}

#[test]
fn a_prompt_in_chunks_of_any_size_gives_the_same_logits() {
    for (model, type_kv) in models().iter().flat_map(|model| [(model, KvType::F16), (model, KvType::Q8_0)]) {
        let mut runner = ours(model, |config| (config.type_k, config.type_v) = (type_kv, type_kv));
        let tokens = text(model, 600);
        let whole = compute(&mut runner, 0, 0, &tokens, 512);
        for (id, n) in [(1, 300), (2, 97), (3, 16), (4, 1)] {
            let what = format!("{n} rows in a decode, {type_kv:?}, {}", model.path().display());
            assert_eq!(compute(&mut runner, id, 0, &tokens, n), whole, "{what}");
        }
    }
}

#[test]
fn consecutive_rows_of_a_decode_give_the_same_logits_as_decodes_of_their_own() {
    for (model, type_kv) in models().iter().flat_map(|model| [(model, KvType::F16), (model, KvType::Q8_0)]) {
        let mut runner = ours(model, |config| (config.type_k, config.type_v) = (type_kv, type_kv));
        let tokens = text(model, 340);
        let (prompt, rest) = tokens.split_at(300);
        compute(&mut runner, 0, 0, prompt, 300);
        runner.fork(KvSeqId(0), KvSeqId(1), 300);
        let alone: Vec<Vec<u32>> = (0..rest.len()).map(|i| compute(&mut runner, 0, 300 + i as u32, &rest[i..=i], 1)).collect();
        // Each decode has a token, right and wrong drafts after it, and a row of another sequence; the wrong ones leave.
        compute(&mut runner, 2, 0, &prompt[..50], 50);
        let (mut i, mut n_other) = (0, 50);
        for n_drafted in (0..8).cycle() {
            let n_right = (n_drafted + i) % (n_drafted + 1);
            let n_rows = (1 + n_drafted).min(rest.len() - i);
            let row = |(nth, &token): (usize, &Token)| {
                let token = if nth <= n_right { token } else { (token + 1) % 32 };
                Row { sequence: KvSeqId(1), token, position: (300 + i + nth) as u32, wants_logits: true }
            };
            let mut rows: Vec<Row> = rest[i..i + n_rows].iter().enumerate().map(row).collect();
            rows.insert(0, Row { sequence: KvSeqId(2), token: 7, position: n_other, wants_logits: true });
            runner.decode(&Plan { rows, ..Plan::default() }).expect("the plan is valid");
            for nth in 0..n_rows.min(n_right + 1) {
                assert_eq!(bits(runner.logits(1 + nth)), alone[i + nth], "row {nth} of {n_rows}, {}", model.path().display());
            }
            (i, n_other) = (i + n_rows.min(n_right + 1), n_other + 1);
            assert!(runner.truncate(KvSeqId(1), (300 + i) as u32));
            if i == rest.len() {
                break;
            }
        }
    }
}

#[test]
fn a_row_in_a_mixed_batch_gives_the_same_logits_as_alone() {
    for (model, n_threads) in models().iter().flat_map(|model| [(model, 1), (model, 2)]) {
        let tokens = text(model, 300);
        let mut alone = ours(model, |config| config.n_threads = Some(n_threads));
        let expected = compute(&mut alone, 0, 0, &tokens, 64);
        let mut runner = ours(model, |config| config.n_threads = Some(3 - n_threads));
        let logits = compute_interleaved(&mut runner, &tokens);
        assert_eq!(logits, expected, "{n_threads} threads alone, {}", model.path().display());
    }
}

/// Computes `tokens` in sequence 0, whose cells are interleaved with those of three others, two of which share its prefix.
fn compute_interleaved(runner: &mut LlamaRunner, tokens: &[Token]) -> Vec<u32> {
    compute(runner, 0, 0, &tokens[..100], 100);
    runner.fork(KvSeqId(0), KvSeqId(1), 100);
    runner.fork(KvSeqId(0), KvSeqId(2), 60);
    compute(runner, 3, 0, &tokens[50..90], 7);
    let mut lengths: [usize; 4] = [100, 100, 60, 0];
    let mut logits = Vec::new();
    while lengths[0] < tokens.len() {
        let mut rows = Vec::new();
        for (id, length) in lengths.iter_mut().enumerate() {
            let n = if id == 0 { 1 + *length % 3 } else { 1 };
            for _ in 0..n.min(tokens.len() - *length) {
                // The others compute other tokens.
                let token = if id == 0 { tokens[*length] } else { tokens[(*length * 7 + id) % tokens.len()] };
                let position = *length as u32 + if id == 3 { 40 } else { 0 };
                rows.push(Row { sequence: KvSeqId(id as u16), token, position, wants_logits: false });
                *length += 1;
            }
        }
        let last = rows.iter().rposition(|row| row.sequence == KvSeqId(0)).expect("it is in every decode");
        rows[last].wants_logits = true;
        runner.decode(&Plan { rows, ..Plan::default() }).expect("the plan is valid");
        logits = bits(runner.logits(last));
    }
    logits
}

#[test]
fn saved_and_restored_cells_give_the_same_logits() {
    for model in models() {
        let mut runner = ours(model, |_| ());
        let tokens = text(model, 400);
        let expected = compute(&mut runner, 0, 0, &tokens, 400);
        compute(&mut runner, 1, 0, &tokens[..350], 350);
        let pieces = [0..120, 120..350].map(|range| runner.save(KvSeqId(1), range).expect("cells can be saved"));
        // The cells are restored into a cache full of holes.
        runner.drop_sequence(KvSeqId(0));
        runner.drop_sequence(KvSeqId(1));
        for i in 0..40 {
            compute(&mut runner, 2 + i % 2, u32::from(i / 2), &tokens[usize::from(i)..][..1], 1);
        }
        runner.drop_sequence(KvSeqId(2));
        runner.restore(KvSeqId(4), &pieces[0], 0..120).expect("cells can be restored");
        runner.restore(KvSeqId(4), &pieces[1], 120..350).expect("cells can be restored");
        assert_eq!(compute(&mut runner, 4, 350, &tokens[350..], 50), expected, "{}", model.path().display());
    }
}

#[test]
fn models_with_windows_or_states_are_not_repeatable() {
    for kind in [Kind::Window, Kind::Hybrid, Kind::Recurrent] {
        let engine = start(&tiny(kind), &EngineConfig { kernels: KernelChoice::Weft, ..EngineConfig::default() });
        assert!(!engine.expect("the toy model runs").is_repeatable(), "{kind:?}");
    }
    let theirs = start(&models()[0], &EngineConfig { kernels: KernelChoice::LlamaCpp, ..EngineConfig::default() });
    assert!(!theirs.expect("the demo model runs").is_repeatable());
}

/// Returns the tokens of a request, with the bits of their log-probabilities.
fn drawn(engine: &crate::engine::Engine, request: Request) -> Vec<(Token, Vec<u32>)> {
    let mut drawn = Vec::new();
    for event in engine.submit(request, None).expect("the request is valid") {
        if let Event::Token(token) = event.expect("nothing fails") {
            let logprobs = token.logprobs.expect("the request asked for logprobs");
            let likely = logprobs.top.iter().map(|likely| likely.logprob.to_bits());
            drawn.push((token.token, [logprobs.chosen.logprob.to_bits()].into_iter().chain(likely).collect()));
        }
    }
    drawn
}

/// Returns request `i`: one of five prefixes, a unique suffix and seed.
fn request(model: &Model, i: u32) -> Request {
    let story = text(model, 600);
    let start = 100 * (i as usize % 5);
    let n = 20 + (i as usize * 37) % 180;
    let mut tokens = story[start..start + n].to_vec();
    tokens.extend_from_slice(&story[(i as usize * 13) % 500..][..3 + i as usize % 20]);
    let mut request = Request { max_tokens: Some(6 + i % 11), ..Request::new(Prompt::from_tokens(tokens), i) };
    request.sampling.logprobs = Some(3);
    request.sampling.temperature = 1.0;
    request
}

#[test]
fn drafts_change_no_token_and_no_bit_of_its_logprobs() {
    if kernels::install().usable != EnabledKernels::ALL {
        return;
    }
    for model in models() {
        let config = |n_threads| EngineConfig {
            n_threads: Some(n_threads),
            n_slots: Some(6),
            n_ctx: Some(1024),
            kernels: KernelChoice::Weft,
            ..EngineConfig::default()
        };
        let off = EngineConfig { speculation: SpeculationMode::Off.into(), ..config(1) };
        let off = start(model, &off).expect("the model runs");
        let expected: Vec<_> = (0..40).map(|i| drawn(&off, request(model, i))).collect();
        for n_threads in [1, 2] {
            let engine = Arc::new(start(model, &config(n_threads)).expect("the model runs"));
            std::thread::scope(|scope| {
                for client in 0..5 {
                    let (engine, expected) = (Arc::clone(&engine), &expected);
                    scope.spawn(move || {
                        for i in (client..40).step_by(5) {
                            let tokens = expected[i as usize].iter().map(|(token, _)| *token).collect();
                            let error_rate = [0.0, 0.2, 0.5][i as usize % 3];
                            let replay = Replay { branches: vec![tokens], error_rate, seed: 1, is_forced: true };
                            let speculation = Speculation {
                                max_draft: Some(1 + i % 7),
                                replay: Some(Arc::new(replay)),
                                ..Speculation::default()
                            };
                            let found = drawn(&engine, Request { speculation, ..request(model, i) });
                            assert_eq!(found, expected[i as usize], "request {i}");
                        }
                    });
                }
            });
            let replayed = engine.stats().speculation.by_source[DraftSource::Replay as usize];
            assert!(replayed.n_accepted > 50 && replayed.n_cut > 10, "{replayed:?}");
        }
    }
}

#[test]
fn a_seeded_request_gives_the_same_text_alone_and_under_load() {
    if kernels::install().usable != EnabledKernels::ALL {
        return;
    }
    for (model, n_requests) in models().iter().zip([200, 60, 60]) {
        let config =
            |n_threads| EngineConfig { n_threads: Some(n_threads), kernels: KernelChoice::Weft, ..EngineConfig::default() };
        let alone = start(model, &EngineConfig { n_slots: Some(1), ..config(1) }).expect("the model runs");
        assert!(alone.is_repeatable());
        let expected: Vec<_> = (0..n_requests).map(|i| drawn(&alone, request(model, i))).collect();
        // A cache for only a few sequences, so that branches are preempted, offloaded, reloaded and moved.
        let crowded = EngineConfig { n_slots: Some(6), n_ctx: Some(1024), ..config(2) };
        let engine = Arc::new(start(model, &crowded).expect("the model runs"));
        let next = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..9 {
                scope.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        // In another order than alone.
                        let i = (i < n_requests).then(|| (i * 77 + 5) % n_requests);
                        let Some(i) = i else { return };
                        assert_eq!(drawn(&engine, request(model, i)), expected[i as usize], "request {i}");
                    }
                });
            }
        });
    }
}
