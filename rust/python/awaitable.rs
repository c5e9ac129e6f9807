//! What `await` sees: ready at once where an event is there, else a future of the running loop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyStopAsyncIteration, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::embedding::EmbeddingFuture;
use super::events::{self, LogprobFormat};
use super::forking::AwaitedFork;
use super::stream::{PyStream, Stream};
use super::wake::{Awaitable, Watch};
use crate::engine::Ready;

/// Most bytes of one batch's events, as [`Event::n_bytes`](crate::request::Event::n_bytes) counts them: a bound on how long the loop
/// is held, about a millisecond. Those are some two thousand tokens, far more than one step yields, or five with a thousand
/// log-probabilities each.
const MAX_BATCH_BYTES: usize = 256 << 10;

/// What is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) enum WaitTarget {
    /// One event; after the last, `StopAsyncIteration`.
    Event,
    /// A list of all that is ready; after the last, an empty one. With `is_compact`, log-probabilities are one object each.
    Batch { is_compact: bool },
    /// That there is an event, or the end; it stays in the stream.
    Sign,
    /// Nothing: ready at once.
    Nothing,
}

/// One `await` of a stream, of a fork, or of vectors. It has the four methods of a coroutine, so that `asyncio.create_task` takes it too.
///
/// An event is taken in the very step that hands it to the task, so a task that is cancelled while it waits, or after it was
/// woken, leaves the event in the stream. Several tasks may wait for one stream, on several loops: each event goes to one of them.
#[pyclass(frozen, module = "weft._native", name = "_Next")]
pub(super) struct PyNext {
    of: AwaitSource,
    waits: Mutex<Option<Wait>>,
}

/// Whose answer is awaited.
enum AwaitSource {
    Stream(Py<PyStream>, WaitTarget),
    /// Held by nobody else: when Python drops this object, they are not computed.
    Vectors(Arc<EmbeddingFuture>),
    Fork(Arc<AwaitedFork>),
}

/// The future that the task was told to wait for, and who sets it.
struct Wait {
    watch: Py<Watch>,
    future: Py<PyAny>,
}

impl PyNext {
    pub(super) fn new(stream: Py<PyStream>, want: WaitTarget) -> Self {
        Self { of: AwaitSource::Stream(stream, want), waits: Mutex::new(None) }
    }

    pub(super) fn of_vectors(pending: EmbeddingFuture) -> Self {
        Self { of: AwaitSource::Vectors(Arc::new(pending)), waits: Mutex::new(None) }
    }

    pub(super) fn of_fork(pending: AwaitedFork) -> Self {
        Self { of: AwaitSource::Fork(Arc::new(pending)), waits: Mutex::new(None) }
    }

    fn waits(&self) -> MutexGuard<'_, Option<Wait>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits no longer.
    fn forget(&self, py: Python<'_>) {
        let wait = self.waits().take();
        if let Some(Wait { watch, future }) = wait {
            watch.get().forget(future.bind(py));
        }
    }

    fn awaited(&self) -> PyResult<Arc<dyn Awaitable>> {
        Ok(match &self.of {
            AwaitSource::Stream(stream, _) => Arc::<Stream>::clone(stream.get().stream()?),
            AwaitSource::Vectors(pending) => Arc::<EmbeddingFuture>::clone(pending),
            AwaitSource::Fork(pending) => Arc::<AwaitedFork>::clone(pending),
        })
    }

    /// What there is now: the answer to the `await`, or `None` where nothing is ready.
    fn look(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let (stream, want) = match &self.of {
            AwaitSource::Stream(stream, want) => (stream.get().stream()?, want),
            AwaitSource::Vectors(pending) => return pending.take(py),
            AwaitSource::Fork(pending) => return pending.take(py),
        };
        match want {
            WaitTarget::Nothing => Ok(Some(py.None())),
            WaitTarget::Sign => Ok(stream.is_ready().then(|| py.None())),
            WaitTarget::Event => match stream.take(0)? {
                Ready::Pending => Ok(None),
                Ready::Ended => Err(PyStopAsyncIteration::new_err(())),
                Ready::Events(events) => {
                    let telling = LogprobFormat { lexicon: &stream.lexicon, is_compact: false };
                    let event = events.into_iter().next().map(|event| events::to_python(py, event, telling));
                    event.transpose().map(|event| event.map(Bound::unbind))
                }
            },
            &WaitTarget::Batch { is_compact } => match stream.take(MAX_BATCH_BYTES)? {
                Ready::Pending => Ok(None),
                Ready::Ended => Ok(Some(PyList::empty(py).into_any().unbind())),
                Ready::Events(events) => {
                    let telling = LogprobFormat { lexicon: &stream.lexicon, is_compact };
                    let events = events.into_iter().map(|event| events::to_python(py, event, telling));
                    let events = events.collect::<PyResult<Vec<_>>>()?;
                    Ok(Some(PyList::new(py, events)?.into_any().unbind()))
                }
            },
        }
    }
}

#[pymethods]
impl PyNext {
    fn __await__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// Returns the future to wait for, or raises `StopIteration` with the answer.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.forget(py);
        loop {
            if let Some(answer) = self.look(py)? {
                return Err(PyStopIteration::new_err((answer,)));
            }
            let watch = Watch::current(py)?;
            if let Some(future) = watch.get().wait(py, &self.awaited()?)? {
                // asyncio's sign that the future is being waited for, as its own `Future.__await__` sets it.
                future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
                *self.waits() = Some(Wait { watch, future: future.clone().unbind() });
                return Ok(future);
            }
        }
    }

    fn send<'py>(&self, py: Python<'py>, _value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.__next__(py)
    }

    /// Ends the wait with this exception: how a task is cancelled.
    #[pyo3(signature = (exception, value = None, _traceback = None))]
    fn throw(
        &self,
        py: Python<'_>,
        exception: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.forget(py);
        // Callers from before 3.12 may give a class and its instance.
        Err(PyErr::from_value(value.unwrap_or(exception)))
    }

    fn close(&self, py: Python<'_>) {
        self.forget(py);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let AwaitSource::Stream(stream, _) = &self.of {
            visit.call(stream)?;
        }
        // The collector stops the world or holds the GIL, and the lock is never held across Python: this cannot fail.
        if let Ok(waits) = self.waits.try_lock()
            && let Some(Wait { watch, future }) = &*waits
        {
            visit.call(watch)?;
            visit.call(future)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let wait = self.waits().take();
        drop(wait);
    }
}
