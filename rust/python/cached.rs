//! What is in the cache, for Python.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::engine::{CachedNode, Tier};
use crate::request::Token;

/// A part of the prefix tree: a stretch of tokens after those of its parent.
#[pyclass(frozen, module = "weft._native", name = "CachedNode")]
pub(super) struct PyCachedNode(pub(super) CachedNode);

#[pymethods]
impl PyCachedNode {
    #[getter]
    fn parent(&self) -> Option<usize> {
        self.0.parent
    }

    /// Made anew each time: a cache may hold millions of tokens, and who asks for their number does not need them as objects.
    #[getter]
    fn tokens(&self) -> &[Token] {
        &self.0.tokens
    }

    #[getter]
    fn n_tokens(&self) -> usize {
        self.0.tokens.len()
    }

    #[getter]
    fn start(&self) -> u32 {
        self.0.start
    }

    #[getter]
    fn tier<'py>(&self, py: Python<'py>) -> &Bound<'py, PyString> {
        match self.0.tier {
            Tier::Pool => intern!(py, "pool"),
            Tier::Both => intern!(py, "both"),
            Tier::Store => intern!(py, "store"),
            Tier::Computing => intern!(py, "computing"),
            Tier::Nowhere => intern!(py, "nowhere"),
        }
    }

    #[getter]
    fn slots(&self) -> &[u32] {
        &self.0.slots
    }

    #[getter]
    fn is_pinned(&self) -> bool {
        self.0.is_pinned
    }

    #[getter]
    fn n_hits(&self) -> u64 {
        self.0.n_hits
    }

    #[getter]
    fn n_stored_bytes(&self) -> u64 {
        self.0.n_stored_bytes
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let CachedNode { start, tokens, n_hits, .. } = &self.0;
        format!("CachedNode(start={start}, n_tokens={}, tier='{}', n_hits={n_hits})", tokens.len(), self.tier(py))
    }
}
