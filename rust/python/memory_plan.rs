//! Memory that an engine would use.

use pyo3::prelude::*;

use super::mirrored_class::mirrored_class;
use super::model::PyModel;
use super::settings::{self, TunedInput};
use crate::config::Limits;
use crate::llama::{self, BufferUse, MemoryPlan};

mirrored_class! {
    /// Planned use of one buffer type.
    #[pyclass(frozen, get_all, module = "weft._native", name = "BufferUse")]
    #[derive(Clone)]
    PyBufferUse of BufferUse { name: String, is_host: bool, weights: u64, cache: u64, compute: u64 }
    shown as "BufferUse({name}, weights={weights}, cache={cache}, compute={compute})"
}

/// Planned memory of an engine.
#[pyclass(frozen, get_all, module = "weft._native", name = "MemoryPlan")]
pub(super) struct PyMemoryPlan {
    n_slots: u32,
    n_ctx: u32,
    n_ctx_slot: u32,
    n_ubatch: u32,
    max_host_cache_bytes: Option<u64>,
    buffers: Vec<PyBufferUse>,
    key_bytes: u64,
    value_bytes: u64,
    output_bytes: u64,
    draft_bytes: u64,
    free_bytes: u64,
    is_mapped: bool,
    summary: String,
}

#[pymethods]
impl PyMemoryPlan {
    fn __repr__(&self) -> String {
        format!("MemoryPlan(n_slots={}, n_ctx={}, {})", self.n_slots, self.n_ctx, self.summary)
    }
}

#[pyfunction]
#[pyo3(signature = (model, config, *, tuned=None))]
pub(super) fn plan_memory(
    py: Python<'_>,
    model: &Bound<'_, PyModel>,
    config: &Bound<'_, PyAny>,
    tuned: Option<TunedInput>,
) -> PyResult<PyMemoryPlan> {
    let config = settings::read_engine_config(config)?;
    let tuned = tuned.map(settings::to_tuned_settings);
    let model = model.get().loaded()?;
    let MemoryPlan { config, buffers, kv_bytes: (key_bytes, value_bytes), output_bytes, draft_bytes, free_bytes, is_mapped } =
        py.detach(|| llama::plan(model, &config, tuned))?;
    let Limits { n_slots, n_ctx, n_ctx_slot, n_ubatch, max_host_cache_bytes, .. } = config.limits;
    Ok(PyMemoryPlan {
        n_slots,
        n_ctx,
        n_ctx_slot,
        n_ubatch,
        max_host_cache_bytes,
        buffers: buffers.into_iter().map(PyBufferUse::from).collect(),
        key_bytes,
        value_bytes,
        output_bytes,
        draft_bytes,
        free_bytes,
        is_mapped,
        summary: config.summary,
    })
}
