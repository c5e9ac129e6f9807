//! Takes away the most likely tokens, now and then, so that the model says something else.
//!
//! Source: p-e-w, "Exclude Top Choices (XTC)", text-generation-webui #6335.

use crate::sampling::candidates::Candidates;
use crate::sampling::rng::Mt19937;

/// Above this at most one token can be likely enough, and none is taken away.
pub(crate) const MAX_THRESHOLD: f32 = 0.5;

/// Its parameters, and a generator of its own, as llama.cpp's `xtc` has one beside that of the draw.
#[derive(Debug, Clone)]
pub(crate) struct Xtc {
    probability: f32,
    threshold: f32,
    rng: Mt19937,
}

impl Xtc {
    /// `probability` is above 0, and `threshold` at most [`MAX_THRESHOLD`].
    pub(crate) fn new(probability: f32, threshold: f32, seed: u32) -> Self {
        Self { probability, threshold, rng: Mt19937::new(seed) }
    }

    /// From here on, chance is that of another seed.
    pub(crate) fn reseed(&mut self, seed: u32) {
        self.rng = Mt19937::new(seed);
    }

    /// By chance, takes away all but the least likely one of the candidates whose probabilities are at least the threshold, if
    /// `min_keep` are left then.
    pub(crate) fn apply(&mut self, candidates: &mut Candidates, min_keep: usize) {
        if candidates.n_all() < 2 || self.rng.uniform_f32() > self.probability {
            return;
        }
        candidates.sort_all();
        let threshold = self.threshold;
        let (_, probabilities) = candidates.softmax();
        let n_likely = probabilities.iter().take_while(|&&p| p >= threshold).count();
        let n_taken = n_likely.saturating_sub(1);
        if candidates.n_all() - n_taken >= min_keep {
            candidates.list.drain(..n_taken);
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
    fn all_likely_tokens_but_the_last_go() {
        assert_eq!(kept(&mut Xtc::new(1.0, 0.15, 1), &PROBABILITIES, 0), [0, 2]);
        assert_eq!(kept(&mut Xtc::new(1.0, 0.35, 1), &PROBABILITIES, 0), [1, 3, 0, 2]);
    }

    #[test]
    fn none_goes_where_too_few_would_be_left() {
        assert_eq!(kept(&mut Xtc::new(1.0, 0.15, 1), &PROBABILITIES, 3), [1, 3, 0, 2]);
    }

    #[test]
    fn one_is_left_whatever_the_threshold() {
        assert_eq!(kept(&mut Xtc::new(1.0, -1.0, 1), &PROBABILITIES, 0), [2]);
        assert_eq!(kept(&mut Xtc::new(1.0, 0.0, 1), &[1.0, 0.0, 0.0], 0), [0]);
    }

    #[test]
    fn it_happens_as_often_as_asked() {
        let mut xtc = Xtc::new(0.3, 0.15, 1);
        let n = (0..10_000).filter(|_| kept(&mut xtc, &PROBABILITIES, 0).len() == 2).count();
        assert!((2_850..3_150).contains(&n), "{n} of 10,000");
    }
}
