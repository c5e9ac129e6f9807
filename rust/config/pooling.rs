//! Pooling of token embeddings.

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
    /// Parses llama.cpp's name of a pooling.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "mean" => Some(Self::Mean),
            "cls" => Some(Self::Cls),
            "last" => Some(Self::Last),
            "rank" => Some(Self::Rank),
            _ => None,
        }
    }

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

    /// Returns llama.cpp's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
            Self::Rank => "rank",
        }
    }
}
