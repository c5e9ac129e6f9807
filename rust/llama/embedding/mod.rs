//! The context that computes embeddings: a second one on a model's weights, or the only one of an encoder.

mod active_adapters;
mod embedding_context;
mod memory_check;
mod params;
mod pooling;

use std::sync::Arc;

use crate::config::{EnabledKernels, Pooling, ResolvedConfig};
use crate::embedding::{EmbedderShape, Encoder, worker::Embedder};
use crate::engine::runner::DefaultAdapters;
pub(super) use crate::llama::embedding::embedding_context::EmbeddingContext;
use crate::llama::model::Model;

/// Maximum number of sequence ids for models where each id needs a whole state.
const MAX_STATES: usize = 8;

/// Creates the embedding worker of `model`, which allocates nothing until the first request.
pub fn embedder(
    model: &Arc<Model>,
    config: &ResolvedConfig,
    adapters: DefaultAdapters,
    on_done: impl Fn() + Send + Sync + 'static,
) -> Embedder {
    let width = model.embedding_width(config.pooling);
    let n_ctx_max = model.reach(&config.settings.rope);
    let mut shape = EmbedderShape::new(config.pooling, width, model.n_vocab(), n_ctx_max, config.settings.n_ubatch);
    shape.takes_media = !model.is_encoder();
    if model.keeps_states() {
        shape.n_sequences = MAX_STATES;
    }
    let (model, config) = (Arc::clone(model), config.clone());
    let create = move || {
        let context = EmbeddingContext::new(&model, &config, shape, Arc::clone(&adapters))?;
        Ok(Box::new(context) as Box<dyn Encoder>)
    };
    Embedder::new(shape, create, on_done)
}

/// Returns true if the embedding of a text is bit-identical whatever is computed concurrently. Otherwise, on a CPU, the cosine of
/// two embeddings of one text is at least 0.999999; on GPUs nothing is promised.
pub fn has_repeatable_embeddings(model: &Model, config: &ResolvedConfig, engine_uses_own_kernels: bool) -> bool {
    // A prefix that left the window is recomputed from another cell on, so that its blocks begin elsewhere.
    let has_shared_windows = model.n_swa() > 0 && shares_prefixes(model, config.pooling);
    let is_mean_of_llama_cpp = config.pooling == Pooling::Mean && model.has_dense_layers;
    engine_uses_own_kernels
        && config.embedding_kernels == EnabledKernels::ALL
        && !(model.is_encoder() || model.keeps_states() || has_shared_windows || is_mean_of_llama_cpp)
}

/// True if an embedding depends on the last token's row alone.
fn shares_prefixes(model: &Model, pooling: Pooling) -> bool {
    !model.is_encoder() && !model.keeps_states() && matches!(pooling, Pooling::Last | Pooling::Rank)
}
