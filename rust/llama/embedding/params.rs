//! llama.cpp's parameters of a context for embeddings.

use llama_cpp_sys_2 as sys;

use crate::config::{Pooling, ResolvedConfig};
use crate::embedding::{EmbedderShape, prefix_cache::PrefixCache};
use crate::llama::context::{memory, params::base_params};
use crate::llama::embedding::shares_prefixes;
use crate::llama::model::Model;

pub(super) fn params(
    model: &Model,
    config: &ResolvedConfig,
    shape: &EmbedderShape,
    attention: EmbeddingAttention,
) -> sys::llama_context_params {
    let number = |n: usize| u32::try_from(n).expect("a shape is made of 32-bit numbers");
    let (n_sequences, n_ctx) = if shares_prefixes(model, shape.pooling) {
        (PrefixCache::n_ids(shape), PrefixCache::n_cells(shape))
    } else {
        (shape.n_sequences, shape.n_batch)
    };
    let mut params = base_params(config);
    // More cells than that never fit in memory, which is checked next.
    params.n_ctx = u32::try_from(n_ctx).unwrap_or(u32::MAX);
    params.n_batch = number(shape.n_batch);
    // llama.cpp asserts that a batch fits in one `n_ubatch`, and outputs every row of it.
    (params.n_ubatch, params.n_outputs_max) = (params.n_batch, params.n_batch);
    params.n_seq_max = number(n_sequences);
    params.n_threads = config.n_threads_batch.cast_signed();
    params.n_threads_batch = params.n_threads;
    params.embeddings = true;
    params.pooling_type = match shape.pooling {
        Pooling::None => sys::LLAMA_POOLING_TYPE_NONE,
        Pooling::Mean if computes_mean(model, shape) => sys::LLAMA_POOLING_TYPE_NONE,
        Pooling::Mean => sys::LLAMA_POOLING_TYPE_MEAN,
        Pooling::Cls => sys::LLAMA_POOLING_TYPE_CLS,
        Pooling::Last => sys::LLAMA_POOLING_TYPE_LAST,
        Pooling::Rank => sys::LLAMA_POOLING_TYPE_RANK,
    };
    params.flash_attn_type = match attention {
        EmbeddingAttention::Device => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
        EmbeddingAttention::Own | EmbeddingAttention::ByRow => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        EmbeddingAttention::Dense => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
    };
    if attention == EmbeddingAttention::ByRow {
        params.type_v = sys::GGML_TYPE_BF16;
    }
    params
}

/// Returns true if the mean is computed here: llama.cpp sums over all rows of a batch, so that rounding depends on other texts.
pub(super) fn computes_mean(model: &Model, shape: &EmbedderShape) -> bool {
    shape.pooling == Pooling::Mean && !model.has_dense_layers
}

/// llama.cpp's fused kernel for CPUs sums V in 16 bits for up to 63 rows, and in 32 bits for more, so a large batch would change
/// the embedding of a text (cosine 0.9994; with quantised weights 0.99997 even without the fused kernel).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EmbeddingAttention {
    Own,
    /// llama.cpp's fused kernel with different 16-bit formats of K and V: then it uses no tiles and sums V in 32 bits.
    ByRow,
    /// Dense products. Sums depend on the position of a text in a batch.
    Dense,
    Device,
}

impl EmbeddingAttention {
    pub(super) fn new(model: &Model, has_own: bool) -> Self {
        match has_own {
            _ if memory::is_offloaded(model) => Self::Device,
            true => Self::Own,
            // Without a cache, K and V have the same format.
            false if model.is_encoder() => Self::Dense,
            false => Self::ByRow,
        }
    }
}
