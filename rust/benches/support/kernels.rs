//! Whose kernels compute in the bare loops.

/// Attention and products: llama.cpp's own, or ours under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernels {
    LlamaCpp,
    Weft,
}

impl Kernels {
    /// Puts ours under llama.cpp, before any model is loaded. Whether they can be asked for.
    pub(crate) fn install() -> bool {
        false
    }

    /// Lets the decodes that follow be computed so, but for those of an engine, which chooses for itself. Called between decodes.
    pub(crate) fn choose(self) {}
}
