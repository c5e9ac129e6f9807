use super::Named;

/// The user's choice of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelChoice {
    /// Our kernels wherever they are faster, by a rule.
    #[default]
    Auto,
    /// Our kernels for every operation that they support.
    Weft,
    /// llama.cpp's kernels only.
    LlamaCpp,
}

impl Named for KernelChoice {
    const NAMES: &'static [(&'static str, Self)] = &[("auto", Self::Auto), ("weft", Self::Weft), ("llama.cpp", Self::LlamaCpp)];
}

/// Our kernels that are in use; llama.cpp's compute the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EnabledKernels {
    /// Attention.
    pub attention: bool,
    /// Products with weights.
    pub products: bool,
}

impl EnabledKernels {
    /// llama.cpp's kernels only.
    pub const NONE: Self = Self { attention: false, products: false };
    /// Each of our kernels that supports an operation.
    pub const ALL: Self = Self { attention: true, products: true };
}
