//! Drafts of a step: the room that its plan leaves for them, and what a draft model is requested to draft.

use crate::engine::runner::DraftRequest;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::scheduler::step_budget::StepBudget;
use crate::request::Token;

/// Room of a step for drafts, and what they cost.
pub(crate) struct DraftRoom<'a> {
    /// Rows, cells and logits that the step leaves.
    pub(crate) n_rows: u32,
    pub(super) budget: &'a StepBudget,
    /// Rows of the plan without drafts: of sequences that take one, and of the others.
    pub(super) n_single: u32,
    pub(super) n_prefill: u32,
    pub(super) n_cells: u32,
    /// Mean seconds of a decode of one row without cells.
    pub(crate) row_s: f64,
    /// Mean seconds outside of the decode per sampled token.
    pub(crate) token_s: f64,
    /// Maximum mean seconds of the decode.
    pub(crate) max_decode_s: f64,
}

impl DraftRoom<'_> {
    /// Returns the mean seconds of the step's decode with a number of drafted rows; 0 until measured.
    pub(crate) fn decode_s(&self, n_drafted: u32) -> f64 {
        self.budget.mean_s(self.n_single + n_drafted, self.n_prefill, self.n_cells)
    }
}

/// Drafts that the draft model is requested to make in this step.
#[derive(Debug, Default)]
pub(crate) struct WantedDrafts {
    pub(crate) sequences: Vec<(SchedulingKey, u32)>,
    /// Maximum number of tokens that the draft model may catch up with.
    pub(crate) max_caught_up: u32,
}

impl WantedDrafts {
    pub(crate) fn requests<'a>(&self, scheduler: &'a Scheduler) -> Vec<DraftRequest<'a>> {
        let request = |&(key, max_draft): &(SchedulingKey, u32)| {
            let running = scheduler.running_sequence(key);
            let tokens = &running.sequence.tokens;
            DraftRequest { sequence: running.id(), tokens: tokens.slices(0..tokens.len()), max_draft }
        };
        self.sequences.iter().map(request).collect()
    }
}

impl Scheduler {
    /// Sets the tokens to compute after the last one of a running sequence in this step.
    pub(crate) fn set_draft(&mut self, key: SchedulingKey, tokens: Vec<Token>) {
        self.slots.running_sequence_mut(key).draft.tokens = tokens;
    }
}
