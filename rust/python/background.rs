//! Long work without the GIL, on threads of lower priority than compute threads.
//!
//! Compute threads synchronize many times per step, so that a step takes a hundred times as long if one of them shares its core
//! with a thread of equal priority. But a thread of low priority must never hold the GIL: the event loop would wait for it, and
//! it for a core. So the calling thread keeps its priority and sleeps, while a thread with low priority works.

use std::cell::Cell;
use std::panic;
use std::sync::Mutex;
use std::thread;

use pyo3::prelude::*;

use crate::cancellation::Cancellation;
use crate::llama;
use crate::lock::lock;

/// Stack size as of threads that Python starts: grammars are nested.
const STACK_BYTES: usize = 8 << 20;

thread_local! {
    static NICENESS: Cell<i32> = const { Cell::new(0) };
}

/// Marks this thread, and threads that it starts from now on, as latency-critical: if the system supports it, they preempt
/// compute threads instead of waiting for the end of their time slice.
#[pyfunction]
pub(super) fn use_short_time_slices() {
    llama::answer();
}

/// Sets the niceness, as of nice(2), of long work that this thread requests from now on.
#[pyfunction]
pub(super) fn lower_priority(niceness: i32) {
    NICENESS.set(niceness.clamp(0, 19));
}

/// Makes the allocator release freed memory from now on, see [`llama::trim_allocator`].
#[pyfunction]
pub(super) fn trim_allocator() {
    llama::trim_allocator();
}

/// Releases free heap memory to the system, see [`llama::trim_heap`].
#[pyfunction]
pub(super) fn trim_heap(py: Python<'_>) {
    py.detach(llama::trim_heap);
}

/// A Python function that long work without the GIL calls with its progress, from 0 to 1.
pub(super) struct ProgressCallback {
    function: Option<Py<PyAny>>,
    raised: Mutex<Option<PyErr>>,
}

impl ProgressCallback {
    pub(super) fn new(function: Option<Py<PyAny>>) -> Self {
        Self { function, raised: Mutex::default() }
    }

    /// Returns false if the function raises.
    pub(super) fn call(&self, fraction: f64) -> bool {
        let Some(function) = &self.function else { return true };
        self.store(Python::attach(|py| function.call1(py, (fraction,)).map(drop)))
    }

    /// Runs signal handlers, for Ctrl-C; returns false if one raises.
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is of one lifetime, the closure of all")]
    pub(super) fn check_signals(&self) -> bool {
        self.store(Python::attach(|py| py.check_signals()))
    }

    fn store(&self, result: PyResult<()>) -> bool {
        let is_ok = result.is_ok();
        if let Err(error) = result {
            lock(&self.raised).get_or_insert(error);
        }
        is_ok
    }

    pub(super) fn raise(&self) -> PyResult<()> {
        lock(&self.raised).take().map_or(Ok(()), Err)
    }
}

/// Calls `work` without the GIL; on a thread of low priority if this thread has called [`lower_priority`].
pub(super) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let niceness = NICENESS.get();
    if niceness == 0 {
        return py.detach(work);
    }
    py.detach(|| {
        // Taken by the thread that runs it: this one, if no thread can be started.
        let work = Mutex::new(Some(work));
        let take = || lock(&work).take().expect("it is done once")();
        let cancellation = Cancellation::current();
        let run_at_low_priority = || {
            llama::compute(niceness);
            match &cancellation {
                Some(cancellation) => cancellation.run(take),
                None => take(),
            }
        };
        thread::scope(|scope| {
            let worker = thread::Builder::new()
                .name("weft-background".into())
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, run_at_low_priority);
            match worker {
                Ok(worker) => worker.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked)),
                Err(_) => take(),
            }
        })
    })
}
