//! Events → Python objects, converted once.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use super::prefix;
use crate::request::{Event, FinishReason, Finished, Logprob, Logprobs, Progress, PromptLogprobs, Token, TokenEvent, Usage};

/// The Python object of an event.
pub(super) fn to_python(py: Python<'_>, event: Event) -> PyResult<Py<PyAny>> {
    match event {
        Event::Token(token) => Ok(Py::new(py, PyToken::new(py, token)?)?.into_any()),
        Event::Finished(finished) => Ok(Py::new(py, PyFinished::new(py, finished)?)?.into_any()),
        Event::Progress(progress) => Ok(Py::new(py, PyProgress(progress))?.into_any()),
        Event::PromptLogprobs(logprobs) => Ok(Py::new(py, PyPromptLogprobs::new(py, &logprobs)?)?.into_any()),
    }
}

/// One token of one branch.
#[pyclass(frozen, get_all, module = "weft._native", name = "Token")]
pub(super) struct PyToken {
    index: u32,
    token: Token,
    text: Py<PyString>,
    slot: u32,
    n_predicted: u32,
    logprobs: Option<Py<PyLogprobs>>,
}

impl PyToken {
    fn new(py: Python<'_>, event: TokenEvent) -> PyResult<Self> {
        let TokenEvent { index, token, text, slot, n_predicted, logprobs } = event;
        let logprobs = logprobs.map(|logprobs| Py::new(py, PyLogprobs::new(py, &logprobs)?)).transpose()?;
        Ok(Self { index, token, text: PyString::new(py, &text).unbind(), slot, n_predicted, logprobs })
    }
}

#[pymethods]
impl PyToken {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str) {
        ("index", "token", "text")
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let text = self.text.bind(py).repr()?;
        Ok(format!("Token(index={}, token={}, text={text}, n_predicted={})", self.index, self.token, self.n_predicted))
    }
}

/// Log-probabilities of one step.
#[pyclass(frozen, get_all, module = "weft._native", name = "Logprobs")]
pub(super) struct PyLogprobs {
    chosen: Py<PyLogprob>,
    top: Vec<Py<PyLogprob>>,
}

impl PyLogprobs {
    fn new(py: Python<'_>, logprobs: &Logprobs) -> PyResult<Self> {
        let to_python = |logprob: &Logprob| Py::new(py, PyLogprob::new(py, logprob));
        let top = logprobs.top.iter().map(to_python).collect::<PyResult<_>>()?;
        Ok(Self { chosen: to_python(&logprobs.chosen)?, top })
    }
}

#[pymethods]
impl PyLogprobs {
    fn __repr__(&self) -> String {
        format!("Logprobs(chosen={}, top=[{}])", self.chosen.get().__repr__(), self.top.len())
    }
}

/// One token with its log-probability.
#[pyclass(frozen, module = "weft._native", name = "Logprob")]
pub(super) struct PyLogprob {
    #[pyo3(get)]
    token: Token,
    #[pyo3(get)]
    bytes: Py<PyBytes>,
    #[pyo3(get)]
    logprob: f32,
}

impl PyLogprob {
    fn new(py: Python<'_>, logprob: &Logprob) -> Self {
        Self { token: logprob.token, bytes: PyBytes::new(py, &logprob.bytes).unbind(), logprob: logprob.logprob }
    }
}

#[pymethods]
impl PyLogprob {
    /// The bytes as text, U+FFFD for what is no UTF-8.
    #[getter]
    fn text(&self, py: Python<'_>) -> String {
        String::from_utf8_lossy(self.bytes.as_bytes(py)).into_owned()
    }

    fn __repr__(&self) -> String {
        format!("Logprob(token={}, logprob={})", self.token, self.logprob)
    }
}

/// Log-probabilities of a stretch of the prompt.
#[pyclass(frozen, get_all, module = "weft._native", name = "PromptLogprobs")]
pub(super) struct PyPromptLogprobs {
    start: u32,
    logprobs: Vec<Option<Py<PyLogprobs>>>,
}

impl PyPromptLogprobs {
    fn new(py: Python<'_>, PromptLogprobs { start, logprobs }: &PromptLogprobs) -> PyResult<Self> {
        let to_python = |logprobs: &Option<Logprobs>| {
            logprobs.as_ref().map(|logprobs| Py::new(py, PyLogprobs::new(py, logprobs)?)).transpose()
        };
        Ok(Self { start: *start, logprobs: logprobs.iter().map(to_python).collect::<PyResult<_>>()? })
    }
}

#[pymethods]
impl PyPromptLogprobs {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("start", "logprobs")
    }

    fn __repr__(&self) -> String {
        format!("PromptLogprobs(start={}, logprobs=[{}])", self.start, self.logprobs.len())
    }
}

/// How far a prompt is computed.
#[pyclass(frozen, module = "weft._native", name = "Progress")]
pub(super) struct PyProgress(Progress);

#[pymethods]
impl PyProgress {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str, &'static str) {
        ("n_prompt", "n_cached", "n_processed", "ms")
    }

    #[getter]
    fn n_prompt(&self) -> u32 {
        self.0.n_prompt
    }

    #[getter]
    fn n_cached(&self) -> u32 {
        self.0.n_cached
    }

    #[getter]
    fn n_processed(&self) -> u32 {
        self.0.n_processed
    }

    #[getter]
    fn ms(&self) -> f64 {
        self.0.ms
    }

    fn __repr__(&self) -> String {
        let Progress { n_prompt, n_cached, n_processed, ms } = self.0;
        format!("Progress(n_prompt={n_prompt}, n_cached={n_cached}, n_processed={n_processed}, ms={ms})")
    }
}

/// The end of one branch.
#[pyclass(frozen, get_all, module = "weft._native", name = "Finished")]
pub(super) struct PyFinished {
    index: u32,
    slot: u32,
    reason: Py<PyString>,
    stop: Option<String>,
    text: Py<PyString>,
    usage: Py<PyUsage>,
    truncated: bool,
    made: Option<Py<PyAny>>,
}

impl PyFinished {
    fn new(py: Python<'_>, finished: Finished) -> PyResult<Self> {
        let (reason, stop) = match finished.reason {
            FinishReason::End => (intern!(py, "end"), None),
            FinishReason::Stop(stop) => (intern!(py, "stop"), Some(stop)),
            FinishReason::Length => (intern!(py, "length"), None),
            FinishReason::ContextFull => (intern!(py, "context_full"), None),
        };
        let usage = Py::new(py, PyUsage(finished.usage))?;
        let made = finished.made.map(|made| prefix::to_python(py, *made)).transpose()?;
        let text = PyString::new(py, &finished.text).unbind();
        let Finished { index, slot, is_truncated: truncated, .. } = finished;
        Ok(Self { index, slot, reason: reason.clone().unbind(), stop, text, usage, truncated, made })
    }
}

#[pymethods]
impl PyFinished {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str) {
        ("index", "reason", "usage")
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("Finished(index={}, reason='{}', usage={})", self.index, self.reason.bind(py), self.usage.get().__repr__())
    }
}

/// What one branch cost.
#[pyclass(frozen, module = "weft._native", name = "Usage")]
pub(super) struct PyUsage(Usage);

#[pymethods]
impl PyUsage {
    /// The prompt's length in tokens.
    #[getter]
    fn n_prompt(&self) -> u32 {
        self.0.n_computed + self.0.n_cached
    }

    #[getter]
    fn n_computed(&self) -> u32 {
        self.0.n_computed
    }

    #[getter]
    fn n_cached(&self) -> u32 {
        self.0.n_cached
    }

    #[getter]
    fn n_predicted(&self) -> u32 {
        self.0.n_predicted
    }

    #[getter]
    fn n_held(&self) -> u32 {
        self.0.n_held
    }

    #[getter]
    fn prompt_ms(&self) -> f64 {
        self.0.prompt_ms
    }

    #[getter]
    fn predicted_ms(&self) -> f64 {
        self.0.predicted_ms
    }

    fn __repr__(&self) -> String {
        let Usage { n_computed, n_cached, n_predicted, .. } = self.0;
        format!("Usage(n_computed={n_computed}, n_cached={n_cached}, n_predicted={n_predicted})")
    }
}
