//! Chooses how steps are computed: as configured, else as tuning measured here, else by a rule.
//!
//! Attention on a CPU: our kernel wherever it applies, else llama.cpp's without flash attention, unless V is quantised or
//! memory is short. Milliseconds per step of a model of 0.5B (896 × 24 layers, 14 query heads over 2 KV heads, 8 bits) on two
//! cores with AVX-512: llama.cpp with flash attention on and off, and our kernels:
//!
//! | sequences × tokens | on | off | ours |
//! | --- | --- | --- | --- |
//! | 32 × 1,000 sharing one prompt | 313 | 223 | 70 |
//! | 8 × 1,000 sharing one prompt | 116 | 100 | 25 |
//! | 8 × 4,000 sharing one prompt | 205 | 142 | 49 |
//! | 8 × 1,000 sharing nothing | 142 | 146 | 36 |
//! | 1 × 1,000 | 26 | 22 | 16 |
//! | 32 × 250 sharing nothing | 218 | 440 | 49 |
//!
//! llama.cpp's fused kernel processes each row, head and cell separately. Without it the scores are one dense product, which is
//! slow if rows share no cells and needs heads × cells × rows × 4 bytes. Our kernel computes visible cells only, and shared
//! ones for all rows together.
//!
//! Threads: one per physical core. Two on one core share its arithmetic units, and each layer waits for the slowest thread.

use super::{
    EnabledKernels, EngineConfig, FlashAttention, HardwareInfo, KernelChoice, Limits, MIN_CHUNK, ModelInfo, Named, TunedSettings,
    WeightLayout,
};

pub(super) const DEFAULT_UBATCH: u32 = 512;

/// Minimum of `n_ubatch`: below it, prefill would lose more than flash attention costs.
const MIN_UBATCH: u32 = 64;

/// Attention scores may take 1 / `SCORES_FRACTION` of the memory that the KV cache leaves free.
const SCORES_FRACTION: u64 = 4;

pub(super) struct AttentionChoice {
    pub(super) flash_attention: FlashAttention,
    pub(super) n_ubatch: u32,
    reason: &'static str,
}

pub(super) struct ThreadCounts {
    pub(super) n_threads: u32,
    pub(super) n_threads_batch: u32,
    summary: String,
}

#[derive(Clone, Copy)]
pub(super) struct Chooser<'a> {
    pub(super) config: &'a EngineConfig,
    pub(super) model: &'a ModelInfo,
    pub(super) hardware: &'a HardwareInfo,
    pub(super) tuned: Option<TunedSettings>,
}

impl Chooser<'_> {
    /// Chooses kernels. An explicit setting of flash attention selects llama.cpp's attention.
    pub(super) fn choose_kernels(self, covers_attention: bool) -> EnabledKernels {
        let usable = self.hardware.usable_kernels;
        if self.config.kernels == KernelChoice::LlamaCpp {
            return EnabledKernels::NONE;
        }
        let is_auto = self.config.flash_attention == FlashAttention::Auto;
        EnabledKernels { attention: usable.attention && covers_attention && is_auto && self.model.n_heads > 0, ..usable }
    }

    pub(super) fn choose_attention(self, kernels: EnabledKernels, limits: &Limits) -> AttentionChoice {
        let without_scores = |flash_attention, reason| AttentionChoice { flash_attention, n_ubatch: limits.n_ubatch, reason };
        if kernels.attention && !self.model.is_offloaded {
            return without_scores(FlashAttention::On, "");
        }
        if self.model.n_heads == 0 {
            return without_scores(FlashAttention::Auto, "the model has no attention");
        }
        let fitting_ubatch = self.fitting_ubatch(limits);
        let off = |reason| match fitting_ubatch {
            Some(n_ubatch) => AttentionChoice { flash_attention: FlashAttention::Off, n_ubatch, reason },
            None => without_scores(FlashAttention::On, "not enough memory for the scores without it"),
        };
        let tuned = self.tuned.and_then(|tuned| tuned.flash_attention);
        match (self.config.flash_attention, tuned) {
            (FlashAttention::On, _) => without_scores(FlashAttention::On, "configured"),
            (FlashAttention::Off, _) => {
                let min_tokens = self.config.n_ubatch.map_or_else(|| min_ubatch(limits), |_| limits.n_ubatch);
                let n_ubatch = fitting_ubatch.unwrap_or(min_tokens);
                AttentionChoice { flash_attention: FlashAttention::Off, n_ubatch, reason: "configured" }
            }
            (FlashAttention::Auto, _) if self.config.type_v.is_quantized() => {
                without_scores(FlashAttention::On, "required by a quantised V")
            }
            (FlashAttention::Auto, Some(true)) => without_scores(FlashAttention::On, "tuned"),
            (FlashAttention::Auto, Some(false)) => off("tuned"),
            (FlashAttention::Auto, None) if self.model.is_offloaded => without_scores(FlashAttention::Auto, "default on a GPU"),
            (FlashAttention::Auto, None) if self.lacks_coverage() => {
                off("weft's does not support the model's heads or the cache's formats")
            }
            (FlashAttention::Auto, None) => off("default on a CPU, because shared prompts decode faster"),
        }
    }

    /// Chooses numbers of threads, never more than processors: the threads of a step synchronize by spinning, and if two share a
    /// processor, a step takes a thousand times as long.
    pub(super) fn choose_threads(self) -> ThreadCounts {
        let (n_threads, reason) = match (self.config.n_threads, self.tuned) {
            (Some(n), _) => (n, "configured"),
            (None, Some(tuned)) => (tuned.n_threads, "tuned"),
            (None, None) => (self.hardware.n_cores, "physical cores"),
        };
        let (n_threads_batch, batch_reason) = match (self.config.n_threads_batch, self.config.n_threads, self.tuned) {
            (Some(n), ..) => (n, "configured"),
            (None, None, Some(tuned)) => (tuned.n_threads_batch, reason),
            (None, ..) => (n_threads, reason),
        };
        let limited = |n, reason| match self.hardware.n_processors {
            n_processors if n > n_processors => (n_processors, "all processors"),
            _ => (n, reason),
        };
        let ((n_threads, reason), (n_threads_batch, batch_reason)) =
            (limited(n_threads, reason), limited(n_threads_batch, batch_reason));
        let summary = match n_threads_batch {
            n if n == n_threads && batch_reason == reason => format!("{n} threads ({reason})"),
            n => format!("{n_threads} threads ({reason}), {n} for prompts ({batch_reason})"),
        };
        ThreadCounts { n_threads, n_threads_batch, summary }
    }

    pub(super) fn describe(self, kernels: EnabledKernels, attention: &AttentionChoice, threads: &ThreadCounts) -> String {
        let AttentionChoice { flash_attention, n_ubatch, reason } = *attention;
        let attention = if kernels.attention && !self.model.is_offloaded {
            format!("attention by weft ({})", self.hardware.kernels_level)
        } else {
            format!("attention by llama.cpp with flash {} ({reason})", flash_attention.name())
        };
        let products = self.describe_products(kernels);
        format!("{attention}, {products}, at most {n_ubatch} tokens per decode, {}", threads.summary)
    }

    fn describe_products(self, kernels: EnabledKernels) -> String {
        let &HardwareInfo { usable_kernels, kernels_level: level, unusable_reason, .. } = self.hardware;
        let is_llama_cpp = self.config.kernels == KernelChoice::LlamaCpp;
        let provider = match (kernels.products, self.model.weights) {
            (false, _) if is_llama_cpp => "products by llama.cpp (configured)".to_owned(),
            (false, _) => "products by llama.cpp".to_owned(),
            (true, _) if self.model.is_offloaded => format!("products on the CPU by weft ({level})"),
            (true, WeightLayout::AsInFile) => format!("products by weft ({level})"),
            (true, WeightLayout::Repacked) => format!("products by weft ({level}) where weights are not repacked"),
            (true, WeightLayout::Amx) => format!("products by weft ({level}) where weights are not laid out for AMX"),
        };
        match unusable_reason.filter(|_| !is_llama_cpp) {
            Some(reason) if usable_kernels == EnabledKernels::NONE => format!("{provider} (none by weft: {reason})"),
            Some(reason) => format!("{provider} (not all by weft: {reason})"),
            None => provider,
        }
    }

    fn lacks_coverage(self) -> bool {
        let is_usable = self.config.kernels != KernelChoice::LlamaCpp && self.hardware.usable_kernels.attention;
        is_usable && !self.model.covers_attention
    }

    /// Maximum tokens per decode whose attention scores fit; `None` if even the minimum does not. A configured value is kept.
    fn fitting_ubatch(self, limits: &Limits) -> Option<u32> {
        let cache_bytes = u64::from(limits.n_ctx) * self.model.bytes_per_token();
        let max_score_bytes = self.hardware.free_bytes.saturating_sub(cache_bytes) / SCORES_FRACTION;
        let fits = |n_ubatch: u32| score_bytes(self.model.n_heads, limits.n_ctx, n_ubatch) <= max_score_bytes;
        let min_tokens = if self.config.n_ubatch.is_some() { limits.n_ubatch } else { min_ubatch(limits) };
        let halves = std::iter::successors(Some(limits.n_ubatch), |n| Some(n / 2)).take_while(|&n| n > min_tokens);
        halves.chain([min_tokens]).find(|&n| fits(n))
    }
}

/// Returns the minimum of `n_ubatch`: one token per slot plus a prefill chunk.
fn min_ubatch(limits: &Limits) -> u32 {
    MIN_UBATCH.max(limits.n_slots + MIN_CHUNK).min(limits.n_ubatch)
}

fn score_bytes(n_heads: u32, n_ctx: u32, n_ubatch: u32) -> u64 {
    u64::from(n_heads).saturating_mul(u64::from(n_ctx)).saturating_mul(u64::from(n_ubatch)).saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::resolve::tests::{HARDWARE, MODEL};
    use crate::config::{KvType, ResolvedConfig};

    /// 14 heads over 32,768 cells: 1.75 MiB of scores for each token of a decode.
    const LARGE: ModelInfo = ModelInfo { n_ctx_max: 32_768, kv_bytes_per_token: 12_288, n_heads: 14, ..MODEL };
    /// All our kernels, with weights in their on-disk layout.
    const CPU: (ModelInfo, HardwareInfo) = (LARGE, HARDWARE);
    /// A machine that supports llama.cpp's attention only.
    const OLD_CPU: (ModelInfo, HardwareInfo) = (
        ModelInfo { weights: WeightLayout::Repacked, ..LARGE },
        HardwareInfo { usable_kernels: EnabledKernels::NONE, unusable_reason: Some("an old processor"), ..HARDWARE },
    );
    const GPU: (ModelInfo, HardwareInfo) = (ModelInfo { is_offloaded: true, ..LARGE }, HARDWARE);
    const TUNED: TunedSettings = TunedSettings { flash_attention: Some(true), n_threads: 4, n_threads_batch: 12 };
    const PRODUCTS: EnabledKernels = EnabledKernels { attention: false, products: true };

    /// Resolves a configuration with a KV cache of 384 MiB.
    fn choose(machine: &(ModelInfo, HardwareInfo), change: impl FnOnce(&mut EngineConfig)) -> ResolvedConfig {
        choose_tuned(machine, None, change)
    }

    fn choose_tuned(
        (model, hardware): &(ModelInfo, HardwareInfo),
        tuned: Option<TunedSettings>,
        change: impl FnOnce(&mut EngineConfig),
    ) -> ResolvedConfig {
        let mut config = EngineConfig { n_ctx: Some(32_768), ..EngineConfig::default() };
        change(&mut config);
        config.resolve(model, hardware, tuned).expect("the configuration is valid")
    }

    /// Returns a machine with this many MiB for scores.
    fn with_scores(machine: &(ModelInfo, HardwareInfo), scores_mib: u64) -> (ModelInfo, HardwareInfo) {
        (machine.0, HardwareInfo { free_bytes: (384 + 4 * scores_mib) << 20, ..machine.1.clone() })
    }

    /// Returns the part of the summary about products.
    fn products(choice: &ResolvedConfig) -> &str {
        let from = choice.summary.find("products").expect("every summary names the products");
        choice.summary[from..].split(", at most").next().expect("a split has a first part")
    }

    #[test]
    fn our_kernels_use_every_physical_core_of_a_cpu() {
        let choice = choose(&CPU, |_| ());
        assert_eq!(
            (choice.flash_attention, choice.kernels, choice.limits.n_ubatch),
            (FlashAttention::On, EnabledKernels::ALL, 512)
        );
        assert_eq!((choice.n_threads, choice.n_threads_batch), (6, 6));
        let ours = "attention by weft (avx512), products by weft (avx512)";
        assert_eq!(choice.summary, format!("{ours}, at most 512 tokens per decode, 6 threads (physical cores)"));
        let explicit = choose(&CPU, |config| config.kernels = KernelChoice::Weft);
        assert_eq!(ResolvedConfig { settings: choice.settings.clone(), ..explicit }, choice);
    }

    #[test]
    fn our_attention_needs_no_score_buffer_and_ignores_tuned_flash_attention() {
        let choice = choose_tuned(&with_scores(&CPU, 0), Some(TUNED), |_| ());
        assert_eq!(
            (choice.flash_attention, choice.kernels, choice.limits.n_ubatch),
            (FlashAttention::On, EnabledKernels::ALL, 512)
        );
        assert_eq!((choice.n_threads, choice.n_threads_batch), (4, 12));
        let quantised = choose(&CPU, |config| config.type_v = KvType::Q8_0);
        assert_eq!((quantised.flash_attention, quantised.kernels), (FlashAttention::On, EnabledKernels::ALL));
    }

    #[test]
    fn explicit_flash_attention_is_llama_cpps_with_our_products() {
        for (configured, words) in [(FlashAttention::On, "on"), (FlashAttention::Off, "off")] {
            for kernels in [KernelChoice::Auto, KernelChoice::Weft] {
                let choice = choose(&CPU, |config| (config.flash_attention, config.kernels) = (configured, kernels));
                assert_eq!((choice.flash_attention, choice.kernels), (configured, PRODUCTS));
                let attention = format!("attention by llama.cpp with flash {words} (configured), products by weft (avx512), ");
                assert!(choice.summary.starts_with(&attention), "{}", choice.summary);
            }
        }
    }

    #[test]
    fn llama_cpp_kernels_disable_all_of_ours() {
        for machine in [CPU, (ModelInfo { weights: WeightLayout::Repacked, ..LARGE }, HARDWARE)] {
            let choice = choose(&machine, |config| config.kernels = KernelChoice::LlamaCpp);
            assert_eq!(
                (choice.flash_attention, choice.kernels, choice.limits.n_ubatch),
                (FlashAttention::Off, EnabledKernels::NONE, 512)
            );
            let rule = "attention by llama.cpp with flash off (default on a CPU, because shared prompts decode faster)";
            let products = "products by llama.cpp (configured)";
            let rest = "at most 512 tokens per decode, 6 threads (physical cores)";
            assert_eq!(choice.summary, format!("{rule}, {products}, {rest}"));
        }
        let choice = choose(&GPU, |config| config.kernels = KernelChoice::LlamaCpp);
        assert_eq!((choice.flash_attention, choice.kernels), (FlashAttention::Auto, EnabledKernels::NONE));
    }

    #[test]
    fn unsupported_attention_falls_back_to_llama_cpps() {
        let uncovered = (ModelInfo { covers_attention: false, ..LARGE }, HARDWARE);
        let choice = choose(&uncovered, |_| ());
        assert_eq!((choice.flash_attention, choice.kernels), (FlashAttention::Off, PRODUCTS));
        let rule = "attention by llama.cpp with flash off (weft's does not support the model's heads or the cache's formats), ";
        assert!(choice.summary.starts_with(rule), "{}", choice.summary);
        let quantised = choose(&uncovered, |config| config.type_v = KvType::Q4_0);
        assert_eq!((quantised.flash_attention, quantised.kernels), (FlashAttention::On, PRODUCTS));
        // With no memory for scores, llama.cpp's attention runs with flash.
        let small = choose(&with_scores(&uncovered, 0), |_| ());
        assert_eq!((small.flash_attention, small.kernels, small.limits.n_ubatch), (FlashAttention::On, PRODUCTS, 512));
    }

    #[test]
    fn kernels_that_failed_their_trial_are_disabled_with_a_reason() {
        let choice = choose(&OLD_CPU, |_| ());
        assert_eq!((choice.flash_attention, choice.kernels), (FlashAttention::Off, EnabledKernels::NONE));
        assert_eq!(products(&choice), "products by llama.cpp (none by weft: an old processor)");
        let half = (LARGE, HardwareInfo { usable_kernels: PRODUCTS, unusable_reason: Some("attention failed"), ..HARDWARE });
        let choice = choose(&half, |_| ());
        assert_eq!((choice.flash_attention, choice.kernels), (FlashAttention::Off, PRODUCTS));
        assert_eq!(products(&choice), "products by weft (avx512) (not all by weft: attention failed)");
        let configured = choose(&half, |config| config.kernels = KernelChoice::LlamaCpp);
        assert_eq!(products(&configured), "products by llama.cpp (configured)");
    }

    #[test]
    fn products_with_rearranged_weights_are_llama_cpps() {
        let words = |weights| products(&choose(&(ModelInfo { weights, ..LARGE }, HARDWARE), |_| ())).to_owned();
        assert_eq!(words(WeightLayout::AsInFile), "products by weft (avx512)");
        assert_eq!(words(WeightLayout::Repacked), "products by weft (avx512) where weights are not repacked");
        assert_eq!(words(WeightLayout::Amx), "products by weft (avx512) where weights are not laid out for AMX");
    }

    #[test]
    fn llama_cpp_decides_on_a_gpu() {
        let choice = choose(&GPU, |_| ());
        assert_eq!((choice.flash_attention, choice.kernels), (FlashAttention::Auto, EnabledKernels::ALL));
        let words = "attention by llama.cpp with flash auto (default on a GPU), products on the CPU by weft (avx512), ";
        assert!(choice.summary.starts_with(words), "{}", choice.summary);
    }

    #[test]
    fn a_quantised_v_needs_flash_attention() {
        let choice = choose(&OLD_CPU, |config| config.type_v = KvType::Q8_0);
        assert_eq!(choice.flash_attention, FlashAttention::On);
        let tuned_off = TunedSettings { flash_attention: Some(false), ..TUNED };
        let choice = choose_tuned(&OLD_CPU, Some(tuned_off), |config| config.type_v = KvType::Q8_0);
        assert_eq!(choice.flash_attention, FlashAttention::On);
    }

    #[test]
    fn decodes_shrink_before_flash_attention_is_enabled() {
        // The KV cache takes 384 MiB, and a quarter of the rest is for scores: 256 tokens take 448 MiB, 64 take 112.
        let chosen = |scores_mib| {
            let ResolvedConfig { flash_attention, limits, .. } = choose(&with_scores(&OLD_CPU, scores_mib), |_| ());
            (flash_attention, limits.n_ubatch)
        };
        assert_eq!(chosen(896), (FlashAttention::Off, 512));
        assert_eq!(chosen(895), (FlashAttention::Off, 256));
        assert_eq!(chosen(112), (FlashAttention::Off, 64));
        assert_eq!(chosen(111), (FlashAttention::On, 512));
        // A configured value is kept.
        let configured = choose(&with_scores(&OLD_CPU, 895), |config| config.n_ubatch = Some(512));
        assert_eq!((configured.flash_attention, configured.limits.n_ubatch), (FlashAttention::On, 512));
        let off = choose(&with_scores(&OLD_CPU, 111), |config| config.flash_attention = FlashAttention::Off);
        assert_eq!((off.flash_attention, off.limits.n_ubatch), (FlashAttention::Off, 64));
    }

    #[test]
    fn a_decode_fits_every_slot_even_without_free_memory() {
        let choice = choose(&with_scores(&OLD_CPU, 0), |config| {
            (config.n_slots, config.flash_attention) = (Some(100), FlashAttention::Off);
        });
        assert_eq!(choice.limits.n_ubatch, 116);
    }

    #[test]
    fn tuned_settings_override_the_rule_and_the_user_overrides_both() {
        for machine in [OLD_CPU, GPU] {
            let choice = choose_tuned(&machine, Some(TUNED), |_| ());
            assert_eq!((choice.flash_attention, choice.kernels), (FlashAttention::On, machine.1.usable_kernels));
            assert_eq!((choice.n_threads, choice.n_threads_batch), (4, 12));
            assert!(choice.summary.ends_with("4 threads (tuned), 12 for prompts (tuned)"), "{}", choice.summary);
        }
        // If our kernel computed attention during tuning, the file leaves llama.cpp's attention to the rule.
        let threads_only = TunedSettings { flash_attention: None, ..TUNED };
        let choice = choose_tuned(&OLD_CPU, Some(threads_only), |_| ());
        assert_eq!((choice.flash_attention, choice.n_threads), (FlashAttention::Off, 4));
        let configured = choose_tuned(&OLD_CPU, Some(TUNED), |config| {
            (config.flash_attention, config.n_threads) = (FlashAttention::Off, Some(3));
        });
        assert_eq!((configured.flash_attention, configured.n_threads, configured.n_threads_batch), (FlashAttention::Off, 3, 3));
        let batch = choose_tuned(&CPU, Some(TUNED), |config| config.n_threads_batch = Some(5));
        assert_eq!((batch.n_threads, batch.n_threads_batch), (4, 5));
    }

    #[test]
    fn threads_never_exceed_processors() {
        let many = choose(&CPU, |config| config.n_threads = Some(64));
        assert_eq!((many.n_threads, many.n_threads_batch), (12, 12));
        assert!(many.summary.ends_with("12 threads (all processors)"), "{}", many.summary);
        let batch = choose(&CPU, |config| (config.n_threads, config.n_threads_batch) = (Some(2), Some(13)));
        assert!(batch.summary.ends_with("2 threads (configured), 12 for prompts (all processors)"), "{}", batch.summary);
    }

    #[test]
    fn a_model_without_attention_has_nothing_to_choose() {
        let model = ModelInfo { n_heads: 0, kv_bytes_per_token: 0, ..LARGE };
        let choice = choose(&(model, HardwareInfo { free_bytes: 0, ..HARDWARE }), |config| config.n_ctx = None);
        assert_eq!((choice.flash_attention, choice.kernels, choice.limits.n_ubatch), (FlashAttention::Auto, PRODUCTS, 512));
        assert!(
            choice.summary.starts_with("attention by llama.cpp with flash auto (the model has no attention), "),
            "{}",
            choice.summary
        );
    }
}
