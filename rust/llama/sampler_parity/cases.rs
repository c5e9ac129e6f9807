//! Random rows, parameters and histories.

use std::collections::HashSet;

use crate::config::Named;
use crate::request::{Dry, SamplerKind, SamplingParams, Token};
use crate::sampling::draw::rng::Mt19937;

/// A seeded random source of cases.
pub(super) struct Cases(pub(super) Mt19937);

/// Calls `check` `n` times with one source.
pub(super) fn for_cases(n: usize, seed: u32, mut check: impl FnMut(&mut Cases)) {
    let mut cases = Cases(Mt19937::new(seed));
    (0..n).for_each(|_| check(&mut cases));
}

impl Cases {
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0.next_u32() as usize % n
    }

    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    #[expect(clippy::cast_possible_truncation, reason = "logits and parameters are single precision")]
    pub(super) fn between(&mut self, low: f64, high: f64) -> f32 {
        (low + (high - low) * self.0.uniform()) as f32
    }

    pub(super) fn seed(&mut self) -> u32 {
        // llama.cpp interprets the greatest seed as "any".
        self.0.next_u32() >> 1
    }

    pub(super) fn token(&mut self, n_vocab: usize) -> Token {
        Token::try_from(self.below(n_vocab)).unwrap()
    }

    /// Returns a token that may be banned: three are never banned, since llama.cpp's result is meaningless if no token is possible.
    pub(super) fn bannable(&mut self, n_vocab: usize) -> Token {
        self.token(n_vocab - 3)
    }

    /// Returns 8 to `max_len` different logits, normally distributed, flat or peaked. They are multiples of 2⁻¹², so that no
    /// division makes two of them equal.
    #[expect(clippy::cast_possible_truncation, reason = "logits are single precision")]
    pub(super) fn row(&mut self, max_len: usize) -> Vec<f32> {
        let n_vocab = self.one_of(&[8, 50, 600, 1_500, 5_000]).min(8 + self.below(max_len - 7));
        let spread = self.one_of(&[0.5, 2.0, 6.0]);
        let mut seen = HashSet::new();
        let mut row = Vec::with_capacity(n_vocab);
        while row.len() < n_vocab {
            let radius = (-2.0 * (1.0 - self.0.uniform()).ln()).sqrt();
            let normal = radius * (std::f64::consts::TAU * self.0.uniform()).cos();
            // Adding 0 maps −0 to 0.
            let logit = ((spread * normal * 4_096.0).round() / 4_096.0) as f32 + 0.0;
            if seen.insert(logit.to_bits()) {
                row.push(logit);
            }
        }
        row
    }

    /// Returns previous tokens, with repetitions.
    pub(super) fn history(&mut self, n_vocab: usize) -> Vec<Token> {
        let n_distinct = 1 + self.below(n_vocab);
        let n = self.below(400);
        let mut history = Vec::new();
        while history.len() < n {
            if self.below(4) == 0 && history.len() > 4 {
                let start = self.below(history.len() - 2);
                let end = start + 1 + self.below((history.len() - start).min(12));
                history.extend_from_within(start..end);
            } else {
                history.push(self.token(n_distinct));
            }
        }
        history
    }

    fn bias(&mut self) -> f32 {
        if self.below(4) == 0 { f32::NEG_INFINITY } else { self.between(-5.0, 5.0) }
    }

    /// Returns parameters, about a third of them neutral, for llama-server's chain.
    pub(super) fn params(&mut self, n_vocab: usize) -> SamplingParams {
        let n_bias = self.one_of(&[0, 0, 1, 20]);
        SamplingParams {
            temperature: self.one_of(&[0.1, 0.8, 1.0, 1.7]),
            dynatemp_range: self.one_of(&[0.0, 0.0, 0.3, 1.0, 5.0]),
            dynatemp_exponent: self.one_of(&[1.0, 0.2, 3.5, 0.0, -0.5]),
            top_k: self.one_of(&[-1, 0, 1, 5, 40, 127, 128, 129, 1_000, 100_000]),
            top_p: self.one_of(&[0.0, 0.1, 0.3, 0.9, 0.95, 0.999, 0.999_999_9, 1.0, 2.0]),
            min_p: self.one_of(&[-1.0, 0.0, 1e-6, 0.001, 0.05, 0.5, 1.0, 1.5]),
            typical_p: self.one_of(&[1.0, 1.0, 0.0, -1.0, 0.2, 0.7, 0.95, 0.999]),
            top_n_sigma: self.one_of(&[-1.0, 0.0, 0.01, 0.5, 1.0, 2.5, 10.0]),
            xtc_probability: self.one_of(&[0.0, 0.5, 1.0, 0.9]),
            xtc_threshold: self.one_of(&[0.1, 0.5, 0.51, 0.02, 0.001]),
            min_keep: self.one_of(&[0, 0, 1, 2, 7, 300, 10_000]),
            repeat_penalty: self.one_of(&[1.0, 1.1, 0.8]),
            repeat_last_n: self.one_of(&[-1, 0, 1, 10, 64]),
            presence_penalty: self.one_of(&[0.0, 0.37, -0.2]),
            frequency_penalty: self.one_of(&[0.0, 0.13]),
            dry: self.dry(),
            mirostat_tau: self.one_of(&[0.5, 3.0, 5.0, 9.0]),
            mirostat_eta: self.one_of(&[0.1, 0.02, 0.7]),
            adaptive_target: self.one_of(&[-1.0, 0.0, 0.1, 0.5, 0.9, 1.0]),
            adaptive_decay: self.one_of(&[0.9, 0.0, 0.5, 0.99]),
            logit_bias: (0..n_bias).map(|_| (self.bannable(n_vocab), self.bias())).collect(),
            ignore_eos: self.one_of(&[true, false]),
            ..SamplingParams::default()
        }
    }

    fn dry(&mut self) -> Dry {
        let breakers = ["\n", ":", "\"", "*", "the", "\nUser:", " said", "é", "ing to", "."];
        let n_breakers = self.below(5);
        Dry {
            multiplier: self.one_of(&[0.0, 0.8, 3.0, -0.5]),
            base: self.one_of(&[1.75, 1.0, 0.9, 20.0]),
            allowed_length: self.one_of(&[0, 1, 2, 2, 4]),
            penalty_last_n: self.one_of(&[-1, 0, 1, 10, 64, 200]),
            sequence_breakers: (0..n_breakers).map(|_| self.one_of(&breakers).to_owned()).collect(),
        }
    }

    /// Returns up to nine steps in any order, possibly repeated.
    pub(super) fn kinds(&mut self) -> Vec<SamplerKind> {
        let n = self.below(10);
        let all: Vec<SamplerKind> =
            SamplerKind::NAMES.iter().map(|&(_, kind)| kind).filter(|&kind| kind != SamplerKind::TfsZ).collect();
        (0..n).map(|_| self.one_of(&all)).collect()
    }

    /// Returns the parameters without settings that mask tokens before some of the steps. Typical-p: llama.cpp's entropy is then
    /// NaN, as it is with nearly impossible tokens. Infill leaves masked end tokens, and their number affects the adaptive
    /// draw.
    pub(super) fn without_masks(&mut self, mut params: SamplingParams) -> SamplingParams {
        if params.samplers.contains(&SamplerKind::Infill) {
            (params.top_n_sigma, params.ignore_eos) = (-1.0, false);
            params.logit_bias.retain(|(_, bias)| bias.is_finite());
        }
        if params.typical_p < 1.0 && params.samplers.contains(&SamplerKind::TypicalP) {
            (params.top_n_sigma, params.dynatemp_range, params.dry.base) = (-1.0, 0.0, 1.0);
            params.temperature = params.temperature.max(1.0);
            (params.ignore_eos, params.logit_bias) = (false, vec![(0, self.between(-3.0, 3.0))]);
        }
        params
    }
}
