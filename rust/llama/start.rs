//! A model and a configuration → a running engine.

use std::sync::Arc;

use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::error::Result;
use crate::llama::{LlamaRunner, Model, memory};

/// Settles what `config` leaves open for `model` and the memory that is free now, and starts the engine. Blocks until the pool is
/// made.
///
/// # Errors
/// As [`EngineConfig::settle`], [`LlamaRunner::new`] and [`Engine::start`].
pub fn start(model: &Arc<Model>, config: &EngineConfig) -> Result<Engine> {
    let facts = model.facts(config.type_k, config.type_v);
    let limits = config.settle(&facts, memory::free_bytes(model))?;
    let (model, config) = (Arc::clone(model), config.clone());
    Engine::start(limits, move || LlamaRunner::new(model, &config, &limits))
}
