//! Draws of one prompt's branches that depend on each other: distinct first tokens, and arithmetic sampling.

pub(crate) mod distinct;

use std::sync::Arc;

use crate::engine::features::diversity::distinct::DistinctFirstTokens;
use crate::engine::features::state::SpecFeatures;
use crate::engine::scheduler::request_group::BranchSpec;
use crate::engine::scheduler::sequence::Sequence;
use crate::request::{Diversity, Request, Token};
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

pub(crate) fn on_create(sequence: &mut Sequence, spec: &BranchSpec, nth: u32) {
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

/// Returns the first token; `None` if all possible ones are taken.
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
