//! A plan has the sizes of a started engine.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::tiny::{Kind, write_tiny};
use super::{demo, demo_path, load};
use crate::config::{EngineConfig, KvType, LoadScope, ModelConfig};
use crate::error::Error;
use crate::llama::memory_plan::{BufferUse, MemoryPlan, buffers_of, plan};
use crate::llama::{LlamaRunner, Model, resolve};

fn config() -> EngineConfig {
    EngineConfig { n_slots: Some(4), n_ctx: Some(1024), n_threads: Some(1), ..EngineConfig::default() }
}

fn plan_of(path: &Path, config: &EngineConfig) -> MemoryPlan {
    let sizes = ModelConfig { scope: LoadScope::Sizes, ..ModelConfig::at(path.to_owned()) };
    let model = Arc::new(Model::load(&sizes, |_| {}).expect("the model can be read"));
    plan(&model, config, None).expect("it can be planned")
}

/// Bytes of the cache and of the compute buffers, and of the weights.
fn totals(buffers: &[BufferUse]) -> (u64, u64, u64) {
    let sum = |bytes: fn(&BufferUse) -> u64| buffers.iter().map(bytes).sum();
    (sum(|buffer| buffer.cache), sum(|buffer| buffer.compute), sum(|buffer| buffer.weights))
}

fn assert_as_started(path: &Path, model: &Arc<Model>, config: &EngineConfig) -> MemoryPlan {
    let planned = plan_of(path, config);
    let resolved = resolve(model, config, None).expect("the configuration is valid");
    assert_eq!(planned.config, resolved);
    let runner = LlamaRunner::new(Arc::clone(model), &resolved).expect("the engine starts");
    let started = buffers_of(&runner.context);
    let ((cache, compute, weights), expected) = (totals(&planned.buffers), totals(&started));
    assert_eq!((cache, compute), (expected.0, expected.1));
    // A mapped file has metadata before the weights, and padding between them.
    assert!(weights.abs_diff(expected.2) <= 64 << 10, "{weights} bytes are planned, {} are used", expected.2);
    planned
}

#[test]
fn a_plan_has_the_sizes_of_a_started_engine_for_every_kind_of_memory() {
    for kind in [Kind::Window, Kind::Recurrent, Kind::Hybrid, Kind::Grid] {
        let path = write_tiny(kind);
        let model = Arc::new(load(&path).expect("the toy model loads"));
        let MemoryPlan { buffers, kv_bytes: (keys, values), .. } = assert_as_started(&path, &model, &config());
        fs::remove_file(&path).expect("it was just written");
        let (cache, ..) = totals(&buffers);
        match kind {
            Kind::Recurrent => assert!(keys == 0 && values == 0 && cache > 0),
            Kind::Hybrid => assert!(keys > 0 && keys + values < cache),
            Kind::Window | Kind::Grid => assert_eq!(keys + values, cache),
        }
    }
}

#[test]
fn a_plan_depends_on_the_formats_of_the_cache_and_on_its_size() {
    // A mapping is as long as the file where other weights of it are laid out for AMX.
    let unmapped = ModelConfig { use_mmap: false, ..ModelConfig::at(demo_path()) };
    let model = Arc::new(Model::load(&unmapped, |_| {}).expect("the demo model loads"));
    let started = |config: &EngineConfig| assert_as_started(&demo_path(), &model, config);
    let MemoryPlan { kv_bytes, .. } = started(&EngineConfig { type_k: KvType::Q8_0, ..config() });
    // 6 layers of 2 × 32 elements: 68 bytes of Q8_0, 128 of F16.
    assert_eq!(kv_bytes, (1024 * 6 * 68, 1024 * 6 * 128));
    let MemoryPlan { kv_bytes, output_bytes, .. } = started(&EngineConfig { n_ctx: Some(4096), n_slots: Some(32), ..config() });
    assert_eq!(kv_bytes, (4096 * 6 * 128, 4096 * 6 * 128));
    // The ids of 32 slots, of 64 cached branches, and a spare one.
    assert_eq!(output_bytes, 97 * 2048 * 4);
}

#[test]
fn only_a_model_without_weights_is_planned_and_it_does_not_run() {
    assert!(matches!(plan(&demo(), &config(), None), Err(Error::ModelLoad { .. })));
    let sizes = ModelConfig { scope: LoadScope::Sizes, ..ModelConfig::at(demo_path()) };
    let model = Arc::new(Model::load(&sizes, |_| {}).expect("the demo model can be read"));
    assert_eq!(model.size_bytes(), demo().size_bytes());
    assert!(matches!(crate::llama::start(&model, &config()), Err(Error::ModelLoad { .. })));
}
