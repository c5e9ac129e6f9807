//! Long work without the interpreter, by threads that step back for those that compute tokens.
//!
//! These wait for each other many times in a step, so that it takes a hundred times as long where one of them has to share its core
//! with a thread that is worth as much. But a thread that steps back must never hold the interpreter: the event loop would wait for
//! it, and it for a core. So whoever asks for the work stays as it is and sleeps, and another thread steps back and works.

use std::cell::Cell;
use std::panic;
use std::sync::{Mutex, PoisonError};
use std::thread;

use pyo3::prelude::*;

use crate::cancellation::Cancellation;
use crate::llama;

/// As that of threads that Python starts: grammars are nested.
const STACK_BYTES: usize = 8 << 20;

thread_local! {
    static NICENESS: Cell<i32> = const { Cell::new(0) };
}

/// This thread answers requests, and so do those that it starts from now on: where the system can, they do not wait for the end of
/// the turns of those that compute.
#[pyfunction]
pub(super) fn answer_at_once() {
    llama::answer();
}

/// Long work that this thread asks for steps back so far from now on, as nice(2) counts it, from those that compute tokens.
#[pyfunction]
pub(super) fn lower_priority(niceness: i32) {
    NICENESS.set(niceness.clamp(0, 19));
}

/// The allocator gives back what is freed from now on, see [`llama::trim_allocator`].
#[pyfunction]
pub(super) fn trim_allocator() {
    llama::trim_allocator();
}

/// Gives the system what is free in the heap, see [`llama::trim_heap`].
#[pyfunction]
pub(super) fn trim_heap(py: Python<'_>) {
    py.detach(llama::trim_heap);
}

/// Does `work` without the interpreter; where this thread has said [`lower_priority`], by a thread that does so.
pub(super) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let niceness = NICENESS.get();
    if niceness == 0 {
        return py.detach(work);
    }
    py.detach(|| {
        // Taken by whoever does it: where no thread can be started, this one.
        let work = Mutex::new(Some(work));
        let take = || work.lock().unwrap_or_else(PoisonError::into_inner).take().expect("it is done once")();
        let cancellation = Cancellation::current();
        let nicely = || {
            llama::compute(niceness);
            match &cancellation {
                Some(cancellation) => cancellation.run(take),
                None => take(),
            }
        };
        thread::scope(|scope| {
            let worker = thread::Builder::new().name("weft-aside".into()).stack_size(STACK_BYTES).spawn_scoped(scope, nicely);
            match worker {
                Ok(worker) => worker.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked)),
                Err(_) => take(),
            }
        })
    })
}
