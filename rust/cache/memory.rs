//! What a model's memory can do.

/// At which points of what a sequence holds another one can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forks {
    /// At any.
    Anywhere,
    /// Where what a sliding window sees is still there; a saved piece has that only of its end.
    InWindow,
    /// Only at the end: the memory is a state, which is saved and restored whole.
    AtEnd,
}

/// What a decode pays for cells that none of its rows sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleCost {
    /// As good as nothing: on a GPU.
    Nothing,
    /// That llama.cpp asks of each row and cell whether one sees the other: on a CPU with our attention.
    Mask,
    /// All that it pays for those that are seen: on a CPU with llama.cpp's attention.
    Scores,
}

/// What a model's memory can do, and what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryKind {
    /// Where it can be shared.
    pub forks: Forks,
    /// What cells cost that nothing that runs sees.
    pub idle_cost: IdleCost,
    /// Whether what leaves the pool can be saved; if not, there is no store.
    pub can_be_saved: bool,
    /// Bytes of one token's cells in a saved piece, about.
    pub bytes_per_token: u64,
    /// Bytes of a saved state beside its tokens' cells, about; 0 for a memory that is not one.
    pub bytes_per_state: u64,
    /// What one more run of adjacent cells costs in a save, in tokens of one run.
    pub tokens_per_run: u32,
    /// Tokens that a sliding window sees, the newest included; 0 for a memory that does not fork [`Forks::InWindow`].
    pub n_window: u32,
}

impl MemoryKind {
    /// Whether it is one state, which is saved and restored whole, and cannot be cut.
    #[must_use]
    pub fn is_a_state(self) -> bool {
        self.forks == Forks::AtEnd
    }

    /// Bytes of a saved prefix of `n_tokens`, about.
    #[must_use]
    pub fn bytes_of(self, n_tokens: u32) -> u64 {
        self.bytes_per_state + u64::from(n_tokens) * self.bytes_per_token
    }

    /// Whether a sequence that holds everything from `whole_from` on holds what a token after `n_tokens` sees: itself and the
    /// `n_window - 1` before it.
    #[must_use]
    pub fn holds_window(self, whole_from: u32, n_tokens: u32) -> bool {
        self.n_window == 0 || whole_from <= self.window_from(n_tokens)
    }

    /// The first token that one after `n_tokens` sees.
    #[must_use]
    pub fn window_from(self, n_tokens: u32) -> u32 {
        (n_tokens + 1).saturating_sub(self.n_window)
    }
}
