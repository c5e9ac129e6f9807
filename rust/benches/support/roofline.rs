//! Lower bound of a step's time on this machine, to express the distance from the limit as a number.
//!
//! After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures", 2009
//! (<https://doi.org/10.1145/1498765.1498785>): a step takes at least as long as the longer of
//!
//! - its bytes, `weights + cells × bytes per cell`, at the measured bandwidth of the memory, and
//! - its operations: `2 × (weights of the layers × rows + weights of the output matrix × rows with logits)` at the measured rate
//!   of the instruction that multiplies bytes, and `4 × width × layers × Σ cells that each row sees` at that of floats.
//!
//! Every weight is read once per step, for any number of rows, and every cell once, for any number of rows that see it: cells
//! that branches share are counted once. Of an embedding that is not also the output matrix, only a few rows are read. A
//! multiplication with its addition is two operations. Omitted work (activations, norms, the softmax, the mask, writing K and
//! V) makes the bound lower than what is attainable, never higher, except for a model that fits into a cache, which is read
//! faster than from memory.

use super::bare_model::BareModel;
use super::peaks::Machine;
use super::shape::Shape;

/// Amounts of work in a model's steps.
pub(crate) struct Work {
    weight_bytes: f64,
    layer_params: f64,
    output_params: f64,
    attention_ops: f64,
    bytes_per_cell: f64,
}

/// The resource that limits the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Memory,
    Products,
    Attention,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Memory => "memory",
            Self::Products => "products",
            Self::Attention => "attention",
        })
    }
}

/// A lower bound of a time, with its limiting resource.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) seconds: f64,
    pub(crate) limit: Limit,
}

impl Work {
    /// Creates the work of a model whose K and V take `bytes_per_cell`.
    pub(crate) fn of(model: &BareModel, bytes_per_cell: u64) -> Self {
        let (n_params, n_bytes) = (model.n_params() as f64, model.n_bytes() as f64);
        let (output_params, embedding_params) = (model.n_output_params() as f64, model.n_embedding_params() as f64);
        Self {
            weight_bytes: n_bytes * (1.0 - embedding_params / n_params),
            layer_params: n_params - output_params - embedding_params,
            output_params,
            attention_ops: model.attention_ops() as f64,
            bytes_per_cell: bytes_per_cell as f64,
        }
    }

    /// Returns the bound of a decode with one row per sequence: the mean over `n_steps` steps, because each adds cells.
    pub(crate) fn step(&self, machine: &Machine, shape: Shape, n_steps: usize) -> Bound {
        let n_sequences = shape.n_sequences as f64;
        let n_generated = (n_steps + 1) as f64 / 2.0;
        let n_cells = shape.n_cells() as f64 + n_sequences * n_generated;
        let n_seen = n_sequences * (shape.n_tokens as f64 + n_generated);
        self.bound(machine, (n_sequences, n_sequences), n_cells, n_seen)
    }

    /// Returns the bound of a prompt's prefill in chunks of `n_rows` rows: the weights are read for each chunk, and a row sees
    /// half of the prompt's cells on average. Only the last row has logits.
    pub(crate) fn prefill(&self, machine: &Machine, n_tokens: usize, n_rows: u32) -> Bound {
        let n_chunks = n_tokens.div_ceil(n_rows as usize) as f64;
        let n_tokens = n_tokens as f64;
        let once = Self { weight_bytes: self.weight_bytes * n_chunks, ..*self };
        once.bound(machine, (n_tokens, 1.0), n_tokens, n_tokens * n_tokens / 2.0)
    }

    /// Computes the bound for numbers of rows and rows with logits, `n_cells` cells in total, and `n_seen` visible cells over
    /// all rows.
    fn bound(&self, machine: &Machine, (n_rows, n_outputs): (f64, f64), n_cells: f64, n_seen: f64) -> Bound {
        let memory = (self.weight_bytes + n_cells * self.bytes_per_cell) / machine.bytes_per_s;
        let products = 2.0 * (self.layer_params * n_rows + self.output_params * n_outputs) / machine.byte_ops_per_s;
        let attention = self.attention_ops * n_seen / machine.float_ops_per_s;
        // The same units of the processor compute both.
        let computing = products + attention;
        let limit = match () {
            () if memory > computing => Limit::Memory,
            () if products > attention => Limit::Products,
            () => Limit::Attention,
        };
        Bound { seconds: memory.max(computing), limit }
    }
}
