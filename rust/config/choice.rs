//! How steps are computed: as the user says, else as it was measured to be fastest here, else by a rule.
//!
//! The rule for attention, with milliseconds per step of a model of 0.5B (896 × 24 layers, 14 heads of which 2 keep K and V) on
//! two cores of a Xeon with AMX, flash attention on and off:
//!
//! | sequences × tokens | on | off |
//! | --- | --- | --- |
//! | 32 × 1,000 of one prompt | 600 | 117 to 158 |
//! | 8 × 1,000 of one prompt | 195 | 57 to 60 |
//! | 8 × 4,000 of one prompt | 553 | 96 |
//! | 8 × 1,000 of their own | 199 to 226 | 137 to 153 |
//! | 1 × 1,000 | 48 | 32 |
//! | 32 × 250 of their own | 288 | 526 |
//!
//! On a CPU llama.cpp's fused kernel looks at each row, head and cell alone; without it the scores are one dense product, which
//! is best where rows share their cells, and loses only where many rows share none. Its price is a buffer for all scores of a
//! decode: heads × cells × rows × 4 bytes. Prompts lose a quarter of their speed (398 to 294 tokens per second at 2,048).
//!
//! Threads: one for each physical core. Two threads of one core share its arithmetic, and each layer waits for the slowest thread.

use crate::config::{EngineConfig, FlashAttention, Limits, MIN_CHUNK, ModelFacts};

/// Tokens of one decode where none are asked for.
pub(super) const DEFAULT_UBATCH: u32 = 512;

/// Decodes are not made smaller than this to save memory: prompts would lose more than flash attention costs.
const LEAST_UBATCH: u32 = 64;

/// One part in so many of the memory that the pool leaves free may be taken by attention scores.
const SCORES_SHARE: u64 = 4;

/// What was measured to be fastest for a model on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuned {
    /// Whether attention runs as one fused kernel.
    pub flash_attention: bool,
    /// Threads of a decode without rows of prompts.
    pub n_threads: u32,
    /// Threads of a decode with rows of prompts.
    pub n_threads_batch: u32,
}

/// What [`EngineConfig::choose`] needs to know of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Whether layers of the model are on a GPU.
    pub is_offloaded: bool,
    /// Physical cores that this process may use.
    pub n_cores: u32,
    /// Bytes of memory that are free where the pool goes, before it is made.
    pub free_bytes: u64,
}

/// How every step of an engine is computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// [`FlashAttention::Auto`] where llama.cpp decides.
    pub flash_attention: FlashAttention,
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
    pub fn choose(&self, facts: &ModelFacts, limits: &Limits, machine: &Machine) -> Choice {
        let (flash_attention, n_ubatch, why) = self.choose_attention(facts, limits, machine);
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
        let name = match flash_attention {
            FlashAttention::On => "on",
            FlashAttention::Off => "off",
            FlashAttention::Auto => "left to llama.cpp",
        };
        let threads = match n_threads_batch {
            n if n == n_threads && why_batch == why_threads => format!("{n} threads ({why_threads})"),
            n => format!("{n_threads} threads ({why_threads}), {n} for prompts ({why_batch})"),
        };
        let summary = format!("flash attention {name} ({why}), at most {n_ubatch} tokens per decode, {threads}");
        Choice { flash_attention, n_ubatch, n_threads, n_threads_batch, summary }
    }

    fn choose_attention(&self, facts: &ModelFacts, limits: &Limits, machine: &Machine) -> (FlashAttention, u32, &'static str) {
        let without_scores = |flash_attention, why| (flash_attention, limits.n_ubatch, why);
        if facts.n_heads == 0 {
            return without_scores(FlashAttention::Auto, "the model has no attention");
        }
        let fitting = self.fitting_ubatch(facts, limits, machine);
        let off = |why| match fitting {
            Some(n_ubatch) => (FlashAttention::Off, n_ubatch, why),
            None => without_scores(FlashAttention::On, "the scores without it would take too much memory"),
        };
        match (self.flash_attention, self.tuned) {
            (FlashAttention::On, _) => without_scores(FlashAttention::On, "asked for"),
            (FlashAttention::Off, _) => {
                let least = self.n_ubatch.map_or_else(|| least_ubatch(limits), |_| limits.n_ubatch);
                (FlashAttention::Off, fitting.unwrap_or(least), "asked for")
            }
            (FlashAttention::Auto, _) if self.type_v.is_quantized() => {
                without_scores(FlashAttention::On, "a quantised V needs it")
            }
            (FlashAttention::Auto, Some(Tuned { flash_attention: true, .. })) => without_scores(FlashAttention::On, "tuned"),
            (FlashAttention::Auto, Some(Tuned { flash_attention: false, .. })) => off("tuned"),
            (FlashAttention::Auto, None) if machine.is_offloaded => without_scores(FlashAttention::Auto, "the rule for GPUs"),
            (FlashAttention::Auto, None) => off("the rule for CPUs: shared prompts decode faster"),
        }
    }

    /// The most tokens per decode whose attention scores fit the memory set aside for them; `None` where even the fewest do not.
    /// A number that was asked for is not lowered.
    fn fitting_ubatch(&self, facts: &ModelFacts, limits: &Limits, machine: &Machine) -> Option<u32> {
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
    const CPU: Machine = Machine { is_offloaded: false, n_cores: 6, free_bytes: 20 << 30 };
    const GPU: Machine = Machine { is_offloaded: true, ..CPU };
    const TUNED: Tuned = Tuned { flash_attention: true, n_threads: 4, n_threads_batch: 12 };

    fn choose(machine: Machine, change: impl FnOnce(&mut EngineConfig)) -> Choice {
        let mut config = EngineConfig::default();
        change(&mut config);
        let limits = config.settle(&FACTS, 20 << 30, 64 << 30).expect("the configuration is valid");
        config.choose(&FACTS, &limits, &machine)
    }

    #[test]
    fn on_a_cpu_flash_attention_is_off_and_every_core_computes() {
        let choice = choose(CPU, |_| ());
        assert_eq!((choice.flash_attention, choice.n_ubatch), (FlashAttention::Off, 512));
        assert_eq!((choice.n_threads, choice.n_threads_batch), (6, 6));
        let rule = "flash attention off (the rule for CPUs: shared prompts decode faster)";
        assert_eq!(choice.summary, format!("{rule}, at most 512 tokens per decode, 6 threads (physical cores)"));
    }

    #[test]
    fn on_a_gpu_llama_cpp_decides() {
        assert_eq!(choose(GPU, |_| ()).flash_attention, FlashAttention::Auto);
    }

    #[test]
    fn a_quantised_v_needs_flash_attention() {
        let choice = choose(CPU, |config| (config.type_v, config.tuned) = (KvType::Q8_0, None));
        assert_eq!(choice.flash_attention, FlashAttention::On);
        let tuned_off = Tuned { flash_attention: false, ..TUNED };
        let choice = choose(CPU, |config| (config.type_v, config.tuned) = (KvType::Q8_0, Some(tuned_off)));
        assert_eq!(choice.flash_attention, FlashAttention::On);
    }

    #[test]
    fn where_the_scores_do_not_fit_decodes_become_smaller_first() {
        // The pool takes 384 MiB, and a quarter of the rest is for scores: 256 tokens take 448 MiB, 64 take 112.
        let with = |scores_mib: u64| Machine { free_bytes: (384 + 4 * scores_mib) << 20, ..CPU };
        let chosen = |scores_mib| {
            let Choice { flash_attention, n_ubatch, .. } = choose(with(scores_mib), |_| ());
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
        let choice = choose(Machine { free_bytes: 0, ..CPU }, |config| {
            (config.n_slots, config.flash_attention) = (Some(100), FlashAttention::Off);
        });
        assert_eq!(choice.n_ubatch, 116);
    }

    #[test]
    fn what_was_measured_wins_over_the_rule_and_a_user_over_both() {
        for machine in [CPU, GPU] {
            let choice = choose(machine, |config| config.tuned = Some(TUNED));
            assert_eq!(choice.flash_attention, FlashAttention::On);
            assert_eq!((choice.n_threads, choice.n_threads_batch), (4, 12));
            assert!(choice.summary.ends_with("4 threads (tuned), 12 for prompts (tuned)"), "{}", choice.summary);
        }
        let asked = choose(CPU, |config| {
            (config.tuned, config.flash_attention, config.n_threads) = (Some(TUNED), FlashAttention::Off, Some(3));
        });
        assert_eq!((asked.flash_attention, asked.n_threads, asked.n_threads_batch), (FlashAttention::Off, 3, 3));
        let batch = choose(CPU, |config| (config.tuned, config.n_threads_batch) = (Some(TUNED), Some(5)));
        assert_eq!((batch.n_threads, batch.n_threads_batch), (4, 5));
    }

    #[test]
    fn a_model_without_attention_has_nothing_to_choose() {
        let facts = ModelFacts { n_heads: 0, kv_bytes_per_token: 0, ..FACTS };
        let config = EngineConfig::default();
        let limits = config.settle(&facts, 0, 0).expect("the configuration is valid");
        let choice = config.choose(&facts, &limits, &Machine { free_bytes: 0, ..CPU });
        assert_eq!((choice.flash_attention, choice.n_ubatch), (FlashAttention::Auto, 512));
    }
}
