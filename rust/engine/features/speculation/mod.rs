//! Speculative decoding: several drafted tokens of a sequence are verified in one step.

#[allow(dead_code, reason = "called once the engine drafts tokens")]
pub(crate) mod forced_tokens;
#[allow(dead_code, reason = "called once the engine drafts tokens")]
pub(crate) mod gate;
#[allow(dead_code, reason = "called once the engine drafts tokens")]
pub(crate) mod text_index;
