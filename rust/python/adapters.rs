//! `LoRA` adapters and their scales.

use pyo3::prelude::*;

use super::convert;
use crate::llama::Model;
use crate::request::{AdapterScale, Token};

/// State of one adapter of an engine.
#[pyclass(frozen, get_all, module = "weft._native", name = "Adapter")]
pub(super) struct PyAdapter {
    id: u32,
    path: String,
    scale: f32,
    task_name: String,
    prompt_prefix: String,
    n_bytes: u64,
    invocation: Vec<Token>,
}

impl PyAdapter {
    /// Lists the adapters of `model`; `set` has the default scales.
    pub(super) fn list(model: &Model, set: &[AdapterScale]) -> Vec<Self> {
        let adapter = |(id, adapter): (u32, &crate::llama::Adapter)| Self {
            id,
            path: adapter.path.to_string_lossy().into_owned(),
            scale: set.iter().find(|(named, _)| *named == id).map_or(0.0, |(_, scale)| *scale),
            task_name: adapter.task_name.clone(),
            prompt_prefix: adapter.prompt_prefix.clone(),
            n_bytes: adapter.n_bytes,
            invocation: adapter.invocation.clone(),
        };
        (0..).zip(model.adapters()).map(adapter).collect()
    }
}

#[pymethods]
impl PyAdapter {
    fn __repr__(&self) -> String {
        format!("Adapter(id={}, path={:?}, scale={})", self.id, self.path, self.scale)
    }
}

pub(super) fn read_adapter_set(value: &Bound<'_, PyAny>) -> PyResult<Option<Vec<AdapterScale>>> {
    convert::read_field("adapters", "a sequence of pairs of an adapter's id, from 0, and its scale, or None", value)
}
