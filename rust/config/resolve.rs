//! Checks the settings of an engine against the model and the machine, and chooses the open ones.

use super::compute::Chooser;
use super::{
    EnabledKernels, EngineConfig, FlashAttention, KernelChoice, Limits, MAX_SLOTS, MAX_THREADS, Named, Pooling, WeightLayout,
    reject, reject_value,
};
use crate::error::Result;

/// Maximum of [`EngineConfig::n_ctx`]: positions are 32-bit signed numbers in llama.cpp.
const MAX_N_CTX: u32 = (1 << 31) - 256;

/// Properties of a loaded model, with the cache formats and the encoding of positions of an [`EngineConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct ModelInfo {
    /// Maximum context length in tokens: the training length, unless the encoding of positions extends it.
    pub n_ctx_max: u32,
    /// Size of one token's KV cells, in bytes; 0 for a model without attention.
    pub kv_bytes_per_token: u64,
    /// Memory of the draft model; `None` without one.
    pub draft: Option<DraftMemory>,
    /// Results do not depend on the batch where our kernels compute the model, as far as that is known before a decode.
    pub can_be_repeatable: bool,
    /// A sequence id owns a whole state instead of cells (recurrent and hybrid models): ids are then expensive.
    pub keeps_whole_states: bool,
    /// Maximum number of attention heads of a layer; 0 for a model without attention.
    pub n_heads: u32,
    pub is_offloaded: bool,
    pub weights: WeightLayout,
    /// Our attention supports the heads and the cache formats.
    pub covers_attention: bool,
    /// Our attention supports the heads with the 16-bit formats of embeddings.
    pub covers_embedding_attention: bool,
    pub pooling: Pooling,
    pub has_classifier: bool,
}

/// Memory that a draft model takes besides its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftMemory {
    /// Size of one token's KV cells, in bytes.
    pub kv_bytes_per_token: u64,
    /// Host memory for each sequence id, in bytes.
    pub bytes_per_sequence: u64,
}

/// Properties of the machine, for the model's devices and the processors of an [`EngineConfig`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HardwareInfo {
    /// Physical cores that decoding threads may use.
    pub n_cores: u32,
    /// Maximum number of decoding threads that can run simultaneously.
    pub n_processors: u32,
    /// Processors that this process may use, by the system's numbers; `None` if the system does not report them.
    pub cpus: Option<Vec<usize>>,
    /// Free memory in bytes where the KV cache is allocated.
    pub free_bytes: u64,
    pub total_bytes: u64,
    pub usable_kernels: EnabledKernels,
    pub kernels_level: &'static str,
    pub unusable_reason: Option<&'static str>,
}

/// Settings that tuning measured to be fastest for a model on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunedSettings {
    /// Use llama.cpp's fused attention kernel; `None` if our kernel computed attention, and there was nothing to choose.
    pub flash_attention: Option<bool>,
    /// As [`EngineConfig::n_threads`], 1 to [`MAX_THREADS`].
    pub n_threads: u32,
    pub n_threads_batch: u32,
}

/// Settings of an engine with every value chosen, from [`EngineConfig::resolve`].
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedConfig {
    pub limits: Limits,
    /// Memory that is reserved for the draft model, which is then created; `None` if it drafts nothing. Only if the first decode shows
    /// that results depend on the batch nevertheless, it is not created.
    pub draft: Option<DraftMemory>,
    /// The user's settings; those without a choice are read from here.
    pub settings: EngineConfig,
    pub kernels: EnabledKernels,
    /// Our kernels that compute embeddings, whose cache has 16-bit formats.
    pub embedding_kernels: EnabledKernels,
    /// [`FlashAttention::Auto`] leaves the choice to llama.cpp.
    pub flash_attention: FlashAttention,
    pub n_threads: u32,
    pub n_threads_batch: u32,
    /// Computes with half of the threads while other processes compete for the processors, if that is faster.
    pub fewer_threads_under_contention: bool,
    pub pooling: Pooling,
    pub summary: String,
}

impl ModelInfo {
    /// Returns the size of one token's KV cells, in bytes, with those of the draft model.
    pub(super) fn bytes_per_token(&self) -> u64 {
        self.kv_bytes_per_token + self.draft.map_or(0, |draft| draft.kv_bytes_per_token)
    }
}

impl EngineConfig {
    /// Checks the settings and chooses each that is left open: as `tuned`, else by a rule.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::error::Error::InvalidConfig) names the first setting that is impossible here.
    pub fn resolve(&self, model: &ModelInfo, hardware: &HardwareInfo, tuned: Option<TunedSettings>) -> Result<ResolvedConfig> {
        self.check(model, hardware, tuned)?;
        // Tuning measured on all processors.
        let tuned = tuned.filter(|_| self.threads.cpus.is_empty());
        let chooser = Chooser { config: self, model, hardware, tuned };
        let kernels = chooser.choose_kernels(model.covers_attention);
        let model = &ModelInfo { draft: model.draft.filter(|_| self.may_draft(model, kernels)), ..*model };
        let chooser = Chooser { model, ..chooser };
        let limits = Limits::derive(self, model, hardware)?;
        if self.kernels == KernelChoice::Weft && kernels == EnabledKernels::NONE {
            tracing::warn!("kernels is weft, but none of weft's kernels can be used: llama.cpp's compute this model");
        }
        let attention = chooser.choose_attention(kernels, &limits);
        let threads = chooser.choose_threads();
        Ok(ResolvedConfig {
            limits: Limits { n_ubatch: attention.n_ubatch, ..limits },
            draft: model.draft,
            kernels,
            embedding_kernels: chooser.choose_kernels(model.covers_embedding_attention),
            flash_attention: attention.flash_attention,
            n_threads: threads.n_threads,
            n_threads_batch: threads.n_threads_batch,
            fewer_threads_under_contention: self.n_threads.or(self.n_threads_batch).is_none() && !model.is_offloaded,
            settings: self.clone(),
            pooling: self.pooling.unwrap_or(model.pooling),
            summary: chooser.describe(kernels, &attention, &threads),
        })
    }

    /// Returns true if a draft model may draft, as far as that is known before a decode. A model whose cache cannot be truncated has
    /// none.
    fn may_draft(&self, model: &ModelInfo, kernels: EnabledKernels) -> bool {
        let is_repeatable = model.can_be_repeatable && kernels == EnabledKernels::ALL && self.grp_attn_n == 1;
        self.speculation.check(is_repeatable, true).is_ok()
    }

    /// Checks all but the sizes, which [`Limits::derive`] checks.
    fn check(&self, model: &ModelInfo, hardware: &HardwareInfo, tuned: Option<TunedSettings>) -> Result<()> {
        let ranges = [
            ("n_slots", self.n_slots, 1, MAX_SLOTS),
            ("n_ctx", self.n_ctx, 0, MAX_N_CTX),
            ("n_batch", Some(self.n_batch), 1, u32::MAX),
            ("n_ubatch", self.n_ubatch, 1, u32::MAX),
            ("grp_attn_n", Some(self.grp_attn_n), 1, u32::MAX),
            ("grp_attn_w", Some(self.grp_attn_w), 1, u32::MAX),
            ("n_threads", self.n_threads, 1, MAX_THREADS),
            ("n_threads_batch", self.n_threads_batch, 1, MAX_THREADS),
        ];
        for (param, n, min, max) in ranges {
            if let Some(n) = n.filter(|n| !(min..=max).contains(n)) {
                let bounds = if max == u32::MAX { format!("at least {min}") } else { format!("{min} to {max}") };
                return reject_value(param, n, bounds);
            }
        }
        if let Some(TunedSettings { n_threads, n_threads_batch, .. }) = tuned
            && ![n_threads, n_threads_batch].iter().all(|n| (1..=MAX_THREADS).contains(n))
        {
            let message = format!("tuned has {n_threads} and {n_threads_batch} threads; both must be 1 to {MAX_THREADS}");
            return reject("tuned", message);
        }
        self.rope.validate()?;
        self.threads.validate(["cpus", "poll"], hardware.cpus.as_deref())?;
        self.threads_batch.validate(["cpus_batch", "poll_batch"], hardware.cpus.as_deref())?;
        if self.flash_attention == FlashAttention::Off && self.type_v.is_quantized() {
            let message = format!("type_v is {}, which requires flash attention; turn it on, or use f16", self.type_v.name());
            return reject("type_v", message);
        }
        if self.pooling == Some(Pooling::Rank) && !model.has_classifier {
            return reject("pooling", "pooling is rank, but the model has no classifier that scores a text; load a reranker");
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::{KvType, RopeConfig, RopeScaling, Threads};
    use crate::error::Error;

    /// The demo model: 1,024 tokens of 1,536 bytes each, on a CPU, all of which our kernels compute.
    pub(in crate::config) const MODEL: ModelInfo = ModelInfo {
        n_ctx_max: 1024,
        kv_bytes_per_token: 1536,
        draft: None,
        can_be_repeatable: true,
        keeps_whole_states: false,
        n_heads: 6,
        is_offloaded: false,
        weights: WeightLayout::AsInFile,
        covers_attention: true,
        covers_embedding_attention: true,
        pooling: Pooling::Mean,
        has_classifier: false,
    };
    pub(in crate::config) const HARDWARE: HardwareInfo = HardwareInfo {
        n_cores: 6,
        n_processors: 12,
        cpus: None,
        free_bytes: 20 << 30,
        total_bytes: 64 << 30,
        usable_kernels: EnabledKernels::ALL,
        kernels_level: "avx512",
        unusable_reason: None,
    };

    fn resolve(change: impl FnOnce(&mut EngineConfig)) -> Result<ResolvedConfig> {
        let mut config = EngineConfig::default();
        change(&mut config);
        config.resolve(&MODEL, &HARDWARE, None)
    }

    #[test]
    fn settings_without_a_choice_are_passed_on() {
        let rope = RopeConfig { scaling: Some(RopeScaling::Linear), freq_scale: Some(0.5), ..RopeConfig::default() };
        let config =
            EngineConfig { type_k: KvType::Bf16, rope, n_ubatch: Some(100), offload_kqv: false, ..EngineConfig::default() };
        let resolved = config.resolve(&MODEL, &HARDWARE, None).expect("the configuration is valid");
        assert_eq!(resolved.settings, config);
    }

    #[test]
    fn a_configured_number_of_threads_is_not_reduced_under_contention() {
        let reduces = |change: fn(&mut EngineConfig)| resolve(change).expect("it is valid").fewer_threads_under_contention;
        assert!(reduces(|_| ()));
        assert!(!reduces(|c| c.n_threads = Some(4)) && !reduces(|c| c.n_threads_batch = Some(4)));
        let on_gpu = ModelInfo { is_offloaded: true, ..MODEL };
        let resolved = EngineConfig::default().resolve(&on_gpu, &HARDWARE, None).expect("it is valid");
        assert!(!resolved.fewer_threads_under_contention);
    }

    #[test]
    fn embeddings_use_our_kernels_independently_of_the_cache_formats() {
        let model = ModelInfo { covers_attention: false, ..MODEL };
        let resolved = EngineConfig::default().resolve(&model, &HARDWARE, None).expect("it is valid");
        assert!(!resolved.kernels.attention && resolved.embedding_kernels == EnabledKernels::ALL);
        let llama_cpp = resolve(|c| c.kernels = KernelChoice::LlamaCpp).expect("it is valid");
        assert_eq!(llama_cpp.embedding_kernels, EnabledKernels::NONE);
    }

    #[test]
    fn the_pooling_is_the_models_unless_it_is_configured() {
        let model = ModelInfo { pooling: Pooling::Last, has_classifier: true, ..MODEL };
        let pooling = |pooling| {
            let config = EngineConfig { pooling, ..EngineConfig::default() };
            config.resolve(&model, &HARDWARE, None).expect("it is valid").pooling
        };
        assert_eq!([None, Some(Pooling::Rank)].map(pooling), [Pooling::Last, Pooling::Rank]);
    }

    #[test]
    fn tuned_settings_apply_to_all_processors_only() {
        let tuned = Some(TunedSettings { flash_attention: None, n_threads: 3, n_threads_batch: 5 });
        let n_threads = |cpus| {
            let threads = Threads { cpus, ..Threads::default() };
            let config = EngineConfig { threads, ..EngineConfig::default() };
            config.resolve(&MODEL, &HARDWARE, tuned).expect("it is valid").n_threads
        };
        assert_eq!((n_threads(vec![]), n_threads(vec![0, 1])), (3, 6));
    }

    #[test]
    fn invalid_settings_are_rejected_by_name() {
        let rejected_param = |change: fn(&mut EngineConfig)| match resolve(change) {
            Err(Error::InvalidConfig { param, message }) => {
                assert!(message.starts_with(param), "{message}");
                param
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(rejected_param(|c| c.n_slots = Some(0)), "n_slots");
        assert_eq!(rejected_param(|c| c.n_slots = Some(255)), "n_slots");
        assert_eq!(rejected_param(|c| c.n_ctx = Some(u32::MAX)), "n_ctx");
        assert_eq!(rejected_param(|c| c.n_batch = 0), "n_batch");
        assert_eq!(rejected_param(|c| c.n_ubatch = Some(0)), "n_ubatch");
        assert_eq!(rejected_param(|c| c.grp_attn_n = 0), "grp_attn_n");
        assert_eq!(rejected_param(|c| c.grp_attn_n = 3), "grp_attn_n");
        assert_eq!(rejected_param(|c| c.grp_attn_w = 0), "grp_attn_w");
        assert_eq!(rejected_param(|c| (c.n_ctx, c.grp_attn_n, c.grp_attn_w) = (Some(512), 2, 514)), "grp_attn_n");
        assert_eq!(rejected_param(|c| (c.grp_attn_n, c.type_k) = (2, KvType::Bf16)), "grp_attn_n");
        assert_eq!(rejected_param(|c| (c.grp_attn_n, c.type_k) = (2, KvType::Q8_0)), "grp_attn_n");
        assert_eq!(rejected_param(|c| c.n_threads = Some(0)), "n_threads");
        assert_eq!(rejected_param(|c| c.n_threads_batch = Some(513)), "n_threads_batch");
        assert_eq!(rejected_param(|c| c.rope.freq_base = Some(0.0)), "rope_freq_base");
        assert_eq!(rejected_param(|c| c.threads.poll = Some(101)), "poll");
        assert_eq!(rejected_param(|c| c.threads_batch.cpus = vec![512]), "cpus_batch");
        assert_eq!(rejected_param(|c| (c.flash_attention, c.type_v) = (FlashAttention::Off, KvType::Q8_0)), "type_v");
        assert_eq!(rejected_param(|c| c.pooling = Some(Pooling::Rank)), "pooling");
    }

    #[test]
    fn tuned_threads_out_of_range_are_rejected() {
        for n_threads in [0, 513] {
            let tuned = TunedSettings { flash_attention: None, n_threads: 1, n_threads_batch: n_threads };
            let resolved = EngineConfig::default().resolve(&MODEL, &HARDWARE, Some(tuned));
            let message = format!("tuned has 1 and {n_threads} threads; both must be 1 to 512");
            assert_eq!(resolved, Err(Error::InvalidConfig { param: "tuned", message }));
        }
    }

    #[test]
    fn processors_are_checked_against_those_of_the_process() {
        let config = EngineConfig { threads: Threads { cpus: vec![7], ..Threads::default() }, ..EngineConfig::default() };
        let rejected = config.resolve(&MODEL, &HardwareInfo { cpus: Some(vec![0, 1]), ..HARDWARE }, None);
        assert!(matches!(rejected, Err(Error::InvalidConfig { param: "cpus", .. })));
        assert!(config.resolve(&MODEL, &HARDWARE, None).is_ok());
    }
}
