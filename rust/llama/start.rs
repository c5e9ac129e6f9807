//! Starts an engine from a model and a configuration.

use std::sync::Arc;

use crate::config::{
    ComputeConfig, EnabledKernels, EngineConfig, KernelChoice, KernelSupport, Limits, MachineFacts, ModelFacts, ThreadParamNames,
};
use crate::engine::Engine;
use crate::error::Result;
use crate::llama::context::memory;
use crate::llama::encoder_only::EncoderOnlyRunner;
use crate::llama::host::niceness;
use crate::llama::host::threads;
use crate::llama::{LlamaRunner, Model, kernels};

/// Configuration of an engine with every open setting resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedConfig {
    /// Sizes and limits.
    pub limits: Limits,
    /// Settings of the computation.
    pub choice: ComputeConfig,
}

impl ResolvedConfig {
    /// Resolves the settings that `config` leaves open for `model` on this machine.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::error::Error::InvalidConfig) names the setting that is out of range or needs more memory
    /// than is free.
    pub fn new(model: &Model, config: &EngineConfig) -> Result<Self> {
        threads::check(&config.threads, &ThreadParamNames::DECODING)?;
        threads::check(&config.threads_batch, &ThreadParamNames::PROMPTS)?;
        // Overridden positions may extend the context; tuned settings were measured on all processors.
        let facts = ModelFacts { n_ctx_train: model.reach(&config.rope), ..model.facts(config.type_k, config.type_v) };
        let config = &EngineConfig { tuned: config.tuned.filter(|_| config.threads.cpus.is_empty()), ..config.clone() };
        let machine = machine(model, config);
        let limits = config.settle(&facts, machine.free_bytes, memory::machine_bytes())?;
        let choice = config.choose(&facts, &limits, &machine);
        let limits = Limits { n_ubatch: choice.n_ubatch, ..limits };
        Ok(Self { limits, choice })
    }

    /// Starts an engine on the same model with the same configuration.
    ///
    /// # Errors
    /// As [`LlamaRunner::new`].
    pub fn start(&self, model: &Arc<Model>, config: &EngineConfig) -> Result<Engine> {
        let Self { limits, choice } = self;
        tracing::info!("{}", choice.summary);
        model.log_scaling(&config.rope);
        if config.kernels == KernelChoice::Weft && choice.used == EnabledKernels::NONE {
            tracing::warn!("weft's kernels were asked for, but llama.cpp's own compute all of this model");
        }
        let config = EngineConfig {
            used: choice.used,
            flash_attention: choice.flash_attention,
            n_threads: Some(choice.n_threads),
            n_threads_batch: Some(choice.n_threads_batch),
            // An explicit number of threads is not reduced.
            fewer_threads_under_contention: config.n_threads.or(config.n_threads_batch).is_none() && !memory::is_offloaded(model),
            ..config.clone()
        };
        let (model, limits) = (Arc::clone(model), *limits);
        if model.is_encoder() {
            return Engine::start(limits, move || Ok(EncoderOnlyRunner(model)));
        }
        Engine::start(limits, move || {
            niceness::compute(0);
            LlamaRunner::new(model, &config, &limits)
        })
    }
}

/// Collects the facts about this machine that determine how `model` is computed, with the cache formats of `config`.
pub(super) fn machine(model: &Model, config: &EngineConfig) -> MachineFacts {
    let installed = kernels::install();
    MachineFacts {
        is_offloaded: memory::is_offloaded(model),
        n_cores: threads::n_cores_for(&config.threads),
        n_processors: threads::n_processors_for(&config.threads),
        free_bytes: memory::free_bytes(model, config.offload_kqv),
        ours: KernelSupport {
            usable: installed.usable,
            level: installed.level.name(),
            why_not: installed.why_not.as_deref(),
            covers_attention: model.is_attention_covered(config.type_k, config.type_v),
            weights: model.weights(),
        },
    }
}

/// Starts an engine on `model`.
///
/// # Errors
/// As [`ResolvedConfig::new`] and [`ResolvedConfig::start`].
pub fn start(model: &Arc<Model>, config: &EngineConfig) -> Result<Engine> {
    model.check_weights()?;
    ResolvedConfig::new(model, config)?.start(model, config)
}
