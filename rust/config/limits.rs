//! Sizes and limits of an engine, derived from its settings and fixed when it starts.

use std::time::Duration;

use super::compute::DEFAULT_UBATCH;
use super::{
    CacheRam, Checkpoints, DEFAULT_SLOTS, EngineConfig, Grouping, HardwareInfo, KvType, MIN_CHUNK, ModelInfo, Named,
    SLOW_CONSUMER_TIMEOUT, SpeculationConfig, TokenGap, reject,
};
use crate::error::Result;
use crate::request::MAX_DRAFT;

/// Maximum number of sequence ids: llama.cpp's `LLAMA_MAX_SEQ`.
const MAX_SEQUENCE_IDS: u32 = 256;

/// llama.cpp rounds the size of the KV cache, and of a slot's part, up to multiples of this.
const CELLS_STEP: u32 = 256;

/// Number of sequence ids for cached branches, added to the ids of the slots.
const N_CACHED_IDS: u32 = 64;

/// Maximum of [`SpeculationConfig::min_match`], as in llama-server.
const MAX_DRAFT_MATCH: u32 = 1024;

const MAX_CELLS: u64 = (1 << 31) - 256;

/// Default size of the host cache; it is also at most a quarter of the machine's memory.
const DEFAULT_HOST_CACHE_BYTES: u64 = 8192 << 20;

/// Maximum to which the number of slots raises the default size.
const DEFAULT_MAX_CELLS: u64 = 32_768;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub n_slots: u32,
    /// Size of the KV cache in cells; a multiple of 256.
    pub n_ctx: u32,
    /// Maximum tokens of one sequence, prompt and completion together; at most `n_ctx`.
    pub n_ctx_slot: u32,
    pub n_ubatch: u32,
    pub grouping: Option<Grouping>,
    /// Sequence ids that the engine may use, `0 ≤ id < n_seq_max`; more than `n_slots`, at most 256.
    pub n_seq_max: u32,
    /// Maximum number of rows with logits in one decode; at least one per slot.
    pub n_outputs: u32,
    /// Maximum size of the host cache; `None` is unlimited, 0 disables it.
    pub max_host_cache_bytes: Option<u64>,
    pub max_queue: u32,
    pub max_token_gap: TokenGap,
    pub checkpoints: Checkpoints,
    /// Time after which a stream whose consumer reads nothing ends with
    /// [`Error::SlowConsumer`](crate::error::Error::SlowConsumer).
    pub slow_consumer_timeout: Duration,
    pub speculation: SpeculationConfig,
}

impl Limits {
    /// Derives the sizes from valid settings.
    ///
    /// - A slot may use the whole KV cache if `n_slots` is `None` or `kv_unified` is true, else `n_ctx / n_slots` cells rounded
    ///   up to a multiple of 256. It never exceeds the training length, or the number of tokens that occupy as many positions
    ///   under grouping.
    /// - If `n_ctx` is `None` or 0, the KV cache has the larger of the training length and min(`n_slots` × training length,
    ///   32,768), but at most as many cells as fit half of the free memory; a reduction is logged.
    pub(super) fn derive(config: &EngineConfig, model: &ModelInfo, hardware: &HardwareInfo) -> Result<Self> {
        let total_bytes = hardware.total_bytes;
        let n_slots = config.n_slots.unwrap_or(DEFAULT_SLOTS);
        let n_ids = n_slots + if model.keeps_whole_states { 2 } else { N_CACHED_IDS };
        let draft_bytes = u64::from(n_ids) * model.draft.map_or(0, |draft| draft.bytes_per_sequence);
        // The memory of a draft model's samplers is the host's, whatever the device of the KV cache.
        let free_bytes = hardware.free_bytes.saturating_sub(if model.is_offloaded { 0 } else { draft_bytes });
        let n_rows_min = n_slots + MIN_CHUNK;
        let n_ctx = match config.n_ctx {
            Some(n_ctx) if n_ctx > 0 => round_up_to_cells_step(n_ctx),
            _ => default_n_ctx(n_slots, model, free_bytes),
        }
        .max(round_up_to_cells_step(n_rows_min));
        let n_bytes = u64::from(n_ctx) * model.bytes_per_token();
        // Checked here, because Linux would overcommit the memory and kill the process on first use.
        if n_bytes > free_bytes && config.n_ctx.is_some_and(|n_ctx| n_ctx > 0) {
            let message = format!(
                "n_ctx is {n_ctx}, which takes {n_bytes} bytes of memory, but only {free_bytes} are free; set a smaller n_ctx"
            );
            return reject("n_ctx", message);
        }
        let grouping = derive_grouping(config, n_ctx)?;
        let n_ctx_max = grouping.map_or(model.n_ctx_max, |grouping| grouping.n_tokens_within(model.n_ctx_max));
        let is_unified = config.kv_unified.unwrap_or(config.n_slots.is_none());
        let n_ctx_slot = if is_unified { n_ctx } else { round_up_to_cells_step(n_ctx.div_ceil(n_slots)).min(n_ctx) };
        // Attention caches get one id more than the engine uses, for saving and reloading; it is free there.
        let n_ids_max = if model.keeps_whole_states { MAX_SEQUENCE_IDS } else { MAX_SEQUENCE_IDS - 1 };
        let limits = Self {
            n_slots,
            n_ctx,
            n_ctx_slot: n_ctx_slot.min(n_ctx_max.max(1)),
            n_ubatch: config.n_ubatch.unwrap_or(DEFAULT_UBATCH).min(config.n_batch).max(n_rows_min).min(n_ctx),
            grouping,
            n_seq_max: n_ids.min(n_ids_max),
            n_outputs: n_ids.min(n_ids_max),
            max_host_cache_bytes: match config.cache_ram {
                CacheRam::Default => Some(DEFAULT_HOST_CACHE_BYTES.min(total_bytes / 4)),
                CacheRam::Unlimited => None,
                CacheRam::Bytes(n) => Some(n),
            },
            max_queue: config.max_queue,
            max_token_gap: config.max_token_gap,
            checkpoints: config.checkpoints,
            slow_consumer_timeout: SLOW_CONSUMER_TIMEOUT,
            speculation: config.speculation,
        };
        limits.validate()?;
        Ok(limits)
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let Self { n_slots, n_ctx, n_ctx_slot, n_ubatch, n_seq_max, n_outputs, max_queue, checkpoints, speculation, .. } = *self;
        let rules = [
            ("n_slots", n_slots > 0, "n_slots is 0; it must be at least 1".to_owned()),
            ("n_ctx", (2..=n_ctx).contains(&n_ctx_slot), format!("n_ctx_slot is {n_ctx_slot}; it must be 2 to n_ctx, {n_ctx}")),
            ("n_ubatch", n_ubatch > n_slots, format!("n_ubatch is {n_ubatch}; it must be more than n_slots, {n_slots}")),
            (
                "n_slots",
                (n_slots + 1..=MAX_SEQUENCE_IDS).contains(&n_seq_max),
                format!("n_seq_max is {n_seq_max}; it must be more than n_slots, {n_slots}, and at most {MAX_SEQUENCE_IDS}"),
            ),
            ("n_slots", n_outputs >= n_slots, format!("n_outputs is {n_outputs}; it must be at least n_slots, {n_slots}")),
            ("checkpoint_min_step", checkpoints.min_step > 0, "checkpoint_min_step is 0; it must be at least 1".to_owned()),
            (
                "max_draft",
                speculation.max_draft() <= MAX_DRAFT,
                format!("max_draft is {}; it must be at most {MAX_DRAFT}", speculation.max_draft()),
            ),
            ("min_draft_match", speculation.min_match > 0, "min_draft_match is 0; it must be at least 1".to_owned()),
            (
                "min_draft_match",
                speculation.min_match <= MAX_DRAFT_MATCH,
                format!("min_draft_match is {}; it must be at most {MAX_DRAFT_MATCH}", speculation.min_match),
            ),
            ("max_queue", max_queue > 0, "max_queue is 0; it must be at least 1".to_owned()),
        ];
        match rules.into_iter().find(|(_, holds, _)| !holds) {
            Some((param, _, message)) => reject(param, message),
            None => Ok(()),
        }
    }
}

fn derive_grouping(config: &EngineConfig, n_ctx: u32) -> Result<Option<Grouping>> {
    let EngineConfig { grp_attn_n: n, grp_attn_w: width, n_batch, type_k, .. } = *config;
    let reject = |message| reject("grp_attn_n", message);
    match n {
        1 => Ok(None),
        _ if width % n != 0 => reject(format!("grp_attn_n is {n}; it must divide grp_attn_w, {width}")),
        _ if width > n_ctx => reject(format!(
            "grp_attn_n is {n}, but grp_attn_w, {width}, exceeds the context of {n_ctx} tokens; set it to {n_ctx} or less"
        )),
        // llama.cpp rotates no other 16-bit formats, and requantizing a quantised K loses precision.
        _ if !matches!(type_k, KvType::F32 | KvType::F16) => {
            reject(format!("grp_attn_n is {n}, which requires a type_k of f16 or f32, not {}; set it to 1", type_k.name()))
        }
        _ => Ok(Some(Grouping { n, width, n_batch })),
    }
}

fn default_n_ctx(n_slots: u32, model: &ModelInfo, free_bytes: u64) -> u32 {
    let n_ctx_train = u64::from(model.n_ctx_max);
    let n_wanted = n_ctx_train.max((u64::from(n_slots) * n_ctx_train).min(DEFAULT_MAX_CELLS));
    // llama.cpp's positions are signed.
    let n_wanted = round_up_to_cells_step(u32::try_from(n_wanted.min(MAX_CELLS)).expect("at most 2³¹ − 256"));
    let Some(n_fit) = (free_bytes / 2).checked_div(model.bytes_per_token()) else { return n_wanted };
    let n_fit = u32::try_from(n_fit).unwrap_or(u32::MAX) / CELLS_STEP * CELLS_STEP;
    if n_fit >= n_wanted {
        return n_wanted;
    }
    let n_ctx = n_fit.max(CELLS_STEP);
    tracing::info!(
        "n_ctx is {n_ctx} instead of {n_wanted}: a token takes {} bytes, and half of the free memory is {} bytes; set n_ctx to override",
        model.bytes_per_token(),
        free_bytes / 2,
    );
    n_ctx
}

fn round_up_to_cells_step(n: u32) -> u32 {
    n.max(1).div_ceil(CELLS_STEP).saturating_mul(CELLS_STEP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DraftMemory;
    use crate::config::resolve::tests::{HARDWARE, MODEL};
    use crate::error::Error;

    const PLENTY: u64 = 1 << 40;

    fn derive(change: impl FnOnce(&mut EngineConfig)) -> Limits {
        derive_for(MODEL, PLENTY, change)
    }

    fn derive_for(model: ModelInfo, free_bytes: u64, change: impl FnOnce(&mut EngineConfig)) -> Limits {
        let mut config = EngineConfig::default();
        change(&mut config);
        let hardware = HardwareInfo { free_bytes, ..HARDWARE };
        Limits::derive(&config, &model, &hardware).expect("the configuration is valid")
    }

    #[test]
    fn each_of_the_default_slots_may_use_the_whole_cache() {
        let limits = derive(|_| ());
        assert_eq!((limits.n_slots, limits.n_ctx, limits.n_ctx_slot), (8, 8192, 1024));
        assert_eq!((limits.n_seq_max, limits.n_ubatch), (72, 512));
        assert_eq!(derive(|c| c.n_ctx = Some(512)).n_ctx_slot, 512);
    }

    #[test]
    fn explicit_slots_divide_the_cache_unless_it_is_unified() {
        let four_of_1000 = derive(|c| (c.n_slots, c.n_ctx) = (Some(4), Some(1000)));
        assert_eq!((four_of_1000.n_ctx, four_of_1000.n_ctx_slot), (1024, 256));
        assert_eq!(derive(|c| (c.n_slots, c.n_ctx) = (Some(3), Some(1024))).n_ctx_slot, 512);
        assert_eq!(derive(|c| (c.n_slots, c.n_ctx, c.kv_unified) = (Some(4), Some(1000), Some(true))).n_ctx_slot, 1024);
        assert_eq!(derive(|c| (c.n_ctx, c.kv_unified) = (Some(4096), Some(false))).n_ctx_slot, 512);
    }

    #[test]
    fn a_slot_never_exceeds_the_training_length() {
        assert_eq!(derive(|c| c.n_ctx = Some(65_536)).n_ctx_slot, 1024);
        assert_eq!(derive(|c| (c.n_slots, c.n_ctx) = (Some(2), Some(65_536))).n_ctx_slot, 1024);
        let odd = ModelInfo { n_ctx_max: 1000, ..MODEL };
        assert_eq!(derive_for(odd, PLENTY, |c| c.n_slots = Some(1)).n_ctx_slot, 1000);
    }

    #[test]
    fn grouping_raises_the_slot_limit_to_the_trained_positions() {
        let grouped = derive(|c| (c.grp_attn_n, c.grp_attn_w) = (4, 256));
        assert_eq!(grouped.grouping, Some(Grouping { n: 4, width: 256, n_batch: 2048 }));
        assert_eq!((grouped.n_ctx, grouped.n_ctx_slot), (8192, 3520));
        assert_eq!(derive(|c| (c.n_ctx, c.grp_attn_n) = (Some(2048), 4)).n_ctx_slot, 2048);
        let ungrouped = derive(|c| c.grp_attn_w = 3);
        assert_eq!((ungrouped.grouping, ungrouped.n_ctx_slot), (None, 1024));
    }

    #[test]
    fn the_default_cache_size_follows_the_training_length_and_the_slots() {
        let n_ctx =
            |n_ctx_max, n_slots| derive_for(ModelInfo { n_ctx_max, ..MODEL }, PLENTY, |c| c.n_slots = Some(n_slots)).n_ctx;
        assert_eq!(n_ctx(1024, 1), 1024);
        assert_eq!(n_ctx(8192, 8), 32_768);
        assert_eq!(n_ctx(131_072, 8), 131_072);
        assert_eq!(derive(|c| c.n_ctx = Some(0)).n_ctx, 8192);
    }

    #[test]
    fn the_default_cache_takes_at_most_half_of_the_free_memory() {
        let n_ctx = |free| derive_for(MODEL, free, |_| ()).n_ctx;
        assert_eq!(n_ctx(2 * 1536 * 8192), 8192);
        assert_eq!(n_ctx(2 * 1536 * 8191), 7936);
        assert_eq!(n_ctx(0), 256);
        // A configured size is not reduced, and a model without cells has no limit.
        assert_eq!(derive_for(MODEL, 1536 * 4096, |c| c.n_ctx = Some(4096)).n_ctx, 4096);
        assert_eq!(derive_for(ModelInfo { kv_bytes_per_token: 0, ..MODEL }, 0, |_| ()).n_ctx, 8192);
    }

    #[test]
    fn a_cache_beyond_the_free_memory_is_rejected_with_both_numbers() {
        let config = EngineConfig { n_ctx: Some(4096), ..EngineConfig::default() };
        let message =
            "n_ctx is 4096, which takes 6291456 bytes of memory, but only 6291455 are free; set a smaller n_ctx".to_owned();
        let hardware = HardwareInfo { free_bytes: 6_291_455, ..HARDWARE };
        assert_eq!(Limits::derive(&config, &MODEL, &hardware), Err(Error::InvalidConfig { param: "n_ctx", message }));
    }

    #[test]
    fn samplers_of_a_draft_model_leave_less_memory_for_the_cache() {
        let model = ModelInfo { draft: Some(DraftMemory { kv_bytes_per_token: 0, bytes_per_sequence: 1 << 10 }), ..MODEL };
        let free_bytes = 2 * 1536 * 8192 + (72 << 10);
        assert_eq!(derive_for(model, free_bytes, |_| ()).n_ctx, 8192);
        assert_eq!(derive_for(model, free_bytes - 1, |_| ()).n_ctx, 7936);
        assert_eq!(derive_for(ModelInfo { is_offloaded: true, ..model }, 2 * 1536 * 8192, |_| ()).n_ctx, 8192);
    }

    #[test]
    fn a_decode_fits_every_slot_and_a_chunk() {
        assert_eq!(derive(|c| c.n_ubatch = Some(1)).n_ubatch, 24);
        assert_eq!(derive(|c| c.n_batch = 64).n_ubatch, 64);
        assert_eq!(derive(|c| c.n_ctx = Some(1)).n_ubatch, 256);
        let max = derive(|c| (c.n_slots, c.n_ctx, c.n_ubatch) = (Some(254), Some(1), Some(1)));
        assert_eq!((max.n_ctx, max.n_ubatch, max.n_seq_max), (512, 270, 255));
    }

    #[test]
    fn whole_states_get_few_sequence_ids() {
        let model = ModelInfo { keeps_whole_states: true, ..MODEL };
        assert_eq!(derive_for(model, PLENTY, |_| ()).n_seq_max, 10);
        assert_eq!(derive_for(model, PLENTY, |c| c.n_slots = Some(254)).n_seq_max, 256);
    }
}
