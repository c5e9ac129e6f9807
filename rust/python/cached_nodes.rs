//! Listing of the prefix tree.

use pyo3::prelude::*;

use crate::engine::{CachedNode, Tier};
use crate::request::{AdapterScale, Token};

/// A node of the prefix tree: the tokens after its parent's.
///
/// The tokens are converted when they are read: a cache may hold millions, of which a caller needs few.
#[pyclass(frozen, get_all, module = "weft._native", name = "CachedNode")]
pub(super) struct PyCachedNode {
    parent: Option<usize>,
    tokens: Vec<Token>,
    n_tokens: usize,
    start: u32,
    adapters: Vec<AdapterScale>,
    tier: &'static str,
    slots: Vec<u32>,
    owner: Option<String>,
    is_pinned: bool,
    n_hits: u64,
    last_used: u64,
    n_host_bytes: u64,
}

impl From<CachedNode> for PyCachedNode {
    fn from(node: CachedNode) -> Self {
        let CachedNode { parent, tokens, start, adapters, slots, owner, is_pinned, n_hits, last_used, n_host_bytes, .. } = node;
        let tier = match node.tier {
            Tier::Device => "device",
            Tier::DeviceAndHost => "both",
            Tier::Host => "host",
            Tier::Computing => "computing",
            Tier::Uncached => "none",
        };
        let (n_tokens, owner) = (tokens.len(), owner.map(|owner| owner.to_string()));
        Self { parent, tokens, n_tokens, start, adapters, tier, slots, owner, is_pinned, n_hits, last_used, n_host_bytes }
    }
}

#[pymethods]
impl PyCachedNode {
    /// Returns the first and the last `n` tokens; all tokens and none if there are at most 2 × `n`.
    fn excerpt(&self, n: usize) -> (&[Token], &[Token]) {
        excerpt(&self.tokens, n)
    }

    fn __repr__(&self) -> String {
        let Self { start, n_tokens, tier, n_hits, .. } = self;
        format!("CachedNode(start={start}, n_tokens={n_tokens}, tier='{tier}', n_hits={n_hits})")
    }
}

/// Returns the first and the last `n` of `tokens`; all tokens and none if there are at most 2 × `n`.
pub(super) fn excerpt(tokens: &[Token], n: usize) -> (&[Token], &[Token]) {
    if tokens.len() <= n.saturating_mul(2) { (tokens, &[]) } else { (&tokens[..n], &tokens[tokens.len() - n..]) }
}
