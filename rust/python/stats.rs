//! What the engine is doing, for Python.

use pyo3::prelude::*;

use crate::engine::{RunningStats, SlotStats, Stats};

/// A snapshot of the engine, as of its last step.
#[pyclass(frozen, get_all, module = "weft._native", name = "Stats")]
pub(super) struct PyStats {
    slots: Vec<Py<PySlot>>,
    n_waiting: usize,
    n_computed: u64,
    n_cached: u64,
    n_predicted: u64,
    n_decodes: u64,
    n_preempted: u64,
    n_cells_used: usize,
    n_cells: usize,
}

impl PyStats {
    pub(super) fn new(py: Python<'_>, stats: Stats) -> PyResult<Self> {
        let slots = stats.slots.into_iter().enumerate().map(|(id, SlotStats { running })| Py::new(py, PySlot { id, running }));
        Ok(Self {
            slots: slots.collect::<PyResult<_>>()?,
            n_waiting: stats.n_waiting,
            n_computed: stats.n_computed,
            n_cached: stats.n_cached,
            n_predicted: stats.n_predicted,
            n_decodes: stats.n_decodes,
            n_preempted: stats.n_preempted,
            n_cells_used: stats.n_cells_used,
            n_cells: stats.n_cells,
        })
    }
}

#[pymethods]
impl PyStats {
    fn __repr__(&self) -> String {
        let n_processing = self.slots.iter().filter(|slot| slot.get().running.is_some()).count();
        format!(
            "Stats(slots=[{n_processing} of {} processing], n_waiting={}, n_computed={}, n_cached={}, n_predicted={})",
            self.slots.len(),
            self.n_waiting,
            self.n_computed,
            self.n_cached,
            self.n_predicted
        )
    }
}

/// One of the places where a sequence runs.
#[pyclass(frozen, module = "weft._native", name = "Slot")]
pub(super) struct PySlot {
    #[pyo3(get)]
    id: usize,
    running: Option<RunningStats>,
}

impl PySlot {
    /// A count of the running sequence; 0 where the slot is idle.
    fn count(&self, of: impl Fn(&RunningStats) -> u32) -> u32 {
        self.running.as_ref().map_or(0, of)
    }
}

#[pymethods]
impl PySlot {
    #[getter]
    fn is_processing(&self) -> bool {
        self.running.is_some()
    }

    #[getter]
    fn request_id(&self) -> Option<u64> {
        self.running.as_ref().map(|running| running.request_id)
    }

    #[getter]
    fn index(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.index)
    }

    #[getter]
    fn n_prompt(&self) -> u32 {
        self.count(|running| running.n_prompt)
    }

    #[getter]
    fn n_computed(&self) -> u32 {
        self.count(|running| running.n_computed)
    }

    #[getter]
    fn n_cached(&self) -> u32 {
        self.count(|running| running.n_cached)
    }

    #[getter]
    fn n_predicted(&self) -> u32 {
        self.count(|running| running.n_predicted)
    }

    #[getter]
    fn n_remaining(&self) -> u32 {
        self.count(|running| running.n_remaining)
    }

    fn __repr__(&self) -> String {
        match &self.running {
            None => format!("Slot(id={}, idle)", self.id),
            Some(running) => format!(
                "Slot(id={}, request_id={}, index={}, n_prompt={}, n_predicted={})",
                self.id, running.request_id, running.index, running.n_prompt, running.n_predicted
            ),
        }
    }
}
