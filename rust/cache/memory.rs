//! What a model's memory can do.

/// At which points of what a sequence holds another one can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forks {
    /// At any.
    Anywhere,
    /// Where the last tokens, as many as a sliding window looks back, are still there; a saved piece only at its end.
    InWindow,
    /// Only at the end: the memory is a state, which is saved and restored whole.
    AtEnd,
}

/// What a model's memory can do, and what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryKind {
    /// Where it can be shared.
    pub forks: Forks,
    /// Whether every used cell slows every decode: attention on a CPU.
    pub idle_cells_cost: bool,
    /// Bytes of one token's cells in a saved piece, about.
    pub bytes_per_token: u64,
    /// What one more run of adjacent cells costs in a save, in tokens of one run.
    pub tokens_per_run: u32,
}
