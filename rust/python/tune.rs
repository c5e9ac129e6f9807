//! Tuning of a model on this machine, for Python.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use super::errors::InvalidConfig;
use super::logging;
use super::model::PyModel;
use super::settings;
use crate::config::{EngineConfig, Named, ResolvedConfig, TunedSettings};
use crate::llama::host::machine::Hardware;
use crate::llama::tune::{Timing, Tuning, Workload, measure};

/// Configuration of an engine's computation.
#[pyclass(frozen, module = "weft._native", name = "Compute")]
pub(super) struct PyCompute(pub(super) ResolvedConfig);

#[pymethods]
impl PyCompute {
    #[getter]
    fn flash_attention(&self) -> &str {
        self.0.flash_attention.name()
    }

    #[getter]
    fn attention(&self) -> &str {
        kernels_name(self.0.kernels.attention)
    }

    #[getter]
    fn products(&self) -> &str {
        kernels_name(self.0.kernels.products)
    }

    #[getter]
    fn n_ubatch(&self) -> u32 {
        self.0.limits.n_ubatch
    }

    #[getter]
    fn n_threads(&self) -> u32 {
        self.0.n_threads
    }

    #[getter]
    fn n_threads_batch(&self) -> u32 {
        self.0.n_threads_batch
    }

    #[getter]
    fn summary(&self) -> &str {
        &self.0.summary
    }

    fn __repr__(&self) -> String {
        format!("Compute({})", self.0.summary)
    }
}

/// Returns the value of `--kernels` for our kernels or llama.cpp's.
fn kernels_name(is_ours: bool) -> &'static str {
    if is_ours { "weft" } else { "llama.cpp" }
}

/// One measurement.
#[pyclass(frozen, module = "weft._native", name = "Timing")]
pub(super) struct PyTiming(Timing);

#[pymethods]
impl PyTiming {
    #[getter]
    fn flash_attention(&self) -> Option<bool> {
        self.0.flash_attention
    }

    #[getter]
    fn work(&self) -> &str {
        match self.0.work {
            Workload::Prompt => "prompt",
            Workload::Branches => "branches",
        }
    }

    #[getter]
    fn n_threads(&self) -> u32 {
        self.0.n_threads
    }

    #[getter]
    fn seconds(&self) -> Option<f64> {
        self.0.took.map(|took| took.as_secs_f64())
    }

    fn __repr__(&self) -> String {
        let Timing { flash_attention, n_threads, .. } = self.0;
        let seconds = self.seconds().map_or_else(|| "None".to_owned(), |seconds| format!("{seconds:.3}"));
        let flash_attention = match flash_attention {
            None => "None",
            Some(true) => "True",
            Some(false) => "False",
        };
        format!("Timing(flash_attention={flash_attention}, work='{}', n_threads={n_threads}, seconds={seconds})", self.work())
    }
}

/// All measurements, and the fastest settings.
#[pyclass(frozen, module = "weft._native", name = "Tuning")]
pub(super) struct PyTuning(Tuning);

#[pymethods]
impl PyTuning {
    #[getter]
    fn timings(&self) -> Vec<PyTiming> {
        self.0.timings.iter().copied().map(PyTiming).collect()
    }

    #[getter]
    fn best(&self) -> (Option<bool>, u32, u32) {
        let TunedSettings { flash_attention, n_threads, n_threads_batch } = self.0.best;
        (flash_attention, n_threads, n_threads_batch)
    }

    fn __repr__(&self) -> String {
        format!("Tuning({} timings)", self.0.timings.len())
    }
}

/// The hardware of this machine.
#[pyclass(frozen, module = "weft._native", name = "Hardware")]
pub(super) struct PyHardware(Hardware);

#[pymethods]
impl PyHardware {
    #[staticmethod]
    fn read(py: Python<'_>) -> PyResult<Self> {
        logging::follow(py)?;
        Ok(Self(py.detach(Hardware::read)))
    }

    #[getter]
    fn cpu(&self) -> &str {
        &self.0.cpu
    }

    #[getter]
    fn n_cores(&self) -> u32 {
        self.0.n_cores
    }

    #[getter]
    fn n_threads(&self) -> u32 {
        self.0.n_threads
    }

    #[getter]
    fn instructions(&self) -> &str {
        &self.0.instructions
    }

    #[getter]
    fn gpus(&self) -> Vec<String> {
        self.0.gpus.clone()
    }

    fn __repr__(&self) -> String {
        format!("Hardware({}, {} cores)", self.0.cpu, self.0.n_cores)
    }
}

/// Measures the candidate settings of a model.
#[pyfunction]
#[pyo3(signature = (model, *, type_k="f16", type_v="f16", kernels="auto", budget_s=55.0, on_progress=None))]
pub(super) fn tune(
    py: Python<'_>,
    model: &Bound<'_, PyModel>,
    type_k: &str,
    type_v: &str,
    kernels: &str,
    budget_s: f64,
    on_progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyTuning> {
    let on_progress = on_progress.map(|on_progress| on_progress.clone().unbind());
    let budget = Duration::try_from_secs_f64(budget_s).map_err(|_| {
        InvalidConfig::new_err(("budget_s", format!("budget_s is {budget_s}; it must be a number of seconds, 0 or more")))
    })?;
    let config = EngineConfig {
        type_k: settings::named("type_k", type_k)?,
        type_v: settings::named("type_v", type_v)?,
        kernels: settings::named("kernels", kernels)?,
        ..EngineConfig::default()
    };
    let model = model.get().loaded()?;
    let raised: Mutex<Option<PyErr>> = Mutex::default();
    // Ctrl-C is handled here, between two measurements.
    let progress = |fraction: f64| {
        let result = Python::attach(|py| {
            py.check_signals()?;
            on_progress.as_ref().map_or(Ok(()), |on_progress| on_progress.call1(py, (fraction,)).map(drop))
        });
        let continues = result.is_ok();
        *raised.lock().unwrap_or_else(PoisonError::into_inner) = result.err();
        continues
    };
    let tuning = py.detach(|| measure(&Arc::clone(model), &config, budget, progress))?;
    let raised = raised.into_inner().unwrap_or_else(PoisonError::into_inner);
    tuning.map(PyTuning).ok_or_else(|| raised.expect("what stops it is an exception"))
}
