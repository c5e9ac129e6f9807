//! One row of logits → one token.
