//! Configuration: the user's settings, and the numbers that are derived from them when a model is loaded.

mod compute_config;
mod grouping;
mod kernels;
mod overrides;
mod placement;
mod pooling;
mod rope;
mod threads;
mod weights;

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};

pub use compute_config::{ComputeConfig, MachineFacts, TunedSettings};
pub use grouping::Grouping;
pub use kernels::{EnabledKernels, KernelChoice, KernelSupport};

pub use overrides::{KvOverride, KvValue, MAX_LAYERS, TensorOverride};
pub use placement::{Numa, Placement, Split};
pub use pooling::Pooling;
pub use rope::{RopeConfig, RopeScaling};
pub use threads::{ThreadParamNames, ThreadPriority, Threads};
pub use weights::{LoadFacts, WeightLayout};

/// Default number of slots; each of them may use the whole KV cache.
pub const DEFAULT_SLOTS: u32 = 8;

/// Maximum number of slots: llama.cpp supports 256 sequence ids, and waiting prompts and saved states need two of them.
pub const MAX_SLOTS: u32 = 254;

/// Maximum number of threads: llama.cpp's `GGML_MAX_N_THREADS`.
pub const MAX_THREADS: u32 = 512;

/// Maximum number of adapters of one model: llama.cpp applies all active ones to each of the model's matrices.
pub const MAX_ADAPTERS: usize = 64;

/// Time that a stream waits for a slow consumer that reads nothing; then it ends with an error, because it occupies a slot.
pub const SLOW_CONSUMER_TIMEOUT: Duration = Duration::from_secs(30);

/// llama.cpp's `LLAMA_MAX_SEQ`.
const MAX_SEQUENCE_IDS: u32 = 256;

/// llama.cpp rounds the size of the KV cache, and of a slot's part, up to multiples of this.
const CELLS_STEP: u32 = 256;

/// Sequence ids for cached branches, added to the ids of the slots.
const N_CACHED_IDS: u32 = 64;

/// Minimum chunk of a waiting prompt while no sequence is decoding, and the first chunk while sequences are. A decode fits it
/// in addition to one token of every slot.
pub const MIN_CHUNK: u32 = 16;

/// Maximum size of the KV cache, in cells.
const MAX_CELLS: u64 = (1 << 31) - 256;

/// Maximum default size of the host cache, in bytes; it is also at most a quarter of the machine's memory.
const DEFAULT_HOST_CACHE_BYTES: u64 = 8192 << 20;

/// Maximum to which the number of slots raises the default size of the KV cache, in cells; a longer training context exceeds
/// it.
const DEFAULT_MAX_CELLS: u64 = 32_768;

/// The model file and the placement of its weights.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct ModelConfig {
    /// The GGUF file; of a split model, its first part.
    pub path: PathBuf,
    /// Number of layers on the GPU; `None` offloads all.
    pub n_gpu_layers: Option<u32>,
    /// Maps the file instead of reading it.
    pub use_mmap: bool,
    /// Keeps the weights from being swapped out.
    pub use_mlock: bool,
    /// Bypasses the operating system's page cache where possible; `use_mmap` and `use_mlock` then have no effect.
    pub use_direct_io: bool,
    /// Rejects a file with weights that are not finite.
    pub check_tensors: bool,
    /// Placement of the weights on devices.
    pub placement: Placement,
    /// Selection of CPU kernels.
    pub kernels: KernelChoice,
    /// Rearranges weights into the layout of llama.cpp's own products; `None` leaves the choice to [`ModelConfig::weights`].
    pub repack: Option<bool>,
    /// Adapters to load with the model, at most [`MAX_ADAPTERS`]; an adapter's index here is its id.
    pub adapters: Vec<AdapterConfig>,
    /// Values that replace the file's metadata; the last value of a key wins.
    pub overrides: Vec<KvOverride>,
    /// The projector for images and audio.
    pub media: Option<MediaConfig>,
    /// Loads the metadata and the vocabulary only: the model can tokenize but not generate.
    pub vocabulary_only: bool,
}

/// A projector file (`mmproj`) and its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaConfig {
    /// The GGUF file.
    pub path: PathBuf,
    /// Uses a GPU if there is one.
    pub offload: bool,
    /// Minimum number of tokens of an image, for a model with dynamic resolution; `None` is the file's value.
    pub image_min_tokens: Option<u32>,
    /// Maximum number of tokens of an image, likewise.
    pub image_max_tokens: Option<u32>,
}

/// Maximum of [`MediaConfig::image_max_tokens`]. llama.cpp computes the number of pixels in 32 bits.
pub const MAX_IMAGE_TOKENS: u32 = 65_536;

impl MediaConfig {
    /// # Errors
    /// [`Error::InvalidConfig`] for the first number that is out of range.
    pub fn validate(&self) -> Result<()> {
        let Self { image_min_tokens: min, image_max_tokens: max, .. } = *self;
        for (param, n) in [("image_min_tokens", min), ("image_max_tokens", max)] {
            if let Some(n) = n.filter(|n| !(1..=MAX_IMAGE_TOKENS).contains(n)) {
                return Err(Error::InvalidConfig {
                    param,
                    message: format!("{param} is {n}; it must be 1 to {MAX_IMAGE_TOKENS}"),
                });
            }
        }
        match min.zip(max).filter(|(min, max)| min > max) {
            Some((min, max)) => {
                let message = format!("image_min_tokens is {min}, more than image_max_tokens, which is {max}");
                Err(Error::InvalidConfig { param: "image_min_tokens", message })
            }
            None => Ok(()),
        }
    }
}

/// An adapter file (`LoRA`) and its default scale.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterConfig {
    /// The GGUF file.
    pub path: PathBuf,
    /// Factor of the adapter's change of the weights; 0 disables it.
    pub scale: f32,
}

impl ModelConfig {
    /// Creates the configuration of the file at `path`: mapped, on all available devices.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self {
            path,
            n_gpu_layers: None,
            use_mmap: true,
            use_mlock: false,
            use_direct_io: false,
            check_tensors: false,
            placement: Placement::default(),
            kernels: KernelChoice::default(),
            repack: None,
            adapters: Vec::new(),
            overrides: Vec::new(),
            media: None,
            vocabulary_only: false,
        }
    }
}

/// Use of a fused attention kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlashAttention {
    /// Our kernel if it applies, else the tuned setting or a rule; see [`EngineConfig::choose`]. For llama.cpp, its own
    /// automatic choice.
    Auto,
    /// Always; required for a quantised V and for our attention.
    On,
    /// Never.
    Off,
}

/// Number format of K or V in the cache.
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

impl KvType {
    /// Returns whether numbers share a scale in blocks. llama.cpp can read a quantised V only in its fused attention kernel.
    #[must_use]
    pub fn is_quantized(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

/// Size limit of the host cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheRam {
    /// 8 GiB or a quarter of the machine's memory, whichever is smaller.
    Default,
    /// No limit.
    Unlimited,
    /// This many bytes; 0 disables the host cache.
    Bytes(u64),
}

/// The user's settings of the engine; [`EngineConfig::settle`] chooses values for `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Number of slots (`-np`), which is the maximum of running sequences; `None` is 8, each of which may use the whole KV
    /// cache.
    pub n_slots: Option<u32>,
    /// Size of the KV cache (`-c`) in cells, rounded up to a multiple of 256; 0 is the same as `None`.
    pub n_ctx: Option<u32>,
    /// Lets one slot use the whole KV cache instead of `n_ctx / n_slots` cells.
    pub kv_unified: Option<bool>,
    /// Maximum tokens of one call of llama.cpp (`-b`).
    pub n_batch: u32,
    /// Maximum tokens of one decode (`-ub`); at most `n_batch`, and raised to one token per slot plus 16 of a prompt. `None` is
    /// 512, or fewer if memory is short.
    pub n_ubatch: Option<u32>,
    /// Tokens that share a position in a text longer than `grp_attn_w` (`--grp-attn-n`); 1 disables grouping. See [`Grouping`].
    pub grp_attn_n: u32,
    /// Tokens that are grouped together (`--grp-attn-w`), a multiple of `grp_attn_n`; no effect if that is 1.
    pub grp_attn_w: u32,
    /// Threads of a decode without rows of prompts (`-t`); `None` is the tuned value, else the number of physical cores.
    pub n_threads: Option<u32>,
    /// Threads of a decode with rows of prompts (`-tb`); `None` is `n_threads` if set, else its default.
    pub n_threads_batch: Option<u32>,
    /// Computes with half of the threads while other processes compete for the processors, if that is faster.
    pub fewer_threads_under_contention: bool,
    /// Measured settings; defaults of settings that are `None` or `Auto`.
    pub tuned: Option<TunedSettings>,
    /// Selection of CPU kernels (`--kernels`).
    pub kernels: KernelChoice,
    /// Our kernels in use, set from the result of [`EngineConfig::choose`].
    pub used: EnabledKernels,
    /// Flash attention (`-fa`); an explicit setting selects llama.cpp's attention.
    pub flash_attention: FlashAttention,
    /// Pooling of token embeddings (`--pooling`); `None` is the model's pooling, else the mean.
    pub pooling: Option<Pooling>,
    /// Encoding of positions (`--rope-…`, `--yarn-…`).
    pub rope: RopeConfig,
    /// Processors and priority of the threads of a decode without rows of prompts.
    pub threads: Threads,
    /// Processors and priority of the threads of a decode with rows of prompts.
    pub threads_batch: Threads,
    /// Keeps the KV cache on the devices of its layers (`-kvo`) instead of in host memory.
    pub offload_kqv: bool,
    /// Lets a GPU compute large products with weights in host memory (`--op-offload`).
    pub op_offload: bool,
    /// Number format of K (`-ctk`).
    pub type_k: KvType,
    /// Number format of V (`-ctv`).
    pub type_v: KvType,
    /// Size limit of the host cache (`--cache-ram`).
    pub cache_ram: CacheRam,
    /// Maximum number of requests in the queue; further ones are rejected.
    pub max_queue: u32,
    /// Maximum pause between two tokens of a running stream due to prefill; it determines the size of prefill chunks.
    pub max_token_gap: TokenGap,
    /// Checkpoints along prompts, for models whose memory cannot be truncated at any position.
    pub checkpoints: Checkpoints,
}

/// Checkpoints along a prompt, so that a later prompt that diverges anywhere has little to compute again. Only the memory of
/// recurrent and hybrid models needs them, because it cannot be truncated. A sliding-window memory saves windows instead, at
/// least three windows apart.
///
/// Checkpoints are spread about evenly over the computed part of the prompt, at line ends, plus one where the prompt diverges
/// from earlier ones. Together they take at most an eighth of the host cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoints {
    /// Maximum number per prompt (`-ctxcp`); 0 saves states only at positions that requests name, and at the ends of prompts
    /// and answers.
    pub n_most: u32,
    /// Minimum average distance in tokens (`-cms`): prefill chunks end at the checkpoints.
    pub min_step: u32,
}

impl Checkpoints {
    /// No checkpoints along prompts.
    pub const NONE: Self = Self { n_most: 0, min_step: 1 };
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self { n_most: 32, min_step: 48 }
    }
}

/// Maximum pause between two tokens of a running stream due to prefill; 99 % of the pauses are within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenGap {
    /// [`TokenGap::IN_TOKENS`] times the duration of a step without prefill, from [`TokenGap::LEAST`] to [`TokenGap::USUAL`]:
    /// streams of a fast model are not delayed for long, because its prompts would gain nothing. If such a step takes more than
    /// half of the usual gap, twice its duration, but at most half a second more: prefill then at most halves the speed of the
    /// streams, and still makes progress.
    #[default]
    Auto,
    /// A fixed maximum, independent of the duration of a step.
    AtMost(Duration),
}

impl TokenGap {
    /// About the pace of reading: five tokens per second.
    pub const USUAL: Duration = Duration::from_millis(200);

    /// About the frame time of a fast display: shorter pauses are invisible.
    pub const LEAST: Duration = Duration::from_millis(8);

    /// This many rows of prompts per row of a stream use a CPU about as efficiently as more rows do.
    pub const IN_TOKENS: u32 = 10;
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            n_slots: None,
            n_ctx: None,
            kv_unified: None,
            n_batch: 2048,
            n_ubatch: None,
            grp_attn_n: 1,
            grp_attn_w: 512,
            n_threads: None,
            n_threads_batch: None,
            fewer_threads_under_contention: false,
            tuned: None,
            kernels: KernelChoice::Auto,
            used: EnabledKernels::NONE,
            flash_attention: FlashAttention::Auto,
            pooling: None,
            rope: RopeConfig::default(),
            threads: Threads::default(),
            threads_batch: Threads::default(),
            offload_kqv: true,
            op_offload: true,
            type_k: KvType::F16,
            type_v: KvType::F16,
            cache_ram: CacheRam::Default,
            max_queue: 1024,
            max_token_gap: TokenGap::Auto,
            checkpoints: Checkpoints::default(),
        }
    }
}

/// Properties of a model that [`EngineConfig::settle`] requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelFacts {
    /// Context length that the model was trained on, in tokens.
    pub n_ctx_train: u32,
    /// Size of one token's KV cells, in bytes, in the configured formats; 0 for a model without attention.
    pub kv_bytes_per_token: u64,
    /// True if a sequence id owns a whole state instead of cells (recurrent and hybrid models): ids are then expensive.
    pub keeps_whole_states: bool,
    /// Maximum number of attention heads of a layer; 0 for a model without attention.
    pub n_heads: u32,
}

/// Numbers that are fixed when a model is loaded; the engine reads no other part of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Number of slots: the maximum of running sequences.
    pub n_slots: u32,
    /// Size of the KV cache in cells; a multiple of 256.
    pub n_ctx: u32,
    /// Maximum tokens of one sequence, prompt and completion together; at most `n_ctx`.
    pub n_ctx_slot: u32,
    /// Maximum tokens of one decode.
    pub n_ubatch: u32,
    /// Grouping of the tokens of long texts; `None` disables it.
    pub grouping: Option<Grouping>,
    /// Sequence ids that the engine may use, `0 ≤ id < n_seq_max`; more than `n_slots`, at most 256.
    pub n_seq_max: u32,
    /// Maximum number of rows with logits in one decode; at least one per slot.
    pub n_outputs: u32,
    /// Size limit of the host cache in bytes; `None` is unlimited, 0 disables it.
    pub max_store_bytes: Option<u64>,
    /// Maximum number of queued requests.
    pub max_queue: u32,
    /// See [`EngineConfig::max_token_gap`].
    pub max_token_gap: TokenGap,
    /// See [`EngineConfig::checkpoints`].
    pub checkpoints: Checkpoints,
    /// Time that a stream waits for a slow consumer that reads nothing; then it ends with [`Error::SlowConsumer`].
    pub slow_consumer_timeout: Duration,
}

impl Limits {
    /// Checks the engine's preconditions; [`EngineConfig::settle`] guarantees them.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for the first number that is out of range.
    pub fn validate(&self) -> Result<()> {
        let Self { n_slots, n_ctx, n_ctx_slot, n_ubatch, n_seq_max, n_outputs, max_queue, checkpoints, .. } = *self;
        let rules = [
            ("n_slots", n_slots > 0, format!("there are {n_slots} slots; at least one is needed")),
            ("n_ctx", (2..=n_ctx).contains(&n_ctx_slot), format!("a slot of {n_ctx_slot} tokens needs 2 to n_ctx = {n_ctx}")),
            (
                "n_ubatch",
                n_ubatch > n_slots,
                format!("a decode of {n_ubatch} tokens needs one for each of {n_slots} slots and more"),
            ),
            ("n_slots", (n_slots + 1..=256).contains(&n_seq_max), format!("{n_seq_max} sequence ids need {n_slots} + 1 to 256")),
            ("n_slots", n_outputs >= n_slots, format!("logits after {n_outputs} rows are too few for {n_slots} slots")),
            ("checkpoint_min_step", checkpoints.min_step > 0, "checkpoint_min_step is 0; it must be at least 1".to_owned()),
            ("max_queue", max_queue > 0, "max_queue is 0; at least one request must be able to wait".to_owned()),
        ];
        match rules.into_iter().find(|(_, holds, _)| !holds) {
            Some((param, _, message)) => Err(Error::InvalidConfig { param, message }),
            None => Ok(()),
        }
    }
}

impl EngineConfig {
    /// Derives every number. `free_memory_bytes` is the memory available to the KV cache, `machine_bytes` the total memory of
    /// the machine.
    ///
    /// - A slot may use the whole KV cache if `n_slots` is `None` or `kv_unified` is true, else `n_ctx / n_slots` cells rounded
    ///   up to a multiple of 256. It never exceeds the training length, or the number of tokens that occupy as many positions
    ///   under grouping.
    /// - If `n_ctx` is `None` or 0, the KV cache has the larger of the training length and min(`n_slots` × training length,
    ///   32,768), but at most as many cells as fit half of the free memory; a reduction is logged.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for the first setting that is out of range, contradicts another, or requires more memory than
    /// is free.
    pub fn settle(&self, facts: &ModelFacts, free_memory_bytes: u64, machine_bytes: u64) -> Result<Limits> {
        self.validate()?;
        let n_slots = self.n_slots.unwrap_or(DEFAULT_SLOTS);
        let n_rows_min = n_slots + MIN_CHUNK;
        let n_ctx = match self.n_ctx {
            Some(n_ctx) if n_ctx > 0 => round_up(n_ctx),
            _ => default_n_ctx(n_slots, facts, free_memory_bytes),
        }
        .max(round_up(n_rows_min));
        let n_bytes = u64::from(n_ctx) * facts.kv_bytes_per_token;
        // Checked here, because Linux would overcommit the memory and kill the process on first use.
        if n_bytes > free_memory_bytes && self.n_ctx.is_some_and(|n_ctx| n_ctx > 0) {
            let message = format!(
                "a context of {n_ctx} tokens takes {n_bytes} bytes, but {free_memory_bytes} are free; set a smaller n_ctx"
            );
            return Err(Error::InvalidConfig { param: "n_ctx", message });
        }
        let grouping = self.grouping(n_ctx)?;
        let n_ctx_max = grouping.map_or(facts.n_ctx_train, |grouping| grouping.n_tokens_within(facts.n_ctx_train));
        let is_unified = self.kv_unified.unwrap_or(self.n_slots.is_none());
        let n_ctx_slot = if is_unified { n_ctx } else { round_up(n_ctx.div_ceil(n_slots)).min(n_ctx) };
        let n_ids = n_slots + if facts.keeps_whole_states { 2 } else { N_CACHED_IDS };
        // Attention caches get one id more than the engine uses, for saving and reloading; it is free there.
        let n_ids_max = if facts.keeps_whole_states { MAX_SEQUENCE_IDS } else { MAX_SEQUENCE_IDS - 1 };
        Ok(Limits {
            n_slots,
            n_ctx,
            n_ctx_slot: n_ctx_slot.min(n_ctx_max.max(1)),
            n_ubatch: self.n_ubatch.unwrap_or(compute_config::DEFAULT_UBATCH).min(self.n_batch).max(n_rows_min).min(n_ctx),
            grouping,
            n_seq_max: n_ids.min(n_ids_max),
            n_outputs: n_ids.min(n_ids_max),
            max_store_bytes: match self.cache_ram {
                CacheRam::Default => Some(DEFAULT_HOST_CACHE_BYTES.min(machine_bytes / 4)),
                CacheRam::Unlimited => None,
                CacheRam::Bytes(n) => Some(n),
            },
            max_queue: self.max_queue,
            max_token_gap: self.max_token_gap,
            checkpoints: self.checkpoints,
            slow_consumer_timeout: SLOW_CONSUMER_TIMEOUT,
        })
    }

    /// Returns the grouping in a KV cache of `n_ctx` cells.
    fn grouping(&self, n_ctx: u32) -> Result<Option<Grouping>> {
        let Self { grp_attn_n: n, grp_attn_w: width, n_batch, type_k, .. } = *self;
        let reject = |message| Err(Error::InvalidConfig { param: "grp_attn_n", message });
        if width == 0 {
            let message = "grp_attn_w is 0; it must be at least 1".to_owned();
            return Err(Error::InvalidConfig { param: "grp_attn_w", message });
        }
        match n {
            0 => reject("grp_attn_n is 0; it must be at least 1".to_owned()),
            1 => Ok(None),
            _ if width % n != 0 => reject(format!("grp_attn_n is {n}, of which grp_attn_w, {width}, must be a multiple")),
            _ if width > n_ctx => {
                reject(format!("grp_attn_n is {n}, but a context of {n_ctx} tokens has no group of grp_attn_w = {width}"))
            }
            // llama.cpp can rotate F16 and F32 only: it rejects other 16-bit formats, and requantizing quantised K loses
            // precision.
            _ if !matches!(type_k, KvType::F32 | KvType::F16) => {
                reject(format!("grp_attn_n is {n}, which needs a type_k of F16 or F32, not {type_k:?}"))
            }
            _ => Ok(Some(Grouping { n, width, n_batch })),
        }
    }

    fn validate(&self) -> Result<()> {
        let reject = |param: &'static str, message: String| Err(Error::InvalidConfig { param, message });
        if let Some(n) = self.n_slots.filter(|n| !(1..=MAX_SLOTS).contains(n)) {
            return reject("n_slots", format!("n_slots is {n}; it must be 1 to {MAX_SLOTS}"));
        }
        // Positions are 32-bit signed numbers in llama.cpp.
        let n_ctx_max = i32::MAX.unsigned_abs() / CELLS_STEP * CELLS_STEP;
        if let Some(n) = self.n_ctx.filter(|&n| n > n_ctx_max) {
            return reject("n_ctx", format!("n_ctx is {n}; it must be {n_ctx_max} or less"));
        }
        for (param, n) in [("n_batch", Some(self.n_batch)), ("n_ubatch", self.n_ubatch)] {
            if n == Some(0) {
                return reject(param, format!("{param} is 0; it must be at least 1"));
            }
        }
        for (param, n) in [("n_threads", self.n_threads), ("n_threads_batch", self.n_threads_batch)] {
            if let Some(n) = n.filter(|n| !(1..=MAX_THREADS).contains(n)) {
                return reject(param, format!("{param} is {n}; it must be 1 to {MAX_THREADS}"));
            }
        }
        self.rope.validate()?;
        self.threads.validate(&ThreadParamNames::DECODING)?;
        self.threads_batch.validate(&ThreadParamNames::PROMPTS)?;
        if self.flash_attention == FlashAttention::Off && self.type_v.is_quantized() {
            let message = format!("type_v is {:?}, which needs flash attention; turn it on, or use F16", self.type_v);
            return reject("type_v", message);
        }
        Ok(())
    }
}

/// Returns the default number of cells.
fn default_n_ctx(n_slots: u32, facts: &ModelFacts, free_memory_bytes: u64) -> u32 {
    let n_ctx_train = u64::from(facts.n_ctx_train);
    let n_wanted = n_ctx_train.max((u64::from(n_slots) * n_ctx_train).min(DEFAULT_MAX_CELLS));
    // llama.cpp's positions are signed.
    let n_wanted = round_up(u32::try_from(n_wanted.min(MAX_CELLS)).expect("at most 2³¹ − 256"));
    let Some(n_fit) = (free_memory_bytes / 2).checked_div(facts.kv_bytes_per_token) else { return n_wanted };
    let n_fit = u32::try_from(n_fit).unwrap_or(u32::MAX) / CELLS_STEP * CELLS_STEP;
    if n_fit >= n_wanted {
        return n_wanted;
    }
    let n_ctx = n_fit.max(CELLS_STEP);
    tracing::info!(
        "the context is {n_ctx} tokens instead of {n_wanted}: each takes {} bytes, and half of the free memory is {} bytes; n_ctx sets it",
        facts.kv_bytes_per_token,
        free_memory_bytes / 2,
    );
    n_ctx
}

/// Rounds up to a multiple of [`CELLS_STEP`].
fn round_up(n: u32) -> u32 {
    n.max(1).div_ceil(CELLS_STEP).saturating_mul(CELLS_STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The demo model: 1,024 tokens of 1,536 bytes each.
    const FACTS: ModelFacts = ModelFacts { n_ctx_train: 1024, kv_bytes_per_token: 1536, keeps_whole_states: false, n_heads: 6 };
    const PLENTY: u64 = 1 << 40;

    fn settle(change: impl FnOnce(&mut EngineConfig)) -> Limits {
        settle_for(FACTS, PLENTY, change)
    }

    fn settle_for(facts: ModelFacts, free: u64, change: impl FnOnce(&mut EngineConfig)) -> Limits {
        let mut config = EngineConfig::default();
        change(&mut config);
        config.settle(&facts, free, 64 << 30).expect("the configuration is valid")
    }

    #[test]
    fn each_of_the_default_slots_may_use_the_whole_cache() {
        let limits = settle(|_| ());
        assert_eq!((limits.n_slots, limits.n_ctx, limits.n_ctx_slot), (8, 8192, 1024));
        assert_eq!((limits.n_seq_max, limits.n_ubatch), (72, 512));
        assert_eq!(settle(|c| c.n_ctx = Some(512)).n_ctx_slot, 512);
    }

    #[test]
    fn explicit_slots_divide_the_cache_unless_it_is_unified() {
        let four_of_1000 = settle(|c| (c.n_slots, c.n_ctx) = (Some(4), Some(1000)));
        assert_eq!((four_of_1000.n_ctx, four_of_1000.n_ctx_slot), (1024, 256));
        assert_eq!(settle(|c| (c.n_slots, c.n_ctx) = (Some(3), Some(1024))).n_ctx_slot, 512);
        assert_eq!(settle(|c| (c.n_slots, c.n_ctx, c.kv_unified) = (Some(4), Some(1000), Some(true))).n_ctx_slot, 1024);
        assert_eq!(settle(|c| (c.n_ctx, c.kv_unified) = (Some(4096), Some(false))).n_ctx_slot, 512);
    }

    #[test]
    fn a_slot_never_exceeds_the_training_length() {
        assert_eq!(settle(|c| c.n_ctx = Some(65_536)).n_ctx_slot, 1024);
        assert_eq!(settle(|c| (c.n_slots, c.n_ctx) = (Some(2), Some(65_536))).n_ctx_slot, 1024);
        let odd = ModelFacts { n_ctx_train: 1000, ..FACTS };
        assert_eq!(settle_for(odd, PLENTY, |c| c.n_slots = Some(1)).n_ctx_slot, 1000);
    }

    #[test]
    fn grouping_raises_the_slot_limit_to_the_trained_positions() {
        let grouped = settle(|c| (c.grp_attn_n, c.grp_attn_w) = (4, 256));
        assert_eq!(grouped.grouping, Some(Grouping { n: 4, width: 256, n_batch: 2048 }));
        assert_eq!((grouped.n_ctx, grouped.n_ctx_slot), (8192, 3520));
        assert_eq!(settle(|c| (c.n_ctx, c.grp_attn_n) = (Some(2048), 4)).n_ctx_slot, 2048);
        let ungrouped = settle(|c| c.grp_attn_w = 3);
        assert_eq!((ungrouped.grouping, ungrouped.n_ctx_slot), (None, 1024));
    }

    #[test]
    fn the_default_cache_size_follows_the_training_length_and_the_slots() {
        let n_ctx =
            |n_ctx_train, n_slots| settle_for(ModelFacts { n_ctx_train, ..FACTS }, PLENTY, |c| c.n_slots = Some(n_slots)).n_ctx;
        assert_eq!(n_ctx(1024, 1), 1024);
        assert_eq!(n_ctx(8192, 8), 32_768);
        assert_eq!(n_ctx(131_072, 8), 131_072);
        assert_eq!(settle(|c| c.n_ctx = Some(0)).n_ctx, 8192);
    }

    #[test]
    fn the_default_cache_takes_at_most_half_of_the_free_memory() {
        let n_ctx = |free| settle_for(FACTS, free, |_| ()).n_ctx;
        assert_eq!(n_ctx(2 * 1536 * 8192), 8192);
        assert_eq!(n_ctx(2 * 1536 * 8191), 7936);
        assert_eq!(n_ctx(0), 256);
        // A configured size is not reduced, and a model without cells has no limit.
        assert_eq!(settle_for(FACTS, 1536 * 4096, |c| c.n_ctx = Some(4096)).n_ctx, 4096);
        assert_eq!(settle_for(ModelFacts { kv_bytes_per_token: 0, ..FACTS }, 0, |_| ()).n_ctx, 8192);
    }

    #[test]
    fn a_cache_beyond_the_free_memory_is_rejected_with_both_numbers() {
        let config = EngineConfig { n_ctx: Some(4096), ..EngineConfig::default() };
        let message = "a context of 4096 tokens takes 6291456 bytes, but 6291455 are free; set a smaller n_ctx".to_owned();
        assert_eq!(config.settle(&FACTS, 6_291_455, 64 << 30), Err(Error::InvalidConfig { param: "n_ctx", message }));
    }

    #[test]
    fn a_decode_fits_every_slot_and_a_chunk() {
        assert_eq!(settle(|c| c.n_ubatch = Some(1)).n_ubatch, 24);
        assert_eq!(settle(|c| c.n_batch = 64).n_ubatch, 64);
        assert_eq!(settle(|c| c.n_ctx = Some(1)).n_ubatch, 256);
        let most = settle(|c| (c.n_slots, c.n_ctx, c.n_ubatch) = (Some(254), Some(1), Some(1)));
        assert_eq!((most.n_ctx, most.n_ubatch, most.n_seq_max), (512, 270, 255));
    }

    #[test]
    fn whole_states_get_few_sequence_ids() {
        let facts = ModelFacts { keeps_whole_states: true, ..FACTS };
        assert_eq!(settle_for(facts, PLENTY, |_| ()).n_seq_max, 10);
        assert_eq!(settle_for(facts, PLENTY, |c| c.n_slots = Some(254)).n_seq_max, 256);
    }

    #[test]
    fn settings_out_of_range_are_rejected_by_name() {
        let rejected_param = |change: fn(&mut EngineConfig)| {
            let mut config = EngineConfig::default();
            change(&mut config);
            match config.settle(&FACTS, PLENTY, 64 << 30) {
                Err(Error::InvalidConfig { param, .. }) => param,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(rejected_param(|c| c.n_slots = Some(0)), "n_slots");
        assert_eq!(rejected_param(|c| c.n_slots = Some(255)), "n_slots");
        assert_eq!(rejected_param(|c| c.n_ctx = Some(u32::MAX)), "n_ctx");
        assert_eq!(rejected_param(|c| c.n_batch = 0), "n_batch");
        assert_eq!(rejected_param(|c| c.n_ubatch = Some(0)), "n_ubatch");
        assert_eq!(rejected_param(|c| c.grp_attn_n = 0), "grp_attn_n");
        assert_eq!(rejected_param(|c| c.grp_attn_n = 3), "grp_attn_n");
        assert_eq!(rejected_param(|c| (c.grp_attn_n, c.grp_attn_w) = (2, 0)), "grp_attn_w");
        assert_eq!(rejected_param(|c| (c.n_ctx, c.grp_attn_n, c.grp_attn_w) = (Some(512), 2, 514)), "grp_attn_n");
        assert_eq!(rejected_param(|c| (c.grp_attn_n, c.type_k) = (2, KvType::Bf16)), "grp_attn_n");
        assert_eq!(rejected_param(|c| (c.grp_attn_n, c.type_k) = (2, KvType::Q8_0)), "grp_attn_n");
        assert_eq!(rejected_param(|c| c.n_threads = Some(0)), "n_threads");
        assert_eq!(rejected_param(|c| c.n_threads_batch = Some(513)), "n_threads_batch");
        assert_eq!(rejected_param(|c| (c.flash_attention, c.type_v) = (FlashAttention::Off, KvType::Q8_0)), "type_v");
    }
}
