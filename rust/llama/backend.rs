//! llama.cpp's process-wide state, started once and never stopped.

use std::sync::OnceLock;

use llama_cpp_2::llama_backend::LlamaBackend;

use crate::llama::{kernels, logging};

/// The first call starts the backend, routes its log lines to `tracing` and installs our kernels.
pub(super) fn backend() -> &'static LlamaBackend {
    static BACKEND: OnceLock<LlamaBackend> = OnceLock::new();
    BACKEND.get_or_init(|| {
        logging::install();
        let backend = LlamaBackend::init().expect("nothing else in this process starts llama.cpp's backend");
        kernels::install();
        backend
    })
}
