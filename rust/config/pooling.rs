//! What becomes of the vectors of a text's tokens.

/// How the vectors of a text's tokens become the one of the text. A context has one of these as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// They stay as they are: a vector for each token.
    None,
    /// Their mean.
    Mean,
    /// That of the first token.
    Cls,
    /// That of the last token.
    Last,
    /// No vector but a score, from the model's classifier: how well a text answers a query.
    Rank,
}

impl Pooling {
    /// The pooling of this name, which is llama.cpp's.
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

    /// The pooling of this number, which a model's file holds.
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

    /// llama.cpp's name of it.
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
