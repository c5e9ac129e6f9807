//! Weft: one prompt, many completions, over one shared KV cache.

pub mod cache;
pub mod config;
pub mod engine;
pub mod error;
pub mod fake_runner;
#[cfg(feature = "llama")]
pub mod llama;
pub mod request;
pub mod sampling;
