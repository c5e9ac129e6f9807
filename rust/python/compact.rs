//! Long lists of numbers as one Python object each, passed from a large body to the engine.

use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use super::background::detached;
use super::json::Json;
use crate::request::{Token, is_in_vocabulary};

/// Token ids.
#[pyclass(frozen, sequence, module = "weft._native", name = "TokenIds")]
pub(super) struct PyTokenIds {
    pub(super) tokens: Arc<Vec<Token>>,
    json: PyOnceLock<Py<PyBytes>>,
}

impl From<Vec<Token>> for PyTokenIds {
    fn from(tokens: Vec<Token>) -> Self {
        Self { tokens: Arc::new(tokens), json: PyOnceLock::new() }
    }
}

#[pymethods]
impl PyTokenIds {
    #[new]
    fn new(tokens: Vec<Token>) -> Self {
        tokens.into()
    }

    fn __len__(&self) -> usize {
        self.tokens.len()
    }

    fn __getitem__(&self, index: usize) -> PyResult<Token> {
        self.tokens.get(index).copied().ok_or_else(|| PyIndexError::new_err("index out of range"))
    }

    /// Returns the tokens in `[start, end)`.
    fn part(&self, start: usize, end: usize) -> &[Token] {
        let end = end.min(self.tokens.len());
        &self.tokens[start.min(end)..end]
    }

    /// Returns the first token that is not in a vocabulary of `n_vocab` tokens.
    fn outside(&self, py: Python<'_>, n_vocab: usize) -> Option<Token> {
        detached(py, || self.tokens.iter().copied().find(|&token| !is_in_vocabulary(token, n_vocab)))
    }

    /// Returns a JSON list; cached.
    fn json(&self, py: Python<'_>) -> &Py<PyBytes> {
        self.json.get_or_init(py, || {
            let write = |json: &mut Json, &token: &Token| {
                json.push_integer(token);
            };
            detached(py, || Json::of_list(&self.tokens, write)).bytes(py).unbind()
        })
    }

    fn __repr__(&self) -> String {
        format!("TokenIds([{}])", self.tokens.len())
    }
}

/// Pairs of a token and the bias of its logit.
#[pyclass(frozen, sequence, module = "weft._native", name = "Biases")]
pub(super) struct PyBiases {
    pub(super) pairs: Vec<(Token, f32)>,
    json: PyOnceLock<Py<PyBytes>>,
}

impl From<Vec<(Token, f32)>> for PyBiases {
    fn from(pairs: Vec<(Token, f32)>) -> Self {
        Self { pairs, json: PyOnceLock::new() }
    }
}

#[pymethods]
impl PyBiases {
    #[new]
    fn new(pairs: Vec<(Token, f32)>) -> Self {
        pairs.into()
    }

    fn __len__(&self) -> usize {
        self.pairs.len()
    }

    fn __getitem__(&self, index: usize) -> PyResult<(Token, f32)> {
        self.pairs.get(index).copied().ok_or_else(|| PyIndexError::new_err("index out of range"))
    }

    /// Returns a JSON list of objects in llama-server's format, with `false` for a ban; cached.
    fn json(&self, py: Python<'_>) -> &Py<PyBytes> {
        let write = |json: &mut Json, &(token, bias): &(Token, f32)| {
            let bias = if bias.is_finite() { bias.to_string() } else { "false".to_owned() };
            json.push_raw("{\"token\":").push_integer(token).push_raw(",\"bias\":").push_raw(&bias).push_raw("}");
        };
        self.json.get_or_init(py, || detached(py, || Json::of_list(&self.pairs, write)).bytes(py).unbind())
    }

    fn __repr__(&self) -> String {
        format!("Biases([{}])", self.pairs.len())
    }
}
