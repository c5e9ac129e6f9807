//! Limits of a running engine.

use pyo3::prelude::*;

use crate::config::Limits;
use crate::engine::Engine;
use crate::engine::runner::ForkRule;

/// Numbers that are fixed when the engine starts.
#[pyclass(frozen, get_all, module = "weft._native", name = "Limits")]
pub(super) struct PyLimits {
    n_slots: u32,
    n_ctx: u32,
    n_ctx_slot: u32,
    n_ubatch: u32,
    n_seq_max: u32,
    max_host_cache_bytes: Option<u64>,
    max_queue: u32,
    forks_anywhere: bool,
}

impl PyLimits {
    pub(super) fn of(engine: &Engine) -> Self {
        let Limits { n_slots, n_ctx, n_ctx_slot, n_ubatch, n_seq_max, max_host_cache_bytes, max_queue, .. } = *engine.limits();
        let forks_anywhere = engine.memory_kind().forks == ForkRule::Anywhere;
        Self { n_slots, n_ctx, n_ctx_slot, n_ubatch, n_seq_max, max_host_cache_bytes, max_queue, forks_anywhere }
    }
}

#[pymethods]
impl PyLimits {
    fn __repr__(&self) -> String {
        let Self { n_slots, n_ctx, n_ctx_slot, n_ubatch, n_seq_max, max_queue, .. } = self;
        format!(
            "Limits(n_slots={n_slots}, n_ctx={n_ctx}, n_ctx_slot={n_ctx_slot}, n_ubatch={n_ubatch}, n_seq_max={n_seq_max}, \
             max_queue={max_queue})"
        )
    }
}
