//! Who takes a step: llama.cpp in each way that its users can choose, llama.cpp with our kernels under it, and the engine.

use weft::config::EnabledKernels;

use super::bare_model::WeightLayout;
use super::setup::{Cells, Flash};

/// A way to run the bare loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bare {
    pub(crate) weights: WeightLayout,
    pub(crate) flash: Flash,
    pub(crate) cells: Cells,
    /// Which of our kernels compute.
    pub(crate) used: EnabledKernels,
}

/// One that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Bare(Bare),
    /// At its defaults.
    Engine,
}

impl Bare {
    /// With our kernels: flash attention is on wherever they are used, and weights lie as they are stored.
    pub(crate) fn of_ours(used: EnabledKernels) -> Self {
        Self { weights: WeightLayout::AsStored, flash: Flash::On, cells: Cells::Unified, used }
    }

    /// The ways of llama.cpp's own, the one that is most often the fastest first: those behind it are then soon given up.
    pub(crate) fn of_llama_cpp(weights: WeightLayout) -> [Self; 3] {
        let way = |flash, cells| Self { weights, flash, cells, used: EnabledKernels::NONE };
        [way(Flash::Off, Cells::PerSequence), way(Flash::On, Cells::Unified), way(Flash::Off, Cells::Unified)]
    }

    /// For the head of a column.
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
    /// Whether it is one of llama.cpp's own, which ours are held against.
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
