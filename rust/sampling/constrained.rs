//! A token that a constraint allows.

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
