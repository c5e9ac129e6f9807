//! Whose kernels compute on the CPU.

use crate::config::WeightLayout;

/// What a user asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelChoice {
    /// Ours wherever they are the faster ones by a rule.
    #[default]
    Auto,
    /// Ours wherever they can compute an operation at all.
    Weft,
    /// llama.cpp's own only.
    LlamaCpp,
}

impl KernelChoice {
    /// The kernels of this name.
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

/// Which of our kernels compute; llama.cpp's own compute the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EnabledKernels {
    /// Attention.
    pub attention: bool,
    /// Products of weights.
    pub products: bool,
}

impl EnabledKernels {
    /// llama.cpp's own kernels only.
    pub const NONE: Self = Self { attention: false, products: false };
    /// Each of ours that can compute an operation.
    pub const ALL: Self = Self { attention: true, products: true };
}

/// What our kernels can do for one model, with one kind of cache, on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelSupport {
    /// Those that passed their trial.
    pub usable: EnabledKernels,
    /// The instruction set that they were chosen for, by its name.
    pub level: &'static str,
    /// Why not all of them are usable, in a few words.
    pub why_not: Option<&'static str>,
    /// Whether attention covers the model's heads and the cache's formats.
    pub covers_attention: bool,
    /// How the model's weights lie.
    pub weights: WeightLayout,
}
