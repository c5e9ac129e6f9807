//! Sides of a comparison: llama.cpp in each configuration that its users can choose, llama.cpp with our kernels, and the
//! engine.

use weft::config::EnabledKernels;

use super::bare_model::WeightLayout;
use super::setup::{Cells, Flash};

/// A configuration of the bare loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bare {
    pub(crate) weights: WeightLayout,
    pub(crate) flash: Flash,
    pub(crate) cells: Cells,
    /// Our kernels in use.
    pub(crate) used: EnabledKernels,
}

/// A side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Bare(Bare),
    /// The engine at its defaults.
    Engine,
}

impl Bare {
    /// Creates the configuration with our kernels: flash attention is on, and weights are in the on-disk layout.
    pub(crate) fn with_our_kernels(used: EnabledKernels) -> Self {
        Self { weights: WeightLayout::AsStored, flash: Flash::On, cells: Cells::Unified, used }
    }

    /// Returns llama.cpp's own configurations, the usually fastest first, so that slower ones are excluded
    /// early.
    pub(crate) fn of_llama_cpp(weights: WeightLayout) -> [Self; 3] {
        let config = |flash, cells| Self { weights, flash, cells, used: EnabledKernels::NONE };
        [config(Flash::Off, Cells::PerSequence), config(Flash::On, Cells::Unified), config(Flash::Off, Cells::Unified)]
    }

    /// Returns the title of the column.
    pub(crate) fn title(self) -> &'static str {
        match (self.cells, self.flash) {
            _ if self.used != EnabledKernels::NONE => "ours",
            (Cells::PerSequence, Flash::Off) => "per seq.",
            (Cells::PerSequence, Flash::On) => "per s. on",
            (Cells::Unified, Flash::On) => "flash on",
            (Cells::Unified, Flash::Off) => "flash off",
        }
    }
}

impl Side {
    /// Returns true if it is one of llama.cpp's own, with which ours are compared.
    pub(crate) fn is_llama_cpp(self) -> bool {
        matches!(self, Self::Bare(Bare { used: EnabledKernels::NONE, .. }))
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Bare(bare) => bare.title(),
            Self::Engine => "engine",
        }
    }
}
