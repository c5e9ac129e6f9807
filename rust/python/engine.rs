//! The engine's handle.

use std::sync::Arc;

use pyo3::prelude::*;

use super::bell::Bells;
use super::convert::{self, PromptInput, RequestInput};
use super::fork::ThisProcess;
use super::logging;
use super::model::PyModel;
use super::stats::PyStats;
use super::stream::{PyCompletions, Stream};
use crate::config::{EngineConfig, Limits};
use crate::engine::{Bell, Completions, Engine};
use crate::llama;
use crate::request::Prompt;

/// `weft._native.Engine`.
#[pyclass(frozen, module = "weft._native", name = "Engine")]
pub(super) struct PyEngine {
    /// Always there until the drop.
    handle: Option<ThisProcess<Engine>>,
    bells: Arc<Bells>,
    model: Py<PyModel>,
}

impl PyEngine {
    fn handle(&self) -> PyResult<&Engine> {
        self.handle.as_ref().expect("only the drop takes the handle").get()
    }
}

impl Drop for PyEngine {
    fn drop(&mut self) {
        let handle = self.handle.take();
        // The last handle waits for the worker's running step; other Python threads need not.
        Python::attach(|py| py.detach(|| drop(handle)));
    }
}

#[pymethods]
impl PyEngine {
    #[new]
    #[pyo3(signature = (model, *, n_slots=None, n_ctx=None, kv_unified=None, n_batch=None, n_ubatch=None, n_threads=None,
        n_threads_batch=None, flash_attention="auto", type_k="f16", type_v="f16", max_queue=None, max_token_gap_ms=None))]
    #[expect(clippy::too_many_arguments, clippy::similar_names, reason = "all but the model are keywords in Python")]
    fn new(
        py: Python<'_>,
        model: Py<PyModel>,
        n_slots: Option<&Bound<'_, PyAny>>,
        n_ctx: Option<&Bound<'_, PyAny>>,
        kv_unified: Option<bool>,
        n_batch: Option<&Bound<'_, PyAny>>,
        n_ubatch: Option<&Bound<'_, PyAny>>,
        n_threads: Option<&Bound<'_, PyAny>>,
        n_threads_batch: Option<&Bound<'_, PyAny>>,
        flash_attention: &str,
        type_k: &str,
        type_v: &str,
        max_queue: Option<&Bound<'_, PyAny>>,
        max_token_gap_ms: Option<f64>,
    ) -> PyResult<Self> {
        logging::follow(py)?;
        let default = EngineConfig::default();
        let config = EngineConfig {
            n_slots: convert::setting("n_slots", n_slots)?,
            n_ctx: convert::setting("n_ctx", n_ctx)?,
            kv_unified,
            n_batch: convert::setting("n_batch", n_batch)?.unwrap_or(default.n_batch),
            n_ubatch: convert::setting("n_ubatch", n_ubatch)?.unwrap_or(default.n_ubatch),
            n_threads: convert::setting("n_threads", n_threads)?,
            n_threads_batch: convert::setting("n_threads_batch", n_threads_batch)?,
            flash_attention: convert::flash_attention(flash_attention)?,
            type_k: convert::kv_type("type_k", type_k)?,
            type_v: convert::kv_type("type_v", type_v)?,
            max_queue: convert::setting("max_queue", max_queue)?.unwrap_or(default.max_queue),
            max_token_gap: max_token_gap_ms.map_or(Ok(default.max_token_gap), convert::max_token_gap)?,
        };
        let loaded = model.get().loaded()?;
        let engine = py.detach(|| llama::start(loaded, &config))?;
        Ok(Self { handle: Some(ThisProcess::new(engine)), bells: Arc::default(), model })
    }

    #[getter]
    fn model(&self, py: Python<'_>) -> Py<PyModel> {
        self.model.clone_ref(py)
    }

    #[getter]
    fn limits(&self) -> PyResult<PyLimits> {
        Ok(PyLimits(*self.handle()?.limits()))
    }

    /// Queues a request and returns its stream at once.
    fn submit(&self, py: Python<'_>, request: &Bound<'_, PyAny>) -> PyResult<PyCompletions> {
        let engine = self.handle()?;
        let model = self.model.get().loaded()?;
        let RequestInput { prompt, request } = convert::request(request)?;
        let bell: Arc<dyn Bell> = Arc::<Bells>::clone(&self.bells);
        let submit = || -> crate::error::Result<(Completions, u32, usize)> {
            let tokens = match prompt {
                PromptInput::Tokens(tokens) => tokens,
                // As llama-server tokenizes a raw prompt: clients that write their own template need the special tokens.
                PromptInput::Text(text) => model.tokenize(text.as_bytes(), true, true),
            };
            let n_prompt = tokens.len();
            let request = crate::request::Request { prompt: Prompt::from_tokens(tokens), ..request };
            let seed = request.seed;
            Ok((engine.submit(request, Some(bell))?, seed, n_prompt))
        };
        let (completions, seed, n_prompt) = py.detach(submit)?;
        Ok(PyCompletions::new(Stream::new(completions, Arc::clone(&self.bells)), seed, n_prompt))
    }

    /// Whether the worker lives: it was not stopped and has not died.
    #[getter]
    fn is_running(&self) -> PyResult<bool> {
        Ok(self.handle()?.is_running())
    }

    /// What the engine is doing, as of its last step.
    fn stats(&self, py: Python<'_>) -> PyResult<PyStats> {
        PyStats::new(py, self.handle()?.stats())
    }

    /// Ends the worker and waits for it.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.handle()?;
        py.detach(|| engine.stop());
        Ok(())
    }

    fn __repr__(&self) -> PyResult<String> {
        let Limits { n_slots, n_ctx, .. } = self.handle()?.limits();
        Ok(format!("Engine(n_slots={n_slots}, n_ctx={n_ctx})"))
    }
}

/// The numbers that were settled when the engine started.
#[pyclass(frozen, module = "weft._native", name = "Limits")]
pub(super) struct PyLimits(Limits);

#[pymethods]
impl PyLimits {
    #[getter]
    fn n_slots(&self) -> u32 {
        self.0.n_slots
    }

    #[getter]
    fn n_ctx(&self) -> u32 {
        self.0.n_ctx
    }

    #[getter]
    fn n_ctx_slot(&self) -> u32 {
        self.0.n_ctx_slot
    }

    #[getter]
    fn n_ubatch(&self) -> u32 {
        self.0.n_ubatch
    }

    #[getter]
    fn n_seq_max(&self) -> u32 {
        self.0.n_seq_max
    }

    #[getter]
    fn max_queue(&self) -> u32 {
        self.0.max_queue
    }

    fn __repr__(&self) -> String {
        let Limits { n_slots, n_ctx, n_ctx_slot, n_ubatch, n_seq_max, max_queue, .. } = self.0;
        format!(
            "Limits(n_slots={n_slots}, n_ctx={n_ctx}, n_ctx_slot={n_ctx_slot}, n_ubatch={n_ubatch}, n_seq_max={n_seq_max}, \
             max_queue={max_queue})"
        )
    }
}
