//! Whose kernels compute in the bare loops.

use weft::llama::kernels::{self, Used};

/// Attention and products: llama.cpp's own, or ours under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernels {
    LlamaCpp,
    Weft,
}

impl Kernels {
    /// Puts ours under llama.cpp, before any model is loaded; says in a few words what of them can be used, or why nothing can.
    pub(crate) fn install() -> Result<String, String> {
        let installed = kernels::install();
        let Used { attention, products } = installed.usable;
        let names: Vec<&str> = [("attention", attention), ("products", products)]
            .into_iter()
            .filter_map(|(name, is_used)| is_used.then_some(name))
            .collect();
        let why_not = installed.why_not.clone().unwrap_or_default();
        if names.is_empty() {
            return Err(why_not);
        }
        let missing = if why_not.is_empty() { String::new() } else { format!(" ({why_not})") };
        Ok(format!("{} with {}{missing}", names.join(" and "), installed.level))
    }

    /// Lets the decodes that follow be computed so, but for those of an engine, which chooses for itself. Called between decodes.
    pub(crate) fn choose(self) {
        kernels::set_default(match self {
            Self::LlamaCpp => Used::NONE,
            Self::Weft => kernels::install().usable,
        });
    }
}
