//! Pooling of token embeddings.

use super::{Named, named_variants};

named_variants! {
    /// Reduction of the embeddings of a text's tokens to one, numbered as in GGUF metadata. Fixed for the lifetime of a context.
    pub enum Pooling {
        /// No reduction: one embedding per token.
        None = "none",
        Mean = "mean",
        /// The embedding of the first token.
        Cls = "cls",
        /// The embedding of the last token.
        Last = "last",
        /// A score of the model's classifier instead of an embedding: how well a text answers a query.
        Rank = "rank",
    }
}

impl Pooling {
    pub fn from_number(number: &str) -> Option<Self> {
        Self::NAMES.get(number.parse::<usize>().ok()?).map(|(_, pooling)| *pooling)
    }
}
