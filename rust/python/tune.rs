//! Measurement of the fastest settings, and a report of those in use.

use std::time::Duration;

use pyo3::prelude::*;

use super::background::ProgressCallback;
use super::errors::invalid_config;
use super::logging;
use super::mirrored_class::mirrored_class;
use super::model::PyModel;
use super::settings;
use crate::config::{EngineConfig, Named, ResolvedConfig, TunedSettings};
use crate::llama::host::machine::Hardware;
use crate::llama::tune::{Timing, Tuning, Workload, measure};

/// Kernels and threads with which an engine computes.
#[pyclass(frozen, get_all, module = "weft._native", name = "Compute")]
pub(super) struct PyCompute {
    flash_attention: &'static str,
    attention: &'static str,
    products: &'static str,
    n_ubatch: u32,
    n_threads: u32,
    n_threads_batch: u32,
    summary: String,
}

impl PyCompute {
    pub(super) fn of(config: &ResolvedConfig) -> Self {
        Self {
            flash_attention: config.flash_attention.name(),
            attention: kernels_name(config.kernels.attention),
            products: kernels_name(config.kernels.products),
            n_ubatch: config.limits.n_ubatch,
            n_threads: config.n_threads,
            n_threads_batch: config.n_threads_batch,
            summary: config.summary.clone(),
        }
    }
}

#[pymethods]
impl PyCompute {
    fn __repr__(&self) -> String {
        format!("Compute({})", self.summary)
    }
}

/// Returns the value of `--kernels` for our kernels or llama.cpp's.
fn kernels_name(is_ours: bool) -> &'static str {
    if is_ours { "weft" } else { "llama.cpp" }
}

#[pyclass(frozen, get_all, module = "weft._native", name = "Timing")]
pub(super) struct PyTiming {
    flash_attention: Option<bool>,
    work: &'static str,
    n_threads: u32,
    seconds: Option<f64>,
}

impl From<&Timing> for PyTiming {
    fn from(&Timing { flash_attention, work, n_threads, took }: &Timing) -> Self {
        let work = match work {
            Workload::Prompt => "prompt",
            Workload::Branches => "branches",
        };
        Self { flash_attention, work, n_threads, seconds: took.map(|took| took.as_secs_f64()) }
    }
}

#[pymethods]
impl PyTiming {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let Self { flash_attention, work, n_threads, seconds } = self;
        let flash_attention = flash_attention.into_pyobject(py)?;
        let seconds = seconds.map_or_else(|| "None".to_owned(), |seconds| format!("{seconds:.3}"));
        Ok(format!("Timing(flash_attention={flash_attention}, work='{work}', n_threads={n_threads}, seconds={seconds})"))
    }
}

/// All measurements, and the fastest settings.
#[pyclass(frozen, module = "weft._native", name = "Tuning")]
pub(super) struct PyTuning(Tuning);

#[pymethods]
impl PyTuning {
    #[getter]
    fn timings(&self) -> Vec<PyTiming> {
        self.0.timings.iter().map(PyTiming::from).collect()
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

mirrored_class! {
    /// The hardware of this machine.
    #[pyclass(frozen, get_all, module = "weft._native", name = "Hardware")]
    PyHardware of Hardware { cpu: String, n_cores: u32, n_threads: u32, instructions: String, gpus: Vec<String> }
}

#[pymethods]
impl PyHardware {
    #[staticmethod]
    fn read(py: Python<'_>) -> PyResult<Self> {
        logging::follow(py)?;
        Ok(py.detach(Hardware::read).into())
    }

    fn __repr__(&self) -> String {
        format!("Hardware({}, {} cores)", self.cpu, self.n_cores)
    }
}

#[pyfunction]
#[pyo3(signature = (model, *, type_k="f16", type_v="f16", kernels="auto", budget_s=55.0, on_progress=None))]
pub(super) fn tune(
    py: Python<'_>,
    model: &Bound<'_, PyModel>,
    type_k: &str,
    type_v: &str,
    kernels: &str,
    budget_s: f64,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<PyTuning> {
    let reject = |_| invalid_config("budget_s", budget_s, "a number of seconds, 0 or more");
    let budget = Duration::try_from_secs_f64(budget_s).map_err(reject)?;
    let config = EngineConfig {
        type_k: settings::parse_named("type_k", type_k)?,
        type_v: settings::parse_named("type_v", type_v)?,
        kernels: settings::parse_named("kernels", kernels)?,
        ..EngineConfig::default()
    };
    let model = model.get().loaded()?;
    let progress = ProgressCallback::new(on_progress);
    let should_continue = |fraction| progress.check_signals() && progress.call(fraction);
    let tuning = py.detach(|| measure(model, &config, budget, should_continue))?;
    progress.raise()?;
    Ok(PyTuning(tuning.expect("only an exception stops it")))
}
