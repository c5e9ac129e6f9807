//! Draws of one prompt's branches that depend on each other: distinct first tokens, and arithmetic sampling.

use std::sync::{Arc, OnceLock};

use crate::engine::features::state::SpecFeatures;
use crate::engine::scheduler::request_group::BranchSpec;
use crate::engine::scheduler::sequence::Sequence;
use crate::request::{Diversity, Request, Token};
use crate::sampling::draw::rng::Mt19937;
use crate::sampling::{self, AllowedTokens, Sampler};

pub(crate) struct FirstToken {
    tokens: Arc<DistinctFirstTokens>,
    nth: u32,
}

pub(crate) fn on_new_spec(features: &mut SpecFeatures, request: &Request, sampler: &Sampler, n: u32) {
    if request.diversity == Diversity::Distinct {
        features.diversity = Some(Arc::new(DistinctFirstTokens::new(sampler, request.seed, n)));
    }
}

pub(crate) fn on_new_sequence(sequence: &mut Sequence, spec: &BranchSpec, nth: u32) {
    sequence.features.diversity = spec.features.diversity.clone().map(|tokens| FirstToken { tokens, nth });
    if spec.request.diversity == Diversity::Arithmetic {
        sequence.sampler.draw_by_code_point(spec.request.seed, nth, spec.n);
    }
}

pub(crate) fn sample(sequence: &mut Sequence, logits: &[f32]) -> bool {
    let Some(first) = sequence.features.diversity.take() else { return false };
    let token = draw(sequence, &first, logits);
    sequence.append_sampled(token, logits);
    true
}

fn draw(sequence: &mut Sequence, first: &FirstToken, logits: &[f32]) -> Option<Token> {
    let token = match sampling::next_allowed(sequence.constraint.as_deref_mut(), logits) {
        AllowedTokens::Forced(token) => (first.nth == 0).then_some(token)?,
        AllowedTokens::Any(row) => {
            // The reported logprobs are read from the sampler's own chain.
            sequence.sampler.distribution(&row);
            first.tokens.draw(first.nth, &row)?
        }
    };
    if let Some(constraint) = &mut sequence.constraint {
        constraint.accept(token);
    }
    Some(token)
}

/// Gumbel top-k: Gumbel noise is added to each token's log-probability, and the greatest sums are taken in order. This equals
/// drawing one token after another without replacement. Source: Kool, van Hoof and Welling, "Stochastic Beams and Where to Find
/// Them", 2019, arXiv 1903.06059, section 2.3.
///
/// If fewer tokens are possible than there are branches, the last branches get none.
#[derive(Debug)]
pub(crate) struct DistinctFirstTokens {
    sampler: Sampler,
    seed: u32,
    n: u32,
    drawn: OnceLock<Vec<Token>>,
}

impl DistinctFirstTokens {
    pub(crate) fn new(sampler: &Sampler, seed: u32, n: u32) -> Self {
        Self { sampler: sampler.branch(seed), seed, n, drawn: OnceLock::new() }
    }

    /// Returns the first token of branch `nth`. `logits` is the row after the prompt; the first caller draws for all branches.
    pub(crate) fn draw(&self, nth: u32, logits: &[f32]) -> Option<Token> {
        let drawn = self.drawn.get_or_init(|| {
            let mut rng = Mt19937::derived(self.seed, 0, 0);
            gumbel_top_k(&self.sampler.clone().distribution(logits), self.n as usize, &mut rng)
        });
        drawn.get(nth as usize).copied()
    }
}

fn gumbel_top_k(tokens: &[(Token, f64)], k: usize, rng: &mut Mt19937) -> Vec<Token> {
    let mut perturbed: Vec<(f64, Token)> = tokens.iter().map(|&(token, logprob)| (logprob + rng.gumbel(), token)).collect();
    perturbed.sort_unstable_by(|(value, token), (other, of)| other.total_cmp(value).then(token.cmp(of)));
    perturbed.into_iter().take(k).map(|(_, token)| token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::SamplingParams;
    use crate::sampling::token_strings::tests::Pieces;

    const PROBABILITIES: [f64; 4] = [0.5, 0.25, 0.15, 0.1];

    fn tokens() -> Vec<(Token, f64)> {
        (0..).zip(PROBABILITIES.map(f64::ln)).collect()
    }

    #[test]
    fn ordered_draws_are_as_likely_as_without_replacement() {
        const N: u32 = 40_000;
        let mut n_drawn = [[0.0_f64; 4]; 4];
        for seed in 0..N {
            let drawn = gumbel_top_k(&tokens(), 2, &mut Mt19937::new(seed));
            let [first, second] = [0, 1].map(|index| usize::try_from(drawn[index]).unwrap());
            n_drawn[first][second] += 1.0;
        }
        let mut chi_square = 0.0;
        for first in 0..4 {
            assert_eq!(n_drawn[first][first].to_bits(), 0.0_f64.to_bits());
            for second in (0..4).filter(|&second| second != first) {
                let p = PROBABILITIES[first] * PROBABILITIES[second] / (1.0 - PROBABILITIES[first]);
                let expected = p * f64::from(N);
                chi_square += (n_drawn[first][second] - expected).powi(2) / expected;
            }
        }
        // The 99.9th percentile with eleven degrees of freedom.
        assert!(chi_square < 31.26, "{chi_square}: {n_drawn:?}");
    }

    #[test]
    fn tokens_are_included_as_often_as_without_replacement() {
        const N: u32 = 40_000;
        let mut n_included = [0.0; 4];
        for seed in 0..N {
            for token in gumbel_top_k(&tokens(), 2, &mut Mt19937::new(seed)) {
                n_included[usize::try_from(token).unwrap()] += 1.0 / f64::from(N);
            }
        }
        for (token, share) in n_included.into_iter().enumerate() {
            let p = PROBABILITIES[token];
            let others = PROBABILITIES.iter().enumerate().filter(|&(other, _)| other != token);
            let expected = p + others.map(|(_, q)| q * p / (1.0 - q)).sum::<f64>();
            assert!((share - expected).abs() < 0.01, "token {token}: {share} instead of {expected}");
        }
    }

    #[test]
    fn all_branches_share_one_draw_and_the_last_may_get_none() {
        let params = SamplingParams { temperature: 1.0, top_k: 3, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() };
        let firsts = DistinctFirstTokens::new(&Sampler::new(&params, 9, &Pieces::none(&[]), 64), 9, 5);
        let row = [0.0, 1.0, -1.0, 2.0];
        let mut drawn: Vec<Option<Token>> = (0..5).map(|nth| firsts.draw(nth, &row)).collect();
        assert_eq!(drawn[3..], [None, None]);
        drawn.truncate(3);
        drawn.sort_unstable();
        assert_eq!(drawn, [Some(0), Some(1), Some(3)], "the filter leaves these");
        // Later calls return the same draw, whatever their row.
        assert_eq!(firsts.draw(4, &[0.0; 4]), None);
    }
}
