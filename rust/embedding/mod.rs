//! Texts become vectors, or scores.
//!
//! A second worker beside the engine's: a thread with a context of its own over the same weights, both made when they are first
//! needed. It takes texts of all requests in turns, computes as many together as a batch holds, and keeps nothing of them but, where
//! it serves, what they begin with.
//!
//! | file | holds |
//! | --- | --- |
//! | `shape.rs` | what the context is made for: its numbers, settled from the model |
//! | `queue.rs` | requests that wait, and which texts are computed next; pure |
//! | `normalize.rs` | a vector's length; pure |
//! | `prefixes.rs` | which texts of a batch begin alike; pure |
//! | `beginnings.rs` | what texts begin with is computed once, and kept for later batches; pure |
//! | `worker.rs` | the thread |

mod normalize;
mod prefix_cache;
mod queue;
mod shape;
mod shared_prefixes;
mod worker;

pub use normalize::Normalization;
pub use prefix_cache::{ForkableMemory, MAX_KEPT, PrefixCache};
pub use queue::{Embeddings, MAX_NUMBERS, MAX_TOKENS};
pub use shape::{EmbedderShape, MAX_SEQUENCES};
pub use worker::{Embedder, PendingEmbeddings, Stats};

use crate::request::{Prompt, Token};

/// What a batch of texts came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EncodedBatch {
    /// For each text its rows one after the other, each [`EmbedderShape::width`] numbers.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens that were computed for them: what texts have in common is computed once.
    pub n_computed: usize,
}

/// A model that turns texts into vectors. Made and used on the worker's thread.
pub trait Encoder {
    /// Computes the vectors of texts, none of them empty: at most [`EmbedderShape::n_sequences`], of at most [`EmbedderShape::n_batch`] tokens
    /// together.
    ///
    /// # Errors
    /// What the backend answered, in words.
    fn encode(&mut self, texts: &[Vec<Token>]) -> Result<EncodedBatch, String>;

    /// Computes the vectors of one text with pictures or sounds, all of whose vectors are there, of at most [`EmbedderShape::n_longest`]
    /// places.
    ///
    /// # Errors
    /// What the backend answered, in words.
    fn encode_mixed(&mut self, prompt: &Prompt) -> Result<EncodedBatch, String>;

    /// Bytes that the context takes beside the weights.
    fn n_bytes(&self) -> u64;
}
