//! Who takes a step: llama.cpp in each way that its users can choose, llama.cpp with our kernels under it, and the engine.

use super::bare::{Cells, Flash};
use super::bare_model::Weights;
use super::kernels::Kernels;

/// A way to run the bare loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bare {
    pub(crate) weights: Weights,
    pub(crate) flash: Flash,
    pub(crate) cells: Cells,
    pub(crate) kernels: Kernels,
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
    pub(crate) const OURS: Self =
        Self { weights: Weights::AsStored, flash: Flash::On, cells: Cells::Unified, kernels: Kernels::Weft };

    /// The ways of llama.cpp's own, the one that is most often the fastest first: those behind it are then soon given up.
    pub(crate) fn of_llama_cpp(weights: Weights) -> [Self; 3] {
        let way = |flash, cells| Self { weights, flash, cells, kernels: Kernels::LlamaCpp };
        [way(Flash::Off, Cells::PerSequence), way(Flash::On, Cells::Unified), way(Flash::Off, Cells::Unified)]
    }

    /// For the head of a column.
    pub(crate) fn title(self) -> &'static str {
        match (self.kernels, self.cells, self.flash) {
            (Kernels::Weft, ..) => "ours",
            (Kernels::LlamaCpp, Cells::PerSequence, Flash::Off) => "per seq.",
            (Kernels::LlamaCpp, Cells::PerSequence, Flash::On) => "per s. on",
            (Kernels::LlamaCpp, Cells::Unified, Flash::On) => "flash on",
            (Kernels::LlamaCpp, Cells::Unified, Flash::Off) => "flash off",
        }
    }
}

impl Side {
    /// Whether it is one of llama.cpp's own, which ours are held against.
    pub(crate) fn is_llama_cpp(self) -> bool {
        matches!(self, Self::Bare(Bare { kernels: Kernels::LlamaCpp, .. }))
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Bare(bare) => bare.title(),
            Self::Engine => "engine",
        }
    }
}
