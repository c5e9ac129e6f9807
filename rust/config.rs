//! Every knob: what a user may ask for, and the numbers that are settled from it when a model is loaded.

use std::path::PathBuf;
use std::time::Duration;

/// Which file, and where its weights go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelConfig {
    /// The GGUF file; of a split model, its first part.
    pub path: PathBuf,
    /// Layers that go to the GPU; `None` is as many as there are.
    pub n_gpu_layers: Option<u32>,
    /// Maps the file instead of reading it.
    pub use_mmap: bool,
    /// Keeps the weights from being swapped out.
    pub use_mlock: bool,
}

/// Whether attention runs as one fused kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlashAttention {
    /// llama.cpp decides.
    Auto,
    /// Always; needed where V is quantised.
    On,
    /// Never.
    Off,
}

/// The number format of K or V in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is llama.cpp's name of the format")]
pub enum KvType {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
    Iq4Nl,
    Q5_0,
    Q5_1,
}

/// What a user asks of the engine; `None` leaves the choice to [`EngineConfig::settle`].
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Sequences that run at once (`-np`); `None` is 8, each of which may use the whole pool.
    pub n_slots: Option<u32>,
    /// Cells of the pool (`-c`), in tokens.
    pub n_ctx: Option<u32>,
    /// Whether one slot may use the whole pool, or `n_ctx / n_slots` of it.
    pub kv_unified: Option<bool>,
    /// Most tokens that llama.cpp takes in one call (`-b`).
    pub n_batch: u32,
    /// Most tokens of one decode (`-ub`).
    pub n_ubatch: u32,
    /// Threads of a decode of few tokens (`-t`); `None` is the number of physical cores.
    pub n_threads: Option<u32>,
    /// Threads of a decode of many tokens (`-tb`); `None` is the same as `n_threads`.
    pub n_threads_batch: Option<u32>,
    /// `-fa`.
    pub flash_attention: FlashAttention,
    /// `-ctk`.
    pub type_k: KvType,
    /// `-ctv`.
    pub type_v: KvType,
    /// Requests that may wait for a slot before further ones are refused.
    pub max_queue: u32,
    /// Longest pause between two tokens of a running stream that a waiting prompt may cause; it sizes the chunks of its prefill.
    pub max_token_gap: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            n_slots: None,
            n_ctx: None,
            kv_unified: None,
            n_batch: 2048,
            n_ubatch: 512,
            n_threads: None,
            n_threads_batch: None,
            flash_attention: FlashAttention::Auto,
            type_k: KvType::F16,
            type_v: KvType::F16,
            max_queue: 1024,
            max_token_gap: Duration::from_millis(200),
        }
    }
}

/// The numbers that are fixed once a model is loaded. The engine needs nothing else of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Slots: sequences that run at once.
    pub n_slots: u32,
    /// Cells of the pool, in tokens; a multiple of 256.
    pub n_ctx: u32,
    /// Most tokens of one sequence, prompt and prediction together; at most `n_ctx`.
    pub n_ctx_slot: u32,
    /// Most tokens of one decode.
    pub n_ubatch: u32,
    /// Sequence ids, at most 256.
    pub n_seq_max: u32,
    /// Requests that may wait for a slot.
    pub max_queue: u32,
    /// See [`EngineConfig::max_token_gap`].
    pub max_token_gap: Duration,
}
