//! Whose kernels compute on the CPU.

/// What a user asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kernels {
    /// Ours wherever they are the faster ones by a rule.
    #[default]
    Auto,
    /// Ours wherever they can compute an operation at all.
    Weft,
    /// llama.cpp's own only.
    LlamaCpp,
}

/// Which of our kernels compute; llama.cpp's own compute the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// Attention.
    pub attention: bool,
    /// Products of weights.
    pub products: bool,
}

impl Used {
    /// llama.cpp's own kernels only.
    pub const NONE: Self = Self { attention: false, products: false };
    /// Each of ours that can compute an operation.
    pub const ALL: Self = Self { attention: true, products: true };
}
