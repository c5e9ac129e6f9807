//! Common parts of the decoding benchmarks.

pub(crate) mod bare;
pub(crate) mod bare_model;
pub(crate) mod engine;
pub(crate) mod gguf;
pub(crate) mod kernels;
pub(crate) mod machine;
pub(crate) mod models;
pub(crate) mod options;
pub(crate) mod pair;
pub(crate) mod peaks;
pub(crate) mod roofline;
pub(crate) mod setup;
pub(crate) mod shape;
pub(crate) mod sides;
pub(crate) mod spread;
pub(crate) mod stretch;
pub(crate) mod synthetic;
pub(crate) mod turns;
pub(crate) mod vocabulary;
pub(crate) mod weights;
