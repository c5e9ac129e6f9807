//! Draws tokens that are about as likely as a target, which moves against what was drawn lately.
//!
//! Source: `MrJackSpade` and ddh0, "Adaptive-p", llama.cpp #17927: the logits give way to a hill around the target, quadratic near it
//! and linear far away.

use crate::request::Token;
use crate::sampling::candidates::Candidates;
use crate::sampling::draw::draw_discrete;
use crate::sampling::rng::Mt19937;
use crate::sampling::row::Candidate;

/// The hill's width in probability, its height and its steepness in logits.
const WIDTH: f32 = 0.3;
const PEAK: f32 = 5.0;
const STEEPNESS: f32 = 10.0;

/// What it remembers of a sequence.
#[derive(Debug, Clone)]
pub(crate) struct AdaptiveState {
    /// `None` is off: the draw is by the probabilities as they are.
    target: Option<f32>,
    decay: f32,
    /// Of the accepted tokens' probabilities, each weighted by the decay to the power of its age.
    sum: f32,
    weight: f32,
    /// The token drawn last with the probability that it had before the hill, until it is accepted.
    pending: Option<(Token, f32)>,
}

impl AdaptiveState {
    /// A target below 0 is off, and one above 1 is 1. It begins as if every token so far had hit the target.
    pub(crate) fn new(target: f32, decay: f32) -> Self {
        let target = (target >= 0.0).then_some(target.min(1.0));
        let weight = 1.0 / (1.0 - decay);
        Self { target, decay, sum: target.unwrap_or(0.0) / (1.0 - decay), weight, pending: None }
    }

    /// Gives the candidates the hill's logits and draws one; `None` where there is none.
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
        // As llama.cpp, which does not know that their order is lost, takes the first one's logit for the greatest.
        let (list, probabilities) = candidates.softmax();
        let drawn = draw_discrete(probabilities, n_all, rng);
        let (&candidate, &p) = list.get(drawn).zip(original.get(drawn))?;
        candidates.is_sorted = false;
        self.pending = Some((candidate.token, p));
        Some(candidate)
    }

    /// Learns from `token`, where it is the one drawn last.
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
    fn what_is_about_as_likely_as_the_target_becomes_the_likeliest() {
        for (target, token) in [(0.0, 0), (0.17, 2), (0.31, 3), (0.9, 1), (7.0, 1)] {
            assert_eq!(most_likely(&mut AdaptiveState::new(target, 0.5)), token, "target {target}");
        }
    }

    #[test]
    fn the_target_moves_against_what_was_accepted() {
        let mut adaptive = AdaptiveState::new(0.3, 0.5);
        for _ in 0..3 {
            adaptive.pending = Some((1, 0.5));
            adaptive.accept(1);
        }
        assert_eq!(most_likely(&mut adaptive), 2);
    }

    #[test]
    fn only_the_token_drawn_last_is_learnt_from() {
        let mut adaptive = AdaptiveState::new(0.3, 0.5);
        let sum = adaptive.sum;
        adaptive.accept(1);
        adaptive.pending = Some((1, 0.5));
        adaptive.accept(2);
        adaptive.accept(1);
        assert_eq!((adaptive.sum.to_bits(), adaptive.pending), (sum.to_bits(), None));
    }

    #[test]
    fn below_zero_the_probabilities_stay() {
        let mut candidates = candidates();
        let before = candidates.list.clone();
        AdaptiveState::new(-1.0, 0.5).draw(&mut candidates, &mut Mt19937::new(1));
        assert_eq!(candidates.list, before);
    }
}
