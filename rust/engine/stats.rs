//! What the engine is doing: counters since its start, and one entry per slot.

/// A snapshot of the engine, as of its last step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// One entry per slot, in order.
    pub slots: Vec<SlotStats>,
    /// Requests that wait for their first slot.
    pub n_waiting: usize,
    /// Tokens computed that nobody drew in that step: prompts, and what preempted sequences computed again.
    pub n_computed: u64,
    /// Prompt tokens that were found computed.
    pub n_cached: u64,
    /// Tokens drawn.
    pub n_predicted: u64,
    /// Decodes.
    pub n_decodes: u64,
    /// Sequences that gave up their slot for an older one.
    pub n_preempted: u64,
    /// Cells of the pool that hold something.
    pub n_cells_used: usize,
    /// Cells of the pool.
    pub n_cells: usize,
}

/// What one slot is doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlotStats {
    /// The sequence that runs in it; `None` where it is idle.
    pub running: Option<RunningStats>,
}

/// A running sequence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunningStats {
    /// Counts requests in order of submission, from 0.
    pub request_id: u64,
    /// Which branch of it.
    pub index: u32,
    /// The prompt's length in tokens.
    pub n_prompt: u32,
    /// Prompt tokens that this branch computed so far.
    pub n_computed: u32,
    /// Prompt tokens that it found computed.
    pub n_cached: u32,
    /// Tokens drawn.
    pub n_predicted: u32,
    /// Tokens that it may still draw.
    pub n_remaining: u32,
}
