//! Embeddings and reranking scores of texts.
//!
//! A worker thread with its own context over the engine's weights, created for the first request, serves requests round-robin and
//! keeps only common prefixes of texts between batches.

mod normalize;
pub mod prefix_cache;
mod queue;
mod shape;
mod shared_prefixes;
pub mod worker;

pub use normalize::Normalization;
pub use queue::Embeddings;
pub use shape::{EmbedderShape, MAX_SEQUENCES};

use crate::request::{Prompt, Token};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct EncodedBatch {
    /// Rows of each text, concatenated; a row has [`EmbedderShape::width`] numbers.
    pub embeddings: Vec<Vec<f32>>,
    /// Number of tokens that were computed; common prefixes count once.
    pub n_computed: usize,
}

/// A model that computes embeddings. Created and used on the worker's thread.
pub trait Encoder {
    /// Computes at most [`EmbedderShape::n_sequences`] non-empty texts of at most [`EmbedderShape::n_batch`] tokens together.
    fn encode(&mut self, texts: &[Vec<Token>]) -> Result<EncodedBatch, String>;

    /// Computes one text with images or audio, all encoded, of at most [`EmbedderShape::n_longest`] positions.
    fn encode_mixed(&mut self, prompt: &Prompt) -> Result<EncodedBatch, String>;

    /// Bytes of the context, without the weights.
    fn n_bytes(&self) -> u64;
}
