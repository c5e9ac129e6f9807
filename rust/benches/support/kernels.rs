//! Whose kernels compute in the bare loops.

use weft::llama::kernels::{self, EnabledKernels};

/// Puts ours under llama.cpp, before any model is loaded; says in a few words what of them can be used, or why nothing can.
pub(crate) fn install() -> (EnabledKernels, String) {
    let installed = kernels::install();
    let EnabledKernels { attention, products } = installed.usable;
    let names = [("attention", attention), ("products", products)];
    let names: Vec<&str> = names.into_iter().filter(|(_, is_usable)| *is_usable).map(|(name, _)| name).collect();
    let usable = if names.is_empty() { "none".to_owned() } else { format!("{} with {}", names.join(" and "), installed.level) };
    let words = installed.why_not.iter().fold(usable, |usable, why_not| format!("{usable} ({why_not})"));
    (installed.usable, words)
}

/// Lets the decodes that follow be computed so, but for those of an engine, which chooses for itself. Called between decodes.
pub(crate) fn choose(used: EnabledKernels) {
    kernels::set_default(used);
}
