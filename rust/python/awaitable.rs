//! The awaitable behind `await`: finished if an event is ready, else it yields a future of the running loop.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyStopAsyncIteration, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::events::{self, LogprobFormat};
use super::stream::{EventStream, PyStream};
use super::wake::{Awaitable, Watch};
use crate::engine::ReadyEvents;
use crate::lock::lock;

/// Maximum size in bytes of one batch of events, as [`Event::n_bytes`](crate::request::Event::n_bytes) counts, so that the
/// event loop is blocked for about a millisecond: some two thousand tokens, or five with a thousand logprobs each.
const MAX_BATCH_BYTES: usize = 256 << 10;

pub(super) trait Answer: Awaitable {
    /// Takes the answer, once; `None` until it is ready.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>>;
}

#[derive(Debug, Clone, Copy)]
pub(super) enum WaitTarget {
    /// `StopAsyncIteration` after the last.
    Event,
    /// A list of all ready events; an empty one after the last. With `is_compact`, logprobs are one object each.
    Batch {
        is_compact: bool,
    },
    /// Readiness of an event, or of the end; the event stays in the stream.
    Readiness,
    Nothing,
}

/// One `await` of a stream, of a fork, or of embeddings, with a coroutine's four methods, which `asyncio.create_task` requires.
///
/// An event leaves the stream in the very step that passes it to the task: a task that is cancelled while it waits, or after its
/// wake-up, leaves it there. Several tasks, on several loops, may await one stream; each event goes to one of them.
#[pyclass(frozen, module = "weft._native", name = "_Next")]
pub(super) struct PyNext {
    source: AwaitSource,
    wait: Mutex<Option<Wait>>,
}

enum AwaitSource {
    Stream(Py<PyStream>, WaitTarget),
    /// The only reference: if Python drops it, embeddings are not computed.
    Answer(Arc<dyn Answer>),
}

struct Wait {
    watch: Py<Watch>,
    future: Py<PyAny>,
}

impl PyNext {
    pub(super) fn new(stream: Py<PyStream>, target: WaitTarget) -> Self {
        Self { source: AwaitSource::Stream(stream, target), wait: Mutex::new(None) }
    }

    pub(super) fn of_answer(answer: impl Answer + 'static) -> Self {
        Self { source: AwaitSource::Answer(Arc::new(answer)), wait: Mutex::new(None) }
    }

    fn stop_waiting(&self, py: Python<'_>) {
        let wait = lock(&self.wait).take();
        if let Some(Wait { watch, future }) = wait {
            watch.get().forget(future.bind(py));
        }
    }

    fn awaited(&self) -> PyResult<Arc<dyn Awaitable>> {
        Ok(match &self.source {
            AwaitSource::Stream(stream, _) => Arc::<EventStream>::clone(stream.get().stream()?),
            AwaitSource::Answer(answer) => Arc::<dyn Answer>::clone(answer),
        })
    }

    fn poll(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let (stream, target) = match &self.source {
            AwaitSource::Stream(stream, target) => (stream.get().stream()?, target),
            AwaitSource::Answer(answer) => return answer.take(py),
        };
        match target {
            WaitTarget::Nothing => Ok(Some(py.None())),
            WaitTarget::Readiness => Ok(stream.is_ready().then(|| py.None())),
            WaitTarget::Event => match stream.take(0)? {
                ReadyEvents::Pending => Ok(None),
                ReadyEvents::Ended => Err(PyStopAsyncIteration::new_err(())),
                ReadyEvents::Events(events) => {
                    let format = LogprobFormat { token_strings: &stream.token_strings, is_compact: false };
                    let event = events.into_iter().next().map(|event| events::to_python(py, event, format));
                    event.transpose().map(|event| event.map(Bound::unbind))
                }
            },
            &WaitTarget::Batch { is_compact } => match stream.take(MAX_BATCH_BYTES)? {
                ReadyEvents::Pending => Ok(None),
                ReadyEvents::Ended => Ok(Some(PyList::empty(py).into_any().unbind())),
                ReadyEvents::Events(events) => {
                    let format = LogprobFormat { token_strings: &stream.token_strings, is_compact };
                    let events = events.into_iter().map(|event| events::to_python(py, event, format));
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
        self.stop_waiting(py);
        loop {
            if let Some(answer) = self.poll(py)? {
                return Err(PyStopIteration::new_err((answer,)));
            }
            let watch = Watch::current(py)?;
            if let Some(future) = watch.get().wait(py, &self.awaited()?)? {
                // asyncio requires this flag on a future that a task yields; `Future.__await__` sets it too.
                future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
                *lock(&self.wait) = Some(Wait { watch, future: future.clone().unbind() });
                return Ok(future);
            }
        }
    }

    fn send<'py>(&self, py: Python<'py>, _value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.__next__(py)
    }

    /// Ends the wait with this exception; asyncio cancels a task with it.
    #[pyo3(signature = (exception, value = None, _traceback = None))]
    fn throw(
        &self,
        py: Python<'_>,
        exception: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.stop_waiting(py);
        // Callers may pass a class and its instance; Python 3.12 deprecates that form.
        Err(PyErr::from_value(value.unwrap_or(exception)))
    }

    fn close(&self, py: Python<'_>) {
        self.stop_waiting(py);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let AwaitSource::Stream(stream, _) = &self.source {
            visit.call(stream)?;
        }
        // Cannot fail: the collector stops the world or holds the GIL, and the lock is never held across calls into Python.
        if let Ok(wait) = self.wait.try_lock()
            && let Some(Wait { watch, future }) = &*wait
        {
            visit.call(watch)?;
            visit.call(future)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let wait = lock(&self.wait).take();
        drop(wait);
    }
}
