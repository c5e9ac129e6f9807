//! What a bare loop's context is made for, and how it computes.

use weft::config::{EnabledKernels, Limits};

/// How attention is computed. The yardstick never leaves it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flash {
    /// As one fused kernel.
    On,
    /// As products of matrices, with the scores between them.
    Off,
}

impl std::fmt::Display for Flash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(if *self == Self::On { "on" } else { "off" })
    }
}

/// Where the cells of the sequences lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cells {
    /// In one pool: sequences can share them, and a row is computed against all, or asks of each whether it may see it.
    Unified,
    /// In a stream for each sequence, which no other looks at: nothing can be shared.
    PerSequence,
}

/// What a context is made for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) flash: Flash,
    pub(crate) cells: Cells,
    /// Which of our kernels compute.
    pub(crate) used: EnabledKernels,
    /// Of all sequences together.
    pub(crate) n_cells: u32,
    pub(crate) n_sequences: u32,
    /// Rows that are computed at once.
    pub(crate) n_rows: u32,
    /// Rows of one call, which llama.cpp cuts into pieces of `n_rows`.
    pub(crate) n_batch: u32,
}

/// Rows of one decode, as llama.cpp has it by itself.
pub(crate) const DEFAULT_ROWS: u32 = 512;

impl Setup {
    /// As llama.cpp does by itself, in a pool.
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

    /// As an engine of these limits has it.
    pub(crate) fn of(limits: &Limits, flash: Flash, used: EnabledKernels) -> Self {
        let &Limits { n_ctx, n_seq_max, n_ubatch, .. } = limits;
        Self { flash, cells: Cells::Unified, used, n_cells: n_ctx, n_sequences: n_seq_max, n_rows: n_ubatch, n_batch: n_ubatch }
    }

    /// How many streams the cells lie in.
    pub(crate) fn n_streams(&self) -> u32 {
        match self.cells {
            Cells::Unified => 1,
            Cells::PerSequence => self.n_sequences,
        }
    }
}

/// Where the threads of a decode come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// One pool lives as long as the context and waits for the next decode as the engine's does.
    Kept,
    /// llama.cpp starts and ends them for each graph, which is what it does unless told otherwise.
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
