//! Sequences and cells of a decode with one row per sequence.

/// Sharing of the tokens before the first step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prompts {
    /// All sequences are branches of one prompt, whose cells exist once.
    Shared,
    /// Each sequence has its own cells.
    Own,
}

/// Numbers of sequences, and of tokens in each before its first step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_field_names, reason = "counts are named so everywhere")]
pub(crate) struct Shape {
    /// Number of sequences; each has one row in every decode.
    pub(crate) n_sequences: usize,
    pub(crate) n_tokens: usize,
    pub(crate) prompts: Prompts,
    /// Cells in the same cache that no running sequence uses.
    pub(crate) n_idle: usize,
}

impl Shape {
    /// Creates a shape without idle cells.
    pub(crate) fn new(n_sequences: usize, n_tokens: usize, prompts: Prompts) -> Self {
        Self { n_sequences, n_tokens, prompts, n_idle: 0 }
    }

    /// Returns the number of prompts.
    pub(crate) fn n_prompts(&self) -> usize {
        match self.prompts {
            Prompts::Shared => 1,
            Prompts::Own => self.n_sequences,
        }
    }

    /// Returns the cells that the sequences see before the first step.
    pub(crate) fn n_cells(&self) -> usize {
        self.n_prompts() * self.n_tokens
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let prompts = match self.prompts {
            _ if self.n_sequences == 1 => "",
            Prompts::Shared => " shared",
            Prompts::Own => " own",
        };
        let idle = if self.n_idle == 0 { String::new() } else { format!(", {}k idle", self.n_idle / 1_000) };
        f.pad(&format!("{} × {}{prompts}{idle}", self.n_sequences, self.n_tokens))
    }
}
