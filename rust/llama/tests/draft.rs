//! Draft models, as toy models of each kind: whatever they draft changes no token, and one that is always right is accepted.
#![expect(clippy::print_stderr, reason = "the counts show that drafts are accepted")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::demo_path;
use super::gguf_writer::{Header, Tensor, TensorType, padding};
use super::kernels::llama_cpp;
use super::tiny::{Chance, N_VOCAB, add_vocabulary, write_file};
use crate::config::{
    DraftKind, DraftModelConfig, EnabledKernels, EngineConfig, FlashAttention, KernelChoice, KvType, LoadScope, ModelConfig,
    SpeculationConfig, SpeculationMode,
};
use crate::engine::runner::Runner;
use crate::engine::{DraftSource, DraftStats, Engine};
use crate::error::Error;
use crate::llama::draft::layer_inputs;
use crate::llama::kernels::install;
use crate::llama::memory_plan::plan;
use crate::llama::{LlamaRunner, Model, resolve, start};
use crate::request::{Event, Prompt, Request, Token};

const N_EMBD: usize = 64;
const N_FF: usize = 128;
const N_LAYER: usize = 3;

/// The token that a constant model generates.
const CONSTANT: usize = 77;

/// Weights of a toy model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weights {
    /// Noise.
    Random,
    /// The model always generates [`CONSTANT`]: its layers change nothing, and the first dimension of every embedding is large.
    Constant,
}

/// A file that is deleted with the value.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

fn write(header: &Header, name: &str, weights: Weights, seed: u64) -> File {
    let mut bytes = header.to_bytes();
    let mut chance = Chance(seed);
    for tensor in header.tensors() {
        for index in 0..tensor.n_bytes() / 4 {
            let (row, column) = (index / tensor.dims[0], index % tensor.dims[0]);
            let is_constant = weights == Weights::Constant;
            let noise = chance.next();
            let weight = match tensor.name.as_str() {
                name if name.contains("norm") => 1.0,
                "token_embd.weight" if is_constant && column == 0 => 1.0,
                "output.weight" if is_constant && column == 0 && row == CONSTANT => 10.0,
                // The features of the first layer, or the embedding of the token.
                "fc.weight" | "blk.3.nextn.eh_proj.weight" if is_constant => f32::from(u8::from(row == column)),
                name if is_constant && (name.contains("attn_output") || name.contains("ffn_down")) => 0.0,
                _ if is_constant => 0.01 * noise,
                _ => 0.5 * noise,
            };
            bytes.extend(weight.to_le_bytes());
        }
        bytes.extend(padding(tensor.n_bytes()));
    }
    File(write_file(&bytes, &format!("{name}-{weights:?}-{seed}")))
}

/// Creates the metadata of an architecture with attention in all layers.
fn header(architecture: &str, n_layers: u32) -> Header {
    let mut header = Header::default();
    header.string("general.architecture", architecture);
    let key = |name: &str| format!("{architecture}.{name}");
    for (name, value) in [
        ("context_length", 512),
        ("embedding_length", 64),
        ("block_count", n_layers),
        ("feed_forward_length", 128),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 32),
        ("attention.value_length", 32),
    ] {
        header.u32(&key(name), value);
    }
    header.f32(&key("attention.layer_norm_rms_epsilon"), 1e-6);
    add_vocabulary(&mut header, "llama");
    header
}

fn add(header: &mut Header, name: &str, dims: &[usize]) {
    header.tensor(Tensor { name: name.to_owned(), dims: dims.to_vec(), kind: TensorType::F32 });
}

/// Adds the tensors of a layer, whose attention reads `n_in` numbers.
fn add_layer(header: &mut Header, layer: usize, n_in: usize, n_ff: Option<usize>) {
    let mut add = |name: &str, dims: &[usize]| add(header, &format!("blk.{layer}.{name}.weight"), dims);
    add("attn_norm", &[N_EMBD]);
    add("attn_q", &[n_in, 64]);
    add("attn_k", &[n_in, 32]);
    add("attn_v", &[n_in, 32]);
    add("attn_output", &[64, N_EMBD]);
    if let Some(n_ff) = n_ff {
        add("ffn_gate", &[N_EMBD, n_ff]);
        add("ffn_up", &[N_EMBD, n_ff]);
        add("ffn_down", &[n_ff, N_EMBD]);
    }
}

fn add_ends(header: &mut Header) {
    add(header, "token_embd.weight", &[N_EMBD, N_VOCAB]);
    add(header, "output_norm.weight", &[N_EMBD]);
    add(header, "output.weight", &[N_EMBD, N_VOCAB]);
}

fn write_target(weights: Weights, seed: u64) -> File {
    let mut header = header("llama", 3);
    add_ends(&mut header);
    for layer in 0..N_LAYER {
        add_layer(&mut header, layer, N_EMBD, Some(N_FF));
        add(&mut header, &format!("blk.{layer}.ffn_norm.weight"), &[N_EMBD]);
    }
    write(&header, "llama", weights, seed)
}

fn write_eagle3(weights: Weights) -> File {
    let mut header = header("eagle3", 1);
    header.i32s("eagle3.target_layers", [0, 1, 2].into_iter());
    header.u32("eagle3.target_hidden_size", 64);
    add_ends(&mut header);
    add(&mut header, "fc.weight", &[3 * N_EMBD, N_EMBD]);
    add_layer(&mut header, 0, 2 * N_EMBD, Some(N_FF));
    add(&mut header, "blk.0.attn_norm_2.weight", &[N_EMBD]);
    add(&mut header, "blk.0.ffn_norm.weight", &[N_EMBD]);
    write(&header, "eagle3", weights, 3)
}

fn write_dflash(weights: Weights, kind: DraftKind) -> File {
    let mut header = header("dflash", 1);
    header.i32s("dflash.target_layers", [0, 2].into_iter());
    header.u32("dflash.block_size", 6);
    header.u32("tokenizer.ggml.mask_token_id", 3);
    add_ends(&mut header);
    add(&mut header, "fc.weight", &[2 * N_EMBD, N_EMBD]);
    add(&mut header, "enc.output_norm.weight", &[N_EMBD]);
    add_layer(&mut header, 0, N_EMBD, Some(N_FF));
    for name in ["attn_q_norm", "attn_k_norm"] {
        add(&mut header, &format!("blk.0.{name}.weight"), &[32]);
    }
    add(&mut header, "blk.0.ffn_norm.weight", &[N_EMBD]);
    if kind == DraftKind::DSpark {
        add(&mut header, "markov_w1.weight", &[8, N_VOCAB]);
        add(&mut header, "markov_w2.weight", &[8, N_VOCAB]);
    }
    write(&header, "dflash", weights, 4)
}

/// Writes a model with a layer that predicts further tokens.
fn write_with_mtp(weights: Weights) -> File {
    let mut header = header("glm4moe", 4);
    for (name, value) in [
        ("nextn_predict_layers", 1),
        ("leading_dense_block_count", 3),
        ("expert_count", 2),
        ("expert_used_count", 1),
        ("expert_shared_count", 0),
        ("expert_feed_forward_length", 32),
    ] {
        header.u32(&format!("glm4moe.{name}"), value);
    }
    add_ends(&mut header);
    for layer in 0..=N_LAYER {
        add_layer(&mut header, layer, N_EMBD, (layer < N_LAYER).then_some(N_FF));
        add(&mut header, &format!("blk.{layer}.post_attention_norm.weight"), &[N_EMBD]);
    }
    add(&mut header, "blk.3.ffn_gate_inp.weight", &[N_EMBD, 2]);
    add(&mut header, "blk.3.exp_probs_b.bias", &[2]);
    add(&mut header, "blk.3.ffn_gate_exps.weight", &[N_EMBD, 32, 2]);
    add(&mut header, "blk.3.ffn_down_exps.weight", &[32, N_EMBD, 2]);
    add(&mut header, "blk.3.ffn_up_exps.weight", &[N_EMBD, 32, 2]);
    add(&mut header, "blk.3.nextn.eh_proj.weight", &[2 * N_EMBD, N_EMBD]);
    for name in ["enorm", "hnorm"] {
        add(&mut header, &format!("blk.3.nextn.{name}.weight"), &[N_EMBD]);
    }
    write(&header, "glm4moe", weights, 5)
}

fn load(path: &Path, draft: Option<DraftModelConfig>) -> Result<Arc<Model>, Error> {
    let load_mtp = draft.as_ref().is_some_and(|draft| draft.path.is_none());
    Model::load(&ModelConfig { load_mtp, draft, ..ModelConfig::at(path.to_owned()) }, |_| ()).map(Arc::new)
}

fn draft_of(path: Option<&File>, kind: Option<DraftKind>) -> DraftModelConfig {
    DraftModelConfig { path: path.map(|file| file.0.clone()), kind, ..DraftModelConfig::default() }
}

/// Starts an engine that drafts in every step, or never.
fn run(model: &Arc<Model>, mode: SpeculationMode) -> Engine {
    run_with(model, SpeculationConfig { mode, ..SpeculationConfig::default() })
}

fn run_with(model: &Arc<Model>, speculation: SpeculationConfig) -> Engine {
    let speculation = SpeculationConfig { row_percent: Some(0), ..speculation };
    let config = EngineConfig {
        n_threads: Some(1),
        n_slots: Some(4),
        n_ctx: Some(1024),
        kernels: KernelChoice::Weft,
        speculation,
        ..EngineConfig::default()
    };
    start(model, &config).expect("the model runs")
}

/// Returns the tokens of requests with common beginnings, several at a time, which share, fork and drop their cells.
fn texts(engine: &Engine) -> Vec<Vec<Token>> {
    let n_vocab = i32::try_from(engine.token_strings().n_vocab()).expect("a toy vocabulary is small");
    let request = |seed: i32| {
        let n = 20 + seed * 7 % 40;
        let prompt: Vec<Token> =
            (0..n).map(|i| 3 + (i * 31 + i * i % 7 + if i > 16 { seed } else { 0 }) % (n_vocab - 3)).collect();
        let sampling = crate::request::SamplingParams {
            temperature: if seed % 3 == 2 { 0.7 } else { 0.0 },
            ..crate::request::SamplingParams::default()
        };
        let n = if seed % 4 == 3 { 3 } else { 1 };
        Request { max_tokens: Some(24), n, sampling, ..Request::new(Prompt::from_tokens(prompt), seed.unsigned_abs()) }
    };
    let mut texts = Vec::new();
    for first in [0, 6, 12] {
        let streams: Vec<_> = (first..first + 6).map(|seed| engine.submit(request(seed), None).expect("it is valid")).collect();
        for stream in streams {
            let mut branches = vec![Vec::new(); 3];
            for event in stream {
                if let Event::Token(token) = event.expect("nothing fails") {
                    branches[token.index as usize].push(token.token);
                }
            }
            texts.extend(branches);
        }
    }
    texts
}

/// Drafts with the draft model of `model`, and returns its statistics. The texts are those without drafts.
fn check(model: &Arc<Model>) -> DraftStats {
    let expected = texts(&run(model, SpeculationMode::Off));
    let engine = run(model, SpeculationMode::On);
    assert_eq!(texts(&engine), expected);
    engine.stats().speculation.by_source[DraftSource::Model as usize]
}

/// Checks a kind of draft model whose file `write` writes, for noise and where all drafts are right.
fn check_kind(kind: DraftKind, write: impl Fn(Weights) -> File) {
    for weights in [Weights::Random, Weights::Constant] {
        let (target, draft) = (write_target(weights, 1), write(weights));
        let model = load(&target.0, Some(draft_of(Some(&draft), None))).expect("the draft model fits");
        let stats = check(&model);
        eprintln!("{kind:?}, {weights:?}: {stats:?}");
        assert!(stats.n_drafted > 200, "{stats:?}");
        if weights == Weights::Constant {
            assert!(10 * stats.n_accepted >= 9 * stats.n_drafted, "{stats:?}");
        }
    }
}

#[test]
fn a_model_drafts_for_itself() {
    let model = load(&demo_path(), Some(DraftModelConfig { path: Some(demo_path()), ..DraftModelConfig::default() }));
    let stats = check(&model.expect("it has its own vocabulary"));
    eprintln!("{stats:?}");
    // A third of the requests sample tokens that are not the likeliest.
    assert!(stats.n_drafted > 300 && 2 * stats.n_accepted >= stats.n_drafted, "{stats:?}");
}

#[test]
fn another_model_with_the_same_vocabulary_drafts() {
    check_kind(DraftKind::Simple, |weights| write_target(weights, 2));
}

#[test]
fn eagle3_drafts() {
    check_kind(DraftKind::Eagle3, write_eagle3);
}

#[test]
fn eagle3_drafts_4_tokens_unless_a_length_is_set() {
    let (target, draft) = (write_target(Weights::Constant, 1), write_eagle3(Weights::Constant));
    let model = load(&target.0, Some(draft_of(Some(&draft), None))).expect("the draft model fits");
    let tokens_per_draft = |max_draft| {
        let engine = run_with(&model, SpeculationConfig { max_draft, ..SpeculationMode::On.into() });
        texts(&engine);
        let DraftStats { n_drafts, n_drafted, .. } = engine.stats().speculation.by_source[DraftSource::Model as usize];
        n_drafted.div_ceil(n_drafts)
    };
    assert!(tokens_per_draft(None) <= 4);
    assert!(tokens_per_draft(Some(16)) > 4);
}

#[test]
fn dflash_drafts() {
    check_kind(DraftKind::DFlash, |weights| write_dflash(weights, DraftKind::DFlash));
}

#[test]
fn dspark_drafts() {
    check_kind(DraftKind::DSpark, |weights| write_dflash(weights, DraftKind::DSpark));
}

#[test]
fn layers_of_the_models_own_file_draft() {
    for weights in [Weights::Random, Weights::Constant] {
        let target = write_with_mtp(weights);
        let model = load(&target.0, Some(draft_of(None, Some(DraftKind::Mtp)))).expect("it has such a layer");
        let stats = check(&model);
        eprintln!("{weights:?}: {stats:?}");
        assert!(stats.n_drafted > 200, "{stats:?}");
        if weights == Weights::Constant {
            assert!(10 * stats.n_accepted >= 9 * stats.n_drafted, "{stats:?}");
        }
    }
}

#[test]
fn memory_is_reserved_exactly_where_the_draft_model_is_created() {
    let draft = Some(DraftModelConfig { path: Some(demo_path()), ..DraftModelConfig::default() });
    let model = load(&demo_path(), draft.clone()).expect("it has its own vocabulary");
    let sizes = ModelConfig { scope: LoadScope::Sizes, draft, ..ModelConfig::at(demo_path()) };
    let without_weights = Arc::new(Model::load(&sizes, |_| ()).expect("the sizes can be read"));
    let auto =
        |kernels| EngineConfig { n_threads: Some(1), n_slots: Some(4), n_ctx: Some(1024), kernels, ..EngineConfig::default() };
    let (ours, theirs) = (auto(KernelChoice::Weft), auto(KernelChoice::LlamaCpp));
    let of_mode = |mode: SpeculationMode| EngineConfig { speculation: mode.into(), ..theirs.clone() };
    let of_no_length = SpeculationConfig { max_draft: Some(0), ..SpeculationMode::On.into() };
    for (config, is_created) in [
        (ours.clone(), install().usable == EnabledKernels::ALL),
        (theirs.clone(), false),
        (of_mode(SpeculationMode::On), true),
        (of_mode(SpeculationMode::Off), false),
        (EngineConfig { speculation: of_no_length, ..theirs.clone() }, false),
        (EngineConfig { flash_attention: FlashAttention::On, ..ours.clone() }, false),
        (EngineConfig { type_k: KvType::Q4_0, ..ours.clone() }, false),
        (EngineConfig { grp_attn_n: 2, grp_attn_w: 512, ..ours.clone() }, false),
    ] {
        let resolved = resolve(&model, &config, None).expect("the configuration is valid");
        let planned = plan(&without_weights, &config, None).expect("it can be planned");
        let runner = LlamaRunner::new(Arc::clone(&model), &resolved).expect("the engine starts");
        let found = [resolved.draft.is_some(), planned.draft_bytes > 0, runner.draft_model().is_some()];
        assert_eq!(found, [is_created; 3], "{config:?}");
    }
}

#[test]
fn a_draft_model_that_does_not_fit_is_rejected_with_the_reason() {
    let (target, eagle3, dflash) =
        (write_target(Weights::Random, 1), write_eagle3(Weights::Random), write_dflash(Weights::Random, DraftKind::DFlash));
    let refusal = |target: &Path, draft: DraftModelConfig| match load(target, Some(draft)) {
        Err(Error::InvalidConfig { param: "draft_model", message }) => message,
        other => panic!("{other:?}"),
    };
    let of_demo = |draft| refusal(&demo_path(), draft);
    assert!(of_demo(draft_of(Some(&target), None)).contains("vocabulary"));
    assert!(of_demo(draft_of(Some(&eagle3), None)).contains("width"));
    assert!(of_demo(draft_of(Some(&dflash), None)).contains("width"));
    assert!(of_demo(draft_of(None, Some(DraftKind::Mtp))).contains("(MTP)"));
    let of_toy = |draft| refusal(&target.0, draft);
    assert!(of_toy(draft_of(Some(&eagle3), Some(DraftKind::Simple))).contains("hidden states"));
    assert!(of_toy(draft_of(Some(&dflash), Some(DraftKind::Eagle3))).contains("dflash"));
    assert!(of_toy(draft_of(Some(&dflash), Some(DraftKind::DSpark))).contains("draft-dspark"));
    assert!(of_toy(draft_of(None, Some(DraftKind::Simple))).contains("draft_model"));
}

#[test]
fn architectures_that_export_their_layers_are_those_of_llama_cpp() {
    let folder = llama_cpp().join("src/models");
    let names = fs::read_to_string(llama_cpp().join("src/llama-arch.cpp")).expect("llama.cpp is readable");
    for (architecture, exports_output) in layer_inputs() {
        assert!(names.contains(&format!("\"{architecture}\"")), "{architecture}");
        let file = match architecture {
            "gpt-oss" => "openai-moe".to_owned(),
            name => name.replace('_', "-"),
        };
        let text = fs::read_to_string(folder.join(format!("{file}.cpp"))).expect("the architecture has a file");
        assert!(text.contains("t_layer_inp[il]"), "{architecture}");
        assert_eq!(text.contains("t_layer_inp[n_layer]"), exports_output, "{architecture}");
    }
}
