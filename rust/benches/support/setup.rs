//! Configuration of a bare loop's context and threads.

use weft::config::{EnabledKernels, Limits};

/// Attention of llama.cpp. The reference always sets it explicitly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flash {
    /// One fused kernel.
    On,
    /// Matrix products, with the scores between them.
    Off,
}

impl std::fmt::Display for Flash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(if *self == Self::On { "on" } else { "off" })
    }
}

/// Location of the sequences' cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cells {
    /// Unified: sequences can share cells, and a row is either computed against all cells, or its visibility is checked for
    /// each cell.
    Unified,
    /// One stream per sequence: nothing can be shared.
    PerSequence,
}

/// Configuration of a context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) flash: Flash,
    pub(crate) cells: Cells,
    /// Our kernels in use.
    pub(crate) used: EnabledKernels,
    /// Total cells of all sequences.
    pub(crate) n_cells: u32,
    pub(crate) n_sequences: u32,
    /// Maximum rows of one decode.
    pub(crate) n_rows: u32,
    /// Maximum rows of one call, which llama.cpp splits into decodes of `n_rows`.
    pub(crate) n_batch: u32,
}

/// llama.cpp's default rows of one decode.
pub(crate) const DEFAULT_ROWS: u32 = 512;

impl Setup {
    /// Returns llama.cpp's defaults, with unified cells.
    pub(crate) fn unified(flash: Flash, n_sequences: usize, n_cells: usize) -> Self {
        Self {
            flash,
            cells: Cells::Unified,
            used: EnabledKernels::NONE,
            n_cells: count(n_cells.next_multiple_of(256)),
            n_sequences: count(n_sequences),
            n_rows: DEFAULT_ROWS,
            n_batch: DEFAULT_ROWS,
        }
    }

    /// Returns the configuration of an engine with these limits.
    pub(crate) fn of(limits: &Limits, flash: Flash, used: EnabledKernels) -> Self {
        let &Limits { n_ctx, n_seq_max, n_ubatch, .. } = limits;
        Self { flash, cells: Cells::Unified, used, n_cells: n_ctx, n_sequences: n_seq_max, n_rows: n_ubatch, n_batch: n_ubatch }
    }

    /// Returns the number of streams.
    pub(crate) fn n_streams(&self) -> u32 {
        match self.cells {
            Cells::Unified => 1,
            Cells::PerSequence => self.n_sequences,
        }
    }
}

/// Origin of the threads of a decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// One thread pool lives as long as the context and polls for the next decode, as in the engine.
    Kept,
    /// llama.cpp starts and ends threads for each graph, which is its default.
    Started,
}

/// The threads of a decode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Threads {
    pub(crate) n: u32,
    pub(crate) origin: Origin,
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("a bench's contexts are small")
}
