//! Every knob: what a user may ask for, and the numbers that are settled from it when a model is loaded.

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

/// Slots where none are asked for; each of them may use the whole pool.
pub const DEFAULT_SLOTS: u32 = 8;

/// Most slots. llama.cpp knows 256 sequence ids, and prompts that wait and saved states need two of them.
pub const MAX_SLOTS: u32 = 254;

/// Most threads: llama.cpp's `GGML_MAX_N_THREADS`.
pub const MAX_THREADS: u32 = 512;

/// Most adapters beside one model: llama.cpp goes through all that are on for each of the model's matrices.
pub const MAX_ADAPTERS: usize = 64;

/// How long a stream is held back whose reader is too far behind and reads nothing; then it ends with an error, since it holds a slot.
pub const SLOW_CONSUMER_TIMEOUT: Duration = Duration::from_secs(30);

/// llama.cpp's `LLAMA_MAX_SEQ`.
const MAX_SEQUENCE_IDS: u32 = 256;

/// llama.cpp rounds the pool, and a slot's part of it, up to multiples of this.
const CELLS_STEP: u32 = 256;

/// Sequence ids beside those of the slots, for cached branches.
const N_CACHED_IDS: u32 = 64;

/// The least chunk of a waiting prompt where nobody decodes, and the first beside those who do. It fits into a decode beside one
/// token of every slot.
pub const MIN_CHUNK: u32 = 16;

/// The largest pool.
const MAX_CELLS: u64 = (1 << 31) - 256;

/// The largest store where its size is left open; it is also at most a quarter of the machine's memory.
const DEFAULT_STORE: u64 = 8192 << 20;

/// Many slots do not make the default pool larger than this, unless the model was trained on more.
const DEFAULT_POOL: u64 = 32_768;

/// Which file, and where its weights go.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct ModelConfig {
    /// The GGUF file; of a split model, its first part.
    pub path: PathBuf,
    /// Layers that go to the GPU; `None` is as many as there are.
    pub n_gpu_layers: Option<u32>,
    /// Maps the file instead of reading it.
    pub use_mmap: bool,
    /// Keeps the weights from being swapped out.
    pub use_mlock: bool,
    /// Reads the file past the operating system's cache where that is possible; then neither of the two above counts.
    pub use_direct_io: bool,
    /// Refuses a file with weights that are no numbers.
    pub check_tensors: bool,
    /// Which devices hold what.
    pub placement: Placement,
    /// Whose kernels are to compute with it.
    pub kernels: KernelChoice,
    /// Whether llama.cpp rearranges weights as its own products want them; `None` leaves it to [`ModelConfig::weights`].
    pub repack: Option<bool>,
    /// Adapters that are loaded beside the weights, at most [`MAX_ADAPTERS`]; each is known by its place here.
    pub adapters: Vec<AdapterConfig>,
    /// Values of the metadata in place of the file's; of several for one key the last counts.
    pub overrides: Vec<KvOverride>,
    /// The projector that reads pictures and sounds for it.
    pub media: Option<MediaConfig>,
    /// Reads the metadata and the vocabulary alone: the model cuts texts into tokens, and continues none.
    pub vocabulary_only: bool,
}

/// A file of a projector (`mmproj`), and how it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaConfig {
    /// The GGUF file.
    pub path: PathBuf,
    /// Whether a GPU computes with it, where there is one.
    pub offload: bool,
    /// The fewest and the most places that a picture takes, of a model that leaves a choice; `None` is what the file says.
    pub image_min_tokens: Option<u32>,
    /// See above.
    pub image_max_tokens: Option<u32>,
}

/// The most places that a picture may be said to take. llama.cpp counts the pixels of as many in 32 bits.
pub const MAX_IMAGE_TOKENS: u32 = 65_536;

impl MediaConfig {
    /// # Errors
    /// [`Error::InvalidConfig`] names the first number that is out of range.
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

/// A file of an adapter (`LoRA`), and how strongly it counts where a request does not say.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterConfig {
    /// The GGUF file.
    pub path: PathBuf,
    /// What its change of the weights is multiplied by; 0 leaves it out.
    pub scale: f32,
}

impl ModelConfig {
    /// The file at `path`, mapped, on all devices there are.
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

/// Whether attention runs as one fused kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlashAttention {
    /// Ours where it applies, else as it was measured or by a rule; see [`EngineConfig::choose`]. llama.cpp reads it as its own
    /// choice.
    Auto,
    /// Always; needed where V is quantised, and for our attention.
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

impl KvType {
    /// Whether several numbers share a scale. llama.cpp can read a quantised V only in its fused attention kernel.
    #[must_use]
    pub fn is_quantized(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

/// How much host memory saved pieces of the cache may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheRam {
    /// 8 GiB or a quarter of the machine's memory, whichever is less.
    Default,
    /// As much as there is.
    Unlimited,
    /// This many bytes; 0 keeps nothing outside of the pool.
    Bytes(u64),
}

/// What a user asks of the engine; `None` leaves the choice to [`EngineConfig::settle`].
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Sequences that run at once (`-np`); `None` is 8, each of which may use the whole pool.
    pub n_slots: Option<u32>,
    /// Cells of the pool (`-c`), in tokens, rounded up to a multiple of 256; 0 is the same as `None`.
    pub n_ctx: Option<u32>,
    /// Whether one slot may use the whole pool, or `n_ctx / n_slots` of it.
    pub kv_unified: Option<bool>,
    /// Most tokens that llama.cpp takes in one call (`-b`).
    pub n_batch: u32,
    /// Most tokens of one decode (`-ub`); at most `n_batch`, and raised to a token of every slot with 16 of a prompt beside them.
    /// `None` is 512, or fewer where memory is short.
    pub n_ubatch: Option<u32>,
    /// Tokens that share a position in a text that outgrows `grp_attn_w` (`--grp-attn-n`); 1 groups none. See [`Grouping`].
    pub grp_attn_n: u32,
    /// Tokens that are grouped at once (`--grp-attn-w`), a multiple of `grp_attn_n`; of no effect where that is 1.
    pub grp_attn_w: u32,
    /// Threads of a decode without rows of prompts (`-t`); `None` is what was measured, else the number of physical cores.
    pub n_threads: Option<u32>,
    /// Threads of a decode with rows of prompts (`-tb`); `None` is `n_threads`, if that was asked for, else as there.
    pub n_threads_batch: Option<u32>,
    /// Whether half of them compute while others want the processors too, and that is faster.
    pub fewer_threads_in_a_crowd: bool,
    /// What was measured to be fastest; it fills what is left open.
    pub tuned: Option<TunedSettings>,
    /// Whose kernels are to compute on the CPU (`--kernels`).
    pub kernels: KernelChoice,
    /// Which of ours compute, once [`EngineConfig::choose`] has chosen.
    pub used: EnabledKernels,
    /// `-fa`; what is asked for there is llama.cpp's own.
    pub flash_attention: FlashAttention,
    /// What becomes of the vectors of a text's tokens (`--pooling`); `None` is as the model says, else their mean.
    pub pooling: Option<Pooling>,
    /// How positions are encoded (`--rope-…`, `--yarn-…`).
    pub rope: RopeConfig,
    /// Threads of a decode without rows of prompts: where and how they compute.
    pub threads: Threads,
    /// The same of a decode with rows of prompts.
    pub threads_batch: Threads,
    /// Whether the cache is where its layers are (`-kvo`), or else in the machine's memory.
    pub offload_kqv: bool,
    /// Whether a GPU computes large products with weights that are in the machine's memory (`--op-offload`).
    pub op_offload: bool,
    /// `-ctk`.
    pub type_k: KvType,
    /// `-ctv`.
    pub type_v: KvType,
    /// Host memory for saved pieces of the cache (`--cache-ram`).
    pub cache_ram: CacheRam,
    /// Requests that may wait for a slot before further ones are refused.
    pub max_queue: u32,
    /// Longest pause between two tokens of a running stream that a waiting prompt may cause; it sizes the chunks of its prefill.
    pub max_token_gap: TokenGap,
    /// States, or windows, that are kept along prompts, where the model's memory cannot be cut anywhere.
    pub checkpoints: Checkpoints,
}

/// States that are kept along a prompt, so that a later one which parts from it anywhere computes little again. Only a memory that
/// cannot be cut needs them: that of recurrent and hybrid models. One with a sliding window keeps what the window sees instead, three
/// windows apart or more.
///
/// They lie about evenly over what is computed of the prompt, where lines end, and one where it parts from earlier ones. Together
/// they take an eighth of the store at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoints {
    /// Most of one prompt (`-ctxcp`); 0 keeps states only where requests name the place, and at the ends of prompts and answers.
    pub n_most: u32,
    /// So many tokens or more are from one to the next on average (`-cms`): a prompt is computed in pieces between them.
    pub min_step: u32,
}

impl Checkpoints {
    /// None at all.
    pub const NONE: Self = Self { n_most: 0, min_step: 1 };
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self { n_most: 32, min_step: 48 }
    }
}

/// Longest pause between two tokens of a running stream that a waiting prompt may cause; 99 of 100 are not longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenGap {
    /// [`TokenGap::IN_TOKENS`] times what the streams alone take for a token, from [`TokenGap::LEAST`] to [`TokenGap::USUAL`]: a
    /// quick model's streams are not held up for long where its prompts gain nothing by it. Where they take more than half of the
    /// usual gap, twice what they take, and at most half a second more: a prompt then slows them down to half their speed at most,
    /// and does not stand still itself.
    #[default]
    Auto,
    /// This, whatever the streams take by themselves.
    AtMost(Duration),
}

impl TokenGap {
    /// About the pace of reading, five tokens a second.
    pub const USUAL: Duration = Duration::from_millis(200);

    /// About the time between two pictures of a quick display, which nobody sees.
    pub const LEAST: Duration = Duration::from_millis(8);

    /// So many rows of prompts beside one of a stream, or more, use a CPU about as well as any number does.
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
            fewer_threads_in_a_crowd: false,
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

/// What [`EngineConfig::settle`] needs to know of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelFacts {
    /// Tokens of context that the model was trained on.
    pub n_ctx_train: u32,
    /// Bytes of the pool that one token takes, with the formats of this configuration; 0 for a model without attention.
    pub kv_bytes_per_token: u64,
    /// Whether a sequence id holds a whole state (recurrent and hybrid models), not just cells: then ids are dear.
    pub keeps_whole_states: bool,
    /// Most attention heads of a layer; 0 for a model without attention.
    pub n_heads: u32,
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
    /// How the tokens of long texts are grouped; `None` is not at all.
    pub grouping: Option<Grouping>,
    /// Sequence ids that the engine may use, `0 ≤ id < n_seq_max`; more than `n_slots`, at most 256.
    pub n_seq_max: u32,
    /// Most rows of one decode after which logits are kept; at least one for each slot.
    pub n_outputs: u32,
    /// Most bytes of saved pieces in host memory; `None` is no limit, 0 keeps none.
    pub max_store_bytes: Option<u64>,
    /// Requests that may wait for a slot.
    pub max_queue: u32,
    /// See [`EngineConfig::max_token_gap`].
    pub max_token_gap: TokenGap,
    /// See [`EngineConfig::checkpoints`].
    pub checkpoints: Checkpoints,
    /// How long a stream whose reader is too far behind waits for it to read anything at all; then it ends with
    /// [`Error::SlowReader`].
    pub reader_patience: Duration,
}

impl Limits {
    /// Checks what the engine relies on; [`EngineConfig::settle`] keeps it.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] names the first number that is out of range.
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
    /// Settles every number that was left open. `free_memory_bytes` is the memory that the pool could have, `machine_bytes` all
    /// that the machine has.
    ///
    /// - A slot may use the whole pool where the number of slots was left open or `kv_unified` is true, else `n_ctx / n_slots`
    ///   rounded up to 256; never more than the model was trained on, or than has so many positions where tokens are grouped.
    /// - A pool whose size was left open gets the larger of the training length and the smaller of `n_slots` times that and 32,768,
    ///   but no more than half of the free memory holds; the log says so.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] names the first setting that is out of range, contradicts another, or asks for more memory than is
    /// free.
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
        // Checked here, because Linux would grant the memory and end the process when it is used.
        if n_bytes > free_memory_bytes && self.n_ctx.is_some_and(|n_ctx| n_ctx > 0) {
            let message = format!(
                "a context of {n_ctx} tokens takes {n_bytes} bytes, but {free_memory_bytes} are free; set a smaller n_ctx"
            );
            return Err(Error::InvalidConfig { param: "n_ctx", message });
        }
        let grouping = self.grouping(n_ctx)?;
        let n_ctx_most = grouping.map_or(facts.n_ctx_train, |grouping| grouping.n_tokens_within(facts.n_ctx_train));
        let may_use_all = self.kv_unified.unwrap_or(self.n_slots.is_none());
        let n_ctx_slot = if may_use_all { n_ctx } else { round_up(n_ctx.div_ceil(n_slots)).min(n_ctx) };
        let n_ids = n_slots + if facts.keeps_whole_states { 2 } else { N_CACHED_IDS };
        // Attention caches get one id more than the engine knows of, to save and restore with; it costs nothing there.
        let n_ids_max = if facts.keeps_whole_states { MAX_SEQUENCE_IDS } else { MAX_SEQUENCE_IDS - 1 };
        Ok(Limits {
            n_slots,
            n_ctx,
            n_ctx_slot: n_ctx_slot.min(n_ctx_most.max(1)),
            n_ubatch: self.n_ubatch.unwrap_or(compute_config::DEFAULT_UBATCH).min(self.n_batch).max(n_rows_min).min(n_ctx),
            grouping,
            n_seq_max: n_ids.min(n_ids_max),
            n_outputs: n_ids.min(n_ids_max),
            max_store_bytes: match self.cache_ram {
                CacheRam::Default => Some(DEFAULT_STORE.min(machine_bytes / 4)),
                CacheRam::Unlimited => None,
                CacheRam::Bytes(n) => Some(n),
            },
            max_queue: self.max_queue,
            max_token_gap: self.max_token_gap,
            checkpoints: self.checkpoints,
            reader_patience: SLOW_CONSUMER_TIMEOUT,
        })
    }

    /// How tokens are grouped in a pool of `n_ctx` cells.
    fn grouping(&self, n_ctx: u32) -> Result<Option<Grouping>> {
        let Self { grp_attn_n: n, grp_attn_w: width, n_batch, type_k, .. } = *self;
        let refuse = |message| Err(Error::InvalidConfig { param: "grp_attn_n", message });
        if width == 0 {
            let message = "grp_attn_w is 0; it must be at least 1".to_owned();
            return Err(Error::InvalidConfig { param: "grp_attn_w", message });
        }
        match n {
            0 => refuse("grp_attn_n is 0; it must be at least 1".to_owned()),
            1 => Ok(None),
            _ if width % n != 0 => refuse(format!("grp_attn_n is {n}, of which grp_attn_w, {width}, must be a multiple")),
            _ if width > n_ctx => {
                refuse(format!("grp_attn_n is {n}, but a context of {n_ctx} tokens has no group of grp_attn_w = {width}"))
            }
            // llama.cpp turns no K of 16 bits but this one, and what others share loses precision where it is packed anew.
            _ if !matches!(type_k, KvType::F32 | KvType::F16) => {
                refuse(format!("grp_attn_n is {n}, which needs a type_k of F16 or F32, not {type_k:?}"))
            }
            _ => Ok(Some(Grouping { n, width, n_batch })),
        }
    }

    fn validate(&self) -> Result<()> {
        let refuse = |param: &'static str, message: String| Err(Error::InvalidConfig { param, message });
        if let Some(n) = self.n_slots.filter(|n| !(1..=MAX_SLOTS).contains(n)) {
            return refuse("n_slots", format!("n_slots is {n}; it must be 1 to {MAX_SLOTS}"));
        }
        // Positions are 32-bit signed numbers in llama.cpp.
        let n_ctx_max = i32::MAX.unsigned_abs() / CELLS_STEP * CELLS_STEP;
        if let Some(n) = self.n_ctx.filter(|&n| n > n_ctx_max) {
            return refuse("n_ctx", format!("n_ctx is {n}; it must be {n_ctx_max} or less"));
        }
        for (param, n) in [("n_batch", Some(self.n_batch)), ("n_ubatch", self.n_ubatch)] {
            if n == Some(0) {
                return refuse(param, format!("{param} is 0; it must be at least 1"));
            }
        }
        for (param, n) in [("n_threads", self.n_threads), ("n_threads_batch", self.n_threads_batch)] {
            if let Some(n) = n.filter(|n| !(1..=MAX_THREADS).contains(n)) {
                return refuse(param, format!("{param} is {n}; it must be 1 to {MAX_THREADS}"));
            }
        }
        self.rope.validate()?;
        self.threads.validate(&ThreadParamNames::DECODING)?;
        self.threads_batch.validate(&ThreadParamNames::PROMPTS)?;
        if self.flash_attention == FlashAttention::Off && self.type_v.is_quantized() {
            let message = format!("type_v is {:?}, which needs flash attention; turn it on, or use F16", self.type_v);
            return refuse("type_v", message);
        }
        Ok(())
    }
}

/// Cells of a pool whose size was left open.
fn default_n_ctx(n_slots: u32, facts: &ModelFacts, free_memory_bytes: u64) -> u32 {
    let n_ctx_train = u64::from(facts.n_ctx_train);
    let wanted = n_ctx_train.max((u64::from(n_slots) * n_ctx_train).min(DEFAULT_POOL));
    // llama.cpp's positions are signed.
    let wanted = round_up(u32::try_from(wanted.min(MAX_CELLS)).expect("at most 2³¹ − 256"));
    let Some(n_fit) = (free_memory_bytes / 2).checked_div(facts.kv_bytes_per_token) else { return wanted };
    let n_fit = u32::try_from(n_fit).unwrap_or(u32::MAX) / CELLS_STEP * CELLS_STEP;
    if n_fit >= wanted {
        return wanted;
    }
    let n_ctx = n_fit.max(CELLS_STEP);
    tracing::info!(
        "the context is {n_ctx} tokens instead of {wanted}: each takes {} bytes, and half of the free memory is {} bytes; n_ctx sets it",
        facts.kv_bytes_per_token,
        free_memory_bytes / 2,
    );
    n_ctx
}

/// The next multiple of [`CELLS_STEP`].
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
    fn slots_left_open_may_use_the_whole_pool() {
        let limits = settle(|_| ());
        assert_eq!((limits.n_slots, limits.n_ctx, limits.n_ctx_slot), (8, 8192, 1024));
        assert_eq!((limits.n_seq_max, limits.n_ubatch), (72, 512));
        assert_eq!(settle(|c| c.n_ctx = Some(512)).n_ctx_slot, 512);
    }

    #[test]
    fn a_number_of_slots_divides_the_pool_unless_it_is_unified() {
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
    fn a_slot_whose_tokens_are_grouped_holds_as_many_as_have_positions_that_the_model_was_trained_on() {
        let grouped = settle(|c| (c.grp_attn_n, c.grp_attn_w) = (4, 256));
        assert_eq!(grouped.grouping, Some(Grouping { n: 4, width: 256, n_batch: 2048 }));
        assert_eq!((grouped.n_ctx, grouped.n_ctx_slot), (8192, 3520));
        assert_eq!(settle(|c| (c.n_ctx, c.grp_attn_n) = (Some(2048), 4)).n_ctx_slot, 2048);
        let ungrouped = settle(|c| c.grp_attn_w = 3);
        assert_eq!((ungrouped.grouping, ungrouped.n_ctx_slot), (None, 1024));
    }

    #[test]
    fn an_open_pool_follows_the_training_length_and_the_slots() {
        let n_ctx =
            |n_ctx_train, n_slots| settle_for(ModelFacts { n_ctx_train, ..FACTS }, PLENTY, |c| c.n_slots = Some(n_slots)).n_ctx;
        assert_eq!(n_ctx(1024, 1), 1024);
        assert_eq!(n_ctx(8192, 8), 32_768);
        assert_eq!(n_ctx(131_072, 8), 131_072);
        assert_eq!(settle(|c| c.n_ctx = Some(0)).n_ctx, 8192);
    }

    #[test]
    fn an_open_pool_takes_half_of_the_free_memory_at_most() {
        let n_ctx = |free| settle_for(FACTS, free, |_| ()).n_ctx;
        assert_eq!(n_ctx(2 * 1536 * 8192), 8192);
        assert_eq!(n_ctx(2 * 1536 * 8191), 7936);
        assert_eq!(n_ctx(0), 256);
        // What was asked for is not cut, and a model without cells has nothing to cut.
        assert_eq!(settle_for(FACTS, 1536 * 4096, |c| c.n_ctx = Some(4096)).n_ctx, 4096);
        assert_eq!(settle_for(ModelFacts { kv_bytes_per_token: 0, ..FACTS }, 0, |_| ()).n_ctx, 8192);
    }

    #[test]
    fn a_pool_beyond_the_free_memory_is_refused_with_both_numbers() {
        let config = EngineConfig { n_ctx: Some(4096), ..EngineConfig::default() };
        let message = "a context of 4096 tokens takes 6291456 bytes, but 6291455 are free; set a smaller n_ctx".to_owned();
        assert_eq!(config.settle(&FACTS, 6_291_455, 64 << 30), Err(Error::InvalidConfig { param: "n_ctx", message }));
    }

    #[test]
    fn a_decode_has_room_for_every_slot_and_a_chunk() {
        assert_eq!(settle(|c| c.n_ubatch = Some(1)).n_ubatch, 24);
        assert_eq!(settle(|c| c.n_batch = 64).n_ubatch, 64);
        assert_eq!(settle(|c| c.n_ctx = Some(1)).n_ubatch, 256);
        let most = settle(|c| (c.n_slots, c.n_ctx, c.n_ubatch) = (Some(254), Some(1), Some(1)));
        assert_eq!((most.n_ctx, most.n_ubatch, most.n_seq_max), (512, 270, 255));
    }

    #[test]
    fn ids_are_few_where_each_holds_a_state() {
        let facts = ModelFacts { keeps_whole_states: true, ..FACTS };
        assert_eq!(settle_for(facts, PLENTY, |_| ()).n_seq_max, 10);
        assert_eq!(settle_for(facts, PLENTY, |c| c.n_slots = Some(254)).n_seq_max, 256);
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let refused = |change: fn(&mut EngineConfig)| {
            let mut config = EngineConfig::default();
            change(&mut config);
            match config.settle(&FACTS, PLENTY, 64 << 30) {
                Err(Error::InvalidConfig { param, .. }) => param,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(|c| c.n_slots = Some(0)), "n_slots");
        assert_eq!(refused(|c| c.n_slots = Some(255)), "n_slots");
        assert_eq!(refused(|c| c.n_ctx = Some(u32::MAX)), "n_ctx");
        assert_eq!(refused(|c| c.n_batch = 0), "n_batch");
        assert_eq!(refused(|c| c.n_ubatch = Some(0)), "n_ubatch");
        assert_eq!(refused(|c| c.grp_attn_n = 0), "grp_attn_n");
        assert_eq!(refused(|c| c.grp_attn_n = 3), "grp_attn_n");
        assert_eq!(refused(|c| (c.grp_attn_n, c.grp_attn_w) = (2, 0)), "grp_attn_w");
        assert_eq!(refused(|c| (c.n_ctx, c.grp_attn_n, c.grp_attn_w) = (Some(512), 2, 514)), "grp_attn_n");
        assert_eq!(refused(|c| (c.grp_attn_n, c.type_k) = (2, KvType::Bf16)), "grp_attn_n");
        assert_eq!(refused(|c| (c.grp_attn_n, c.type_k) = (2, KvType::Q8_0)), "grp_attn_n");
        assert_eq!(refused(|c| c.n_threads = Some(0)), "n_threads");
        assert_eq!(refused(|c| c.n_threads_batch = Some(513)), "n_threads_batch");
        assert_eq!(refused(|c| (c.flash_attention, c.type_v) = (FlashAttention::Off, KvType::Q8_0)), "type_v");
    }
}
