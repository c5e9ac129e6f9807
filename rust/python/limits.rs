//! Limits of an engine, for Python.

use pyo3::prelude::*;

use crate::config::Limits;
use crate::engine::runner::{ForkRule, MemoryKind};

/// Numbers that are fixed when the engine starts.
#[pyclass(frozen, module = "weft._native", name = "Limits")]
pub(super) struct PyLimits(pub(super) Limits, pub(super) MemoryKind);

#[pymethods]
impl PyLimits {
    #[getter]
    fn n_slots(&self) -> u32 {
        self.0.n_slots
    }

    #[getter]
    fn n_ctx(&self) -> u32 {
        self.0.n_ctx
    }

    #[getter]
    fn n_ctx_slot(&self) -> u32 {
        self.0.n_ctx_slot
    }

    #[getter]
    fn n_ubatch(&self) -> u32 {
        self.0.n_ubatch
    }

    #[getter]
    fn n_seq_max(&self) -> u32 {
        self.0.n_seq_max
    }

    #[getter]
    fn max_store_bytes(&self) -> Option<u64> {
        self.0.max_store_bytes
    }

    #[getter]
    fn max_queue(&self) -> u32 {
        self.0.max_queue
    }

    #[getter]
    fn forks_anywhere(&self) -> bool {
        self.1.forks == ForkRule::Anywhere
    }

    fn __repr__(&self) -> String {
        let Limits { n_slots, n_ctx, n_ctx_slot, n_ubatch, n_seq_max, max_queue, .. } = self.0;
        format!(
            "Limits(n_slots={n_slots}, n_ctx={n_ctx}, n_ctx_slot={n_ctx_slot}, n_ubatch={n_ubatch}, n_seq_max={n_seq_max}, \
             max_queue={max_queue})"
        )
    }
}
