//! Pooling of token embeddings.

use super::Named;

/// How the embeddings of a text's tokens are reduced to one. Fixed for the lifetime of a context.
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
    /// Parses the number in a model's metadata.
    #[must_use]
    pub fn numbered(number: &str) -> Option<Self> {
        match number {
            "0" => Some(Self::None),
            "1" => Some(Self::Mean),
            "2" => Some(Self::Cls),
            "3" => Some(Self::Last),
            "4" => Some(Self::Rank),
            _ => None,
        }
    }
}

impl Named for Pooling {
    const NAMES: &'static [(&'static str, Self)] =
        &[("none", Self::None), ("mean", Self::Mean), ("cls", Self::Cls), ("last", Self::Last), ("rank", Self::Rank)];
}
