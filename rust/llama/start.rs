//! A model and a configuration → a running engine.

use std::sync::Arc;

use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::error::Result;
use crate::llama::{LlamaRunner, Model, memory};

/// Starts an engine over `model`.
///
/// # Errors
/// [`Error::InvalidConfig`](crate::error::Error::InvalidConfig) names the setting that is out of range or asks for more memory
/// than there is; otherwise what [`LlamaRunner::new`] answers.
pub fn start(model: &Arc<Model>, config: &EngineConfig) -> Result<Engine> {
    let limits = config.settle(&model.facts(config.type_k, config.type_v), memory::free_bytes(model), memory::machine_bytes())?;
    let (model, config) = (Arc::clone(model), config.clone());
    Engine::start(limits, move || LlamaRunner::new(model, &config, &limits))
}
