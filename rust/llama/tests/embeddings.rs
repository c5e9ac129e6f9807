//! Compares embeddings with llama.cpp's own calls, one text at a time.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use llama_cpp_sys_2 as sys;

use super::quantised::{Layers, quantised};
use super::tiny::{Chance, Kind, tiny};
use super::{demo, demo_path};
use crate::config::{EnabledKernels, EngineConfig, KernelChoice, ModelConfig, Pooling};
use crate::embedding::prefix_cache::MAX_KEPT;
use crate::embedding::worker::{Embedder, EmbedderStats};
use crate::embedding::{EmbedderShape, Embeddings, Encoder, Normalization};
use crate::engine::runner::DefaultAdapters;
use crate::error::Error;
use crate::llama::context::memory;
use crate::llama::embedding::EmbeddingContext;
use crate::llama::{Model, embedder, has_repeatable_embeddings, kernels, resolve};
use crate::request::{Prompt, Token};

/// Minimum number of shared tokens.
const N_PREFIX: usize = 40;

pub(super) fn worker(model: &Arc<Model>, pooling: Pooling) -> (Embedder, mpsc::Receiver<()>) {
    worker_with(model, pooling, DefaultAdapters::default())
}

pub(super) fn worker_with(model: &Arc<Model>, pooling: Pooling, adapters: DefaultAdapters) -> (Embedder, mpsc::Receiver<()>) {
    worker_of(model, adapters, &config(pooling))
}

fn config(pooling: Pooling) -> EngineConfig {
    EngineConfig { pooling: Some(pooling), n_ctx: Some(512), n_threads: Some(1), ..EngineConfig::default() }
}

fn worker_of(model: &Arc<Model>, adapters: DefaultAdapters, config: &EngineConfig) -> (Embedder, mpsc::Receiver<()>) {
    let config = resolve(model, config, None).expect("the model can be served");
    let (ring, done) = mpsc::channel();
    let on_done = move || ring.send(()).unwrap_or(());
    (embedder(model, &config, adapters, on_done), done)
}

pub(super) fn embed_tokens(worker: &(Embedder, mpsc::Receiver<()>), texts: &[Vec<Token>]) -> Result<Embeddings, Error> {
    embed(worker, texts.iter().cloned().map(Prompt::from_tokens).collect())
}

pub(super) fn embed((embedder, done): &(Embedder, mpsc::Receiver<()>), texts: Vec<Prompt>) -> Result<Embeddings, Error> {
    let pending = embedder.submit(texts, Normalization::None, None)?;
    loop {
        if let Some(answer) = pending.take() {
            return answer;
        }
        done.recv_timeout(Duration::from_secs(20)).expect("the worker answers");
    }
}

/// Returns the embedding of one text from a bare llama.cpp context.
pub(super) fn reference(model: &Model, pooling: Pooling, text: &[Token]) -> Vec<f32> {
    // SAFETY: a plain sequence of llama.cpp's calls: the context is freed before the model, and all pointers are valid when read.
    unsafe {
        let mut params = sys::llama_context_default_params();
        (params.n_ctx, params.n_batch, params.n_ubatch) = (1024, 1024, 1024);
        (params.n_threads, params.n_threads_batch) = (1, 1);
        params.embeddings = true;
        params.pooling_type = match pooling {
            Pooling::None => sys::LLAMA_POOLING_TYPE_NONE,
            Pooling::Mean => sys::LLAMA_POOLING_TYPE_MEAN,
            Pooling::Cls => sys::LLAMA_POOLING_TYPE_CLS,
            Pooling::Last => sys::LLAMA_POOLING_TYPE_LAST,
            Pooling::Rank => sys::LLAMA_POOLING_TYPE_RANK,
        };
        let context = sys::llama_init_from_model(model.as_ptr(), params);
        let mut tokens = text.to_vec();
        let n = i32::try_from(tokens.len()).expect("the text is short");
        assert_eq!(sys::llama_decode(context, sys::llama_batch_get_one(tokens.as_mut_ptr(), n)), 0);
        let width = usize::try_from(sys::llama_model_n_embd_out(model.as_ptr())).expect("it has a width");
        let row = |row: *mut f32| std::slice::from_raw_parts(row, width).to_vec();
        let embeddings = if pooling == Pooling::None {
            (0..n).flat_map(|i| row(sys::llama_get_embeddings_ith(context, i))).collect()
        } else {
            row(sys::llama_get_embeddings_seq(context, 0))
        };
        sys::llama_free(context);
        embeddings
    }
}

pub(super) fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    assert_eq!(a.len(), b.len());
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The demo model has 8-bit weights, and activations are rounded to 8 bits as well: llama.cpp's own results for one text depend on
/// the number of texts.
fn min_cosine(model: &Arc<Model>) -> f32 {
    if Arc::ptr_eq(model, &demo()) { 0.9995 } else { 0.9999 }
}

fn texts(model: &Model) -> Vec<Vec<Token>> {
    let n_vocab = i32::try_from(model.n_vocab()).expect("it is small");
    (1..40).map(|n: i32| (0..=n * 7 % 130).map(|i| 3 + (n * 31 + i * 17) % (n_vocab - 3)).collect()).collect()
}

fn assert_matches(model: &Arc<Model>, pooling: Pooling) {
    let texts = texts(model);
    let embeddings = embed_tokens(&worker(model, pooling), &texts).expect("the texts are short");
    for (i, text) in texts.iter().enumerate() {
        let rows = embeddings.starts[i] * embeddings.width..embeddings.starts[i + 1] * embeddings.width;
        let similarity = cosine(&embeddings.numbers[rows], &reference(model, pooling, text));
        assert!(similarity > min_cosine(model), "{pooling:?} of text {i}: {similarity}");
    }
}

#[test]
fn every_pooling_matches_llama_cpp() {
    for pooling in [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last] {
        assert_matches(&demo(), pooling);
    }
}

#[test]
fn every_kind_of_memory_computes_embeddings() {
    for kind in [Kind::Recurrent, Kind::Hybrid, Kind::Window] {
        assert_matches(&tiny(kind), Pooling::Mean);
        assert_matches(&tiny(kind), Pooling::Last);
    }
}

#[test]
fn a_shared_prefix_is_computed_once_across_batches() {
    let model = demo();
    let worker = worker(&model, Pooling::Last);
    let prefix: Vec<Token> = (0..).take(N_PREFIX).map(|i| 300 + i).collect();
    let n_texts = 60;
    let texts: Vec<Vec<Token>> = (0..n_texts).map(|i| [prefix.clone(), vec![600 + i; 10]].concat()).collect();
    let embeddings = embed_tokens(&worker, &texts).expect("the texts are short");
    let EmbedderStats { n_tokens, n_computed, n_batches, .. } = worker.0.stats();
    assert_eq!((n_tokens, n_computed), (60 * 50, 40 + 60 * 10));
    assert!(n_batches > 1, "one batch alone keeps nothing for the next");
    for (vector, text) in embeddings.numbers.chunks(embeddings.width).zip(&texts) {
        let similarity = cosine(vector, &reference(&model, Pooling::Last, text));
        assert!(similarity > min_cosine(&model), "{similarity}");
    }
    // A request with the same prefix reuses it.
    embed_tokens(&worker, &[[prefix, vec![7; 5]].concat()]).expect("the text is short");
    assert_eq!(worker.0.stats().n_computed - n_computed, 5);
}

#[test]
fn alternating_prefixes_are_recomputed_only_if_a_window_moved_on() {
    for (model, n_first) in [(demo(), 2), (tiny(Kind::Window), 4)] {
        let worker = worker(&model, Pooling::Last);
        for i in 0..10 {
            let before = worker.0.stats().n_computed;
            let text = [(0..40).map(|token| 10 + 50 * (i % 2) + token).collect(), vec![200 + i, 7, 8]].concat();
            let embeddings = embed_tokens(&worker, std::slice::from_ref(&text)).expect("the text is short");
            let similarity = cosine(&embeddings.numbers, &reference(&model, Pooling::Last, &text));
            assert!(similarity > min_cosine(&model), "text {i}: {similarity}");
            let n_computed = worker.0.stats().n_computed - before;
            assert!(n_computed == if i < 2 { 43 } else { 3 } || (2..n_first).contains(&i), "text {i}: {n_computed}");
        }
    }
}

#[test]
fn the_prefix_cache_is_bounded_and_evicted_prefixes_are_recomputed() {
    let model = demo();
    let worker = worker(&model, Pooling::Last);
    let text = |prefix: Token| (0..30).map(|token| 10 + 40 * prefix + token).collect::<Vec<_>>();
    let n_kept = i32::try_from(MAX_KEPT).expect("they are few");
    for prefix in 0..=n_kept {
        embed_tokens(&worker, &[text(prefix)]).expect("the text is short");
    }
    for (prefix, n_computed) in [(n_kept, 1), (1, 1), (0, 30)] {
        let before = worker.0.stats().n_computed;
        embed_tokens(&worker, &[text(prefix)]).expect("the text is short");
        assert_eq!(worker.0.stats().n_computed - before, n_computed, "text {prefix}");
    }
}

#[test]
fn the_longest_text_is_computed_and_a_longer_one_is_rejected_with_the_limit() {
    let model = demo();
    let worker = worker(&model, Pooling::Mean);
    let n = worker.0.shape().n_longest;
    assert!(embed_tokens(&worker, &[vec![5; n]]).is_ok());
    let error = embed_tokens(&worker, &[vec![5; n + 1]]).expect_err("it is longer");
    assert!(error.to_string().contains(&format!("at most {n}")), "{error}");
    assert!(worker.0.stats().n_bytes > 0);
}

#[test]
fn a_model_without_a_classifier_cannot_rank() {
    let config = EngineConfig { pooling: Some(Pooling::Rank), ..EngineConfig::default() };
    assert!(matches!(resolve(&demo(), &config, None), Err(Error::InvalidConfig { param: "pooling", .. })));
}

/// Returns the shape of a context with `n_batch` cells.
fn shape(n_batch: usize) -> EmbedderShape {
    EmbedderShape {
        pooling: Pooling::Mean,
        takes_media: true,
        width: 192,
        n_vocab: 2048,
        n_longest: n_batch,
        n_trained: n_batch,
        n_batch,
        n_sequences: 4,
    }
}

#[test]
fn cells_beyond_the_free_memory_are_rejected_before_allocation() {
    let config = resolve(&demo(), &EngineConfig::default(), None).expect("it is valid");
    let refused = EmbeddingContext::new(&demo(), &config, shape(1 << 31), DefaultAdapters::default()).err();
    let Some(Error::Decode { reason }) = refused else { panic!("there is memory for cells of {} bytes", 1_u64 << 41) };
    assert!(reason.contains("a context of 2147483648 tokens for embeddings needs"), "{reason}");
    assert!(reason.contains("are free"), "{reason}");
}

#[test]
fn rows_beyond_the_free_memory_are_rejected_and_fewer_are_computed() {
    let n_batch = 1 << 10;
    let config = EngineConfig { n_threads: Some(1), kernels: KernelChoice::LlamaCpp, ..EngineConfig::default() };
    let config = resolve(&demo(), &config, None).expect("it is valid");
    let mut context = EmbeddingContext::new(&demo(), &config, shape(n_batch), DefaultAdapters::default()).expect("it is small");
    let too_many = usize::try_from(memory::free_on_host()).expect("64 bits") / 2048;
    let refused = context.check_memory(too_many).expect_err("the logits alone are four times as many bytes as are free");
    assert!(refused.contains(&format!("a batch of {too_many} tokens needs")), "{refused}");
    assert_eq!(context.encode(&[vec![5; n_batch]]).expect("there is memory for a thousand").n_computed, n_batch);
    assert!(context.check_memory(n_batch).is_ok(), "what was taken once is not asked for again");
}

/// Returns texts of 1, 62, 65 and 512 tokens, and some between, in the vocabulary of `model`.
fn mixed_texts(model: &Model) -> Vec<Vec<Token>> {
    let mut chance = Chance(5);
    let n_vocab = model.n_vocab() - 3;
    let lengths = [1, 62, 65, 512, 2, 63, 64, 30, 31, 1, 200, 257, 5, 300, 100];
    let mut token = || 3 + Token::try_from(chance.below(n_vocab)).expect("the vocabulary is small");
    lengths.iter().map(|&n| (0..n).map(|_| token()).collect()).collect()
}

fn per_text(embeddings: &Embeddings) -> Vec<Vec<f32>> {
    let rows = embeddings.starts.windows(2).map(|ends| ends[0] * embeddings.width..ends[1] * embeddings.width);
    rows.map(|rows| embeddings.numbers[rows].to_vec()).collect()
}

/// Returns the embeddings of [`company`], each text alone in a decode, and then in several orders with others, by concurrent
/// requests.
fn alone_and_batched(worker: &(Embedder, mpsc::Receiver<()>), texts: &[Vec<Token>]) -> Vec<(Vec<f32>, Vec<Vec<f32>>)> {
    let alone = texts.iter().map(|text| embed_tokens(worker, std::slice::from_ref(text)).expect("the text is short"));
    let mut found: Vec<(Vec<f32>, Vec<Vec<f32>>)> = alone.map(|embeddings| (embeddings.numbers, Vec::new())).collect();
    for step in [1, 2, 4, 7] {
        // Multiples of a number coprime to their count visit each text once.
        let order: Vec<usize> = (0..texts.len()).map(|i| i * step % texts.len()).collect();
        let requests: Vec<_> = order
            .chunks(4)
            .map(|part| {
                let prompts = part.iter().map(|&i| Prompt::from_tokens(texts[i].clone())).collect();
                (part, worker.0.submit(prompts, Normalization::None, None).expect("the texts are short"))
            })
            .collect();
        for (part, pending) in requests {
            let answer = loop {
                if let Some(answer) = pending.take() {
                    break answer.expect("nothing fails");
                }
                worker.1.recv_timeout(Duration::from_secs(60)).expect("the worker answers");
            };
            part.iter().zip(per_text(&answer)).for_each(|(&i, vector)| found[i].1.push(vector));
        }
    }
    found
}

/// Models whose weights have the file's layout, so that our products compute all of them.
fn as_in_file() -> [Arc<Model>; 4] {
    let demo = Model::load(&ModelConfig { kernels: KernelChoice::Weft, ..ModelConfig::at(demo_path()) }, |_| ());
    [Arc::new(demo.expect("the demo model loads")), quantised(Layers::Dense), quantised(Layers::Experts), tiny(Kind::Window)]
}

#[test]
fn a_decoders_embeddings_are_bit_identical_alone_and_batched() {
    for model in as_in_file() {
        for pooling in [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last] {
            let config = EngineConfig { kernels: KernelChoice::Weft, ..config(pooling) };
            let what = format!("{pooling:?} of {}", model.architecture());
            let is_window_that_moves_on = model.n_swa() > 0 && pooling == Pooling::Last;
            let resolved = resolve(&model, &config, None).expect("it is valid");
            let is_repeatable = has_repeatable_embeddings(&model, &resolved, true);
            assert_eq!(is_repeatable, kernels::install().usable == EnabledKernels::ALL && !is_window_that_moves_on, "{what}");
            assert!(!has_repeatable_embeddings(&model, &resolved, false), "{what}");
            let worker = worker_of(&model, DefaultAdapters::default(), &config);
            for (i, (alone, others)) in alone_and_batched(&worker, &mixed_texts(&model)).into_iter().enumerate() {
                for other in others {
                    let bits = |vector: &[f32]| vector.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
                    assert!(
                        bits(&alone) == bits(&other) || !is_repeatable,
                        "{what}: text {i} is {} alike",
                        cosine(&alone, &other)
                    );
                    assert!(cosine(&alone, &other) >= 0.999_999, "{what}: text {i}");
                }
            }
        }
    }
}

#[test]
fn embeddings_are_similar_alone_and_batched_with_llama_cpps_kernels() {
    let models = [tiny(Kind::Window), tiny(Kind::Hybrid), tiny(Kind::Recurrent), tiny(Kind::Grid), quantised(Layers::Dense)];
    for model in models {
        for pooling in [Pooling::None, Pooling::Mean, Pooling::Last] {
            let config = EngineConfig { kernels: KernelChoice::LlamaCpp, ..config(pooling) };
            let resolved = resolve(&model, &config, None).expect("it is valid");
            assert!(!has_repeatable_embeddings(&model, &resolved, true));
            let worker = worker_of(&model, DefaultAdapters::default(), &config);
            for (i, (alone, others)) in alone_and_batched(&worker, &mixed_texts(&model)).into_iter().enumerate() {
                let lowest = others.iter().map(|other| cosine(&alone, other)).fold(1.0, f32::min);
                assert!(lowest >= 0.999_999, "{pooling:?} of {}: text {i} is {lowest} alike", model.architecture());
            }
        }
    }
}
