//! What is in the cache, for Python.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::engine::{CachedNode, Tier};
use crate::request::{AdapterScale, Token};

/// A part of the prefix tree: a stretch of tokens after those of its parent.
#[pyclass(frozen, module = "weft._native", name = "CachedNode")]
pub(super) struct PyCachedNode(pub(super) CachedNode);

#[pymethods]
impl PyCachedNode {
    #[getter]
    fn parent(&self) -> Option<usize> {
        self.0.parent
    }

    /// Made anew each time: a cache may hold millions of tokens, and who asks for few of them does not need all as objects.
    #[getter]
    fn tokens(&self) -> &[Token] {
        &self.0.tokens
    }

    #[getter]
    fn n_tokens(&self) -> usize {
        self.0.tokens.len()
    }

    /// Its first and its last `n` tokens; all of them and none, where they are no more than that.
    fn excerpt(&self, n: usize) -> (&[Token], &[Token]) {
        excerpt(&self.0.tokens, n)
    }

    #[getter]
    fn start(&self) -> u32 {
        self.0.start
    }

    /// The adapters that they are computed with, each with its scale.
    #[getter]
    fn adapters(&self) -> Vec<AdapterScale> {
        self.0.adapters.clone()
    }

    #[getter]
    fn tier<'py>(&self, py: Python<'py>) -> &Bound<'py, PyString> {
        match self.0.tier {
            Tier::Device => intern!(py, "pool"),
            Tier::Both => intern!(py, "both"),
            Tier::Host => intern!(py, "store"),
            Tier::Computing => intern!(py, "computing"),
            Tier::Neither => intern!(py, "nowhere"),
        }
    }

    #[getter]
    fn slots(&self) -> &[u32] {
        &self.0.slots
    }

    #[getter]
    fn owner(&self) -> Option<&str> {
        self.0.owner.as_deref()
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
    fn last_used(&self) -> u64 {
        self.0.last_used
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

/// The first and the last `n` of `tokens`; all of them and none, where they are no more than that.
pub(super) fn excerpt(tokens: &[Token], n: usize) -> (&[Token], &[Token]) {
    if tokens.len() <= n.saturating_mul(2) { (tokens, &[]) } else { (&tokens[..n], &tokens[tokens.len() - n..]) }
}
