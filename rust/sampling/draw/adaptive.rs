//! Adaptive-p: prefers tokens whose probability is near a target, which is adjusted against the recently drawn ones.
//!
//! Source: `MrJackSpade` and ddh0, "Adaptive-p", llama.cpp #17927: the logits are replaced by a peak around the target,
//! quadratic near it and linear far away.

use crate::request::Token;
use crate::sampling::{candidates::Candidates, draw::draw_discrete, draw::rng::Mt19937, row::Candidate};

/// The peak's width in probability, and its height and steepness in logits.
const WIDTH: f32 = 0.3;
const PEAK: f32 = 5.0;
const STEEPNESS: f32 = 10.0;

#[derive(Debug, Clone)]
pub(crate) struct AdaptiveState {
    target: Option<f32>,
    decay: f32,
    /// Sum of the accepted tokens' probabilities, each weighted by the decay to the power of its age.
    sum: f32,
    weight: f32,
    pending: Option<(Token, f32)>,
}

impl AdaptiveState {
    /// A target below 0 is off; one above 1 is 1. The initial state corresponds to a history that hit the target.
    pub(crate) fn new(target: f32, decay: f32) -> Self {
        let target = (target >= 0.0).then_some(target.min(1.0));
        let weight = 1.0 / (1.0 - decay);
        Self { target, decay, sum: target.unwrap_or(0.0) / (1.0 - decay), weight, pending: None }
    }

    pub(crate) fn draw(&mut self, candidates: &mut Candidates, rng: &mut Mt19937) -> Option<Candidate> {
        let n_all = candidates.n_all();
        let Some(target) = self.target else {
            let (list, probabilities) = candidates.softmax();
            return list.get(draw_discrete(probabilities, n_all, rng)).copied();
        };
        let aim = (2.0 * target - self.sum / self.weight).clamp(0.0, 1.0);
        let original = candidates.softmax().1.to_vec();
        for (candidate, p) in candidates.list.iter_mut().zip(&original) {
            let distance = ((p - aim) * (1.0 / WIDTH)).abs();
            candidate.logit = PEAK - STEEPNESS * distance * distance / (1.0 + distance);
        }
        // Like llama.cpp, which does not mark the list as unsorted here, this takes the first logit for the greatest.
        let (list, probabilities) = candidates.softmax();
        let drawn = draw_discrete(probabilities, n_all, rng);
        let (&candidate, &p) = list.get(drawn).zip(original.get(drawn))?;
        candidates.is_sorted = false;
        self.pending = Some((candidate.token, p));
        Some(candidate)
    }

    pub(crate) fn accept(&mut self, token: Token) {
        if let Some((_, p)) = self.pending.take().filter(|&(drawn, _)| drawn == token) {
            self.sum = p + self.decay * self.sum;
            self.weight = 1.0 + self.decay * self.weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::row::Row;

    fn candidates() -> Candidates {
        let logits = [0.05_f32, 0.5, 0.15, 0.3].map(f32::ln);
        let mut candidates = Candidates::default();
        candidates.keep_all(Row { logits: &logits, patches: &[] });
        candidates
    }

    fn most_likely(adaptive: &mut AdaptiveState) -> Token {
        let mut candidates = candidates();
        adaptive.draw(&mut candidates, &mut Mt19937::new(1));
        candidates.best().unwrap().token
    }

    #[test]
    fn the_token_nearest_to_the_target_becomes_the_most_likely() {
        for (target, token) in [(0.0, 0), (0.17, 2), (0.31, 3), (0.9, 1), (7.0, 1)] {
            assert_eq!(most_likely(&mut AdaptiveState::new(target, 0.5)), token, "target {target}");
        }
    }

    #[test]
    fn the_target_moves_against_accepted_tokens() {
        let mut adaptive = AdaptiveState::new(0.3, 0.5);
        for _ in 0..3 {
            adaptive.pending = Some((1, 0.5));
            adaptive.accept(1);
        }
        assert_eq!(most_likely(&mut adaptive), 2);
    }

    #[test]
    fn only_the_last_drawn_token_updates_the_state() {
        let mut adaptive = AdaptiveState::new(0.3, 0.5);
        let sum = adaptive.sum;
        adaptive.accept(1);
        adaptive.pending = Some((1, 0.5));
        adaptive.accept(2);
        adaptive.accept(1);
        assert_eq!((adaptive.sum.to_bits(), adaptive.pending), (sum.to_bits(), None));
    }

    #[test]
    fn a_negative_target_changes_nothing() {
        let mut candidates = candidates();
        let before = candidates.list.clone();
        AdaptiveState::new(-1.0, 0.5).draw(&mut candidates, &mut Mt19937::new(1));
        assert_eq!(candidates.list, before);
    }
}
