//! Cancellation of long work from Python.

use pyo3::prelude::*;

use crate::cancellation::Cancellation;

/// A flag that stops long work in the compiled engine.
#[pyclass(frozen, name = "Cancellation", module = "weft._native")]
pub(super) struct PyCancellation(Cancellation);

#[pymethods]
impl PyCancellation {
    #[new]
    fn new() -> Self {
        Self(Cancellation::default())
    }

    /// Stops the work that `run` calls.
    fn cancel(&self) {
        self.0.cancel();
    }

    #[getter]
    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Calls `work` and returns what it returns.
    fn run<'py>(&self, work: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.0.run(|| work.call0())
    }
}
