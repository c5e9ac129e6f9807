//! A stream of events of one request.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::awaitable::{PyNext, WaitTarget};
use super::convert;
use super::events;
use super::forking::{self, StreamSettings};
use super::process_fork::ThisProcess;
use super::wake::{Awaitable, LoopWakers};
use crate::engine::{Completions, ForkDestination, ForkTextBoundary, ReadyEvents, WakeHandle};
use crate::error::Result;
use crate::sampling::TokenStrings;

pub(super) struct EventStream {
    pub(super) completions: Completions,
    pub(super) wakers: Arc<LoopWakers>,
    pub(super) token_strings: TokenStrings,
}

impl EventStream {
    /// Takes the next events: at least one, and no more once they have `max_bytes` bytes.
    ///
    /// # Errors
    /// The error that ended the stream before its branches finished, once, after all preceding events.
    pub(super) fn take(&self, max_bytes: usize) -> Result<ReadyEvents> {
        self.completions.try_events(max_bytes)
    }

    fn close(&self) {
        self.completions.close();
        self.wakers.wake();
    }
}

impl Awaitable for EventStream {
    fn is_ready(&self) -> bool {
        self.completions.is_ready()
    }

    fn wakers(&self) -> &LoopWakers {
        &self.wakers
    }
}

#[pyclass(frozen, module = "weft._native", name = "Stream")]
pub(super) struct PyStream {
    /// The only strong reference except during a poll: when Python drops this object, the request is cancelled.
    stream: ThisProcess<Arc<EventStream>>,
    pub(super) settings: StreamSettings,
    /// The seed of branch 0.
    #[pyo3(get)]
    seed: u32,
    /// The prompt's length in tokens.
    #[pyo3(get)]
    n_prompt: usize,
    /// Id of the request, assigned in order of submission.
    #[pyo3(get)]
    request_id: u64,
}

impl PyStream {
    pub(super) fn new(stream: EventStream, settings: StreamSettings, seed: u32) -> Self {
        let (request_id, n_prompt) = (stream.completions.request_id(), stream.completions.n_prompt());
        Self { stream: ThisProcess::new(Arc::new(stream)), settings, seed, n_prompt, request_id }
    }

    pub(super) fn stream(&self) -> PyResult<&Arc<EventStream>> {
        self.stream.get()
    }
}

#[pymethods]
impl PyStream {
    fn __aiter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// Returns an awaitable of the next event of any branch.
    fn __anext__(slf: Py<Self>) -> PyNext {
        PyNext::new(slf, WaitTarget::Event)
    }

    /// Returns an awaitable of all ready events, at least one; of an empty list once all branches have finished.
    #[pyo3(signature = (*, compact = false))]
    fn next_batch(slf: Py<Self>, compact: bool) -> PyNext {
        PyNext::new(slf, WaitTarget::Batch { is_compact: compact })
    }

    /// Returns an awaitable that finishes when `next_batch` would not wait.
    fn readable(slf: Py<Self>) -> PyNext {
        PyNext::new(slf, WaitTarget::Readiness)
    }

    /// Explains why the computed part of the prompt was not cached, once that is known.
    #[getter]
    fn explanation<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let stream = self.stream()?;
        // The GIL is released, because the text of a long prompt is detokenized.
        let explanation = py.detach(|| stream.completions.explanation());
        explanation.map(|explanation| events::explanation_to_python(py, explanation)).transpose()
    }

    /// Cancels the request immediately.
    fn close(&self) -> PyResult<()> {
        self.stream()?.close();
        Ok(())
    }

    /// Cancels one branch.
    fn cancel(&self, index: &Bound<'_, PyAny>) -> PyResult<()> {
        let index = convert::read_branch_index(index)?;
        self.stream()?.completions.cancel_branch(index);
        Ok(())
    }

    /// Adds branches to this stream that continue a branch's prompt, its text up to a position, and appended text.
    #[pyo3(
        signature = (index, **options),
        text_signature = "($self, index, *, n=1, at=None, unit='token', append=None, **options)"
    )]
    fn fork(slf: Py<Self>, index: &Bound<'_, PyAny>, options: Option<Bound<'_, PyDict>>) -> PyResult<PyNext> {
        forking::fork(slf, index, options, |_| ForkDestination::SameStream)
    }

    /// Does the same as `fork`, but returns the forks as a stream of their own.
    #[pyo3(
        signature = (index, **options),
        text_signature = "($self, index, *, n=1, at=None, unit='token', append=None, **options)"
    )]
    fn fork_stream(slf: Py<Self>, index: &Bound<'_, PyAny>, options: Option<Bound<'_, PyDict>>) -> PyResult<PyNext> {
        forking::fork(slf, index, options, |wake_handle| ForkDestination::OwnStream(Some(wake_handle)))
    }

    /// Returns the boundary between the parent's text and a branch's text.
    fn fork_boundary(&self, index: &Bound<'_, PyAny>) -> PyResult<(String, usize)> {
        let ForkTextBoundary { unshown, n_shown_again } = self.settings.boundary(convert::read_branch_index(index)?);
        Ok((unshown, n_shown_again))
    }

    /// Returns the parent of a forked branch, and the number of the parent's tokens before the fork.
    fn forked_at(&self, index: &Bound<'_, PyAny>) -> PyResult<Option<(u32, u32)>> {
        Ok(self.settings.forked_at(convert::read_branch_index(index)?))
    }

    /// Returns an iterator per branch, including branches that forks add.
    fn branches(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let py = slf.py();
        py.import(intern!(py, "weft.branch_stream"))?.getattr(intern!(py, "Branches"))?.call1((slf,))
    }

    /// Cancels the request immediately, as `close` does.
    fn aclose(slf: Py<Self>) -> PyResult<PyNext> {
        slf.get().close()?;
        Ok(PyNext::new(slf, WaitTarget::Nothing))
    }

    fn __repr__(&self) -> String {
        format!("Stream(seed={}, n_prompt={})", self.seed, self.n_prompt)
    }
}
