//! What a decode of one row per sequence looks at.

/// Whose cells the tokens before the first step are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prompts {
    /// All sequences are branches of one prompt, whose cells are there once.
    Shared,
    /// Each sequence has cells of its own.
    Own,
}

/// So many sequences, each with so many tokens before its first step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_field_names, reason = "counts are named so everywhere")]
pub(crate) struct Shape {
    /// Each gets one row in every decode.
    pub(crate) n_sequences: usize,
    pub(crate) n_tokens: usize,
    pub(crate) prompts: Prompts,
}

impl Shape {
    /// How many prompts there are.
    pub(crate) fn n_prompts(&self) -> usize {
        match self.prompts {
            Prompts::Shared => 1,
            Prompts::Own => self.n_sequences,
        }
    }

    /// Cells that are used before the first step.
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
        write!(f, "{} × {}{prompts}", self.n_sequences, self.n_tokens)
    }
}
