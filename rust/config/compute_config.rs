//! How steps are computed: as the user says, else as it was measured to be fastest here, else by a rule.
//!
//! The rule for attention on a CPU: ours wherever it applies. Where it does not (formats of the cache or sizes of heads that it
//! lacks, `--kernels llama.cpp`), llama.cpp's without flash attention, unless V is quantised or the memory is short. Milliseconds
//! per step of a model of 0.5B (896 × 24 layers, 14 heads of which 2 keep K and V, 8 bits) on two cores with AVX-512, in one run:
//! llama.cpp with flash attention on and off, and an engine with our kernels:
//!
//! | sequences × tokens | on | off | ours |
//! | --- | --- | --- | --- |
//! | 32 × 1,000 of one prompt | 313 | 223 | 70 |
//! | 8 × 1,000 of one prompt | 116 | 100 | 25 |
//! | 8 × 4,000 of one prompt | 205 | 142 | 49 |
//! | 8 × 1,000 of their own | 142 | 146 | 36 |
//! | 1 × 1,000 | 26 | 22 | 16 |
//! | 32 × 250 of their own | 218 | 440 | 49 |
//!
//! llama.cpp's fused kernel looks at each row, head and cell alone; without it the scores are one dense product, which is best where
//! rows share their cells, and loses where many rows share none. Its price is a buffer for all scores of a decode: heads × cells ×
//! rows × 4 bytes. Ours spends a product on what a row sees, and computes for all rows at once what several of them see, so that
//! there is nothing to choose.
//!
//! Threads: one for each physical core. Two threads of one core share its arithmetic, and each layer waits for the slowest thread.

use crate::config::{
    EnabledKernels, EngineConfig, FlashAttention, KernelChoice, KernelSupport, Limits, MIN_CHUNK, ModelFacts, WeightLayout,
};

/// Tokens of one decode where none are asked for.
pub(super) const DEFAULT_UBATCH: u32 = 512;

/// Decodes are not made smaller than this to save memory: prompts would lose more than flash attention costs.
const LEAST_UBATCH: u32 = 64;

/// One part in so many of the memory that the pool leaves free may be taken by attention scores.
const SCORES_SHARE: u64 = 4;

/// What was measured to be fastest for a model on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunedSettings {
    /// Whether llama.cpp's attention is to run as one fused kernel; `None` where ours computed, and there was nothing to choose.
    pub flash_attention: Option<bool>,
    /// Threads of a decode without rows of prompts.
    pub n_threads: u32,
    /// Threads of a decode with rows of prompts.
    pub n_threads_batch: u32,
}

/// What [`EngineConfig::choose`] needs to know of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineFacts {
    /// Whether layers of the model are on a GPU.
    pub is_offloaded: bool,
    /// Physical cores that this process may use.
    pub n_cores: u32,
    /// Threads that may run at once, where they are to.
    pub n_processors: u32,
    /// Bytes of memory that are free where the pool goes, before it is made.
    pub free_bytes: u64,
    /// What our kernels can do for the model.
    pub ours: KernelSupport,
}

impl MachineFacts {
    /// `n` threads, or as many as there are processors, and the reason. Threads of a step wait for each other at full speed many
    /// times: where two share a processor, it takes a thousand times as long.
    fn at_most<'a>(&self, n: u32, why: &'a str) -> (u32, &'a str) {
        if n > self.n_processors { (self.n_processors, "all processors") } else { (n, why) }
    }
}

/// How every step of an engine is computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeConfig {
    /// [`FlashAttention::Auto`] where llama.cpp decides.
    pub flash_attention: FlashAttention,
    /// Which of our kernels compute.
    pub used: EnabledKernels,
    /// Most tokens of one decode.
    pub n_ubatch: u32,
    /// Threads of a decode without rows of prompts.
    pub n_threads: u32,
    /// Threads of a decode with rows of prompts.
    pub n_threads_batch: u32,
    /// All of it in one line, with the reasons.
    pub summary: String,
}

impl EngineConfig {
    /// Chooses how steps are computed in a pool of these `limits`, whose `n_ubatch` is the most that it may be.
    #[must_use]
    pub fn choose(&self, facts: &ModelFacts, limits: &Limits, machine: &MachineFacts) -> ComputeConfig {
        let used = self.used_for(facts, machine);
        let (flash_attention, n_ubatch, attention) = if self.has_own_attention(facts, machine) {
            (FlashAttention::On, limits.n_ubatch, format!("attention by weft ({})", machine.ours.level))
        } else {
            let (flash_attention, n_ubatch, why) = self.choose_llama_cpps(facts, limits, machine);
            let whose = match flash_attention {
                FlashAttention::On => "by llama.cpp with flash on",
                FlashAttention::Off => "by llama.cpp with flash off",
                FlashAttention::Auto => "left to llama.cpp",
            };
            (flash_attention, n_ubatch, format!("attention {whose} ({why})"))
        };
        let (n_threads, why_threads) = match (self.n_threads, self.tuned) {
            (Some(n), _) => (n, "asked for"),
            (None, Some(tuned)) => (tuned.n_threads, "tuned"),
            (None, None) => (machine.n_cores, "physical cores"),
        };
        let (n_threads_batch, why_batch) = match (self.n_threads_batch, self.n_threads, self.tuned) {
            (Some(n), ..) => (n, "asked for"),
            (None, Some(n), _) => (n, why_threads),
            (None, None, Some(tuned)) => (tuned.n_threads_batch, why_threads),
            (None, None, None) => (n_threads, why_threads),
        };
        let (n_threads, why_threads) = machine.at_most(n_threads, why_threads);
        let (n_threads_batch, why_batch) = machine.at_most(n_threads_batch, why_batch);
        let threads = match n_threads_batch {
            n if n == n_threads && why_batch == why_threads => format!("{n} threads ({why_threads})"),
            n => format!("{n_threads} threads ({why_threads}), {n} for prompts ({why_batch})"),
        };
        let products = self.products_in_words(used, machine);
        let summary = format!("{attention}, {products}, at most {n_ubatch} tokens per decode, {threads}");
        ComputeConfig { flash_attention, used, n_ubatch, n_threads, n_threads_batch, summary }
    }

    /// Whether our attention computes every layer: there is nothing to choose, and no buffer of scores.
    #[must_use]
    pub fn has_own_attention(&self, facts: &ModelFacts, machine: &MachineFacts) -> bool {
        self.used_for(facts, machine).attention && !machine.is_offloaded
    }

    /// Which of our kernels compute what the CPU computes. Where flash attention was asked for, or its absence, llama.cpp's own is.
    #[must_use]
    pub fn used_for(&self, facts: &ModelFacts, machine: &MachineFacts) -> EnabledKernels {
        let KernelSupport { usable, covers_attention, .. } = machine.ours;
        if self.kernels == KernelChoice::LlamaCpp {
            return EnabledKernels::NONE;
        }
        let is_open = self.flash_attention == FlashAttention::Auto;
        EnabledKernels { attention: usable.attention && covers_attention && is_open && facts.n_heads > 0, ..usable }
    }

    /// Whose products those of weights are, and why.
    fn products_in_words(&self, used: EnabledKernels, machine: &MachineFacts) -> String {
        let KernelSupport { usable, level, why_not, weights, .. } = machine.ours;
        let whose = match (used.products, weights) {
            (false, _) if self.kernels == KernelChoice::LlamaCpp => "products by llama.cpp (asked for)".to_owned(),
            (false, _) => "products by llama.cpp".to_owned(),
            (true, _) if machine.is_offloaded => format!("products on the CPU by weft ({level})"),
            (true, WeightLayout::AsInFile) => format!("products by weft ({level})"),
            (true, WeightLayout::Repacked) => format!("products by weft ({level}) where weights are not repacked"),
            (true, WeightLayout::Amx) => format!("products by weft ({level}) where weights are not laid out for AMX"),
        };
        match why_not {
            Some(_) if self.kernels == KernelChoice::LlamaCpp => whose,
            Some(why_not) if usable == EnabledKernels::NONE => format!("{whose} (none by weft: {why_not})"),
            Some(why_not) => format!("{whose} (not all by weft: {why_not})"),
            None => whose,
        }
    }

    /// Chooses between llama.cpp's own attentions.
    fn choose_llama_cpps(
        &self,
        facts: &ModelFacts,
        limits: &Limits,
        machine: &MachineFacts,
    ) -> (FlashAttention, u32, &'static str) {
        let without_scores = |flash_attention, why| (flash_attention, limits.n_ubatch, why);
        if facts.n_heads == 0 {
            return without_scores(FlashAttention::Auto, "the model has none");
        }
        let fitting = self.fitting_ubatch(facts, limits, machine);
        let off = |why| match fitting {
            Some(n_ubatch) => (FlashAttention::Off, n_ubatch, why),
            None => without_scores(FlashAttention::On, "the scores without it would take too much memory"),
        };
        let tuned = self.tuned.and_then(|tuned| tuned.flash_attention);
        match (self.flash_attention, tuned) {
            (FlashAttention::On, _) => without_scores(FlashAttention::On, "asked for"),
            (FlashAttention::Off, _) => {
                let least = self.n_ubatch.map_or_else(|| least_ubatch(limits), |_| limits.n_ubatch);
                (FlashAttention::Off, fitting.unwrap_or(least), "asked for")
            }
            (FlashAttention::Auto, _) if self.type_v.is_quantized() => {
                without_scores(FlashAttention::On, "a quantised V needs it")
            }
            (FlashAttention::Auto, Some(true)) => without_scores(FlashAttention::On, "tuned"),
            (FlashAttention::Auto, Some(false)) => off("tuned"),
            (FlashAttention::Auto, None) if machine.is_offloaded => without_scores(FlashAttention::Auto, "the rule for GPUs"),
            (FlashAttention::Auto, None) if self.lacks_cover(machine) => {
                off("weft's lacks the model's heads or the cache's formats; shared prompts decode faster so")
            }
            (FlashAttention::Auto, None) => off("the rule for CPUs: shared prompts decode faster"),
        }
    }

    /// Whether our attention is usable here, but not for this model with this cache.
    fn lacks_cover(&self, machine: &MachineFacts) -> bool {
        let KernelSupport { usable, covers_attention, .. } = machine.ours;
        self.kernels != KernelChoice::LlamaCpp && usable.attention && !covers_attention
    }

    /// The most tokens per decode whose attention scores fit the memory set aside for them; `None` where even the fewest do not.
    /// A number that was asked for is not lowered.
    fn fitting_ubatch(&self, facts: &ModelFacts, limits: &Limits, machine: &MachineFacts) -> Option<u32> {
        let pool_bytes = u64::from(limits.n_ctx) * facts.kv_bytes_per_token;
        let aside_bytes = machine.free_bytes.saturating_sub(pool_bytes) / SCORES_SHARE;
        let fits = |n_ubatch: u32| score_bytes(facts.n_heads, limits.n_ctx, n_ubatch) <= aside_bytes;
        let least = if self.n_ubatch.is_some() { limits.n_ubatch } else { least_ubatch(limits) };
        let halves = std::iter::successors(Some(limits.n_ubatch), |n| Some(n / 2)).take_while(|&n| n > least);
        halves.chain([least]).find(|&n| fits(n))
    }
}

/// Room for a token of every slot and a chunk beside them, and for chunks worth computing.
fn least_ubatch(limits: &Limits) -> u32 {
    LEAST_UBATCH.max(limits.n_slots + MIN_CHUNK).min(limits.n_ubatch)
}

/// What llama.cpp reserves for the scores of a decode without flash attention.
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
    /// Our kernels in full, over weights as they are in the file.
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
    /// Where llama.cpp's own attentions are all there is.
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

    /// The part of the summary that says whose products are used.
    fn products(choice: &ComputeConfig) -> &str {
        let from = choice.summary.find("products").expect("every summary names the products");
        choice.summary[from..].split(", at most").next().expect("a split has a first part")
    }

    #[test]
    fn on_a_cpu_our_kernels_compute_on_every_core() {
        let choice = choose(CPU, |_| ());
        assert_eq!((choice.flash_attention, choice.used, choice.n_ubatch), (FlashAttention::On, EnabledKernels::ALL, 512));
        assert_eq!((choice.n_threads, choice.n_threads_batch), (6, 6));
        let ours = "attention by weft (avx512), products by weft (avx512)";
        assert_eq!(choice.summary, format!("{ours}, at most 512 tokens per decode, 6 threads (physical cores)"));
        assert_eq!(choose(CPU, |config| config.kernels = KernelChoice::Weft), choice);
    }

    #[test]
    fn our_attention_keeps_no_scores_and_nothing_was_there_to_tune() {
        let choice = choose(MachineFacts { free_bytes: 0, ..CPU }, |config| config.tuned = Some(TUNED));
        assert_eq!((choice.flash_attention, choice.used, choice.n_ubatch), (FlashAttention::On, EnabledKernels::ALL, 512));
        assert_eq!((choice.n_threads, choice.n_threads_batch), (4, 12));
        let quantised = choose(CPU, |config| config.type_v = KvType::Q8_0);
        assert_eq!((quantised.flash_attention, quantised.used), (FlashAttention::On, EnabledKernels::ALL));
    }

    #[test]
    fn flash_attention_that_is_asked_for_is_llama_cpps_and_products_stay_ours() {
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
    fn with_llama_cpps_kernels_all_is_as_it_was_without_ours() {
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
    fn what_our_attention_does_not_cover_is_llama_cpps_by_the_old_rule() {
        let uncovered = with(KernelSupport { covers_attention: false, ..OURS });
        let choice = choose(uncovered, |_| ());
        assert_eq!((choice.flash_attention, choice.used), (FlashAttention::Off, PRODUCTS));
        let rule = "attention by llama.cpp with flash off (weft's lacks the model's heads or the cache's formats; ";
        assert!(choice.summary.starts_with(rule), "{}", choice.summary);
        let quantised = choose(uncovered, |config| config.type_v = KvType::Q4_0);
        assert_eq!((quantised.flash_attention, quantised.used), (FlashAttention::On, PRODUCTS));
        // A pool without room for scores takes flash attention: llama.cpp's, too.
        let small = choose(MachineFacts { free_bytes: 0, ..uncovered }, |_| ());
        assert_eq!((small.flash_attention, small.used, small.n_ubatch), (FlashAttention::On, PRODUCTS, 512));
    }

    #[test]
    fn kernels_that_failed_their_trial_are_not_used_and_the_reason_is_told() {
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
    fn products_of_rearranged_weights_are_llama_cpps() {
        let words = |weights| products(&choose(with(KernelSupport { weights, ..OURS }), |_| ())).to_owned();
        assert_eq!(words(WeightLayout::AsInFile), "products by weft (avx512)");
        assert_eq!(words(WeightLayout::Repacked), "products by weft (avx512) where weights are not repacked");
        assert_eq!(words(WeightLayout::Amx), "products by weft (avx512) where weights are not laid out for AMX");
    }

    #[test]
    fn on_a_gpu_llama_cpp_decides() {
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
    fn where_the_scores_do_not_fit_decodes_become_smaller_first() {
        // The pool takes 384 MiB, and a quarter of the rest is for scores: 256 tokens take 448 MiB, 64 take 112.
        let with = |scores_mib: u64| MachineFacts { free_bytes: (384 + 4 * scores_mib) << 20, ..OLD_CPU };
        let chosen = |scores_mib| {
            let ComputeConfig { flash_attention, n_ubatch, .. } = choose(with(scores_mib), |_| ());
            (flash_attention, n_ubatch)
        };
        assert_eq!(chosen(896), (FlashAttention::Off, 512));
        assert_eq!(chosen(895), (FlashAttention::Off, 256));
        assert_eq!(chosen(112), (FlashAttention::Off, 64));
        assert_eq!(chosen(111), (FlashAttention::On, 512));
        // What was asked for stays.
        let asked = choose(with(895), |config| config.n_ubatch = Some(512));
        assert_eq!((asked.flash_attention, asked.n_ubatch), (FlashAttention::On, 512));
        let off = choose(with(111), |config| config.flash_attention = FlashAttention::Off);
        assert_eq!((off.flash_attention, off.n_ubatch), (FlashAttention::Off, 64));
    }

    #[test]
    fn a_decode_keeps_room_for_every_slot_however_little_memory_there_is() {
        let choice = choose(MachineFacts { free_bytes: 0, ..OLD_CPU }, |config| {
            (config.n_slots, config.flash_attention) = (Some(100), FlashAttention::Off);
        });
        assert_eq!(choice.n_ubatch, 116);
    }

    #[test]
    fn what_was_measured_wins_over_the_rule_and_a_user_over_both() {
        for machine in [OLD_CPU, GPU] {
            let choice = choose(machine, |config| config.tuned = Some(TUNED));
            assert_eq!((choice.flash_attention, choice.used), (FlashAttention::On, machine.ours.usable));
            assert_eq!((choice.n_threads, choice.n_threads_batch), (4, 12));
            assert!(choice.summary.ends_with("4 threads (tuned), 12 for prompts (tuned)"), "{}", choice.summary);
        }
        // A file that was measured where ours computed leaves llama.cpp's attention to the rule.
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
    fn there_are_never_more_threads_than_processors() {
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
