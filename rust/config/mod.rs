//! Configuration: the user's settings, and the values that are derived from them when an engine starts.
//!
//! ```text
//! ModelConfig ──► llama::Model::load ──► ModelInfo ──┐
//! this machine ──────────────────► HardwareInfo ─────┤
//! tuning, if any ────────────────► TunedSettings ────┤
//! EngineConfig ──────────────────► EngineConfig::resolve ──► ResolvedConfig ──► engine (Limits), llama, embeddings
//! ```
//!
//! [`EngineConfig::resolve`] is pure. It is the only place that checks settings against each other, the model and the machine,
//! and the only place that chooses a value for a setting that is left open.
#![expect(missing_docs, reason = "items with a clear name and type need no comment")]

mod compute;
mod defaults;
mod draft_model;
mod engine_config;
mod grouping;
mod kernels;
mod limits;
mod model_config;
mod named;
mod overrides;
mod placement;
mod pooling;
mod resolve;
mod rope;
mod speculation;
mod threads;
mod weights;

use std::fmt::Display;
use std::time::Duration;

pub(crate) use defaults::with_defaults;
pub use draft_model::{DraftKind, DraftModelConfig};
pub use engine_config::{CacheRam, Checkpoints, EngineConfig, FlashAttention, KvType, TokenGap};
pub use grouping::Grouping;
pub use kernels::{EnabledKernels, KernelChoice};
pub use limits::Limits;
pub use model_config::{AdapterConfig, LoadScope, MAX_IMAGE_TOKENS, MediaConfig, ModelConfig};
pub use named::Named;
pub(crate) use named::named_variants;
pub use overrides::{KvOverride, KvValue, MAX_LAYERS, TensorOverride};
pub use placement::{Numa, Placement, Split};
pub use pooling::Pooling;
pub use resolve::{DraftMemory, HardwareInfo, ModelInfo, ResolvedConfig, TunedSettings};
pub use rope::{RopeConfig, RopeScaling};
pub use speculation::{DEFAULT_MAX_DRAFT, SpeculationConfig, SpeculationMode};
pub use threads::{ThreadPriority, Threads};
pub use weights::{LoadFacts, WeightLayout};

use crate::error::{Error, Result};

pub const DEFAULT_SLOTS: u32 = 8;

/// Maximum number of slots: llama.cpp supports 256 sequence ids, and waiting prompts and saved states need two of them.
pub const MAX_SLOTS: u32 = 254;

/// Maximum number of threads: llama.cpp's `GGML_MAX_N_THREADS`.
pub const MAX_THREADS: u32 = 512;

/// Maximum number of adapters of one model: llama.cpp applies all active ones to each of the model's matrices.
pub const MAX_ADAPTERS: usize = 64;

/// Value of [`Limits::slow_consumer_timeout`].
pub const SLOW_CONSUMER_TIMEOUT: Duration = Duration::from_secs(30);

/// First chunk of a prompt, and the minimum while no sequence is decoding. A decode has room for it and one token of every slot.
pub const MIN_CHUNK: u32 = 16;

fn reject_value<T>(param: &'static str, value: impl Display, valid: impl Display) -> Result<T> {
    reject(param, format!("{param} is {value}; it must be {valid}"))
}

fn reject<T>(param: &'static str, message: impl Into<String>) -> Result<T> {
    Err(Error::InvalidConfig { param, message: message.into() })
}
