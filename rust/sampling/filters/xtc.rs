//! XTC. Source: p-e-w, "Exclude Top Choices (XTC)", text-generation-webui #6335.

use crate::sampling::{candidates::Candidates, draw::rng::Mt19937};

/// Above this at most one token can reach the threshold, so none is removed.
pub(crate) const MAX_THRESHOLD: f32 = 0.5;

/// The state of XTC. Its generator is separate, as in llama.cpp's `xtc`.
#[derive(Debug, Clone)]
pub(crate) struct Xtc {
    probability: f32,
    threshold: f32,
    rng: Mt19937,
}

impl Xtc {
    /// `probability` must be above 0, and `threshold` at most [`MAX_THRESHOLD`].
    pub(crate) fn new(probability: f32, threshold: f32, seed: u32) -> Self {
        Self { probability, threshold, rng: Mt19937::new(seed) }
    }

    pub(crate) fn reseed(&mut self, seed: u32) {
        self.rng = Mt19937::new(seed);
    }

    /// Removes all but the least likely of the candidates that reach the threshold, if `min_keep` remain.
    pub(crate) fn apply(&mut self, candidates: &mut Candidates, min_keep: usize) {
        if candidates.n_all() < 2 || self.rng.uniform_f32() > self.probability {
            return;
        }
        candidates.sort_all();
        let threshold = self.threshold;
        let (_, probabilities) = candidates.softmax();
        let n_likely = probabilities.iter().take_while(|&&p| p >= threshold).count();
        let n_removed = n_likely.saturating_sub(1);
        if candidates.n_all() - n_removed >= min_keep {
            candidates.list.drain(..n_removed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Token;
    use crate::sampling::row::Row;

    fn kept(xtc: &mut Xtc, probabilities: &[f32], min_keep: usize) -> Vec<Token> {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut candidates = Candidates::default();
        candidates.keep_all(Row { logits: &logits, patches: &[] });
        xtc.apply(&mut candidates, min_keep);
        candidates.list.iter().map(|candidate| candidate.token).collect()
    }

    const PROBABILITIES: [f32; 4] = [0.2, 0.4, 0.1, 0.3];

    #[test]
    fn all_likely_tokens_but_the_last_are_removed() {
        assert_eq!(kept(&mut Xtc::new(1.0, 0.15, 1), &PROBABILITIES, 0), [0, 2]);
        assert_eq!(kept(&mut Xtc::new(1.0, 0.35, 1), &PROBABILITIES, 0), [1, 3, 0, 2]);
    }

    #[test]
    fn nothing_is_removed_if_fewer_than_min_keep_would_remain() {
        assert_eq!(kept(&mut Xtc::new(1.0, 0.15, 1), &PROBABILITIES, 3), [1, 3, 0, 2]);
    }

    #[test]
    fn one_token_remains_for_any_threshold() {
        assert_eq!(kept(&mut Xtc::new(1.0, -1.0, 1), &PROBABILITIES, 0), [2]);
        assert_eq!(kept(&mut Xtc::new(1.0, 0.0, 1), &[1.0, 0.0, 0.0], 0), [0]);
    }

    #[test]
    fn it_applies_with_the_given_probability() {
        let mut xtc = Xtc::new(0.3, 0.15, 1);
        let n = (0..10_000).filter(|_| kept(&mut xtc, &PROBABILITIES, 0).len() == 2).count();
        assert!((2_850..3_150).contains(&n), "{n} of 10,000");
    }
}
