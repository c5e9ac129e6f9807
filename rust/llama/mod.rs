//! Bindings to llama.cpp; no other folder names it.
//!
//! Violations that make llama.cpp end the process are checked before the call: tokens, sequence ids, positions and the size of a
//! plan in `context/batch.rs`, operations on sequences in `context/raw_context.rs`, adapter files in `model/adapters.rs`.
//!
//! | folder or file | content |
//! | --- | --- |
//! | `model` | a GGUF file: metadata, weights, adapters, loading |
//! | `vocabulary` | tokenizing, special tokens, grammars of the vocabulary, infill and rerank templates |
//! | `context` | the context and its memory: batches, sequences, saved states, files of saved prefixes |
//! | `media` | images and audio |
//! | `draft` | draft models |
//! | `kernels` | where llama.cpp's graph calls the crate's own kernels |
//! | `host` | the machine: threads, priorities, contention, allocator |
//! | `embedding`, `encoder_only` | the context for embeddings, and models that cannot generate |
//! | `start`, `tune` | from a configuration to a running engine; timing of a model's steps on this machine |
//! | `memory_plan` | memory that an engine would use, without loading the weights |

/// Owns one of llama.cpp's pointers; nothing else may free it.
macro_rules! owned_pointer {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident($raw:ty), freed by $free:path) => {
        $(#[$attribute])*
        $visibility struct $name(std::ptr::NonNull<$raw>);

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the pointer is valid, and is freed only here.
                unsafe { $free(self.0.as_ptr()) }
            }
        }
    };
}

macro_rules! runner_functions_of_model {
    () => {
        fn n_vocab(&self) -> usize {
            self.model.n_vocab()
        }

        fn n_adapters(&self) -> u32 {
            u32::try_from(self.model.adapters().len()).expect("there are few adapters")
        }

        fn invocation(&self, adapter: u32) -> &[Token] {
            &self.model.adapters()[adapter as usize].invocation
        }

        fn default_adapters(&self) -> Vec<AdapterScale> {
            (0..).zip(self.model.adapters()).map(|(id, adapter)| (id, adapter.scale)).collect()
        }

        fn append_piece(&self, token: Token, bytes: &mut Vec<u8>) {
            bytes.extend_from_slice(self.model.text_piece(token).unwrap_or_default());
        }

        fn is_end(&self, token: Token) -> bool {
            self.model.is_end(token)
        }

        fn end_tokens(&self) -> &[Token] {
            self.model.end_tokens()
        }

        fn suppressed_tokens(&self) -> &[Token] {
            self.model.suppressed_tokens()
        }
    };
}

mod backend;
mod context;
mod draft;
mod embedding;
mod encoder_only;
pub mod host;
pub mod kernels;
mod logging;
mod media;
mod memory_plan;
mod model;
#[cfg(test)]
mod sampler_parity;
mod start;
#[cfg(test)]
mod tests;
pub(crate) mod tune;
pub(crate) mod vocabulary;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Grouping, ResolvedConfig};
use crate::engine::runner::{
    AdapterSet, DecodeError, DraftModelInfo, DraftRequest, ForkRule, IdleCost, KvSeqId, MemoryKind, ModelDrafts, Plan,
    RelocateError, Runner, StateError,
};
use crate::error::{self, Error};
use crate::llama::context::Context;
use crate::llama::context::batch::rows_of;
pub(crate) use crate::llama::context::prefix_file::{PrefixFileError, PrefixFiles};
use crate::llama::context::saved_state::StateLayout;
use crate::llama::draft::DraftModel;
pub use crate::llama::embedding::{embedder, has_repeatable_embeddings};
pub(crate) use crate::llama::host::allocator::{trim_allocator, trim_heap};
pub(crate) use crate::llama::host::niceness::{answer, compute};
pub(crate) use crate::llama::media::media_file::MediaKind;
pub(crate) use crate::llama::media::{LoadedMedia, MediaStats, Projector};
pub(crate) use crate::llama::memory_plan::{BufferUse, MemoryPlan, plan};
pub use crate::llama::model::Model;
pub(crate) use crate::llama::model::adapters::Adapter;
pub use crate::llama::start::{resolve, start, start_resolved};
pub(crate) use crate::llama::vocabulary::grammar::schema_grammar;
pub(crate) use crate::llama::vocabulary::infill::InfillTokens;
pub(crate) use crate::llama::vocabulary::token_strings::token_strings;
use crate::request::{AdapterScale, Token};
use crate::sampling::TokenStrings;

/// A model with its device cache. Created and used on the worker's thread.
pub struct LlamaRunner {
    // Dropped first: its context refers to the other one.
    draft: Option<DraftModel>,
    context: Context,
    model: Arc<Model>,
    n_threads: u32,
    memory: MemoryKind,
    /// A sequence id that the engine does not use, for saving and restoring. Unused where each id costs a whole state.
    spare: KvSeqId,
    token_strings: TokenStrings,
    /// Layout of this memory's saved states; `None` if it cannot be checked, so that nothing is saved.
    layout: Option<StateLayout>,
    is_repeatable: bool,
    uses_own_kernels: bool,
}

impl LlamaRunner {
    /// Creates the device cache and probes the capabilities of its memory.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for the cache, [`Error::ModelLoad`] or [`Error::Decode`] for the model.
    pub fn new(model: Arc<Model>, config: &ResolvedConfig) -> error::Result<Self> {
        let n_seq_max = n_sequences(&model, config);
        let spare = KvSeqId(u16::try_from(n_seq_max - 1).expect("llama.cpp has 256 sequence ids"));
        let mut context = Context::new(&model, config, n_seq_max)?;
        let Probe { can_cut, layout, n_state_bytes, kernel_counts } = probe(&mut context, spare, &model)?;
        let (forks, n_window) = match model.n_swa() {
            _ if model.keeps_states() || !can_cut => (ForkRule::AtEnd, 0),
            0 => (ForkRule::Anywhere, 0),
            n_window => (ForkRule::InWindow, n_window),
        };
        let memory = MemoryKind {
            forks,
            idle_cost: match context::memory::is_offloaded(&model) {
                true => IdleCost::Nothing,
                false if config.kernels.attention => IdleCost::Mask,
                false => IdleCost::Scores,
            },
            can_be_saved: layout.is_some(),
            bytes_per_token: match &layout {
                Some(layout) => layout.bytes_per_token(),
                None => model.kv_bytes_per_token(config.settings.type_k, config.settings.type_v),
            },
            bytes_per_state: if forks == ForkRule::AtEnd { n_state_bytes } else { 0 },
            tokens_per_run: layout
                .as_ref()
                .map_or(0, |layout| layout.tokens_per_run(config.settings.offload_kqv && context::memory::is_offloaded(&model))),
            n_window,
        };
        tracing::debug!("memory of the model: {memory:?}");
        if let Some(Grouping { n, .. }) = config.limits.grouping {
            try_grouping(&mut context, spare, &model, memory).map_err(|reason| Error::InvalidConfig {
                param: "grp_attn_n",
                message: format!("grp_attn_n is {n}, but {reason}; set it to 1"),
            })?;
        }
        let n_threads = config.n_threads;
        let token_strings = token_strings(&model);
        if config.kernels.attention && kernel_counts.n_attentions_left > 0 {
            let all = kernel_counts.n_attentions + kernel_counts.n_attentions_left;
            tracing::warn!(
                "llama.cpp computes {} of {all} attention operations: Weft's kernel does not support them",
                kernel_counts.n_attentions_left
            );
        }
        // With a window or a recurrent state, llama.cpp computes the cached state, and positions are unknown. Our kernels are
        // not called for rearranged weights or for work on a GPU.
        let uses_own_kernels = kernel_counts.are_all_ours() && model.can_be_repeatable();
        let is_repeatable = uses_own_kernels
            && forks == ForkRule::Anywhere
            && context.has_explicit_positions()
            // Tokens that share a position are summed in the order of their cells.
            && config.limits.grouping.is_none();
        let draft = match config.limits.speculation.check(is_repeatable, forks == ForkRule::Anywhere) {
            Ok(()) => DraftModel::new(&context, config, n_seq_max)?,
            Err(reason) => {
                draft::warn_unused(&model, reason);
                None
            }
        };
        Ok(Self { draft, context, model, n_threads, memory, spare, token_strings, layout, is_repeatable, uses_own_kernels })
    }

    fn holds_window_before(&self, id: KvSeqId, n_tokens: u32) -> bool {
        self.memory.holds_window(self.context.whole_from(id), n_tokens)
    }
}

/// Number of sequence ids of a context: one more than the engine uses, to probe and copy with, unless ids cost whole states.
fn n_sequences(model: &Model, config: &ResolvedConfig) -> u32 {
    config.limits.n_seq_max + u32::from(!model.keeps_states())
}

/// Properties that the metadata does not contain.
struct Probe {
    can_cut: bool,
    layout: Option<StateLayout>,
    /// Size of the saved state without its cells, in bytes.
    n_state_bytes: u64,
    kernel_counts: kernels::KernelCounts,
}

/// Decodes two tokens, saves them and removes the second. This also warms up the model.
fn probe(context: &mut Context, spare: KvSeqId, model: &Model) -> error::Result<Probe> {
    let token = model.bos_token().unwrap_or(0);
    let plan = rows_of(spare, 0, &[token, token]);
    let failed = |DecodeError { reason }| Error::Decode { reason };
    let mut n_left_of_adapters = 0;
    if !model.adapters().is_empty() {
        // All adapters: the largest demand on the context that a request can make shows now.
        let all = (0..).zip(model.adapters()).map(|(id, _)| (id, 1.0));
        let adapted = Plan { adapter_set: AdapterSet::with_adapters(all), ..plan.clone() };
        let (decoded, kernel_counts) = kernels::count_operations(|| context.decode(&adapted));
        decoded.map_err(failed)?;
        n_left_of_adapters = kernel_counts.n_products_left;
        context.clear();
    }
    let (decoded, mut kernel_counts) = kernels::count_operations(|| context.decode(&plan));
    decoded.map_err(failed)?;
    kernel_counts.n_products_left = kernel_counts.n_products_left.max(n_left_of_adapters);
    let mut n_bytes = 0;
    let read = context.read_state(spare).map(|state| {
        n_bytes = state.len() as u64;
        StateLayout::read(&state, plan.rows.len(), model.keeps_states())
    });
    let layout = match read {
        Ok(Some(layout)) => Some(layout),
        Ok(None) => {
            tracing::warn!("the host cache is off: saving the memory of {} models is not supported", model.architecture());
            None
        }
        Err(error) => {
            tracing::warn!("the host cache is off: {error}");
            None
        }
    };
    let can_cut = context.truncate(spare, 1);
    context.clear();
    let n_cell_bytes = layout.as_ref().map_or(0, StateLayout::bytes_per_token) * plan.rows.len() as u64;
    Ok(Probe { can_cut, layout, n_state_bytes: n_bytes.saturating_sub(n_cell_bytes), kernel_counts })
}

fn try_grouping(context: &mut Context, spare: KvSeqId, model: &Model, memory: MemoryKind) -> Result<(), String> {
    if memory.forks != ForkRule::Anywhere {
        return Err(format!("{} models have a recurrent state or a sliding window", model.architecture()));
    }
    if model.n_positions() > 1 || model.projector().is_some() {
        return Err("the positions of images have several dimensions".to_owned());
    }
    context.try_group(spare, model.bos_token().unwrap_or(0))
}

impl Runner for LlamaRunner {
    runner_functions_of_model!();

    fn n_threads(&self) -> usize {
        self.n_threads as usize
    }

    fn decode(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        if let Some(row) = self.context.position_gap(plan, self.memory) {
            let reason = format!("invalid plan: the window of row {row} includes tokens that its restored sequence lacks");
            return Err(DecodeError { reason });
        }
        self.context.decode(plan)?;
        if let Some(draft) = &mut self.draft {
            draft.process(&self.context);
        }
        Ok(())
    }

    fn draft_model(&self) -> Option<DraftModelInfo> {
        self.draft.as_ref().map(DraftModel::info)
    }

    fn draft(&mut self, requests: &[DraftRequest<'_>], max_caught_up: u32) -> ModelDrafts {
        self.draft.as_mut().map_or_else(ModelDrafts::default, |draft| draft.draft(&self.context, requests, max_caught_up))
    }

    fn draft_model_read_time(&self) -> Duration {
        self.draft.as_ref().map_or(Duration::ZERO, DraftModel::read_time)
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.context.logits(row)
    }

    fn can_fork(&self, from: KvSeqId, seq_len: u32, n_tokens: u32) -> bool {
        match self.memory.forks {
            ForkRule::AtEnd => n_tokens == seq_len,
            ForkRule::Anywhere | ForkRule::InWindow => {
                n_tokens <= seq_len && self.context.n_grouped(from) == 0 && self.holds_window_before(from, n_tokens)
            }
        }
    }

    fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32) {
        let seq_len = self.context.seq_len(from);
        assert!(self.can_fork(from, seq_len, n_tokens), "cannot fork {n_tokens} of {seq_len} tokens of sequence {}", from.0);
        self.context.fork(from, to, n_tokens);
        if let Some(draft) = &mut self.draft {
            draft.fork(from, to, n_tokens);
        }
    }

    fn truncate(&mut self, id: KvSeqId, n_kept: u32) -> bool {
        // Cells before the window are gone, and llama.cpp would continue without them.
        let is_cut = n_kept > 0 && n_kept < self.context.seq_len(id);
        let is_done = (!is_cut || self.holds_window_before(id, n_kept)) && self.context.truncate(id, n_kept);
        if let Some(draft) = self.draft.as_mut().filter(|_| is_done) {
            if self.context.positions(id).are_token_indices() {
                draft.truncate(id, n_kept);
            } else {
                draft.clear(id);
            }
        }
        is_done
    }

    fn drop_sequence(&mut self, id: KvSeqId) {
        let is_done = self.context.truncate(id, 0);
        assert!(is_done, "every memory can remove a whole sequence");
        if let Some(draft) = &mut self.draft {
            draft.clear(id);
        }
    }

    fn memory_kind(&self) -> MemoryKind {
        self.memory
    }

    fn save(&mut self, id: KvSeqId, range: Range<u32>) -> Result<Arc<[u8]>, StateError> {
        self.save_state(id, &range)
    }

    fn whole_from(&self, id: KvSeqId, range: &Range<u32>) -> u32 {
        if self.memory.forks != ForkRule::InWindow {
            return range.start;
        }
        // llama.cpp omits the tokens that the last token of the range no longer sees through the window.
        let last_window = range.end.saturating_sub(self.memory.n_window);
        self.context.whole_from(id).max(last_window).clamp(range.start, range.end)
    }

    fn restore(&mut self, id: KvSeqId, bytes: &[u8], kept: Range<u32>) -> Result<(), StateError> {
        self.restore_state(id, bytes, &kept)
    }

    fn widen_to_images(&self, id: KvSeqId, range: Range<u32>) -> Range<u32> {
        self.context.positions(id).widened(range)
    }

    fn relocate(&mut self, ids: &[KvSeqId], range: Range<u32>) -> Result<(), RelocateError> {
        self.relocate_cells(ids, &range)
    }

    fn group_positions(&mut self, id: KvSeqId, range: Range<u32>, n: u32) {
        self.context.group(id, range, n);
    }

    fn token_strings(&self) -> TokenStrings {
        self.token_strings.clone()
    }

    fn is_repeatable(&self) -> bool {
        self.is_repeatable
    }

    fn uses_own_kernels(&self) -> bool {
        self.uses_own_kernels
    }
}
