//! The Python API: the only folder that names pyo3.
//!
//! `PyX` here is `X` in `weft._native`; `python/weft/_native.pyi` is its manual. Every class is frozen, plain data crosses, and
//! whatever may wait runs detached from the interpreter. The engine's worker never comes here: it rings a [`wake`], and the event
//! loop's own thread fetches what is there.

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
mod fork;
mod forking;
mod json;
mod limits;
mod logging;
mod logprobs;
mod media;
mod model;
mod output_rules;
mod prefix;
mod prefix_file;
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
    #[pymodule_export]
    use super::adapters::PyAdapter;
    #[pymodule_export]
    use super::background::{answer_at_once, lower_priority, trim_allocator, trim_heap};
    #[pymodule_export]
    use super::body::read_body;
    #[pymodule_export]
    use super::cached_nodes::PyCachedNode;
    #[pymodule_export]
    use super::cancellation::PyCancellation;
    #[pymodule_export]
    use super::compact::{PyBiases, PyTokenIds};
    #[pymodule_export]
    use super::embedding::{PyVectorStats, PyVectors};
    #[pymodule_export]
    use super::engine::PyEngine;
    #[pymodule_export]
    use super::limits::PyLimits;
    #[pymodule_export]
    use super::logprobs::PyCompactLogprobs;
    #[pymodule_export]
    use super::media::{PyMedia, PyMediaStats, PyMixedPrompt, PyModalities};
    #[pymodule_export]
    use super::model::PyModel;
    #[pymodule_export]
    use super::prefix::{PyPrefix, PySavedPrefix};
    #[pymodule_export]
    use super::settings::{devices, schema_grammar};
    #[pymodule_export]
    use super::stats::{PyBranchStats, PyRecentStep, PySlot, PyStats, PyStepTimes, PyStoreStats};
    #[pymodule_export]
    use super::stream::PyStream;
    #[pymodule_export]
    use super::tune::{PyCompute, PyHardware, PyTiming, PyTuning, tune};
    use super::{Bound, PyModule, PyResult, PySequence};

    /// The crate's, which is the distribution's.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        PySequence::register::<PyTokenIds>(module.py())?;
        PySequence::register::<PyBiases>(module.py())
    }
}
