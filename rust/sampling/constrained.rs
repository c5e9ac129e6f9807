//! A token that a constraint allows.

use crate::request::{Constraint, Token};
use crate::sampling::Sampler;

/// Draws a token that `constraint` allows and tells it; `None` where there is none that can be drawn.
///
/// As in llama-server, one is drawn freely at first. Most are allowed, and to ask about one costs little. Only where it is not,
/// another is drawn of those that are, with the generator's next number.
pub(crate) fn draw_allowed(sampler: &mut Sampler, constraint: &mut dyn Constraint, logits: &[f32]) -> Option<Token> {
    let mut token = sampler.sample(logits);
    if !constraint.allows(token) {
        let mut allowed = logits.to_vec();
        constraint.mask(&mut allowed);
        token = sampler.sample(&allowed);
        // Where nothing can be drawn, a sampler takes what it likes.
        if !constraint.allows(token) {
            return None;
        }
    }
    constraint.accept(token);
    Some(token)
}
