//! The engine: submits requests, and queries and changes the cache.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::adapters::{self, PyAdapter};
use super::awaitable::PyNext;
use super::background::detached;
use super::cached_nodes::PyCachedNode;
use super::convert::{self, Constraints, PromptInput, RequestInput};
use super::embedding::{PyEmbeddingStats, TextQueue};
use super::errors::{ContextOverflowError, invalid_request};
use super::forking::StreamSettings;
use super::limits::PyLimits;
use super::logging;
use super::model::PyModel;
use super::prefix::{PyPrefix, PySavedPrefix};
use super::process_fork::ThisProcess;
use super::settings::{self, TunedInput};
use super::stats::{PyRecentStep, PyStats};
use super::stream::{EventStream, PyStream};
use super::tune::PyCompute;
use super::wake::LoopWakers;
use crate::cache::PrefixDigest;
use crate::config::{Limits, Named, ResolvedConfig};
use crate::embedding::{Normalization, worker::Embedder};
use crate::engine::{Completions, Engine, WakeHandle};
use crate::error::{Error, Result, each_branch};
use crate::llama::{self, Model, PrefixFiles};
use crate::request::{AdapterScale, Prompt, Request, SlotContents, Task, Token};

#[pyclass(frozen, module = "weft._native", name = "Engine")]
pub(super) struct PyEngine {
    workers: ThisProcess<(Engine, Embedder)>,
    wakers: Arc<LoopWakers>,
    model: Py<PyModel>,
    files: ThisProcess<PrefixFiles>,
    config: ResolvedConfig,
    embeddings_are_repeatable: bool,
}

impl PyEngine {
    fn engine(&self) -> PyResult<&Engine> {
        self.workers.get().map(|(engine, _)| engine)
    }

    fn query<T: Send>(&self, py: Python<'_>, query: impl FnOnce(&Engine) -> Result<T> + Send) -> PyResult<T> {
        let engine = self.engine()?;
        Ok(py.detach(|| query(engine))?)
    }

    fn text_queue(&self) -> PyResult<TextQueue<'_>> {
        let (_, embedder) = self.workers.get()?;
        Ok(TextQueue { embedder, model: self.model.get().loaded()?, wakers: &self.wakers })
    }

    /// Queues a task, whose stream is never forked.
    fn queue_task(
        &self,
        py: Python<'_>,
        prompt: PromptInput,
        request: impl FnOnce(Prompt) -> Request + Send,
    ) -> PyResult<PyStream> {
        self.queue_branches(py, prompt, vec![(0, py.None())], |prompt, _| Ok(vec![request(prompt)]))
    }

    /// Queues the requests that `requests` builds from the prompt, as one stream.
    fn queue_branches(
        &self,
        py: Python<'_>,
        prompt: PromptInput,
        branch_requests: Vec<(u32, Py<PyAny>)>,
        requests: impl FnOnce(Prompt, &Model) -> Result<Vec<Request>> + Send,
    ) -> PyResult<PyStream> {
        let engine = self.engine()?;
        let model = self.model.get().loaded()?;
        if model.is_encoder() {
            let message =
                format!("the model ({}) is an encoder and cannot generate text; use it for embeddings", model.architecture());
            return Err(Error::NotSupported { message }.into());
        }
        if let PromptInput::Text(text) = &prompt {
            check_length(text.as_bytes(), model, engine.limits().n_ctx_slot)?;
        }
        let settings = StreamSettings::new(Arc::downgrade(model), prompt.parses_special(), branch_requests);
        let wake_handle: Arc<dyn WakeHandle> = Arc::<LoopWakers>::clone(&self.wakers);
        let submit = || -> Result<(Completions, u32)> {
            let requests = requests(prompt.read(model)?, model)?;
            let seed = requests.first().map_or(0, |request| request.seed);
            Ok((engine.submit_branches(requests, Some(wake_handle))?, seed))
        };
        let (completions, seed) = detached(py, submit)?;
        let stream = EventStream { completions, wakers: Arc::clone(&self.wakers), token_strings: engine.token_strings().clone() };
        Ok(PyStream::new(stream, settings, seed))
    }
}

impl Drop for PyEngine {
    fn drop(&mut self) {
        let workers = self.workers.take();
        // Waits for the worker's running step.
        Python::attach(|py| py.detach(|| drop(workers)));
    }
}

/// Rejects a prompt that cannot fit, before tokenization.
fn check_length(prompt: &[u8], model: &Model, n_ctx: u32) -> PyResult<()> {
    let n_tokens_min = model.min_tokens(prompt);
    if n_tokens_min >= n_ctx as usize { Err(ContextOverflowError::new_err((n_tokens_min, n_ctx, true))) } else { Ok(()) }
}

#[pymethods]
impl PyEngine {
    #[new]
    #[pyo3(signature = (model, config, *, tuned=None))]
    fn new(py: Python<'_>, model: Py<PyModel>, config: &Bound<'_, PyAny>, tuned: Option<TunedInput>) -> PyResult<Self> {
        logging::follow(py)?;
        let config = settings::read_engine_config(config)?;
        let loaded = model.get().loaded()?;
        let config = llama::resolve(loaded, &config, tuned.map(settings::to_tuned_settings))?;
        let engine = py.detach(|| llama::start_resolved(loaded, &config))?;
        let wakers = Arc::<LoopWakers>::default();
        let embedding_wakers = Arc::clone(&wakers);
        let embedder = llama::embedder(loaded, &config, engine.default_adapters(), move || embedding_wakers.wake());
        let embeddings_are_repeatable = llama::has_repeatable_embeddings(loaded, &config, engine.uses_own_kernels());
        let files = ThisProcess::new(PrefixFiles::new(Arc::clone(loaded), &config));
        let workers = ThisProcess::new((engine, embedder));
        Ok(Self { workers, wakers, model, files, config, embeddings_are_repeatable })
    }

    #[getter]
    fn model(&self, py: Python<'_>) -> Py<PyModel> {
        self.model.clone_ref(py)
    }

    #[getter]
    fn limits(&self) -> PyResult<PyLimits> {
        Ok(PyLimits::of(self.engine()?))
    }

    #[getter]
    fn is_repeatable(&self) -> PyResult<bool> {
        Ok(self.engine()?.is_repeatable())
    }

    /// `None` if tokens are drafted, else why not.
    #[getter]
    fn no_speculation_reason(&self) -> PyResult<Option<&'static str>> {
        Ok(self.engine()?.check_speculation().err())
    }

    /// Type of the draft model that drafts; `None` without one.
    #[getter]
    fn draft_type(&self) -> PyResult<Option<&'static str>> {
        Ok(self.engine()?.draft_kind().map(Named::name))
    }

    #[getter]
    fn embeddings_are_repeatable(&self) -> bool {
        self.embeddings_are_repeatable
    }

    #[getter]
    fn compute(&self) -> PyCompute {
        PyCompute::of(&self.config)
    }

    #[pyo3(signature = (request, branches=None))]
    fn submit(&self, py: Python<'_>, request: &Bound<'_, PyAny>, branches: Option<Vec<Bound<'_, PyAny>>>) -> PyResult<PyStream> {
        let prompt = convert::read_prompt_of(request)?;
        let branches = branches.unwrap_or_else(|| vec![request.clone()]);
        let branch_requests = (0..).zip(&branches).map(|(first, branch)| (first, branch.clone().unbind())).collect();
        let branches = each_branch(branches.iter(), convert::read_request)?;
        let parses_special = prompt.parses_special();
        self.queue_branches(py, prompt, branch_requests, move |prompt, model| {
            let mut constraints = Constraints::default();
            let request = |branch: RequestInput| branch.complete(prompt.clone(), parses_special, model, &mut constraints);
            each_branch(branches.into_iter(), request)
        })
    }

    #[pyo3(signature = (texts, *, normalize=2, dimensions=None))]
    fn embed(&self, py: Python<'_>, texts: Vec<Bound<'_, PyAny>>, normalize: i32, dimensions: Option<usize>) -> PyResult<PyNext> {
        let queue = self.text_queue()?;
        let valid = "-1 for none, 0 for the maximum in 16 bits, or p of 1 or more for a p-norm";
        let normalization = Normalization::numbered(normalize).ok_or_else(|| invalid_request("normalize", normalize, valid))?;
        let texts = texts.into_iter().map(|text| convert::read_prompt(&text)).collect::<PyResult<Vec<_>>>()?;
        Ok(detached(py, || queue.embed(texts, normalization, dimensions))?)
    }

    fn rerank(&self, py: Python<'_>, query: &Bound<'_, PyAny>, texts: Vec<Bound<'_, PyAny>>) -> PyResult<PyNext> {
        let queue = self.text_queue()?;
        let query = convert::read_text("query", query)?;
        let texts = texts.into_iter().map(|text| convert::read_text("texts", &text)).collect::<PyResult<Vec<_>>>()?;
        let texts: Vec<&[u8]> = texts.iter().map(convert::TextInput::as_bytes).collect();
        Ok(detached(py, || queue.rank(query.as_bytes(), &texts))?)
    }

    fn embedding_stats(&self) -> PyResult<PyEmbeddingStats> {
        Ok(PyEmbeddingStats::of(self.text_queue()?.embedder))
    }

    #[pyo3(signature = (prompt, *, adapters=None))]
    fn pin(&self, py: Python<'_>, prompt: &Bound<'_, PyAny>, adapters: Option<&Bound<'_, PyAny>>) -> PyResult<PyStream> {
        let adapters = adapters.map_or(Ok(None), adapters::read_adapter_set)?;
        self.queue_task(py, convert::read_prompt(prompt)?, |prompt| Request { adapters, ..Request::for_task(prompt, Task::Pin) })
    }

    #[pyo3(signature = (prompt, *, compute=true, adapters=None, invoked_at=None))]
    fn save(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        compute: bool,
        adapters: Option<&Bound<'_, PyAny>>,
        invoked_at: Option<u32>,
    ) -> PyResult<PyStream> {
        let task = Task::Save { computes: compute };
        let adapters = adapters.map_or(Ok(None), adapters::read_adapter_set)?;
        let request = |prompt| Request { adapters, invoked_at, ..Request::for_task(prompt, task) };
        self.queue_task(py, convert::read_prompt(prompt)?, request)
    }

    fn adapters(&self) -> PyResult<Vec<PyAdapter>> {
        Ok(PyAdapter::list(self.model.get().loaded()?, &self.engine()?.adapters()))
    }

    fn set_adapters(&self, adapters: &Bound<'_, PyAny>) -> PyResult<()> {
        Ok(self.engine()?.set_adapters(adapters::read_adapter_set(adapters)?.unwrap_or_default())?)
    }

    #[pyo3(signature = (prefix, *, slot=None))]
    fn load(&self, py: Python<'_>, prefix: &Bound<'_, PySavedPrefix>, slot: Option<&Bound<'_, PyAny>>) -> PyResult<PyStream> {
        let slot = slot.map_or(Ok(None), convert::read_slot)?;
        let saved = Arc::clone(&prefix.get().0);
        let tokens = PromptInput::Tokens(saved.tokens.clone());
        self.queue_task(py, tokens, |prompt| Request { slot, ..Request::for_task(prompt, Task::Load(saved)) })
    }

    #[expect(clippy::needless_pass_by_value, reason = "PyO3 reads paths into a value")]
    fn write_prefix(&self, py: Python<'_>, prefix: &Bound<'_, PySavedPrefix>, path: PathBuf) -> PyResult<u64> {
        let (files, prefix) = (self.files.get()?, &prefix.get().0);
        Ok(py.detach(|| files.write(&path, prefix))?)
    }

    #[expect(clippy::needless_pass_by_value, reason = "PyO3 reads paths into a value")]
    fn read_prefix(&self, py: Python<'_>, path: PathBuf) -> PyResult<(PySavedPrefix, u64)> {
        let files = self.files.get()?;
        let (prefix, n_bytes) = py.detach(|| files.read(&path))?;
        Ok((PySavedPrefix(Arc::new(prefix)), n_bytes))
    }

    fn cached(&self, py: Python<'_>) -> PyResult<Vec<PyCachedNode>> {
        let nodes = self.query(py, Engine::cached)?;
        Ok(nodes.into_iter().map(PyCachedNode::from).collect())
    }

    fn recently_used(&self, py: Python<'_>, limit: usize) -> PyResult<(Vec<PyCachedNode>, usize)> {
        let (nodes, n_nodes) = self.query(py, |engine| engine.recently_used(limit))?;
        Ok((nodes.into_iter().map(PyCachedNode::from).collect(), n_nodes))
    }

    fn prefix_digest<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        n_max: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let packed = |hashes: Vec<u64>| -> Vec<u8> { hashes.into_iter().flat_map(u64::to_le_bytes).collect() };
        let (device, host) = self.query(py, |engine| {
            let PrefixDigest { device, host } = engine.prefix_digest(key, n_max)?;
            Ok((packed(device), packed(host)))
        })?;
        Ok((PyBytes::new(py, &device), PyBytes::new(py, &host)))
    }

    fn pinned(&self, py: Python<'_>) -> PyResult<Vec<PyPrefix>> {
        let prefixes = self.query(py, Engine::pinned)?;
        Ok(prefixes.into_iter().map(PyPrefix::from).collect())
    }

    fn unpin(&self, py: Python<'_>, prefix_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.engine()?;
        match prefix_id.extract() {
            Ok(id) => self.query(py, |engine| engine.unpin(id)),
            // Ids are not negative and fit 64 bits.
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn slot_state(&self, py: Python<'_>, slot: &Bound<'_, PyAny>) -> PyResult<(Vec<Token>, Vec<AdapterScale>, Option<u32>)> {
        let slot = convert::read_slot(slot)?;
        let SlotContents { tokens, adapters, invoked_at } = self.query(py, |engine| engine.slot_contents(slot))?;
        Ok((tokens, adapters, invoked_at))
    }

    fn erase_slot(&self, py: Python<'_>, slot: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
        let slot = convert::read_slot(slot)?;
        self.query(py, |engine| engine.erase_slot(slot))
    }

    #[getter]
    fn is_running(&self) -> PyResult<bool> {
        Ok(self.engine()?.is_running())
    }

    fn stats(&self) -> PyResult<PyStats> {
        Ok(self.engine()?.stats().into())
    }

    fn recent_steps(&self, py: Python<'_>) -> PyResult<Vec<PyRecentStep>> {
        PyRecentStep::list(py, self.engine()?.recent_steps())
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let (engine, embedder) = self.workers.get()?;
        py.detach(|| {
            embedder.stop();
            engine.stop();
        });
        self.wakers.wake();
        Ok(())
    }

    fn __repr__(&self) -> PyResult<String> {
        let Limits { n_slots, n_ctx, .. } = self.engine()?.limits();
        Ok(format!("Engine(n_slots={n_slots}, n_ctx={n_ctx})"))
    }
}
