//! The user's settings of an engine.

use std::time::Duration;

use super::{KernelChoice, Pooling, RopeConfig, SpeculationConfig, Threads, named_variants, with_defaults};

named_variants! {
    pub enum FlashAttention {
        /// In an [`EngineConfig`]: our kernel, the tuned setting or a rule; once [resolved](super::ResolvedConfig): llama.cpp's.
        Auto = "auto",
        On = "on",
        Off = "off",
    }
}

named_variants! {
    pub enum KvType {
        F32 = "f32",
        F16 = "f16",
        Bf16 = "bf16",
        Q8_0 = "q8_0",
        Q4_0 = "q4_0",
        Q4_1 = "q4_1",
        Iq4Nl = "iq4_nl",
        Q5_0 = "q5_0",
        Q5_1 = "q5_1",
    }
}

impl KvType {
    /// llama.cpp can read a quantised V only in its fused attention kernel.
    pub(crate) fn is_quantized(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheRam {
    /// 8 GiB or a quarter of the machine's memory, whichever is smaller.
    Default,
    Unlimited,
    /// This many bytes; 0 disables the host cache.
    Bytes(u64),
}

with_defaults! {
    /// The user's settings of the engine; [`EngineConfig::resolve`] chooses values for `None` and `Auto`.
    #[derive(Debug, Clone, PartialEq)]
    pub struct EngineConfig {
        /// Number of slots (`-np`); `None` is 8, each of which may use the whole KV cache.
        pub n_slots: Option<u32> = None,
        /// Size of the KV cache (`-c`) in cells, rounded up to a multiple of 256; 0 is the same as `None`.
        pub n_ctx: Option<u32> = None,
        /// Lets one slot use the whole KV cache instead of `n_ctx / n_slots` cells.
        pub kv_unified: Option<bool> = None,
        /// Maximum tokens of one call of llama.cpp (`-b`).
        pub n_batch: u32 = 2048,
        /// Maximum tokens of one decode (`-ub`); at most `n_batch`, and raised to one token per slot plus 16 of a prompt. `None`
        /// is 512, or fewer if memory is short.
        pub n_ubatch: Option<u32> = None,
        /// Tokens that share a position in a text longer than `grp_attn_w`; 1 disables grouping. See [`Grouping`](super::Grouping).
        pub grp_attn_n: u32 = 1,
        /// Tokens that are grouped together, a multiple of `grp_attn_n`.
        pub grp_attn_w: u32 = 512,
        /// Threads of a decode without rows of prompts (`-t`); `None` is tuned, else one per physical core.
        pub n_threads: Option<u32> = None,
        /// Threads of a decode with rows of prompts (`-tb`); `None` is `n_threads` if set, else its default.
        pub n_threads_batch: Option<u32> = None,
        pub kernels: KernelChoice = KernelChoice::Auto,
        /// An explicit setting selects llama.cpp's attention.
        pub flash_attention: FlashAttention = FlashAttention::Auto,
        /// `None` is the model's pooling, else the mean.
        pub pooling: Option<Pooling> = None,
        pub rope: RopeConfig = RopeConfig::default(),
        /// Threads of a decode without rows of prompts.
        pub threads: Threads = Threads::default(),
        /// Threads of a decode with rows of prompts, and of embeddings.
        pub threads_batch: Threads = Threads::default(),
        /// Keeps the KV cache on the devices of its layers (`-kvo`) instead of in host memory.
        pub offload_kqv: bool = true,
        /// Lets a GPU compute large products with weights in host memory.
        pub op_offload: bool = true,
        pub type_k: KvType = KvType::F16,
        pub type_v: KvType = KvType::F16,
        pub cache_ram: CacheRam = CacheRam::Default,
        /// Maximum number of requests in the queue; further ones are rejected.
        pub max_queue: u32 = 1024,
        pub max_token_gap: TokenGap = TokenGap::Auto,
        pub checkpoints: Checkpoints = Checkpoints::default(),
        pub speculation: SpeculationConfig = SpeculationConfig::default(),
    }
}

with_defaults! {
    /// Checkpoints along a prompt of a recurrent or hybrid model (windows for a sliding-window memory, at least three apart), so
    /// that a later prompt that diverges has little to compute again.
    ///
    /// They are spread about evenly, at line ends, plus one where prompts diverge; together at most an eighth of the host cache.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Checkpoints {
        /// Maximum number (`-ctxcp`); 0 saves states only at positions that requests name, and at ends of prompts and answers.
        pub max_per_prompt: u32 = 32,
        /// Minimum average distance in tokens (`-cms`): prefill chunks end at the checkpoints.
        pub min_step: u32 = 48,
    }
}

impl Checkpoints {
    pub const NONE: Self = Self { max_per_prompt: 0, min_step: 1 };
}

/// Maximum pause between two tokens of a running stream due to prefill; 99 % of the pauses are within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenGap {
    /// [`TokenGap::IN_TOKENS`] steps without prefill, from [`TokenGap::LEAST`] to [`TokenGap::USUAL`]; twice a step that takes
    /// more than half of the usual gap, but at most half a second more: prefill at most halves the speed of streams.
    #[default]
    Auto,
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
