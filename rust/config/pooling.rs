//! Pooling of token embeddings.

use super::Named;

/// Reduction of the embeddings of a text's tokens to one. Fixed for the lifetime of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// No reduction: one embedding per token.
    None,
    /// The mean of all tokens.
    Mean,
    /// The embedding of the first token.
    Cls,
    /// The embedding of the last token.
    Last,
    /// A score of the model's classifier instead of an embedding: how well a text answers a query.
    Rank,
}

impl Pooling {
    /// Parses the number in a model's metadata, which is the index in [`Named::NAMES`].
    pub fn numbered(number: &str) -> Option<Self> {
        Self::NAMES.get(number.parse::<usize>().ok()?).map(|(_, pooling)| *pooling)
    }
}

impl Named for Pooling {
    const NAMES: &'static [(&'static str, Self)] =
        &[("none", Self::None), ("mean", Self::Mean), ("cls", Self::Cls), ("last", Self::Last), ("rank", Self::Rank)];
}
