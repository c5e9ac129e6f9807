//! Runner of an encoder; the engine still provides its slots, metrics and queries.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::runner::{DecodeError, ForkRule, IdleCost, KvSeqId, MemoryKind, Plan, RelocateError, Runner, StateError};
use crate::llama::{model::Model, token_strings};
use crate::request::{AdapterScale, Token};
use crate::sampling::TokenStrings;

pub(super) struct EncoderOnlyRunner {
    pub(super) model: Arc<Model>,
}

impl EncoderOnlyRunner {
    fn refusal(&self) -> String {
        let architecture = self.model.architecture();
        format!("the architecture of the model, {architecture}, only computes embeddings and cannot generate text")
    }
}

impl Runner for EncoderOnlyRunner {
    runner_functions_of_model!();

    fn n_threads(&self) -> usize {
        1
    }

    fn decode(&mut self, _: &Plan) -> Result<(), DecodeError> {
        Err(DecodeError { reason: self.refusal() })
    }

    fn logits(&self, row: usize) -> &[f32] {
        panic!("no decode succeeds, so row {row} has no logits")
    }

    fn can_fork(&self, _: KvSeqId, _: u32, _: u32) -> bool {
        false
    }

    fn fork(&mut self, _: KvSeqId, _: KvSeqId, _: u32) {}

    fn truncate(&mut self, _: KvSeqId, _: u32) -> bool {
        true
    }

    fn drop_sequence(&mut self, _: KvSeqId) {}

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind {
            forks: ForkRule::Anywhere,
            idle_cost: IdleCost::Nothing,
            can_be_saved: false,
            bytes_per_token: 0,
            bytes_per_state: 0,
            tokens_per_run: 0,
            n_window: 0,
        }
    }

    fn save(&mut self, _: KvSeqId, _: Range<u32>) -> Result<Arc<[u8]>, StateError> {
        Err(StateError::Refused(self.refusal()))
    }

    fn whole_from(&self, _: KvSeqId, range: &Range<u32>) -> u32 {
        range.start
    }

    fn restore(&mut self, _: KvSeqId, _: &[u8], _: Range<u32>) -> Result<(), StateError> {
        Err(StateError::Refused(self.refusal()))
    }

    fn relocate(&mut self, _: &[KvSeqId], _: Range<u32>) -> Result<(), RelocateError> {
        Err(RelocateError::Refused(StateError::Refused(self.refusal())))
    }

    fn token_strings(&self) -> TokenStrings {
        token_strings(&self.model)
    }

    fn is_repeatable(&self) -> bool {
        false
    }
}
