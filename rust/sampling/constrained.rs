//! A token that a constraint allows.

use std::borrow::Cow;

use crate::request::{Constraint, Token};
use crate::sampling::Sampler;

/// Draws a token that `constraint` allows and tells it; `None` where there is none that can be drawn.
///
/// As in llama-server, one is drawn freely at first. Most are allowed, and to ask about one costs little. Only where it is not,
/// another is drawn of those that are, with the generator's next number. A token that is forced is drawn as if there were no other.
pub(crate) fn draw_allowed(sampler: &mut Sampler, constraint: &mut dyn Constraint, logits: &[f32]) -> Option<Token> {
    if let Some(token) = constraint.forced() {
        let alone = |(id, _)| if id == token { 0.0 } else { f32::NEG_INFINITY };
        let row: Vec<f32> = (0..).zip(logits).map(alone).collect();
        // It is said even where the samplers would not have it; they go on as after any other draw.
        sampler.sample(&row);
        constraint.accept(token);
        return Some(token);
    }
    // A code point lies in one token's interval alone: it is looked up among those that are allowed.
    let mut token = if sampler.has_code_point() { sampler.sample(&allowed(constraint, logits)) } else { sampler.sample(logits) };
    if !constraint.allows(token) {
        token = sampler.sample(&allowed(constraint, logits));
        // Where nothing can be drawn, a sampler takes what it likes.
        if !constraint.allows(token) {
            return None;
        }
    }
    constraint.accept(token);
    Some(token)
}

/// The row in which the tokens that `constraint` allows have their logits, and the others none.
fn allowed(constraint: &mut dyn Constraint, logits: &[f32]) -> Vec<f32> {
    let mut allowed = logits.to_vec();
    constraint.mask(&mut allowed);
    allowed
}

/// Which tokens may come next after a row of logits.
pub(crate) enum AllowedTokens<'a> {
    /// This one, whatever the model makes of it.
    Forced(Token),
    /// Those that have logits in this row.
    Any(Cow<'a, [f32]>),
}

/// Which tokens `constraint` lets come next.
pub(crate) fn next_allowed<'a>(constraint: Option<&mut (dyn Constraint + 'static)>, logits: &'a [f32]) -> AllowedTokens<'a> {
    match constraint.map(|constraint| (constraint.forced(), constraint)) {
        None => AllowedTokens::Any(Cow::Borrowed(logits)),
        Some((Some(token), _)) => AllowedTokens::Forced(token),
        Some((None, constraint)) => AllowedTokens::Any(Cow::Owned(allowed(constraint, logits))),
    }
}
