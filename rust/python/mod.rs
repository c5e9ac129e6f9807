//! The Python API: the only folder that names pyo3.
//!
//! `PyX` here is `X` in `weft._native`; `python/weft/_native.pyi` documents it. Every class is frozen, plain data crosses the
//! boundary, and code that may block releases the GIL. The engine's worker never runs code of this folder except [`wake`]: it
//! wakes an event loop, whose own thread then reads the events.

mod adapters;
mod awaitable;
mod background;
mod body;
mod cached_nodes;
mod cancellation;
mod compact;
mod convert;
mod diversity;
mod embedding;
mod engine;
mod errors;
mod events;
mod forking;
mod json;
mod limits;
mod logging;
mod logprobs;
mod media;
mod memory_plan;
mod mirrored_class;
mod model;
mod output_rules;
mod prefix;
mod process_fork;
mod settings;
mod stats;
mod stream;
mod tune;
mod wake;

use pyo3::prelude::*;
use pyo3::types::PySequence;

/// The compiled engine.
#[pymodule(gil_used = false, name = "_native")]
mod native {
    use super::{Bound, PyModule, PyResult, PySequence};
    #[pymodule_export]
    use super::{
        adapters::PyAdapter,
        background::{lower_priority, trim_allocator, trim_heap, use_short_time_slices},
        body::read_body,
        cached_nodes::PyCachedNode,
        cancellation::PyCancellation,
        compact::{PyBiases, PyTokenIds},
        embedding::{PyCompactEmbeddings, PyEmbeddingStats},
        engine::PyEngine,
        limits::PyLimits,
        logprobs::PyCompactLogprobs,
        media::{PyMedia, PyMediaStats, PyMixedPrompt, PyModalities},
        memory_plan::{PyBufferUse, PyMemoryPlan, plan_memory},
        model::PyModel,
        prefix::{PyPrefix, PySavedPrefix},
        settings::{devices, schema_grammar},
        stats::{
            PyBranchStats, PyDraftStats, PyHistogram, PyHostCacheStats, PyRecentStep, PyRequestHistograms, PySlot,
            PySpeculationStats, PyStats, PyStepTimes,
        },
        stream::PyStream,
        tune::{PyCompute, PyHardware, PyTiming, PyTuning, tune},
    };

    /// The version of the crate, which is the version of the distribution.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        PySequence::register::<PyTokenIds>(module.py())?;
        PySequence::register::<PyBiases>(module.py())
    }
}
