//! Choice between our kernels and llama.cpp's.

use super::named_variants;

named_variants! {
    #[derive(Default)]
    pub enum KernelChoice {
        /// Our kernels wherever they are faster, by a rule.
        #[default]
        Auto = "auto",
        Weft = "weft",
        LlamaCpp = "llama.cpp",
    }
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
