//! Selects how steps are computed: as configured, else as tuning measured to be fastest here, else by a rule.
//!
//! Rule for attention on a CPU: our kernel wherever it applies. Where it does not (unsupported cache formats or head sizes,
//! `--kernels llama.cpp`), llama.cpp's attention without flash attention, unless V is quantised or memory is short.
//! Milliseconds per step of a model of 0.5B (896 × 24 layers, 14 query heads over 2 KV heads, 8 bits) on two cores with
//! AVX-512, in one run: llama.cpp with flash attention on and off, and an engine with our kernels:
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
//! best if rows share their cells, and slow if many rows share none. It also needs a buffer for all scores of a decode: heads ×
//! cells × rows × 4 bytes. Our kernel multiplies each row by its visible cells only, and processes cells that several rows
//! share for all of them together, so that no choice is needed.
//!
//! Threads: one per physical core. Two threads of one core share its arithmetic units, and each layer waits for the slowest
//! thread.

use crate::config::{
    EnabledKernels, EngineConfig, FlashAttention, KernelChoice, KernelSupport, Limits, MIN_CHUNK, ModelFacts, WeightLayout,
};

/// Default maximum tokens of one decode.
pub(super) const DEFAULT_UBATCH: u32 = 512;

/// Smallest decode to which memory limits may reduce `n_ubatch`: below it, prefill would lose more than flash attention costs.
const MIN_UBATCH: u32 = 64;

/// Attention scores may take 1 / `SCORES_FRACTION` of the memory that the KV cache leaves free.
const SCORES_FRACTION: u64 = 4;

/// Settings that tuning measured to be fastest for a model on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunedSettings {
    /// Use llama.cpp's fused attention kernel; `None` if our kernel computed attention, and there was nothing to choose.
    pub flash_attention: Option<bool>,
    /// Threads of a decode without rows of prompts.
    pub n_threads: u32,
    /// Threads of a decode with rows of prompts.
    pub n_threads_batch: u32,
}

/// Properties of the machine that [`EngineConfig::choose`] requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineFacts {
    /// True if layers of the model are on a GPU.
    pub is_offloaded: bool,
    /// Physical cores that this process may use.
    pub n_cores: u32,
    /// Maximum number of threads that can run simultaneously.
    pub n_processors: u32,
    /// Free memory in bytes where the KV cache is allocated, before its allocation.
    pub free_bytes: u64,
    /// Capabilities of our kernels for the model.
    pub ours: KernelSupport,
}

impl MachineFacts {
    /// Limits `n` threads to the number of processors; returns the number and the reason. The threads of a step synchronize
    /// many times by spinning: if two share a processor, a step takes a thousand times as long.
    fn limit_threads<'a>(&self, n: u32, reason: &'a str) -> (u32, &'a str) {
        if n > self.n_processors { (self.n_processors, "all processors") } else { (n, reason) }
    }
}

/// Configuration of the computation of every step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeConfig {
    /// [`FlashAttention::Auto`] leaves the choice to llama.cpp.
    pub flash_attention: FlashAttention,
    /// Our kernels that are in use.
    pub used: EnabledKernels,
    /// Maximum tokens of one decode.
    pub n_ubatch: u32,
    /// Threads of a decode without rows of prompts.
    pub n_threads: u32,
    /// Threads of a decode with rows of prompts.
    pub n_threads_batch: u32,
    /// One-line summary with the reasons.
    pub summary: String,
}

impl EngineConfig {
    /// Chooses how steps are computed within these `limits`; `limits.n_ubatch` is the maximum.
    #[must_use]
    pub fn choose(&self, facts: &ModelFacts, limits: &Limits, machine: &MachineFacts) -> ComputeConfig {
        let used = self.enabled_kernels(facts, machine);
        let (flash_attention, n_ubatch, attention) = if self.has_own_attention(facts, machine) {
            (FlashAttention::On, limits.n_ubatch, format!("attention by weft ({})", machine.ours.level))
        } else {
            let (flash_attention, n_ubatch, reason) = self.choose_llama_cpp_attention(facts, limits, machine);
            let provider = match flash_attention {
                FlashAttention::On => "by llama.cpp with flash on",
                FlashAttention::Off => "by llama.cpp with flash off",
                FlashAttention::Auto => "left to llama.cpp",
            };
            (flash_attention, n_ubatch, format!("attention {provider} ({reason})"))
        };
        let (n_threads, threads_reason) = match (self.n_threads, self.tuned) {
            (Some(n), _) => (n, "asked for"),
            (None, Some(tuned)) => (tuned.n_threads, "tuned"),
            (None, None) => (machine.n_cores, "physical cores"),
        };
        let (n_threads_batch, batch_reason) = match (self.n_threads_batch, self.n_threads, self.tuned) {
            (Some(n), ..) => (n, "asked for"),
            (None, Some(n), _) => (n, threads_reason),
            (None, None, Some(tuned)) => (tuned.n_threads_batch, threads_reason),
            (None, None, None) => (n_threads, threads_reason),
        };
        let (n_threads, threads_reason) = machine.limit_threads(n_threads, threads_reason);
        let (n_threads_batch, batch_reason) = machine.limit_threads(n_threads_batch, batch_reason);
        let threads = match n_threads_batch {
            n if n == n_threads && batch_reason == threads_reason => format!("{n} threads ({threads_reason})"),
            n => format!("{n_threads} threads ({threads_reason}), {n} for prompts ({batch_reason})"),
        };
        let products = self.describe_products(used, machine);
        let summary = format!("{attention}, {products}, at most {n_ubatch} tokens per decode, {threads}");
        ComputeConfig { flash_attention, used, n_ubatch, n_threads, n_threads_batch, summary }
    }

    /// Returns whether our attention computes every layer: there is nothing to choose, and no buffer of scores.
    #[must_use]
    pub fn has_own_attention(&self, facts: &ModelFacts, machine: &MachineFacts) -> bool {
        self.enabled_kernels(facts, machine).attention && !machine.is_offloaded
    }

    /// Returns our kernels that are in use on the CPU. An explicit setting of flash attention, on or off, selects llama.cpp's
    /// attention.
    #[must_use]
    pub fn enabled_kernels(&self, facts: &ModelFacts, machine: &MachineFacts) -> EnabledKernels {
        let KernelSupport { usable, covers_attention, .. } = machine.ours;
        if self.kernels == KernelChoice::LlamaCpp {
            return EnabledKernels::NONE;
        }
        let is_auto = self.flash_attention == FlashAttention::Auto;
        EnabledKernels { attention: usable.attention && covers_attention && is_auto && facts.n_heads > 0, ..usable }
    }

    /// Describes who computes the products with weights, with the reason.
    fn describe_products(&self, used: EnabledKernels, machine: &MachineFacts) -> String {
        let KernelSupport { usable, level, why_not, weights, .. } = machine.ours;
        let provider = match (used.products, weights) {
            (false, _) if self.kernels == KernelChoice::LlamaCpp => "products by llama.cpp (asked for)".to_owned(),
            (false, _) => "products by llama.cpp".to_owned(),
            (true, _) if machine.is_offloaded => format!("products on the CPU by weft ({level})"),
            (true, WeightLayout::AsInFile) => format!("products by weft ({level})"),
            (true, WeightLayout::Repacked) => format!("products by weft ({level}) where weights are not repacked"),
            (true, WeightLayout::Amx) => format!("products by weft ({level}) where weights are not laid out for AMX"),
        };
        match why_not {
            Some(_) if self.kernels == KernelChoice::LlamaCpp => provider,
            Some(why_not) if usable == EnabledKernels::NONE => format!("{provider} (none by weft: {why_not})"),
            Some(why_not) => format!("{provider} (not all by weft: {why_not})"),
            None => provider,
        }
    }

    /// Chooses between llama.cpp's attention with and without flash.
    fn choose_llama_cpp_attention(
        &self,
        facts: &ModelFacts,
        limits: &Limits,
        machine: &MachineFacts,
    ) -> (FlashAttention, u32, &'static str) {
        let without_scores = |flash_attention, reason| (flash_attention, limits.n_ubatch, reason);
        if facts.n_heads == 0 {
            return without_scores(FlashAttention::Auto, "the model has none");
        }
        let fitting_ubatch = self.fitting_ubatch(facts, limits, machine);
        let off = |reason| match fitting_ubatch {
            Some(n_ubatch) => (FlashAttention::Off, n_ubatch, reason),
            None => without_scores(FlashAttention::On, "the scores without it would take too much memory"),
        };
        let tuned = self.tuned.and_then(|tuned| tuned.flash_attention);
        match (self.flash_attention, tuned) {
            (FlashAttention::On, _) => without_scores(FlashAttention::On, "asked for"),
            (FlashAttention::Off, _) => {
                let least = self.n_ubatch.map_or_else(|| min_ubatch(limits), |_| limits.n_ubatch);
                (FlashAttention::Off, fitting_ubatch.unwrap_or(least), "asked for")
            }
            (FlashAttention::Auto, _) if self.type_v.is_quantized() => {
                without_scores(FlashAttention::On, "a quantised V needs it")
            }
            (FlashAttention::Auto, Some(true)) => without_scores(FlashAttention::On, "tuned"),
            (FlashAttention::Auto, Some(false)) => off("tuned"),
            (FlashAttention::Auto, None) if machine.is_offloaded => without_scores(FlashAttention::Auto, "the rule for GPUs"),
            (FlashAttention::Auto, None) if self.lacks_coverage(machine) => {
                off("weft's lacks the model's heads or the cache's formats; shared prompts decode faster so")
            }
            (FlashAttention::Auto, None) => off("the rule for CPUs: shared prompts decode faster"),
        }
    }

    /// Returns whether our attention is usable here, but not for this model with this cache.
    fn lacks_coverage(&self, machine: &MachineFacts) -> bool {
        let KernelSupport { usable, covers_attention, .. } = machine.ours;
        self.kernels != KernelChoice::LlamaCpp && usable.attention && !covers_attention
    }

    /// Returns the maximum tokens per decode whose attention scores fit the memory reserved for them; `None` if even the
    /// minimum does not fit. A configured value is not lowered.
    fn fitting_ubatch(&self, facts: &ModelFacts, limits: &Limits, machine: &MachineFacts) -> Option<u32> {
        let cache_bytes = u64::from(limits.n_ctx) * facts.kv_bytes_per_token;
        let max_score_bytes = machine.free_bytes.saturating_sub(cache_bytes) / SCORES_FRACTION;
        let fits = |n_ubatch: u32| score_bytes(facts.n_heads, limits.n_ctx, n_ubatch) <= max_score_bytes;
        let least = if self.n_ubatch.is_some() { limits.n_ubatch } else { min_ubatch(limits) };
        let halves = std::iter::successors(Some(limits.n_ubatch), |n| Some(n / 2)).take_while(|&n| n > least);
        halves.chain([least]).find(|&n| fits(n))
    }
}

/// Returns the smallest useful decode: one token per slot plus a prefill chunk, and chunks that are worthwhile.
fn min_ubatch(limits: &Limits) -> u32 {
    MIN_UBATCH.max(limits.n_slots + MIN_CHUNK).min(limits.n_ubatch)
}

/// Size of the score buffer, in bytes, that llama.cpp reserves for a decode without flash attention.
fn score_bytes(n_heads: u32, n_ctx: u32, n_ubatch: u32) -> u64 {
    u64::from(n_heads).saturating_mul(u64::from(n_ctx)).saturating_mul(u64::from(n_ubatch)).saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KvType;

    /// 14 heads over 32,768 cells: 1.75 MiB of scores for each token of a decode.
    const FACTS: ModelFacts =
        ModelFacts { n_ctx_train: 32_768, kv_bytes_per_token: 12_288, keeps_whole_states: false, n_heads: 14 };
    /// All our kernels, with weights in their on-disk layout.
    const OURS: KernelSupport = KernelSupport {
        usable: EnabledKernels::ALL,
        level: "avx512",
        why_not: None,
        covers_attention: true,
        weights: WeightLayout::AsInFile,
    };
    const NONE_OF_OURS: KernelSupport = KernelSupport {
        usable: EnabledKernels::NONE,
        why_not: Some("an old processor"),
        weights: WeightLayout::Repacked,
        ..OURS
    };
    const CPU: MachineFacts =
        MachineFacts { is_offloaded: false, n_cores: 6, n_processors: 12, free_bytes: 20 << 30, ours: OURS };
    /// A machine that supports llama.cpp's attention only.
    const OLD_CPU: MachineFacts = MachineFacts { ours: NONE_OF_OURS, ..CPU };
    const GPU: MachineFacts = MachineFacts { is_offloaded: true, ..CPU };
    const TUNED: TunedSettings = TunedSettings { flash_attention: Some(true), n_threads: 4, n_threads_batch: 12 };
    const PRODUCTS: EnabledKernels = EnabledKernels { attention: false, products: true };

    fn choose(machine: MachineFacts, change: impl FnOnce(&mut EngineConfig)) -> ComputeConfig {
        let mut config = EngineConfig::default();
        change(&mut config);
        let limits = config.settle(&FACTS, 20 << 30, 64 << 30).expect("the configuration is valid");
        config.choose(&FACTS, &limits, &machine)
    }

    fn with(ours: KernelSupport) -> MachineFacts {
        MachineFacts { ours, ..CPU }
    }

    /// Returns the part of the summary about products.
    fn products(choice: &ComputeConfig) -> &str {
        let from = choice.summary.find("products").expect("every summary names the products");
        choice.summary[from..].split(", at most").next().expect("a split has a first part")
    }

    #[test]
    fn our_kernels_use_every_physical_core_of_a_cpu() {
        let choice = choose(CPU, |_| ());
        assert_eq!((choice.flash_attention, choice.used, choice.n_ubatch), (FlashAttention::On, EnabledKernels::ALL, 512));
        assert_eq!((choice.n_threads, choice.n_threads_batch), (6, 6));
        let ours = "attention by weft (avx512), products by weft (avx512)";
        assert_eq!(choice.summary, format!("{ours}, at most 512 tokens per decode, 6 threads (physical cores)"));
        assert_eq!(choose(CPU, |config| config.kernels = KernelChoice::Weft), choice);
    }

    #[test]
    fn our_attention_needs_no_score_buffer_and_ignores_tuned_flash_attention() {
        let choice = choose(MachineFacts { free_bytes: 0, ..CPU }, |config| config.tuned = Some(TUNED));
        assert_eq!((choice.flash_attention, choice.used, choice.n_ubatch), (FlashAttention::On, EnabledKernels::ALL, 512));
        assert_eq!((choice.n_threads, choice.n_threads_batch), (4, 12));
        let quantised = choose(CPU, |config| config.type_v = KvType::Q8_0);
        assert_eq!((quantised.flash_attention, quantised.used), (FlashAttention::On, EnabledKernels::ALL));
    }

    #[test]
    fn explicit_flash_attention_is_llama_cpps_with_our_products() {
        for (asked, words) in [(FlashAttention::On, "on"), (FlashAttention::Off, "off")] {
            for kernels in [KernelChoice::Auto, KernelChoice::Weft] {
                let choice = choose(CPU, |config| (config.flash_attention, config.kernels) = (asked, kernels));
                assert_eq!((choice.flash_attention, choice.used), (asked, PRODUCTS));
                let attention = format!("attention by llama.cpp with flash {words} (asked for), products by weft (avx512), ");
                assert!(choice.summary.starts_with(&attention), "{}", choice.summary);
            }
        }
    }

    #[test]
    fn llama_cpp_kernels_disable_all_of_ours() {
        for machine in [with(OURS), with(KernelSupport { weights: WeightLayout::Repacked, ..OURS })] {
            let choice = choose(machine, |config| config.kernels = KernelChoice::LlamaCpp);
            assert_eq!((choice.flash_attention, choice.used, choice.n_ubatch), (FlashAttention::Off, EnabledKernels::NONE, 512));
            let rule = "attention by llama.cpp with flash off (the rule for CPUs: shared prompts decode faster)";
            let products = "products by llama.cpp (asked for)";
            let rest = "at most 512 tokens per decode, 6 threads (physical cores)";
            assert_eq!(choice.summary, format!("{rule}, {products}, {rest}"));
        }
        let choice = choose(GPU, |config| config.kernels = KernelChoice::LlamaCpp);
        assert_eq!((choice.flash_attention, choice.used), (FlashAttention::Auto, EnabledKernels::NONE));
    }

    #[test]
    fn unsupported_attention_falls_back_to_llama_cpps() {
        let uncovered = with(KernelSupport { covers_attention: false, ..OURS });
        let choice = choose(uncovered, |_| ());
        assert_eq!((choice.flash_attention, choice.used), (FlashAttention::Off, PRODUCTS));
        let rule = "attention by llama.cpp with flash off (weft's lacks the model's heads or the cache's formats; ";
        assert!(choice.summary.starts_with(rule), "{}", choice.summary);
        let quantised = choose(uncovered, |config| config.type_v = KvType::Q4_0);
        assert_eq!((quantised.flash_attention, quantised.used), (FlashAttention::On, PRODUCTS));
        // With no memory for scores, llama.cpp's attention runs with flash.
        let small = choose(MachineFacts { free_bytes: 0, ..uncovered }, |_| ());
        assert_eq!((small.flash_attention, small.used, small.n_ubatch), (FlashAttention::On, PRODUCTS, 512));
    }

    #[test]
    fn kernels_that_failed_their_trial_are_disabled_with_a_reason() {
        let choice = choose(OLD_CPU, |_| ());
        assert_eq!((choice.flash_attention, choice.used), (FlashAttention::Off, EnabledKernels::NONE));
        assert_eq!(products(&choice), "products by llama.cpp (none by weft: an old processor)");
        let half = with(KernelSupport { usable: PRODUCTS, why_not: Some("attention failed"), ..OURS });
        let choice = choose(half, |_| ());
        assert_eq!((choice.flash_attention, choice.used), (FlashAttention::Off, PRODUCTS));
        assert_eq!(products(&choice), "products by weft (avx512) (not all by weft: attention failed)");
        let asked = choose(half, |config| config.kernels = KernelChoice::LlamaCpp);
        assert_eq!(products(&asked), "products by llama.cpp (asked for)");
    }

    #[test]
    fn products_with_rearranged_weights_are_llama_cpps() {
        let words = |weights| products(&choose(with(KernelSupport { weights, ..OURS }), |_| ())).to_owned();
        assert_eq!(words(WeightLayout::AsInFile), "products by weft (avx512)");
        assert_eq!(words(WeightLayout::Repacked), "products by weft (avx512) where weights are not repacked");
        assert_eq!(words(WeightLayout::Amx), "products by weft (avx512) where weights are not laid out for AMX");
    }

    #[test]
    fn llama_cpp_decides_on_a_gpu() {
        let choice = choose(GPU, |_| ());
        assert_eq!((choice.flash_attention, choice.used), (FlashAttention::Auto, EnabledKernels::ALL));
        let words = "attention left to llama.cpp (the rule for GPUs), products on the CPU by weft (avx512), ";
        assert!(choice.summary.starts_with(words), "{}", choice.summary);
    }

    #[test]
    fn a_quantised_v_needs_flash_attention() {
        let choice = choose(OLD_CPU, |config| (config.type_v, config.tuned) = (KvType::Q8_0, None));
        assert_eq!(choice.flash_attention, FlashAttention::On);
        let tuned_off = TunedSettings { flash_attention: Some(false), ..TUNED };
        let choice = choose(OLD_CPU, |config| (config.type_v, config.tuned) = (KvType::Q8_0, Some(tuned_off)));
        assert_eq!(choice.flash_attention, FlashAttention::On);
    }

    #[test]
    fn decodes_shrink_before_flash_attention_is_enabled() {
        // The KV cache takes 384 MiB, and a quarter of the rest is for scores: 256 tokens take 448 MiB, 64 take 112.
        let with = |scores_mib: u64| MachineFacts { free_bytes: (384 + 4 * scores_mib) << 20, ..OLD_CPU };
        let chosen = |scores_mib| {
            let ComputeConfig { flash_attention, n_ubatch, .. } = choose(with(scores_mib), |_| ());
            (flash_attention, n_ubatch)
        };
        assert_eq!(chosen(896), (FlashAttention::Off, 512));
        assert_eq!(chosen(895), (FlashAttention::Off, 256));
        assert_eq!(chosen(112), (FlashAttention::Off, 64));
        assert_eq!(chosen(111), (FlashAttention::On, 512));
        // A configured value is kept.
        let asked = choose(with(895), |config| config.n_ubatch = Some(512));
        assert_eq!((asked.flash_attention, asked.n_ubatch), (FlashAttention::On, 512));
        let off = choose(with(111), |config| config.flash_attention = FlashAttention::Off);
        assert_eq!((off.flash_attention, off.n_ubatch), (FlashAttention::Off, 64));
    }

    #[test]
    fn a_decode_fits_every_slot_even_without_free_memory() {
        let choice = choose(MachineFacts { free_bytes: 0, ..OLD_CPU }, |config| {
            (config.n_slots, config.flash_attention) = (Some(100), FlashAttention::Off);
        });
        assert_eq!(choice.n_ubatch, 116);
    }

    #[test]
    fn tuned_settings_override_the_rule_and_the_user_overrides_both() {
        for machine in [OLD_CPU, GPU] {
            let choice = choose(machine, |config| config.tuned = Some(TUNED));
            assert_eq!((choice.flash_attention, choice.used), (FlashAttention::On, machine.ours.usable));
            assert_eq!((choice.n_threads, choice.n_threads_batch), (4, 12));
            assert!(choice.summary.ends_with("4 threads (tuned), 12 for prompts (tuned)"), "{}", choice.summary);
        }
        // If our kernel computed attention during tuning, the file leaves llama.cpp's attention to the rule.
        let threads_only = TunedSettings { flash_attention: None, ..TUNED };
        let choice = choose(OLD_CPU, |config| config.tuned = Some(threads_only));
        assert_eq!((choice.flash_attention, choice.n_threads), (FlashAttention::Off, 4));
        let asked = choose(OLD_CPU, |config| {
            (config.tuned, config.flash_attention, config.n_threads) = (Some(TUNED), FlashAttention::Off, Some(3));
        });
        assert_eq!((asked.flash_attention, asked.n_threads, asked.n_threads_batch), (FlashAttention::Off, 3, 3));
        let batch = choose(CPU, |config| (config.tuned, config.n_threads_batch) = (Some(TUNED), Some(5)));
        assert_eq!((batch.n_threads, batch.n_threads_batch), (4, 5));
    }

    #[test]
    fn threads_never_exceed_processors() {
        let many = choose(CPU, |config| config.n_threads = Some(64));
        assert_eq!((many.n_threads, many.n_threads_batch), (12, 12));
        assert!(many.summary.ends_with("12 threads (all processors)"), "{}", many.summary);
        let batch = choose(CPU, |config| (config.n_threads, config.n_threads_batch) = (Some(2), Some(13)));
        assert!(batch.summary.ends_with("2 threads (asked for), 12 for prompts (all processors)"), "{}", batch.summary);
    }

    #[test]
    fn a_model_without_attention_has_nothing_to_choose() {
        let facts = ModelFacts { n_heads: 0, kv_bytes_per_token: 0, ..FACTS };
        let config = EngineConfig::default();
        let limits = config.settle(&facts, 0, 0).expect("the configuration is valid");
        let choice = config.choose(&facts, &limits, &MachineFacts { free_bytes: 0, ..CPU });
        assert_eq!((choice.flash_attention, choice.used, choice.n_ubatch), (FlashAttention::Auto, PRODUCTS, 512));
        assert!(choice.summary.starts_with("attention left to llama.cpp (the model has none), "), "{}", choice.summary);
    }
}
