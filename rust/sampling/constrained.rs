//! Draws tokens that a constraint allows.

use std::borrow::Cow;

use crate::request::{Constraint, Token};
use crate::sampling::Sampler;

/// Draws and accepts an allowed token; `None` if there is none.
///
/// As in llama-server, the first draw is unconstrained, since most drawn tokens are allowed; only if not, a second draw among
/// the allowed tokens takes the generator's next number.
pub(crate) fn draw_allowed(sampler: &mut Sampler, constraint: &mut dyn Constraint, logits: &[f32]) -> Option<Token> {
    if let Some(token) = constraint.forced() {
        let alone = |(id, _)| if id == token { 0.0 } else { f32::NEG_INFINITY };
        let row: Vec<f32> = (0..).zip(logits).map(alone).collect();
        // Accepted even if the samplers exclude it; they advance as after any other draw.
        sampler.sample(&row);
        constraint.accept(token);
        return Some(token);
    }
    // A code point is in the interval of a single token, so it must be looked up among the allowed tokens.
    let mut token =
        if sampler.has_code_point() { sampler.sample(&find_allowed(constraint, logits)) } else { sampler.sample(logits) };
    if !constraint.allows(token) {
        token = sampler.sample(&find_allowed(constraint, logits));
        // If no token can be drawn, the sampler returns an arbitrary one.
        if !constraint.allows(token) {
            return None;
        }
    }
    constraint.accept(token);
    Some(token)
}

fn find_allowed(constraint: &mut dyn Constraint, logits: &[f32]) -> Vec<f32> {
    let mut allowed = logits.to_vec();
    constraint.mask(&mut allowed);
    allowed
}

pub(crate) enum AllowedTokens<'a> {
    /// Only this token, whatever its logit.
    Forced(Token),
    /// The tokens that have logits in this row.
    Any(Cow<'a, [f32]>),
}

pub(crate) fn next_allowed<'a>(constraint: Option<&mut (dyn Constraint + 'static)>, logits: &'a [f32]) -> AllowedTokens<'a> {
    match constraint.map(|constraint| (constraint.forced(), constraint)) {
        None => AllowedTokens::Any(Cow::Borrowed(logits)),
        Some((Some(token), _)) => AllowedTokens::Forced(token),
        Some((None, constraint)) => AllowedTokens::Any(Cow::Owned(find_allowed(constraint, logits))),
    }
}
