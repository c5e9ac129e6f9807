//! [`CachedNode`] for Python.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::engine::{CachedNode, Tier};
use crate::request::{AdapterScale, Token};

/// A node of the prefix tree: the tokens after its parent's.
#[pyclass(frozen, module = "weft._native", name = "CachedNode")]
pub(super) struct PyCachedNode(pub(super) CachedNode);

#[pymethods]
impl PyCachedNode {
    #[getter]
    fn parent(&self) -> Option<usize> {
        self.0.parent
    }

    /// Converted on each call: a cache may hold millions of tokens, and a caller that needs few should not convert all of them.
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
    fn start(&self) -> u32 {
        self.0.start
    }

    /// Returns the adapters that the tokens are computed with, each with its scale.
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

/// Returns the first and the last `n` of `tokens`; all tokens and none if there are at most 2 × `n`.
pub(super) fn excerpt(tokens: &[Token], n: usize) -> (&[Token], &[Token]) {
    if tokens.len() <= n.saturating_mul(2) { (tokens, &[]) } else { (&tokens[..n], &tokens[tokens.len() - n..]) }
}
