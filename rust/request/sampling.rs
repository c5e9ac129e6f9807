//! Sampling parameters of a request, and their limits.

use crate::config::with_defaults;
use crate::error::Result;
use crate::request::{SamplerKind, Token, ensure_at_most, ensure_value, reject, validate_len, validate_tokens};

pub const MAX_PROBS: u32 = 1_000;

pub const MAX_SAMPLERS: usize = 64;

pub const MAX_BREAKERS: usize = 64;

/// Maximum size of a sequence breaker, in bytes; only the first 40 count, as in llama.cpp.
pub const MAX_BREAKER_BYTES: usize = 1_024;

/// Version of Mirostat (Basu et al., 2020) that replaces the sampler chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mirostat {
    #[default]
    Off,
    /// Estimates the exponent of the tokens' distribution.
    V1,
    /// Removes tokens above a surprise threshold.
    V2,
}

with_defaults! {
    /// The penalty on tokens that would extend a repetition ("Don't repeat yourself", p-e-w, text-generation-webui#5677).
    #[derive(Debug, Clone, PartialEq)]
    pub struct Dry {
        /// 0 is off.
        pub multiplier: f32 = 0.0,
        /// Base that is raised to the length of the repetition beyond `allowed_length`; below 1 is off.
        pub base: f32 = 1.75,
        /// Repetitions of at most this many tokens are not penalized.
        pub allowed_length: i32 = 2,
        /// Window in tokens that is searched for repetitions; 0 is off, −1 the whole context.
        pub penalty_last_n: i32 = 64,
        /// Strings that end a repetition, at most [`MAX_BREAKERS`] of [`MAX_BREAKER_BYTES`] each.
        pub sequence_breakers: Vec<String> = ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
    }
}

impl Dry {
    pub(crate) fn is_on(&self) -> bool {
        self.multiplier != 0.0 && self.base >= 1.0 && self.penalty_last_n != 0
    }
}

with_defaults! {
    /// Parameters that select a token. Defaults and order are llama-server's: logit bias, `samplers`, the draw.
    #[derive(Debug, Clone, PartialEq)]
    pub struct SamplingParams {
        pub samplers: Vec<SamplerKind> = SamplerKind::DEFAULT.to_vec(),
        /// Divides the logits before the draw; 0 or less selects the most likely token.
        pub temperature: f32 = 0.8,
        /// Range of the dynamic temperature around `temperature`, which increases with entropy; 0 is off.
        pub dynatemp_range: f32 = 0.0,
        pub dynatemp_exponent: f32 = 1.0,
        /// Keeps the k most likely tokens; 0 or less keeps all.
        pub top_k: i32 = 40,
        /// Keeps the smallest set of most likely tokens whose probabilities sum to this; 1 keeps all.
        pub top_p: f32 = 0.95,
        /// Keeps tokens at least this fraction as likely as the most likely one; 0 keeps all.
        pub min_p: f32 = 0.05,
        /// Keeps the tokens whose surprise is closest to the entropy, up to this sum of probabilities; 1 keeps all.
        pub typical_p: f32 = 1.0,
        /// Keeps tokens whose logits are at most this many standard deviations below the greatest; 0 or less keeps all.
        pub top_n_sigma: f32 = -1.0,
        /// Tail-free sampling: removes the tail where the curve of probabilities is flat; 1 keeps all.
        pub tfs_z: f32 = 1.0,
        /// Probability of removing the most likely tokens; 0 and less is never, 1 and more always.
        pub xtc_probability: f32 = 0.0,
        /// XTC removes all but the least likely of the tokens with at least this probability; above 0.5 is off.
        pub xtc_threshold: f32 = 0.1,
        /// Minimum number of tokens that each filter keeps; at least 1 is kept in any case.
        pub min_keep: u32 = 0,
        /// Divides (or, for negative logits, multiplies) the logits of tokens seen in the window; 1 is off.
        pub repeat_penalty: f32 = 1.0,
        /// Window of the repeat, presence and frequency penalties in tokens; 0 is off, −1 is the whole context.
        pub repeat_last_n: i32 = 64,
        /// Subtracted once from the logit of every token seen in the window.
        pub presence_penalty: f32 = 0.0,
        /// Subtracted from the logit of a token for each time it is seen in the window.
        pub frequency_penalty: f32 = 0.0,
        /// Applies the penalties to newlines too.
        pub penalize_nl: bool = true,
        /// Tokens that the penalties count instead of the prompt; at most as many as a slot's context.
        pub penalty_prompt: Option<Vec<Token>> = None,
        pub dry: Dry = Dry::default(),
        pub mirostat: Mirostat = Mirostat::Off,
        /// Target surprise of Mirostat, in bits per token.
        pub mirostat_tau: f32 = 5.0,
        pub mirostat_eta: f32 = 0.1,
        /// Target probability of [`SamplerKind::AdaptiveP`], 0 to 1; below 0 is off, above 1 is 1.
        pub adaptive_target: f32 = -1.0,
        /// Decay of the adaptive target, 0 to 0.99: it averages over about 1 / (1 − decay) tokens.
        pub adaptive_decay: f32 = 0.9,
        /// Added to the logits; entries of one token add up; −∞ bans it. At most as many as the vocabulary has tokens: 0.3 ms per
        /// sampled token for 152,064, and 2 µs for 300, the limit of `OpenAI`.
        pub logit_bias: Vec<(Token, f32)> = Vec::new(),
        pub ignore_eos: bool = false,
        /// Number of top logprobs to report, in addition to the sampled token's; `None` reports no logprobs.
        pub logprobs: Option<u32> = None,
        /// Reports logprobs after the chain, instead of the model's.
        pub post_sampling_probs: bool = false,
    }
}

/// Lists the parameters that may be any finite number: their names, and values or references to them.
macro_rules! numbers {
    ($($params:tt)+) => {
        [
            ("temperature", $($params)+.temperature),
            ("dynatemp_range", $($params)+.dynatemp_range),
            ("dynatemp_exponent", $($params)+.dynatemp_exponent),
            ("top_p", $($params)+.top_p),
            ("min_p", $($params)+.min_p),
            ("typical_p", $($params)+.typical_p),
            ("top_n_sigma", $($params)+.top_n_sigma),
            ("tfs_z", $($params)+.tfs_z),
            ("xtc_probability", $($params)+.xtc_probability),
            ("xtc_threshold", $($params)+.xtc_threshold),
            ("presence_penalty", $($params)+.presence_penalty),
            ("frequency_penalty", $($params)+.frequency_penalty),
            ("dry_multiplier", $($params)+.dry.multiplier),
            ("dry_base", $($params)+.dry.base),
            ("mirostat_tau", $($params)+.mirostat_tau),
            ("mirostat_eta", $($params)+.mirostat_eta),
            ("adaptive_target", $($params)+.adaptive_target),
        ]
    };
}

impl SamplingParams {
    pub(super) fn has_xtc(&self) -> bool {
        self.samplers.contains(&SamplerKind::Xtc) && self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5
    }

    pub(crate) fn validate(&self, n_vocab: usize) -> Result<()> {
        ensure_at_most("logprobs", self.logprobs, MAX_PROBS)?;
        validate_len("samplers", self.samplers.len(), "entries", MAX_SAMPLERS)?;
        let windows = [("repeat_last_n", self.repeat_last_n), ("dry_penalty_last_n", self.dry.penalty_last_n)];
        for (param, value) in windows {
            ensure_value(value >= -1, param, value, "−1 or more")?;
        }
        // The penalties also divide by its inverse, which must be finite too.
        let penalty = self.repeat_penalty;
        let is_positive = penalty > 0.0 && penalty.is_finite() && penalty.recip().is_finite();
        ensure_value(is_positive, "repeat_penalty", penalty, "a finite number above 0")?;
        for (param, value) in self.numbers() {
            ensure_value(value.is_finite(), param, value, "a finite number")?;
        }
        ensure_value(self.dry.allowed_length >= 0, "dry_allowed_length", self.dry.allowed_length, "0 or more")?;
        ensure_value((0.0..=0.99).contains(&self.adaptive_decay), "adaptive_decay", self.adaptive_decay, "0 to 0.99")?;
        validate_len("dry_sequence_breakers", self.dry.sequence_breakers.len(), "strings", MAX_BREAKERS)?;
        if let Some(text) = self.dry.sequence_breakers.iter().find(|text| text.len() > MAX_BREAKER_BYTES) {
            let limit = format!("at most {MAX_BREAKER_BYTES} are allowed");
            let message = format!("dry_sequence_breakers has a string of {} bytes; {limit}", text.len());
            return reject("dry_sequence_breakers", message);
        }
        validate_tokens("penalty_prompt", self.penalty_prompt.iter().flatten(), n_vocab)?;
        let n_biases = self.logit_bias.len();
        if n_biases > n_vocab {
            let limit = format!("at most {n_vocab}, one for each piece of the vocabulary");
            return reject("logit_bias", format!("logit_bias has {n_biases} entries; it may have {limit}"));
        }
        validate_tokens("logit_bias", self.logit_bias.iter().map(|(token, _)| token), n_vocab)?;
        if let Some((token, bias)) = self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            let message = format!("the logit_bias of token {token} is {bias}; it must be a finite number or −∞");
            return reject("logit_bias", message);
        }
        Ok(())
    }

    fn numbers(&self) -> [(&'static str, f32); 17] {
        numbers!(self)
    }

    pub fn numbers_mut(&mut self) -> [(&'static str, &mut f32); 17] {
        numbers!(&mut self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::rejected_param_of;

    fn rejected_param(change: impl FnOnce(&mut SamplingParams)) -> Option<&'static str> {
        let mut params = SamplingParams::default();
        change(&mut params);
        rejected_param_of(params.validate(10))
    }

    #[test]
    fn values_that_llama_server_clamps_are_accepted() {
        assert_eq!(rejected_param(|p| (p.temperature, p.top_k, p.top_p, p.min_p) = (-1.0, -7, 1.5, 2.0)), None);
        assert_eq!(rejected_param(|p| (p.xtc_probability, p.xtc_threshold, p.adaptive_target) = (2.0, -1.0, 3.0)), None);
        assert_eq!(
            rejected_param(|p| (p.dynatemp_range, p.dynatemp_exponent, p.typical_p, p.tfs_z) = (-1.0, -1.0, -1.0, 9.0)),
            None
        );
        assert_eq!(rejected_param(|p| p.dry.sequence_breakers = vec![String::new(), "a".repeat(1_024)]), None);
    }

    #[test]
    fn meaningless_values_are_rejected_by_name() {
        assert_eq!(rejected_param(|p| p.repeat_penalty = 0.0), Some("repeat_penalty"));
        assert_eq!(rejected_param(|p| p.repeat_penalty = 1e-40), Some("repeat_penalty"));
        assert_eq!(rejected_param(|p| p.repeat_last_n = -2), Some("repeat_last_n"));
        assert_eq!(rejected_param(|p| p.dry.penalty_last_n = -2), Some("dry_penalty_last_n"));
        assert_eq!(rejected_param(|p| p.dry.allowed_length = -1), Some("dry_allowed_length"));
        assert_eq!(rejected_param(|p| p.adaptive_decay = 1.0), Some("adaptive_decay"));
        assert_eq!(rejected_param(|p| p.mirostat_tau = f32::NAN), Some("mirostat_tau"));
        assert_eq!(rejected_param(|p| p.dynatemp_exponent = f32::INFINITY), Some("dynatemp_exponent"));
        assert_eq!(rejected_param(|p| p.samplers = vec![SamplerKind::TopK; MAX_SAMPLERS + 1]), Some("samplers"));
        assert_eq!(rejected_param(|p| p.dry.sequence_breakers = vec!["a".repeat(1_025)]), Some("dry_sequence_breakers"));
        assert_eq!(rejected_param(|p| p.penalty_prompt = Some(vec![10])), Some("penalty_prompt"));
        assert_eq!(rejected_param(|p| p.logit_bias = vec![(-1, 1.0)]), Some("logit_bias"));
        assert_eq!(rejected_param(|p| p.logit_bias = vec![(3, 1.0); 11]), Some("logit_bias"));
        assert_eq!(rejected_param(|p| p.logit_bias = vec![(3, 1.0); 10]), None);
        assert_eq!(rejected_param(|p| p.logprobs = Some(MAX_PROBS + 1)), Some("logprobs"));
    }
}
