//! Metrics of the engine.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::mirrored_class::mirrored_class;
use crate::engine::{
    BranchStats, DraftSource, DraftStats, Histogram, HostCacheStats, RecentStep, RequestHistograms, RunningStats,
    SpeculationStats, Stats, StepTimes,
};
use crate::llama::kernels;

mirrored_class! {
    /// Metrics of the engine as of its last step.
    #[pyclass(frozen, get_all, module = "weft._native", name = "Stats")]
    PyStats of Stats {
        n_waiting: usize, n_computed: u64, n_cached: u64, n_reloaded: u64, n_awaited: u64, n_predicted: u64, n_decodes: u64,
        n_busy: u64, n_preempted: u64, n_adapter_changes: u64, n_cells_used: usize, n_cells: usize, n_cells_reached: usize,
        n_cells_idle: usize, n_ids_used: usize, n_ids: usize, n_pinned: usize, n_pinned_bytes: u64, branches: PyBranchStats, speculation: PySpeculationStats,
        histograms: PyRequestHistograms, host_cache: PyHostCacheStats, times: PyStepTimes,
    } and {
        slots: Vec<PySlot> = |stats| (0..).zip(&stats.slots).map(|(id, slot)| PySlot::new(id, slot.running.as_ref())).collect(),
        n_kernel_attentions: u64 = |_| kernels::n_computed().0,
        n_kernel_products: u64 = |_| kernels::n_computed().1,
    }
}

#[pymethods]
impl PyStats {
    fn __repr__(&self) -> String {
        let Self { slots, n_waiting, n_computed, n_cached, n_predicted, .. } = self;
        let (n_processing, n) = (slots.iter().filter(|slot| slot.is_processing).count(), slots.len());
        format!(
            "Stats(slots=[{n_processing} of {n} processing], n_waiting={n_waiting}, n_computed={n_computed}, n_cached={n_cached}, \
             n_predicted={n_predicted})"
        )
    }
}

mirrored_class! {
    /// Metrics of the branches of all streams.
    #[pyclass(frozen, get_all, module = "weft._native", name = "BranchStats")]
    #[derive(Clone)]
    PyBranchStats of BranchStats { n_started: u64, n_forked: u64, n_cancelled: u64, n_computed: u64, n_shared: u64 }
    shown as "BranchStats(n_started={n_started}, n_forked={n_forked}, n_cancelled={n_cancelled}, n_computed={n_computed}, \
              n_shared={n_shared})"
}

/// Metrics of speculative decoding.
#[pyclass(frozen, get_all, module = "weft._native", name = "SpeculationStats")]
#[derive(Clone)]
pub(super) struct PySpeculationStats {
    sources: BTreeMap<&'static str, PyDraftStats>,
    n_accepted_at: Vec<u64>,
}

#[pymethods]
impl PySpeculationStats {
    fn __repr__(&self) -> String {
        let source = |(name, drafts): (&&str, &PyDraftStats)| format!("{name}={}", drafts.__repr__());
        format!("SpeculationStats({})", self.sources.iter().map(source).collect::<Vec<_>>().join(", "))
    }
}

impl From<SpeculationStats> for PySpeculationStats {
    fn from(stats: SpeculationStats) -> Self {
        let sources =
            DraftSource::ALL.iter().filter_map(|&source| Some((source.name()?, stats.by_source[source as usize].into())));
        Self { sources: sources.collect(), n_accepted_at: stats.n_accepted_at.to_vec() }
    }
}

mirrored_class! {
    /// Metrics of the drafts of one source.
    #[pyclass(frozen, get_all, module = "weft._native", name = "DraftStats")]
    #[derive(Clone)]
    PyDraftStats of DraftStats { n_drafts: u64, n_drafted: u64, n_accepted: u64, time: Duration }
    shown as "DraftStats(n_drafts={n_drafts}, n_drafted={n_drafted}, n_accepted={n_accepted})"
}

mirrored_class! {
    /// Histograms of the branches of all streams.
    #[pyclass(frozen, get_all, module = "weft._native", name = "RequestHistograms")]
    #[derive(Clone)]
    PyRequestHistograms of RequestHistograms {} and {
        time_to_first_token: PyHistogram = |all| PyHistogram::of_times(&all.time_to_first_token),
        inter_token_latency: PyHistogram = |all| PyHistogram::of_times(&all.inter_token_latency),
        queue_time: PyHistogram = |all| PyHistogram::of_times(&all.queue_time),
        end_to_end_latency: PyHistogram = |all| PyHistogram::of_times(&all.end_to_end_latency),
        prompt_tokens: PyHistogram = |all| PyHistogram::of_counts(&all.prompt_tokens),
        generation_tokens: PyHistogram = |all| PyHistogram::of_counts(&all.generation_tokens),
    }
}

/// Counts of values by range.
#[pyclass(frozen, get_all, module = "weft._native", name = "Histogram")]
#[derive(Clone)]
pub(super) struct PyHistogram {
    buckets: Vec<(f64, u64)>,
    n: u64,
    sum: f64,
}

#[expect(clippy::cast_precision_loss, reason = "2^53 nanoseconds are 104 days; metrics are floating-point numbers")]
impl PyHistogram {
    fn of_times(histogram: &Histogram) -> Self {
        Self::new(histogram, |ns| ns as f64 / 1e9)
    }

    fn of_counts(histogram: &Histogram) -> Self {
        Self::new(histogram, |n| n as f64)
    }

    fn new(histogram: &Histogram, convert: impl Fn(u64) -> f64) -> Self {
        let buckets = histogram.buckets().map(|(bound, n)| (convert(bound), n)).collect();
        Self { buckets, n: histogram.n(), sum: convert(histogram.sum()) }
    }
}

#[pymethods]
impl PyHistogram {
    fn __repr__(&self) -> String {
        format!("Histogram(n={}, sum={})", self.n, self.sum)
    }
}

mirrored_class! {
    /// Metrics of the host cache.
    #[pyclass(frozen, get_all, module = "weft._native", name = "HostCacheStats")]
    #[derive(Clone)]
    PyHostCacheStats of HostCacheStats {
        n_bytes: u64, max_bytes: Option<u64>, n_entries: usize, n_offloaded: u64, n_reloaded: u64, n_evicted: u64, n_relocated: u64
    }
}

#[pymethods]
impl PyHostCacheStats {
    fn __repr__(&self) -> String {
        let limit = self.max_bytes.map_or_else(|| "None".to_owned(), |limit| limit.to_string());
        format!("HostCacheStats(n_bytes={}, max_bytes={limit}, n_entries={})", self.n_bytes, self.n_entries)
    }
}

mirrored_class! {
    /// Time that the worker spent in each part of a step.
    #[pyclass(frozen, get_all, module = "weft._native", name = "StepTimes")]
    #[derive(Clone)]
    PyStepTimes of StepTimes {
        receive: Duration, admit: Duration, plan: Duration, decode: Duration, sample: Duration, detokenize: Duration,
        publish: Duration, offload: Duration, reload: Duration
    }
    shown as "StepTimes(decode={decode:?}, sample={sample:?}, offload={offload:?}, reload={reload:?})"
}

/// Duration of one of the last steps.
#[pyclass(frozen, get_all, module = "weft._native", name = "RecentStep")]
pub(super) struct PyRecentStep {
    started: f64,
    took: Duration,
    n_rows: u32,
    times: PyStepTimes,
}

impl PyRecentStep {
    /// Converts the last steps, with times on the clock of `time.monotonic`: it is Rust's too, but only Python exposes its value.
    pub(super) fn list(py: Python<'_>, steps: Vec<RecentStep>) -> PyResult<Vec<Self>> {
        let now_s: f64 = py.import("time")?.call_method0("monotonic")?.extract()?;
        let now = Instant::now();
        let to_python = |RecentStep { started, took, n_rows, times }| {
            let ago = now.saturating_duration_since(started);
            Self { started: now_s - ago.as_secs_f64(), took, n_rows, times: times.into() }
        };
        Ok(steps.into_iter().map(to_python).collect())
    }
}

#[pymethods]
impl PyRecentStep {
    fn __repr__(&self) -> String {
        let Self { started, took, n_rows, .. } = self;
        format!("RecentStep(started={started:.6}, took={took:?}, n_rows={n_rows})")
    }
}

/// A slot, in which one sequence can run. The counters of an idle slot are 0.
#[pyclass(frozen, get_all, module = "weft._native", name = "Slot")]
#[derive(Clone, Default)]
pub(super) struct PySlot {
    id: usize,
    is_processing: bool,
    request_id: Option<u64>,
    index: Option<u32>,
    n_prompt: u32,
    n_computed: u32,
    n_cached: u32,
    n_predicted: u32,
    n_remaining: Option<u32>,
}

impl PySlot {
    fn new(id: usize, running: Option<&RunningStats>) -> Self {
        let Some(running) = running else { return Self { id, n_remaining: Some(0), ..Self::default() } };
        let RunningStats { request_id, index, n_prompt, n_computed, n_cached, n_predicted, n_remaining } = *running;
        let (request_id, index) = (Some(request_id), Some(index));
        Self { id, is_processing: true, request_id, index, n_prompt, n_computed, n_cached, n_predicted, n_remaining }
    }
}

#[pymethods]
impl PySlot {
    fn __repr__(&self) -> String {
        match *self {
            Self { id, request_id: Some(request_id), index: Some(index), n_prompt, n_predicted, .. } => {
                format!("Slot(id={id}, request_id={request_id}, index={index}, n_prompt={n_prompt}, n_predicted={n_predicted})")
            }
            Self { id, .. } => format!("Slot(id={id}, idle)"),
        }
    }
}
