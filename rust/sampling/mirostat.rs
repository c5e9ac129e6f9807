//! Mirostat: the chain gives way to a rule that holds the surprise per token at a target.
//!
//! Source: Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", 2020; version 2 is its
//! author's simplification of it. The steps, roundings and the draw are those of llama.cpp's `mirostat` and `mirostat-v2`.

use crate::request::Mirostat;
use crate::sampling::candidates::Candidates;
use crate::sampling::draw::draw_discrete;
use crate::sampling::rng::Mt19937;
use crate::sampling::row::Candidate;

/// Tokens by which the first version estimates how fast probabilities fall.
const N_ESTIMATED: usize = 100;

/// What Mirostat remembers of a sequence.
#[derive(Debug, Clone)]
pub(crate) struct MirostatState {
    is_second: bool,
    tau: f32,
    eta: f32,
    /// The surprise in bits that is allowed at the moment; it begins at twice the target.
    mu: f32,
}

impl MirostatState {
    /// `None` where Mirostat is off. `tau` is the target in bits, `eta` how fast it learns.
    pub(crate) fn new(version: Mirostat, tau: f32, eta: f32) -> Option<Self> {
        let is_second = match version {
            Mirostat::Off => return None,
            Mirostat::V1 => false,
            Mirostat::V2 => true,
        };
        Some(Self { is_second, tau, eta, mu: 2.0 * tau })
    }

    /// Cuts the candidates off, draws one of the rest and learns from it; of `n_vocab` tokens. `None` where there is none.
    ///
    /// It learns from every draw, also from one that is not accepted: llama.cpp does.
    pub(crate) fn draw(&mut self, candidates: &mut Candidates, n_vocab: usize, rng: &mut Mt19937) -> Option<Candidate> {
        candidates.sort_all();
        let (_, probabilities) = candidates.softmax();
        let n_kept = if self.is_second { self.n_expected(probabilities) } else { self.n_estimated(probabilities, n_vocab) };
        candidates.truncate(n_kept.clamp(1, candidates.list.len().max(1)));
        let n_all = candidates.n_all();
        let (list, probabilities) = candidates.softmax();
        let drawn = draw_discrete(probabilities, n_all, rng);
        let (&candidate, &p) = list.get(drawn).zip(probabilities.get(drawn))?;
        self.mu -= self.eta * (-p.log2() - self.tau);
        Some(candidate)
    }

    /// How many are at most as surprising as allowed.
    fn n_expected(&self, probabilities: &[f32]) -> usize {
        probabilities.iter().take_while(|p| -p.log2() <= self.mu).count()
    }

    /// How many of the most likely tokens have the target as their mean surprise, if probabilities fall by Zipf's law with the
    /// exponent that fits the first of them.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "the formula is in single precision; what is no number or negative becomes 0, and infinity the greatest number"
    )]
    fn n_estimated(&self, probabilities: &[f32], n_vocab: usize) -> usize {
        let (mut products, mut squares) = (0.0_f32, 0.0_f32);
        for (pair, i) in probabilities.windows(2).zip(1_u16..).take(N_ESTIMATED - 1) {
            let place = (f32::from(i + 1) / f32::from(i)).ln();
            let fall = (pair[0] / pair[1]).ln();
            products += place * fall;
            squares += place * place;
        }
        let exponent = products / squares;
        let epsilon = exponent - 1.0;
        let base = (epsilon * 2.0_f32.powf(self.mu)) / (1.0 - (n_vocab as f32).powf(-epsilon));
        let n_kept = base.powf(1.0 / exponent);
        // C++ leaves open what becomes of a number beyond 32 bits. Where llama.cpp runs on x86 one token is left, elsewhere all.
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

    fn drawn(surprise: &mut MirostatState, row: &[f32], rng: &mut Mt19937) -> (Candidate, usize) {
        let mut candidates = Candidates::default();
        candidates.keep_all(Row { logits: row, patches: &[] });
        let drawn = surprise.draw(&mut candidates, row.len(), rng).unwrap();
        (drawn, candidates.list.len())
    }

    #[test]
    fn the_mean_surprise_comes_to_the_target() {
        let row = zipf(500);
        for version in [Mirostat::V1, Mirostat::V2] {
            for tau in [2.0, 4.0] {
                let mut surprise = MirostatState::new(version, tau, 0.1).unwrap();
                let mut rng = Mt19937::new(1);
                let mut mean = 0.0;
                for _ in 0..4_000 {
                    let before = surprise.mu;
                    drawn(&mut surprise, &row, &mut rng);
                    mean += (before - surprise.mu) / 0.1 / 4_000.0;
                }
                assert!(mean.abs() < 0.05, "{version:?} misses {tau} by {mean}");
            }
        }
    }

    #[test]
    fn the_second_version_allows_what_is_at_most_mu_bits_surprising() {
        let row = [0.5_f32, 0.25, 0.125, 0.0625, 0.0625].map(|p| p.log2() * std::f32::consts::LN_2);
        let mut surprise = MirostatState::new(Mirostat::V2, 1.25, 0.1).unwrap();
        assert_eq!(drawn(&mut surprise, &row, &mut Mt19937::new(1)).1, 2);
        surprise.mu = -5.0;
        assert_eq!(drawn(&mut surprise, &row, &mut Mt19937::new(1)).1, 1);
    }

    #[test]
    fn the_first_version_keeps_all_where_much_surprise_is_allowed_and_on_x86_one_where_it_is_beyond_counting() {
        let mut surprise = MirostatState::new(Mirostat::V1, 1.0, 0.1).unwrap();
        surprise.mu = 20.0;
        assert_eq!(drawn(&mut surprise, &zipf(300), &mut Mt19937::new(1)).1, 300);
        surprise.mu = 100.0;
        let is_x86 = cfg!(any(target_arch = "x86", target_arch = "x86_64"));
        assert_eq!(drawn(&mut surprise, &zipf(300), &mut Mt19937::new(1)).1, if is_x86 { 1 } else { 300 });
    }

    #[test]
    fn one_candidate_is_drawn_and_none_is_not() {
        for version in [Mirostat::V1, Mirostat::V2] {
            let mut surprise = MirostatState::new(version, 1.0, 0.1).unwrap();
            assert_eq!(drawn(&mut surprise, &[3.0], &mut Mt19937::new(1)).0.token, 0);
            assert_eq!(surprise.draw(&mut Candidates::default(), 0, &mut Mt19937::new(1)), None);
        }
    }
}
