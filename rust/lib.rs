//! Weft: one prompt, many completions, over one shared KV cache.

pub mod cache;
pub mod config;
pub mod engine;
pub mod error;
#[cfg(feature = "llama")]
mod llama;
pub mod request;
pub mod sampling;
