//! Pinned and saved prefixes.

use std::sync::Arc;

use pyo3::prelude::*;

use super::cached_nodes::excerpt;
use crate::request::{AdapterScale, PinnedPrefix, SavedPrefix, TaskResult, Token};

pub(super) fn to_python(py: Python<'_>, task_result: TaskResult) -> PyResult<Py<PyAny>> {
    match task_result {
        TaskResult::Pinned(prefix) => Ok(Py::new(py, PyPrefix::from(prefix))?.into_any()),
        TaskResult::Saved(prefix) => Ok(Py::new(py, PySavedPrefix(Arc::new(prefix)))?.into_any()),
    }
}

/// A prefix that stays computed until it is unpinned.
#[pyclass(frozen, get_all, module = "weft._native", name = "Prefix")]
pub(super) struct PyPrefix {
    id: u64,
    tokens: Vec<Token>,
    n_tokens: usize,
    n_bytes: u64,
    adapters: Vec<AdapterScale>,
    invoked_at: Option<u32>,
}

impl From<PinnedPrefix> for PyPrefix {
    fn from(PinnedPrefix { id, tokens, n_bytes, adapters, invoked_at }: PinnedPrefix) -> Self {
        Self { id, n_tokens: tokens.len(), tokens, n_bytes, adapters, invoked_at }
    }
}

#[pymethods]
impl PyPrefix {
    /// Returns the first and the last `n` tokens; all tokens and none if there are at most 2 × `n`.
    fn excerpt(&self, n: usize) -> (&[Token], &[Token]) {
        excerpt(&self.tokens, n)
    }

    fn __repr__(&self) -> String {
        let Self { id, n_tokens, n_bytes, .. } = self;
        format!("Prefix(id={id}, n_tokens={n_tokens}, n_bytes={n_bytes})")
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

    #[getter]
    fn adapters(&self) -> &[AdapterScale] {
        &self.0.adapters
    }

    #[getter]
    fn invoked_at(&self) -> Option<u32> {
        self.0.invoked_at
    }

    #[getter]
    fn n_bytes(&self) -> usize {
        let n_logits = self.0.logits.as_ref().map_or(0, Vec::len);
        self.0.runs.iter().map(|run| run.bytes.len()).sum::<usize>() + n_logits * size_of::<f32>()
    }

    fn __repr__(&self) -> String {
        format!("SavedPrefix(n_tokens={}, n_bytes={})", self.n_tokens(), self.n_bytes())
    }
}
