//! A model and a configuration → a running engine.

use std::sync::Arc;

use crate::config::{Choice, EngineConfig, Limits, Machine};
use crate::engine::Engine;
use crate::error::Result;
use crate::llama::{LlamaRunner, Model, memory, threads};

/// What is settled before an engine starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// The numbers that are fixed.
    pub limits: Limits,
    /// How steps are computed.
    pub choice: Choice,
}

impl Settled {
    /// Settles what `config` leaves open for `model` on this machine.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::error::Error::InvalidConfig) names the setting that is out of range or asks for more memory
    /// than there is.
    pub fn new(model: &Model, config: &EngineConfig) -> Result<Self> {
        let facts = model.facts(config.type_k, config.type_v);
        let free_bytes = memory::free_bytes(model);
        let machine = Machine { is_offloaded: memory::is_offloaded(model), n_cores: threads::n_cores(), free_bytes };
        let limits = config.settle(&facts, free_bytes, memory::machine_bytes())?;
        let choice = config.choose(&facts, &limits, &machine);
        let limits = Limits { n_ubatch: choice.n_ubatch, ..limits };
        Ok(Self { limits, choice })
    }

    /// Starts an engine over the same model with the same configuration.
    ///
    /// # Errors
    /// What [`LlamaRunner::new`] answers.
    pub fn start(&self, model: &Arc<Model>, config: &EngineConfig) -> Result<Engine> {
        let Self { limits, choice } = self;
        tracing::info!("{}", choice.summary);
        let config = EngineConfig {
            flash_attention: choice.flash_attention,
            n_threads: Some(choice.n_threads),
            n_threads_batch: Some(choice.n_threads_batch),
            ..config.clone()
        };
        let (model, limits) = (Arc::clone(model), *limits);
        Engine::start(limits, move || LlamaRunner::new(model, &config, &limits))
    }
}

/// Starts an engine over `model`.
///
/// # Errors
/// As [`Settled::new`] and [`Settled::start`].
pub fn start(model: &Arc<Model>, config: &EngineConfig) -> Result<Engine> {
    Settled::new(model, config)?.start(model, config)
}
