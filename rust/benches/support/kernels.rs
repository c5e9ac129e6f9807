//! Kernels of the bare loops.

use weft::llama::kernels::{self, EnabledKernels};

/// Installs our kernels in llama.cpp, before any model is loaded; returns the usable ones with a description.
pub(crate) fn install() -> (EnabledKernels, String) {
    let installed = kernels::install();
    let EnabledKernels { attention, products } = installed.usable;
    let names = [("attention", attention), ("products", products)];
    let names: Vec<&str> = names.into_iter().filter(|(_, is_usable)| *is_usable).map(|(name, _)| name).collect();
    let usable = if names.is_empty() { "none".to_owned() } else { format!("{} with {}", names.join(" and "), installed.level) };
    let words = installed.unusable_reason.iter().fold(usable, |usable, reason| format!("{usable} ({reason})"));
    (installed.usable, words)
}

/// Selects the kernels of the following decodes, except in an engine, which selects its own. Called between decodes.
pub(crate) fn choose(used: EnabledKernels) {
    kernels::set_default(used);
}
