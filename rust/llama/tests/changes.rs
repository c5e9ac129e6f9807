//! Tests overrides of a model's positions, metadata and placement.

use std::sync::Arc;

use super::runner::prompt;
use super::tiny::{Kind, tiny};
use super::{demo, demo_path, resolve_llama_cpp};
use crate::config::{
    EngineConfig, KvOverride, KvValue, ModelConfig, Placement, RopeConfig, RopeScaling, TensorOverride, Threads,
};
use crate::engine::runner::{KvSeqId, Runner};
use crate::error::Error;
use crate::llama::context::batch::rows_of;
use crate::llama::{LlamaRunner, Model, resolve};

fn with_rope(rope: RopeConfig) -> EngineConfig {
    EngineConfig { n_slots: Some(1), n_ctx: Some(512), n_threads: Some(1), rope, ..EngineConfig::default() }
}

fn loaded(change: impl FnOnce(&mut ModelConfig)) -> Result<Arc<Model>, Error> {
    let mut config = ModelConfig::at(demo_path());
    change(&mut config);
    Model::load(&config, |_| ()).map(Arc::new)
}

fn overridden(overrides: &[(&str, KvValue)]) -> Arc<Model> {
    let overrides = overrides.iter().map(|(key, value)| KvOverride { key: (*key).to_owned(), value: value.clone() }).collect();
    loaded(|config| config.overrides = overrides).expect("the demo model loads")
}

fn logits(model: &Arc<Model>, config: &EngineConfig) -> Vec<f32> {
    let config = resolve_llama_cpp(model, config).expect("the configuration is valid");
    let mut runner = LlamaRunner::new(Arc::clone(model), &config).expect("the demo model runs");
    runner.decode(&rows_of(KvSeqId(0), 0, &prompt(60))).expect("the plan is valid");
    runner.logits(59).to_vec()
}

#[test]
fn overridden_positions_are_equivalent_to_metadata() {
    let as_in_file = logits(&demo(), &with_rope(RopeConfig::default()));
    let linear =
        [("llama.rope.scaling.type", KvValue::Text("linear".to_owned())), ("llama.rope.scaling.factor", KvValue::Float(2.0))];
    let yarn = [
        ("llama.rope.scaling.type", KvValue::Text("yarn".to_owned())),
        ("llama.rope.scaling.factor", KvValue::Float(4.0)),
        ("llama.rope.scaling.original_context_length", KvValue::Int(256)),
    ];
    let base = [("llama.rope.freq_base", KvValue::Float(50_000.0))];
    let cases: [(RopeConfig, &[(&str, KvValue)]); 3] = [
        (RopeConfig { freq_scale: Some(0.5), ..RopeConfig::default() }, &linear),
        (
            RopeConfig {
                scaling: Some(RopeScaling::Yarn),
                freq_scale: Some(0.25),
                yarn_orig_ctx: Some(256),
                ..RopeConfig::default()
            },
            &yarn,
        ),
        (RopeConfig { freq_base: Some(50_000.0), ..RopeConfig::default() }, &base),
    ];
    for (rope, overrides) in cases {
        let changed = logits(&demo(), &with_rope(rope));
        assert!(changed != as_in_file, "{rope:?} changes something");
        assert!(changed == logits(&overridden(overrides), &with_rope(RopeConfig::default())), "{rope:?}");
    }
    let none = RopeConfig { scaling: Some(RopeScaling::None), ..RopeConfig::default() };
    assert!(logits(&overridden(&linear), &with_rope(none)) == as_in_file, "the configuration overrides the file");
}

#[test]
fn scaled_positions_extend_slots_but_not_the_training_length() {
    let model = demo();
    let rope = RopeConfig { scaling: Some(RopeScaling::Yarn), freq_scale: Some(0.25), ..RopeConfig::default() };
    let config = EngineConfig { n_ctx: Some(8192), ..with_rope(rope) };
    let resolved = resolve(&model, &config, None).expect("the configuration is valid");
    assert_eq!((resolved.limits.n_ctx_slot, model.n_ctx_train()), (4096, 1024));
    // llama.cpp changes its own value when it creates a context with YaRN.
    let runner = LlamaRunner::new(Arc::clone(&model), &resolved).expect("the demo model runs");
    drop(runner);
    assert_eq!(model.n_ctx_train(), 1024);
    assert_eq!(resolve(&model, &config, None).expect("as before").limits.n_ctx_slot, 4096);
    let state = tiny(Kind::Recurrent);
    assert_eq!((state.reach(&rope), state.has_rotations()), (state.n_ctx_train(), false));
}

#[test]
fn overridden_metadata_is_reported_and_part_of_the_identity() {
    let model = overridden(&[
        ("general.name", KvValue::Text("another".to_owned())),
        ("llama.context_length", KvValue::Int(512)),
        ("tokenizer.ggml.add_bos_token", KvValue::Bool(false)),
    ]);
    assert_eq!((model.name(), model.n_ctx_train()), (Some("another"), 512));
    assert_eq!(model.tokenize(b"cow", true, true).unwrap(), demo().tokenize(b"cow", false, true).unwrap());
    assert_ne!(demo().tokenize(b"cow", true, true).unwrap(), demo().tokenize(b"cow", false, true).unwrap());
    let identity = |model: &Model| model.identity().expect("the file can be read");
    assert_ne!(identity(&model), identity(&demo()));
    assert_eq!(identity(&overridden(&[])), identity(&demo()));
    let refused = loaded(|config| {
        config.overrides = vec![KvOverride { key: "llama.context_length".to_owned(), value: KvValue::Bool(true) }];
    });
    assert!(matches!(refused, Err(Error::InvalidConfig { param: "kv_overrides", .. })), "{refused:?}");
}

#[test]
fn moved_tensors_compute_the_same_logits() {
    let as_in_file = logits(&demo(), &with_rope(RopeConfig::default()));
    let to_cpu = TensorOverride { pattern: r"ffn_(up|down)\.weight".to_owned(), buffer: "CPU".to_owned() };
    let placement = Placement { tensors: vec![to_cpu], cpu_moe: true, n_cpu_moe: 2, n_cpu_ffn: 3, ..Placement::default() };
    let moved = loaded(|config| config.placement = Placement { no_host: true, ..placement }).expect("the demo model loads");
    let config = EngineConfig { offload_kqv: false, op_offload: false, ..with_rope(RopeConfig::default()) };
    assert!(logits(&moved, &config) == as_in_file);
    let unknown = vec![TensorOverride { pattern: "ffn".to_owned(), buffer: "Abacus0".to_owned() }];
    let refused = loaded(|config| config.placement.tensors = unknown);
    assert!(matches!(refused, Err(Error::InvalidConfig { param: "tensor_overrides", .. })), "{refused:?}");
}

#[test]
fn separate_prompt_threads_compute_the_same_logits() {
    let as_usual = logits(&demo(), &with_rope(RopeConfig::default()));
    let threads_batch = Threads { is_strict: true, poll: Some(50), ..Threads::default() };
    let config = EngineConfig { n_threads_batch: Some(2), threads_batch, ..with_rope(RopeConfig::default()) };
    assert!(logits(&demo(), &config) == as_usual);
    let unknown = Threads { cpus: vec![511], ..Threads::default() };
    let refused = resolve(&demo(), &EngineConfig { threads: unknown, ..with_rope(RopeConfig::default()) }, None);
    assert!(matches!(refused, Err(Error::InvalidConfig { param: "cpus", .. })), "{refused:?}");
}
