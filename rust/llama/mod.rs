//! The only folder that names llama.cpp.
//!
//! Model, vocabulary and backend come from `llama-cpp-2`; context and batch, which every step goes through, are a thin layer of
//! our own on `llama-cpp-sys-2`. What llama.cpp answers by ending the process is checked before it is called: tokens, sequence
//! ids, positions and the size of a plan in `batch.rs`, what is done to sequences in `context.rs`.

mod backend;
mod batch;
mod context;
mod gguf;
mod kinds;
mod kv_size;
mod logging;
mod memory;
mod model;
#[cfg(test)]
mod sampler_parity;
mod start;
#[cfg(test)]
mod tests;
mod threads;
mod vocabulary;

use std::sync::Arc;

use crate::config::{EngineConfig, Limits};
use std::ops::Range;

use crate::engine::runner::{DecodeError, MemoryKind, Plan, Runner, SequenceId, StateError};
use crate::error::{Error, Result};
use crate::llama::batch::rows_of;
use crate::llama::context::Context;
pub use crate::llama::model::Model;
pub use crate::llama::start::start;
use crate::request::Token;

/// Which prefixes of a sequence another one can begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reuse {
    /// Any.
    Prefix,
    /// Those whose last tokens, as many as the sliding window looks back, are still there.
    Window { n_swa: u32 },
    /// Only the whole sequence: the memory is a state, which cannot be cut.
    Whole,
}

/// A model with its cells. Made and used on the worker's thread.
pub struct LlamaRunner {
    context: Context,
    model: Arc<Model>,
    reuse: Reuse,
}

impl LlamaRunner {
    /// Makes the pool and finds out what its memory can do.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the pool does not fit into memory or the model cannot have a cache of this format;
    /// [`Error::ModelLoad`] if the model cannot continue a text; [`Error::Decode`] if it cannot compute two tokens.
    ///
    /// # Panics
    /// If `limits` are not of [`EngineConfig::settle`]'s making: more than 256 sequence ids, say.
    pub fn new(model: Arc<Model>, config: &EngineConfig, limits: &Limits) -> Result<Self> {
        let keeps_states = model.is_recurrent() || model.is_hybrid();
        // One more id than the engine knows of, to try out, save and restore with. Not where each id costs a whole state.
        let n_seq_max = limits.n_seq_max + u32::from(!keeps_states);
        let spare = SequenceId(u16::try_from(n_seq_max - 1).expect("llama.cpp has 256 sequence ids"));
        let mut context = Context::new(Arc::clone(&model), config, limits, n_seq_max)?;
        let can_cut = try_to_cut(&mut context, spare, &model)?;
        let reuse = match model.n_swa() {
            _ if keeps_states || !can_cut => Reuse::Whole,
            0 => Reuse::Prefix,
            n_swa => Reuse::Window { n_swa },
        };
        tracing::debug!("prefixes that can be shared: {reuse:?}");
        Ok(Self { context, model, reuse })
    }

    /// Whether the first `n_tokens` of `id` are there as far as the next token looks back.
    fn reaches_back(&self, id: SequenceId, n_tokens: u32) -> bool {
        match self.reuse {
            Reuse::Prefix | Reuse::Whole => true,
            Reuse::Window { n_swa } => holds_window(self.context.first_position(id), n_tokens, n_swa),
        }
    }
}

/// Whether a sequence whose first cell is at `first_position` holds what a token after `n_tokens` sees through its window.
fn holds_window(first_position: u32, n_tokens: u32, n_swa: u32) -> bool {
    first_position <= n_tokens.saturating_sub(n_swa)
}

/// Decodes two tokens and forgets the second: whether that works is nowhere in the metadata. It also warms up the model.
fn try_to_cut(context: &mut Context, spare: SequenceId, model: &Model) -> Result<bool> {
    let token = model.bos_token().unwrap_or(0);
    let plan = rows_of(spare, 0, &[token, token]);
    context.decode(&plan).map_err(|DecodeError { reason }| Error::Decode { reason })?;
    let can_cut = context.truncate(spare, 1);
    context.clear();
    Ok(can_cut)
}

impl Runner for LlamaRunner {
    fn n_vocab(&self) -> usize {
        self.model.n_vocab()
    }

    fn decode(&mut self, plan: &Plan) -> std::result::Result<(), DecodeError> {
        self.context.decode(plan)
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.context.logits(row)
    }

    fn can_fork(&self, from: SequenceId, n_held: u32, n_tokens: u32) -> bool {
        match self.reuse {
            Reuse::Whole => n_tokens == n_held,
            Reuse::Prefix | Reuse::Window { .. } => n_tokens <= n_held && self.reaches_back(from, n_tokens),
        }
    }

    fn fork(&mut self, from: SequenceId, to: SequenceId, n_tokens: u32) {
        let n_held = self.context.n_held(from);
        assert!(self.can_fork(from, n_held, n_tokens), "{n_tokens} of {n_held} tokens of sequence {} cannot be forked", from.0);
        self.context.fork(from, to, n_tokens);
    }

    fn truncate(&mut self, id: SequenceId, n_kept: u32) -> bool {
        // Beyond the window the cells are gone, and llama.cpp would go on without them.
        let is_cut = n_kept > 0 && n_kept < self.context.n_held(id);
        (!is_cut || self.reaches_back(id, n_kept)) && self.context.truncate(id, n_kept)
    }

    fn drop_sequence(&mut self, id: SequenceId) {
        let is_done = self.context.truncate(id, 0);
        assert!(is_done, "every memory can forget a whole sequence");
    }

    fn memory(&self) -> MemoryKind {
        todo!("state is being written")
    }

    fn save(&mut self, _id: SequenceId, _range: Range<u32>) -> std::result::Result<Box<[u8]>, StateError> {
        todo!("state is being written")
    }

    fn restore(&mut self, _id: SequenceId, _piece: &[u8], _kept: Range<u32>) -> std::result::Result<Vec<u32>, StateError> {
        todo!("state is being written")
    }

    fn relocate(&mut self, _ids: &[SequenceId], _range: Range<u32>) -> std::result::Result<(), StateError> {
        todo!("state is being written")
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
}
