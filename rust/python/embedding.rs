//! Requests for embeddings and scores, and their results.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use super::awaitable::{Answer, PyNext};
use super::background::detached;
use super::convert::PromptInput;
use super::wake::{Awaitable, LoopWakers};
use crate::config::{Named, Pooling};
use crate::embedding::worker::{Embedder, EmbedderStats, PendingEmbeddings};
use crate::embedding::{EmbedderShape, Embeddings, Normalization};
use crate::error::{Error, Result};
use crate::llama::Model;
use crate::llama::vocabulary::rerank;
use crate::request::Prompt;

struct EmbeddingFuture {
    pending: PendingEmbeddings,
    wakers: Arc<LoopWakers>,
}

impl Awaitable for EmbeddingFuture {
    fn is_ready(&self) -> bool {
        self.pending.is_ready()
    }

    fn wakers(&self) -> &LoopWakers {
        &self.wakers
    }
}

impl Answer for EmbeddingFuture {
    fn take(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.pending.take() {
            None => Ok(None),
            Some(answer) => Ok(Some(Py::new(py, PyCompactEmbeddings(answer?))?.into_any())),
        }
    }
}

pub(super) struct TextQueue<'a> {
    pub(super) embedder: &'a Embedder,
    pub(super) model: &'a Model,
    pub(super) wakers: &'a Arc<LoopWakers>,
}

impl TextQueue<'_> {
    /// Tokenizes texts as llama-server does for embeddings, and queues them.
    pub(super) fn embed(
        &self,
        texts: Vec<PromptInput>,
        normalization: Normalization,
        dimensions: Option<usize>,
    ) -> Result<PyNext> {
        if self.embedder.shape().pooling == Pooling::Rank {
            let message = "pooling is rank, which computes scores instead of embeddings; set another pooling".to_owned();
            return Err(Error::NotSupported { message });
        }
        let prompts = texts.into_iter().enumerate().map(|(index, text)| {
            if let PromptInput::Text(text) = &text {
                self.check_length(index, self.model.min_tokens(text.as_bytes()))?;
            }
            text.read(self.model)
        });
        self.submit(prompts.collect::<Result<_>>()?, normalization, dimensions)
    }

    pub(super) fn rank(&self, query: &[u8], texts: &[&[u8]]) -> Result<PyNext> {
        if self.embedder.shape().pooling != Pooling::Rank {
            let message = "pooling is not rank, so the model cannot score texts; load a reranker, or set pooling to rank";
            return Err(Error::NotSupported { message: message.to_owned() });
        }
        // Every pair contains the query. If a pair is tokenized as one text, a token may span the boundary.
        let n_query = self.model.min_tokens(query).saturating_sub(1);
        for (index, text) in texts.iter().enumerate() {
            self.check_length(index, n_query + self.model.min_tokens(text))?;
        }
        let pairs = rerank::build_pairs(self.model, query, texts)?.into_iter().map(Prompt::from_tokens).collect();
        self.submit(pairs, Normalization::None, Some(1))
    }

    /// Rejects a text of at least `n` tokens that cannot fit, before tokenization.
    fn check_length(&self, index: usize, n: usize) -> Result<()> {
        let shape = self.embedder.shape();
        if n <= shape.n_longest {
            return Ok(());
        }
        Err(Error::InvalidRequest { param: "texts", message: shape.length_error(index, &format!("at least {n}")) })
    }

    fn submit(&self, texts: Vec<Prompt>, normalization: Normalization, dimensions: Option<usize>) -> Result<PyNext> {
        let pending = self.embedder.submit(texts, normalization, dimensions)?;
        Ok(PyNext::of_answer(EmbeddingFuture { pending, wakers: Arc::clone(self.wakers) }))
    }
}

#[pyclass(frozen, module = "weft._native", name = "CompactEmbeddings")]
pub(super) struct PyCompactEmbeddings(Embeddings);

impl PyCompactEmbeddings {
    fn rows(&self, index: usize) -> PyResult<&[f32]> {
        let Embeddings { numbers, width, starts, .. } = &self.0;
        match (starts.get(index), starts.get(index + 1)) {
            (Some(start), Some(end)) => Ok(&numbers[start * width..end * width]),
            _ => Err(PyIndexError::new_err("index out of range")),
        }
    }
}

#[pymethods]
impl PyCompactEmbeddings {
    /// Creates embeddings from the [`PyCompactEmbeddings::data`] and getters of another process.
    #[new]
    fn new(width: usize, starts: Vec<usize>, n_tokens: Vec<usize>, data: &[u8]) -> PyResult<Self> {
        let n_rows = starts.last().copied().unwrap_or_default();
        let fits = starts.len() == n_tokens.len() + 1 && starts[0] == 0 && starts.is_sorted() && width > 0;
        if !fits || n_rows.checked_mul(width * size_of::<f32>()) != Some(data.len()) {
            return Err(PyValueError::new_err("width, starts, n_tokens and data do not agree"));
        }
        let numbers = data.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
        Ok(Self(Embeddings { numbers, width, starts, n_tokens }))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let (py, embeddings) = (slf.py(), slf.get());
        let Embeddings { width, starts, n_tokens, .. } = &embeddings.0;
        (slf.get_type(), (width, starts, n_tokens, embeddings.data(py)?)).into_pyobject(py)
    }

    #[getter]
    fn width(&self) -> usize {
        self.0.width
    }

    #[getter]
    fn starts(&self) -> &[usize] {
        &self.0.starts
    }

    #[getter]
    fn n_tokens(&self) -> &[usize] {
        &self.0.n_tokens
    }

    fn __len__(&self) -> usize {
        self.0.n_tokens.len()
    }

    /// Returns all numbers of all rows, as 32-bit floats in native byte order.
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        to_py_bytes(py, &self.0.numbers, f32::to_ne_bytes)
    }

    /// Returns the numbers of one text, as 32-bit floats in little-endian byte order.
    fn little_endian<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyBytes>> {
        to_py_bytes(py, self.rows(index)?, f32::to_le_bytes)
    }

    /// Returns the JSON of one text: a list of its rows, each a list.
    fn json<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyBytes>> {
        let rows = self.rows(index)?.chunks(self.0.width);
        let written = detached(py, || serde_json::to_vec(&rows.collect::<Vec<_>>()));
        Ok(PyBytes::new(py, &written.map_err(|error| PyRuntimeError::new_err(error.to_string()))?))
    }
}

fn to_py_bytes<'py>(py: Python<'py>, numbers: &[f32], to_bytes: impl Fn(f32) -> [u8; 4]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, size_of_val(numbers), |bytes| {
        for (chunk, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
            *chunk = to_bytes(*number);
        }
        Ok(())
    })
}

#[pyclass(frozen, get_all, module = "weft._native", name = "EmbeddingStats")]
pub(super) struct PyEmbeddingStats {
    pooling: &'static str,
    width: usize,
    max_tokens: usize,
    n_texts: u64,
    n_tokens: u64,
    n_computed: u64,
    n_batches: u64,
    n_waiting: usize,
    n_bytes: u64,
}

impl PyEmbeddingStats {
    pub(super) fn of(embedder: &Embedder) -> Self {
        let EmbedderShape { pooling, width, n_longest: max_tokens, .. } = *embedder.shape();
        let EmbedderStats { n_texts, n_tokens, n_computed, n_batches, n_waiting, n_bytes } = embedder.stats();
        let pooling = pooling.name();
        Self { pooling, width, max_tokens, n_texts, n_tokens, n_computed, n_batches, n_waiting, n_bytes }
    }
}
