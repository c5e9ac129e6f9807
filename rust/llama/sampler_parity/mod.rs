//! Compares our sampling steps with llama.cpp's samplers of the same names, on random rows and on a model's.
//!
//! The possible tokens of a row have different logits: llama.cpp leaves the order of equal ones to the C++ library's sort.

mod cases;
mod chains;
mod llama_sampler;
mod penalties;
mod steps;
mod text;

use crate::llama::{tests::demo, vocabulary::token_strings::token_strings};
use crate::sampling::TokenStrings;

/// Context length, which a penalty window of −1 covers.
const N_CTX: u32 = 256;

/// The demo model's vocabulary. The rows are no longer than it.
fn demo_token_strings() -> TokenStrings {
    token_strings(&demo())
}
