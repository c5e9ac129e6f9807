//! How the next token is chosen from a row of logits.

use crate::error::{Error, Result};
use crate::request::{SamplerKind, Token};

/// Most alternatives per token that [`SamplingParams::n_probs`] may ask for.
pub const MAX_PROBS: u32 = 1_000;

/// Most samplers in [`SamplingParams::samplers`].
pub const MAX_SAMPLERS: usize = 64;

/// Most sequence breakers of [`Dry`].
pub const MAX_BREAKERS: usize = 64;

/// Most bytes of one sequence breaker; of longer ones than 40 bytes the first 40 count, as in llama.cpp.
pub const MAX_BREAKER_BYTES: usize = 1_024;

/// Which version of Mirostat takes the place of the chain (Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly
/// Controls Perplexity", 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mirostat {
    /// The chain decides.
    #[default]
    Off,
    /// The first, which estimates the exponent of the tokens' distribution.
    V1,
    /// The second, which cuts off what is too surprising.
    V2,
}

/// The penalty on tokens that would go on with a repetition ("Don't repeat yourself", p-e-w, text-generation-webui#5677).
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// Strength; 0 is off.
    pub multiplier: f32,
    /// Raised to the length of the repetition beyond `allowed_length`; below 1 is off.
    pub base: f32,
    /// Repetitions of up to so many tokens are free.
    pub allowed_length: i32,
    /// Window in tokens in which repetitions are looked for; 0 is off, −1 the whole context.
    pub penalty_last_n: i32,
    /// Texts at which a repetition ends, at most [`MAX_BREAKERS`] of [`MAX_BREAKER_BYTES`] each.
    pub sequence_breakers: Vec<String>,
}

impl Dry {
    /// Whether it penalises anything.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.multiplier != 0.0 && self.base >= 1.0 && self.penalty_last_n != 0
    }
}

impl Default for Dry {
    fn default() -> Self {
        Self {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            penalty_last_n: 64,
            sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
        }
    }
}

/// How the next token is chosen from a row of logits.
///
/// The defaults and the order of the steps are llama-server's: logit bias first, then the chain of `samplers`, then the draw.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// The chain, in order.
    pub samplers: Vec<SamplerKind>,
    /// Divides the logits before the draw; 0 or less takes the most likely token.
    pub temperature: f32,
    /// The temperature moves by up to this much around `temperature`, the higher the more uncertain the model is; 0 is off.
    pub dynatemp_range: f32,
    /// Bends the way from uncertainty to temperature.
    pub dynatemp_exponent: f32,
    /// Keeps the k most likely tokens; 0 or less keeps all.
    pub top_k: i32,
    /// Keeps the smallest set of most likely tokens whose probabilities sum to this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Keeps the tokens that are about as surprising as the average one, up to this sum of probabilities; 1 keeps all.
    pub typical_p: f32,
    /// Keeps tokens whose logits are at most this many standard deviations below the greatest; 0 or less keeps all.
    pub top_n_sigma: f32,
    /// Cuts off the tail of the distribution where its curve has become flat; 1 keeps all.
    pub tfs_z: f32,
    /// How often the most likely tokens are taken away; 0 and less is never, 1 and more always.
    pub xtc_probability: f32,
    /// All but the least likely one of the tokens at least so likely are taken away; above 0.5 is off.
    pub xtc_threshold: f32,
    /// Fewest tokens that a filter leaves; 0 and 1 leave one at least.
    pub min_keep: u32,
    /// Divides (or, where negative, multiplies) the logits of tokens seen in the window; 1 is off.
    pub repeat_penalty: f32,
    /// Window of the three penalties in tokens; 0 is off, −1 is the whole context.
    pub repeat_last_n: i32,
    /// Subtracted once from the logit of every token seen in the window.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token for each time it is seen in the window.
    pub frequency_penalty: f32,
    /// Whether the penalties count newlines too.
    pub penalize_nl: bool,
    /// What the penalties see in place of the prompt; no longer than the context of a slot, as a prompt is.
    pub penalty_prompt: Option<Vec<Token>>,
    /// The penalty on repetitions.
    pub dry: Dry,
    /// Whether Mirostat takes the place of the chain.
    pub mirostat: Mirostat,
    /// Mirostat's aim, in bits of surprise per token.
    pub mirostat_tau: f32,
    /// How fast Mirostat learns.
    pub mirostat_eta: f32,
    /// Prefers tokens about as likely as this, 0 to 1; below 0 is off, above 1 is 1. Only where the chain has [`SamplerKind::AdaptiveP`].
    pub adaptive_target: f32,
    /// How long the adaptive target remembers, 0 to 0.99: about 1 / (1 − decay) tokens.
    pub adaptive_decay: f32,
    /// Added to the logits of these tokens, one after the other where a token stands here twice; −∞ bans a token.
    ///
    /// At most as many as the vocabulary has pieces, so that each of them may have one. All are added for every token that is drawn:
    /// 300, the limit of `OpenAI`, take 2 µs, and one for each of 152,064 pieces takes 0.3 ms.
    pub logit_bias: Vec<(Token, f32)>,
    /// Bans every end token.
    pub ignore_eos: bool,
    /// Reports the log-probabilities of the chosen token and of this many most likely ones; 0 is off.
    pub n_probs: u32,
    /// Whether these are of what the chain left, and not of what the model gave.
    pub post_sampling_probs: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            samplers: SamplerKind::DEFAULT.to_vec(),
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            tfs_z: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            min_keep: 0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalize_nl: true,
            penalty_prompt: None,
            dry: Dry::default(),
            mirostat: Mirostat::Off,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            logit_bias: Vec::new(),
            ignore_eos: false,
            n_probs: 0,
            post_sampling_probs: false,
        }
    }
}

impl SamplingParams {
    /// Whether the chain takes likely tokens away by chance.
    pub(super) fn has_xtc(&self) -> bool {
        self.samplers.contains(&SamplerKind::Xtc) && self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5
    }

    /// Checks every field against its range and the model's vocabulary of `n_vocab` pieces.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] names the first field that is out of range.
    pub fn validate(&self, n_vocab: usize) -> Result<()> {
        let refuse = |param: &'static str, message: String| Err(Error::InvalidRequest { param, message });
        if self.n_probs > MAX_PROBS {
            return refuse("n_probs", format!("n_probs is {}; it must be 0 to {MAX_PROBS}", self.n_probs));
        }
        if self.samplers.len() > MAX_SAMPLERS {
            return refuse("samplers", format!("there are {} samplers; at most {MAX_SAMPLERS}", self.samplers.len()));
        }
        let windows = [("repeat_last_n", self.repeat_last_n), ("dry_penalty_last_n", self.dry.penalty_last_n)];
        if let Some((param, value)) = windows.into_iter().find(|&(_, value)| value < -1) {
            return refuse(param, format!("{param} is {value}; it must be −1 or more"));
        }
        // The penalties divide by it, so that its inverse must be a number too.
        if !(self.repeat_penalty > 0.0 && self.repeat_penalty.is_finite() && self.repeat_penalty.recip().is_finite()) {
            return refuse("repeat_penalty", format!("repeat_penalty is {}; it must be above 0", self.repeat_penalty));
        }
        if let Some((param, value)) = self.numbers().into_iter().find(|(_, value)| !value.is_finite()) {
            return refuse(param, format!("{param} is {value}; it must be a finite number"));
        }
        if self.dry.allowed_length < 0 {
            return refuse(
                "dry_allowed_length",
                format!("dry_allowed_length is {}; it must be 0 or more", self.dry.allowed_length),
            );
        }
        if !(0.0..=0.99).contains(&self.adaptive_decay) {
            return refuse("adaptive_decay", format!("adaptive_decay is {}; it must be 0 to 0.99", self.adaptive_decay));
        }
        self.validate_breakers()?;
        self.validate_tokens(n_vocab)
    }

    /// The fields that may be any finite number.
    fn numbers(&self) -> [(&'static str, f32); 17] {
        [
            ("temperature", self.temperature),
            ("dynatemp_range", self.dynatemp_range),
            ("dynatemp_exponent", self.dynatemp_exponent),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("typical_p", self.typical_p),
            ("top_n_sigma", self.top_n_sigma),
            ("tfs_z", self.tfs_z),
            ("xtc_probability", self.xtc_probability),
            ("xtc_threshold", self.xtc_threshold),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("dry_multiplier", self.dry.multiplier),
            ("dry_base", self.dry.base),
            ("mirostat_tau", self.mirostat_tau),
            ("mirostat_eta", self.mirostat_eta),
            ("adaptive_target", self.adaptive_target),
        ]
    }

    fn validate_breakers(&self) -> Result<()> {
        let refuse = |message| Err(Error::InvalidRequest { param: "dry_sequence_breakers", message });
        let breakers = &self.dry.sequence_breakers;
        if breakers.len() > MAX_BREAKERS {
            return refuse(format!("there are {} sequence breakers; at most {MAX_BREAKERS}", breakers.len()));
        }
        if let Some(text) = breakers.iter().find(|text| text.len() > MAX_BREAKER_BYTES) {
            return refuse(format!("a sequence breaker has {} bytes; it must have at most {MAX_BREAKER_BYTES}", text.len()));
        }
        Ok(())
    }

    fn validate_tokens(&self, n_vocab: usize) -> Result<()> {
        let refuse = |param: &'static str, message: String| Err(Error::InvalidRequest { param, message });
        let in_vocab = |token: &Token| usize::try_from(*token).is_ok_and(|id| id < n_vocab);
        if let Some(token) = self.penalty_prompt.iter().flatten().find(|token| !in_vocab(token)) {
            return refuse("penalty_prompt", format!("token {token} is outside of the vocabulary of {n_vocab} pieces"));
        }
        let n_biases = self.logit_bias.len();
        if n_biases > n_vocab {
            let limit = format!("at most {n_vocab}, one for each piece of the vocabulary");
            return refuse("logit_bias", format!("logit_bias has {n_biases} entries; it may have {limit}"));
        }
        if let Some((token, _)) = self.logit_bias.iter().find(|(token, _)| !in_vocab(token)) {
            return refuse("logit_bias", format!("token {token} is outside of the vocabulary of {n_vocab} pieces"));
        }
        if let Some((token, bias)) = self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            return refuse("logit_bias", format!("the bias of token {token} is {bias}; it must be a number or −∞"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut SamplingParams)) -> Option<&'static str> {
        let mut params = SamplingParams::default();
        change(&mut params);
        match params.validate(10) {
            Ok(()) => None,
            Err(Error::InvalidRequest { param, .. }) => Some(param),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn what_llama_server_holds_to_its_range_is_not_refused() {
        assert_eq!(refused(|p| (p.temperature, p.top_k, p.top_p, p.min_p) = (-1.0, -7, 1.5, 2.0)), None);
        assert_eq!(refused(|p| (p.xtc_probability, p.xtc_threshold, p.adaptive_target) = (2.0, -1.0, 3.0)), None);
        assert_eq!(refused(|p| (p.dynatemp_range, p.dynatemp_exponent, p.typical_p, p.tfs_z) = (-1.0, -1.0, -1.0, 9.0)), None);
        assert_eq!(refused(|p| p.dry.sequence_breakers = vec![String::new(), "a".repeat(1_024)]), None);
    }

    #[test]
    fn what_has_no_meaning_is_refused_by_name() {
        assert_eq!(refused(|p| p.repeat_penalty = 0.0), Some("repeat_penalty"));
        assert_eq!(refused(|p| p.repeat_penalty = 1e-40), Some("repeat_penalty"));
        assert_eq!(refused(|p| p.repeat_last_n = -2), Some("repeat_last_n"));
        assert_eq!(refused(|p| p.dry.penalty_last_n = -2), Some("dry_penalty_last_n"));
        assert_eq!(refused(|p| p.dry.allowed_length = -1), Some("dry_allowed_length"));
        assert_eq!(refused(|p| p.adaptive_decay = 1.0), Some("adaptive_decay"));
        assert_eq!(refused(|p| p.mirostat_tau = f32::NAN), Some("mirostat_tau"));
        assert_eq!(refused(|p| p.dynatemp_exponent = f32::INFINITY), Some("dynatemp_exponent"));
        assert_eq!(refused(|p| p.samplers = vec![SamplerKind::TopK; MAX_SAMPLERS + 1]), Some("samplers"));
        assert_eq!(refused(|p| p.dry.sequence_breakers = vec!["a".repeat(1_025)]), Some("dry_sequence_breakers"));
        assert_eq!(refused(|p| p.penalty_prompt = Some(vec![10])), Some("penalty_prompt"));
        assert_eq!(refused(|p| p.logit_bias = vec![(-1, 1.0)]), Some("logit_bias"));
        assert_eq!(refused(|p| p.logit_bias = vec![(3, 1.0); 11]), Some("logit_bias"));
        assert_eq!(refused(|p| p.logit_bias = vec![(3, 1.0); 10]), None);
        assert_eq!(refused(|p| p.n_probs = MAX_PROBS + 1), Some("n_probs"));
    }
}
