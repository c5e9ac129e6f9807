//! Our sampling steps held to llama.cpp's samplers of the same names, on random rows and on a model's.
//!
//! The rows hold no two equal logits among the possible tokens: llama.cpp leaves the order of equals to the C++ library's sort.

mod cases;
mod chains;
mod penalties;
mod steps;
mod text;
mod theirs;

use crate::llama::tests::demo;
use crate::llama::token_strings::token_strings;
use crate::sampling::TokenStrings;

/// What a window of −1 stands for.
const N_CTX: u32 = 256;

/// The demo model's vocabulary. The rows are no longer than it.
fn demo_lexicon() -> TokenStrings {
    token_strings(&demo())
}
