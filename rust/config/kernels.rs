use super::Named;

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
    pub attention: bool,
    pub products: bool,
}

impl EnabledKernels {
    pub const NONE: Self = Self { attention: false, products: false };
    pub const ALL: Self = Self { attention: true, products: true };
}
