//! Mirostat: replaces the chain by a rule that controls the surprise per token.
//!
//! Source: Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", 2020; version 2 is the
//! author's simplification. Steps, rounding and draw follow llama.cpp's `mirostat` and `mirostat-v2`.

use crate::request::Mirostat;
use crate::sampling::{candidates::Candidates, draw::draw_discrete, draw::rng::Mt19937, row::Candidate};

/// Tokens from which version 1 estimates the decay of probabilities.
const N_ESTIMATED: usize = 100;

#[derive(Debug, Clone)]
pub(crate) struct MirostatState {
    is_v2: bool,
    tau: f32,
    eta: f32,
    /// Current limit of the surprise, in bits; initially twice the target.
    mu: f32,
}

impl MirostatState {
    /// Creates the state; `None` if Mirostat is off. `tau` is the target in bits, `eta` the learning rate.
    pub(crate) fn new(version: Mirostat, tau: f32, eta: f32) -> Option<Self> {
        let is_v2 = match version {
            Mirostat::Off => return None,
            Mirostat::V1 => false,
            Mirostat::V2 => true,
        };
        Some(Self { is_v2, tau, eta, mu: 2.0 * tau })
    }

    /// Truncates the candidates, draws one and updates the limit, even if the token is not accepted, as in llama.cpp.
    pub(crate) fn draw(&mut self, candidates: &mut Candidates, n_vocab: usize, rng: &mut Mt19937) -> Option<Candidate> {
        candidates.sort_all();
        let (_, probabilities) = candidates.softmax();
        let n_kept = if self.is_v2 {
            probabilities.iter().take_while(|p| -p.log2() <= self.mu).count()
        } else {
            self.n_by_zipf(probabilities, n_vocab)
        };
        candidates.truncate(n_kept.clamp(1, candidates.list.len().max(1)));
        let n_all = candidates.n_all();
        let (list, probabilities) = candidates.softmax();
        let drawn = draw_discrete(probabilities, n_all, rng);
        let (&candidate, &p) = list.get(drawn).zip(probabilities.get(drawn))?;
        self.mu -= self.eta * (-p.log2() - self.tau);
        Some(candidate)
    }

    /// Number of most likely tokens whose mean surprise is the target, by Zipf's law fitted to the first of them.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "the formula is in single precision; NaN and negative numbers become 0, and infinity the greatest number"
    )]
    fn n_by_zipf(&self, probabilities: &[f32], n_vocab: usize) -> usize {
        let (mut products, mut squares) = (0.0_f32, 0.0_f32);
        for (pair, i) in probabilities.windows(2).zip(1_u16..).take(N_ESTIMATED - 1) {
            let log_rank_ratio = (f32::from(i + 1) / f32::from(i)).ln();
            let log_probability_ratio = (pair[0] / pair[1]).ln();
            products += log_rank_ratio * log_probability_ratio;
            squares += log_rank_ratio * log_rank_ratio;
        }
        let exponent = products / squares;
        let epsilon = exponent - 1.0;
        let base = (epsilon * 2.0_f32.powf(self.mu)) / (1.0 - (n_vocab as f32).powf(-epsilon));
        let n_kept = base.powf(1.0 / exponent);
        // C++ does not define the conversion of numbers beyond 32 bits. llama.cpp keeps one token on x86, and all elsewhere.
        if cfg!(any(target_arch = "x86", target_arch = "x86_64")) && n_kept >= 2_147_483_648.0 { 1 } else { n_kept as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::row::Row;

    /// A row whose probabilities fall by Zipf's law.
    fn zipf(n: u16) -> Vec<f32> {
        (1..=n).map(|i| -1.1 * f32::from(i).ln()).collect()
    }

    fn drawn(mirostat: &mut MirostatState, row: &[f32], rng: &mut Mt19937) -> (Candidate, usize) {
        let mut candidates = Candidates::default();
        candidates.keep_all(Row { logits: row, patches: &[] });
        let drawn = mirostat.draw(&mut candidates, row.len(), rng).unwrap();
        (drawn, candidates.list.len())
    }

    #[test]
    fn the_mean_surprise_converges_to_the_target() {
        let row = zipf(500);
        for version in [Mirostat::V1, Mirostat::V2] {
            for tau in [2.0, 4.0] {
                let mut mirostat = MirostatState::new(version, tau, 0.1).unwrap();
                let mut rng = Mt19937::new(1);
                let mut mean = 0.0;
                for _ in 0..4_000 {
                    let before = mirostat.mu;
                    drawn(&mut mirostat, &row, &mut rng);
                    mean += (before - mirostat.mu) / 0.1 / 4_000.0;
                }
                assert!(mean.abs() < 0.05, "{version:?} misses {tau} by {mean}");
            }
        }
    }

    #[test]
    fn version_2_keeps_tokens_within_mu_bits() {
        let row = [0.5_f32, 0.25, 0.125, 0.0625, 0.0625].map(|p| p.log2() * std::f32::consts::LN_2);
        let mut mirostat = MirostatState::new(Mirostat::V2, 1.25, 0.1).unwrap();
        assert_eq!(drawn(&mut mirostat, &row, &mut Mt19937::new(1)).1, 2);
        mirostat.mu = -5.0;
        assert_eq!(drawn(&mut mirostat, &row, &mut Mt19937::new(1)).1, 1);
    }

    #[test]
    fn version_1_keeps_all_with_a_high_limit_and_one_on_x86_beyond_32_bits() {
        let mut mirostat = MirostatState::new(Mirostat::V1, 1.0, 0.1).unwrap();
        mirostat.mu = 20.0;
        assert_eq!(drawn(&mut mirostat, &zipf(300), &mut Mt19937::new(1)).1, 300);
        mirostat.mu = 100.0;
        let is_x86 = cfg!(any(target_arch = "x86", target_arch = "x86_64"));
        assert_eq!(drawn(&mut mirostat, &zipf(300), &mut Mt19937::new(1)).1, if is_x86 { 1 } else { 300 });
    }

    #[test]
    fn one_candidate_is_drawn_and_an_empty_list_gives_none() {
        for version in [Mirostat::V1, Mirostat::V2] {
            let mut mirostat = MirostatState::new(version, 1.0, 0.1).unwrap();
            assert_eq!(drawn(&mut mirostat, &[3.0], &mut Mt19937::new(1)).0.token, 0);
            assert_eq!(mirostat.draw(&mut Candidates::default(), 0, &mut Mt19937::new(1)), None);
        }
    }
}
