//! Prefixes that outlive their requests: pinned in the cache, or copied out of it.

use std::sync::Arc;

use pyo3::prelude::*;

use super::cached_nodes::excerpt;
use crate::request::{AdapterScale, PinnedPrefix, SavedPrefix, TaskResult, Token};

/// Converts a task's result to its Python object.
pub(super) fn to_python(py: Python<'_>, task_result: TaskResult) -> PyResult<Py<PyAny>> {
    match task_result {
        TaskResult::Pinned(prefix) => Ok(Py::new(py, PyPrefix(prefix))?.into_any()),
        TaskResult::Saved(prefix) => Ok(Py::new(py, PySavedPrefix(Arc::new(prefix)))?.into_any()),
    }
}

/// A prefix that stays computed until it is unpinned.
#[pyclass(frozen, module = "weft._native", name = "Prefix")]
pub(super) struct PyPrefix(pub(super) PinnedPrefix);

#[pymethods]
impl PyPrefix {
    #[getter]
    fn id(&self) -> u64 {
        self.0.id
    }

    #[getter]
    fn tokens(&self) -> &[Token] {
        &self.0.tokens
    }

    #[getter]
    fn n_tokens(&self) -> usize {
        self.0.tokens.len()
    }

    /// Returns the first and the last `n` tokens; all tokens and none if there are at most 2 × `n`.
    fn excerpt(&self, n: usize) -> (&[Token], &[Token]) {
        excerpt(&self.0.tokens, n)
    }

    #[getter]
    fn n_bytes(&self) -> u64 {
        self.0.n_bytes
    }

    /// Returns the adapters that the prefix was computed with, each with its scale.
    #[getter]
    fn adapters(&self) -> Vec<AdapterScale> {
        self.0.adapters.clone()
    }

    #[getter]
    fn invoked_at(&self) -> Option<u32> {
        self.0.invoked_at
    }

    fn __repr__(&self) -> String {
        format!("Prefix(id={}, n_tokens={}, n_bytes={})", self.0.id, self.0.tokens.len(), self.0.n_bytes)
    }
}

/// The computed state of a prompt, outside of the cache. Its bytes stay in Rust.
#[pyclass(frozen, module = "weft._native", name = "SavedPrefix")]
pub(super) struct PySavedPrefix(pub(super) Arc<SavedPrefix>);

#[pymethods]
impl PySavedPrefix {
    #[getter]
    fn tokens(&self) -> &[Token] {
        &self.0.tokens
    }

    #[getter]
    fn n_tokens(&self) -> usize {
        self.0.tokens.len()
    }

    /// Returns the adapters that the state was computed with, each with its scale.
    #[getter]
    fn adapters(&self) -> Vec<AdapterScale> {
        self.0.adapters.clone()
    }

    #[getter]
    fn invoked_at(&self) -> Option<u32> {
        self.0.invoked_at
    }

    /// Size of the copy in bytes.
    #[getter]
    fn n_bytes(&self) -> usize {
        let n_logits = self.0.logits.as_ref().map_or(0, Vec::len);
        self.0.pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>() + n_logits * size_of::<f32>()
    }

    fn __repr__(&self) -> String {
        format!("SavedPrefix(n_tokens={}, n_bytes={})", self.0.tokens.len(), self.n_bytes())
    }
}
