//! Starts an engine from a model and a configuration.

use std::sync::Arc;

use crate::config::{EngineConfig, HardwareInfo, LoadScope, ResolvedConfig, TunedSettings};
use crate::engine::Engine;
use crate::error::Result;
use crate::llama::host::{affinity::Affinity, niceness, threads};
use crate::llama::{LlamaRunner, Model, context::memory, encoder_only::EncoderOnlyRunner, kernels};

/// Resolves the settings that `config` leaves open for `model` on this machine.
///
/// # Errors
/// As [`EngineConfig::resolve`]; [`Error::ModelLoad`](crate::error::Error::ModelLoad) if the weights are not loaded.
pub fn resolve(model: &Model, config: &EngineConfig, tuned: Option<TunedSettings>) -> Result<ResolvedConfig> {
    if model.config.scope != LoadScope::All {
        return Err(model.load_error("its weights were not loaded, so it cannot generate text"));
    }
    config.resolve(&model.info(config), &hardware(model, config), tuned)
}

pub(super) fn hardware(model: &Model, config: &EngineConfig) -> HardwareInfo {
    let installed = kernels::install();
    HardwareInfo {
        n_cores: threads::n_cores_for(&config.threads),
        n_processors: threads::n_processors_for(&config.threads),
        cpus: Affinity::current().map(|own| own.cpus()),
        free_bytes: memory::free_bytes(model, config.offload_kqv),
        total_bytes: memory::machine_bytes(),
        usable_kernels: installed.usable,
        kernels_level: installed.level.name(),
        unusable_reason: installed.unusable_reason.as_deref(),
    }
}

/// Starts an engine on the model that `config` was resolved for.
///
/// # Errors
/// As [`LlamaRunner::new`].
pub fn start_resolved(model: &Arc<Model>, config: &ResolvedConfig) -> Result<Engine> {
    tracing::info!("{}", config.summary);
    model.log_scaling(&config.settings.rope);
    let (model, limits) = (Arc::clone(model), config.limits);
    if model.is_encoder() {
        return Engine::start(limits, move || Ok(EncoderOnlyRunner { model }));
    }
    let config = config.clone();
    Engine::start(limits, move || {
        niceness::compute(0);
        LlamaRunner::new(model, &config)
    })
}

/// Starts an engine on `model`, without tuned settings.
///
/// # Errors
/// As [`resolve`] and [`start_resolved`].
pub fn start(model: &Arc<Model>, config: &EngineConfig) -> Result<Engine> {
    start_resolved(model, &resolve(model, config, None)?)
}
