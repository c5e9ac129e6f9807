//! The stream of one request.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::awaitable::{PyNext, WaitTarget};
use super::convert;
use super::events;
use super::fork::ThisProcess;
use super::forking::{self, Arguments, StreamSettings};
use super::wake::{Awaitable, LoopWakers};
use crate::engine::{Completions, Fork, ForkTextBoundary, PendingFork, Ready, WakeHandle};
use crate::error::Result;
use crate::sampling::TokenStrings;

/// The receiving end of one request, and who is told which event loops wait for it.
pub(super) struct Stream {
    completions: Completions,
    bells: Arc<LoopWakers>,
    /// Spells the tokens of log-probabilities.
    pub(super) lexicon: TokenStrings,
}

impl Stream {
    pub(super) fn new(completions: Completions, bells: Arc<LoopWakers>, lexicon: TokenStrings) -> Self {
        Self { completions, bells, lexicon }
    }

    /// The next events: at least one, and no further one once they have `max_bytes` bytes.
    ///
    /// # Errors
    /// What ended the stream before its branches had finished, once, after the events before it.
    pub(super) fn take(&self, max_bytes: usize) -> Result<Ready> {
        self.completions.try_events(max_bytes)
    }

    /// Asks for forks of a branch; `wake` is rung when there is an answer.
    ///
    /// # Errors
    /// What is known to be wrong before the worker has seen it.
    pub(super) fn fork(&self, fork: Fork, bell: Arc<dyn WakeHandle>) -> Result<PendingFork> {
        self.completions.request_fork(fork, Some(bell))
    }

    pub(super) fn shared_bells(&self) -> &Arc<LoopWakers> {
        &self.bells
    }

    /// Cancels the request and ends the stream for whoever waits for it.
    fn close(&self) {
        self.completions.close();
        self.bells.wake();
    }
}

impl Awaitable for Stream {
    /// Whether [`Stream::take`] would not answer [`Ready::Pending`]. Takes nothing, so that nothing is lost when the task that is
    /// woken for it is cancelled before it runs.
    fn is_ready(&self) -> bool {
        self.completions.is_ready()
    }

    fn bells(&self) -> &LoopWakers {
        &self.bells
    }
}

/// `weft._native.Stream`.
#[pyclass(frozen, module = "weft._native", name = "Stream")]
pub(super) struct PyStream {
    /// The only strong reference but for a look's own: when Python drops this object, the request is cancelled.
    stream: ThisProcess<Arc<Stream>>,
    pub(super) asked: StreamSettings,
    /// The seed of branch 0.
    #[pyo3(get)]
    seed: u32,
    /// The prompt's length in tokens.
    #[pyo3(get)]
    n_prompt: usize,
    /// Counts requests in order of submission.
    #[pyo3(get)]
    request_id: u64,
}

impl PyStream {
    pub(super) fn new(stream: Stream, asked: StreamSettings, seed: u32, n_prompt: usize) -> Self {
        let request_id = stream.completions.request_id();
        Self { stream: ThisProcess::new(Arc::new(stream)), asked, seed, n_prompt, request_id }
    }

    /// # Errors
    /// `ForkedProcess` in a forked child.
    pub(super) fn stream(&self) -> PyResult<&Arc<Stream>> {
        self.stream.get()
    }
}

#[pymethods]
impl PyStream {
    fn __aiter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// The next event of any branch.
    fn __anext__(slf: Py<Self>) -> PyNext {
        PyNext::new(slf, WaitTarget::Event)
    }

    /// The events that are ready, at least one; an empty list once all branches have finished.
    #[pyo3(signature = (*, compact = false))]
    fn next_batch(slf: Py<Self>, compact: bool) -> PyNext {
        PyNext::new(slf, WaitTarget::Batch { is_compact: compact })
    }

    /// Waits until `next_batch` would not wait.
    fn readable(slf: Py<Self>) -> PyNext {
        PyNext::new(slf, WaitTarget::Sign)
    }

    /// Why what is computed of the prompt has to be, as far as that is known.
    #[getter]
    fn explanation<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let stream = self.stream()?;
        // The text of a long prompt is spelt for it.
        let told = py.detach(|| stream.completions.explanation());
        told.map(|told| events::explained(py, told)).transpose()
    }

    /// Cancels the request now.
    fn close(&self) -> PyResult<()> {
        self.stream()?.close();
        Ok(())
    }

    /// Cancels one branch.
    fn cancel(&self, index: &Bound<'_, PyAny>) -> PyResult<()> {
        let index = convert::branch_number(index)?;
        self.stream()?.completions.cancel_branch(index);
        Ok(())
    }

    /// Forks a branch: others continue its prompt, its text up to a place, and what is appended.
    #[pyo3(
        signature = (index, *, n = None, at = None, unit = "token".to_owned(), append = None, own_stream = false, **options),
        text_signature = "($self, index, *, n=1, at=None, unit='token', append=None, own_stream=False, **options)"
    )]
    #[expect(clippy::too_many_arguments, reason = "Python's are named")]
    fn fork(
        slf: Py<Self>,
        py: Python<'_>,
        index: Bound<'_, PyAny>,
        n: Option<Bound<'_, PyAny>>,
        at: Option<Bound<'_, PyAny>>,
        unit: String,
        append: Option<Bound<'_, PyAny>>,
        own_stream: bool,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<PyNext> {
        let n = n.map_or_else(|| 1_u32.into_pyobject(py).map(Bound::into_any), Ok)?;
        let append = append.unwrap_or_else(|| py.None().into_bound(py));
        Ok(PyNext::of_fork(forking::fork(py, slf, Arguments { index, n, at, unit, append, own_stream, options })?))
    }

    /// How the text of a branch goes on from that of the one that it was forked from.
    fn forked_seam(&self, index: &Bound<'_, PyAny>) -> PyResult<(String, usize)> {
        let ForkTextBoundary { unshown, n_shown_again } = self.asked.seam(convert::branch_number(index)?);
        Ok((unshown, n_shown_again))
    }

    /// The branch that one was forked from, and after how many of its tokens.
    fn forked_at(&self, index: &Bound<'_, PyAny>) -> PyResult<Option<(u32, u32)>> {
        Ok(self.asked.forked_at(convert::branch_number(index)?))
    }

    /// Each branch on its own, those too that forks add.
    fn branches(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let py = slf.py();
        py.import(intern!(py, "weft.reading"))?.getattr(intern!(py, "Branches"))?.call1((slf,))
    }

    /// Cancels the request now, as `close` does.
    fn aclose(slf: Py<Self>) -> PyResult<PyNext> {
        slf.get().close()?;
        Ok(PyNext::new(slf, WaitTarget::Nothing))
    }

    fn __repr__(&self) -> String {
        format!("Stream(seed={}, n_prompt={})", self.seed, self.n_prompt)
    }
}
