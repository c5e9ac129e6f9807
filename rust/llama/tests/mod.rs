//! Tests of the bindings on the demo model and on toy models.

mod adapters;
mod cells;
mod changes;
mod draft;
mod embeddings;
#[path = "../../benches/speculation/equality.rs"]
mod equality;
#[allow(dead_code, reason = "the benchmarks, which own this file, use more of it")]
#[path = "../../benches/support/gguf.rs"]
mod gguf_writer;
mod grammar;
mod grouping;
mod identity;
mod kernels;
mod media;
mod memories;
mod memory_plan;
mod model;
mod prefix_file;
mod quantised;
mod runner;
mod same_rows;
mod saved_state;
mod speculation;
mod start;
mod state;
mod tiny;
mod tokenizer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::config::{EnabledKernels, EngineConfig, HardwareInfo, ModelConfig, ResolvedConfig};
use crate::error::Result;
use crate::llama::Model;
use crate::llama::start::hardware;

/// The model that ships with the project.
pub(super) fn demo_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python/weft/models/storyteller-q8_0.gguf")
}

fn load(path: &Path) -> Result<Model> {
    Model::load(&ModelConfig::at(path.to_owned()), |_| ())
}

/// The demo model, loaded once for all tests.
pub(super) fn demo() -> Arc<Model> {
    static DEMO: OnceLock<Arc<Model>> = OnceLock::new();
    Arc::clone(DEMO.get_or_init(|| Arc::new(load(&demo_path()).expect("the demo model loads"))))
}

/// Resolves `config` for llama.cpp's kernels and the configured attention, with a gibibyte of free memory.
pub(super) fn resolve_llama_cpp(model: &Model, config: &EngineConfig) -> Result<ResolvedConfig> {
    let hardware = HardwareInfo { free_bytes: 1 << 30, ..hardware(model, config) };
    let resolved = config.resolve(&model.info(config), &hardware, None)?;
    Ok(ResolvedConfig { kernels: EnabledKernels::NONE, flash_attention: config.flash_attention, ..resolved })
}
