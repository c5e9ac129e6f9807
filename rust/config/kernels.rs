//! Selection of CPU kernels.

use crate::config::WeightLayout;

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

impl KernelChoice {
    /// Parses the name of a choice.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "weft" => Some(Self::Weft),
            "llama.cpp" => Some(Self::LlamaCpp),
            _ => None,
        }
    }
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

/// Capabilities of our kernels for one model, with one cache format, on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelSupport {
    /// The kernels that passed their trial.
    pub usable: EnabledKernels,
    /// Name of the instruction set that the kernels use.
    pub level: &'static str,
    /// Reason why kernels are not usable, in a few words.
    pub why_not: Option<&'static str>,
    /// True if attention supports the model's heads and the cache's formats.
    pub covers_attention: bool,
    /// The memory layout of the model's weights.
    pub weights: WeightLayout,
}
