//! State of the features, and the hooks on which only this state changes.

use std::sync::Arc;
use std::time::Instant;

use crate::cache::EvictedRun;
use crate::engine::features::explanations::history::History;
use crate::engine::features::forks::ForkRegistry;
use crate::engine::features::forks::request::ForkSource;
use crate::engine::features::prompt_logprobs::cache::PromptLogprobCache;
use crate::engine::features::transcripts;
use crate::engine::output::SharedState;
use crate::engine::scheduler::request_group::RequestGroup;
use crate::engine::scheduler::sequence::{Sequence, Tokens};
use crate::request::{FinishReason, Task};

/// State of the features. The scheduler owns it.
pub(crate) struct Features {
    pub(crate) history: History,
    pub(crate) forks: ForkRegistry,
    pub(crate) logprob_cache: PromptLogprobCache,
    shared: Arc<SharedState>,
}

impl Features {
    pub(crate) fn new(shared: Arc<SharedState>) -> Self {
        Self { history: History::default(), forks: ForkRegistry::default(), logprob_cache: PromptLogprobCache::default(), shared }
    }

    /// The first branch of a request starts.
    pub(crate) fn on_start(&mut self, group: &RequestGroup) {
        self.history.add_request(group);
    }

    /// A branch of `group` starts: it continues from a state of its own.
    pub(crate) fn on_new_sequence(&self, sequence: &mut Sequence) {
        if let Some(fork_state) = self.forks.state_of(sequence.group_id) {
            sequence.resume_from(fork_state);
        }
    }

    /// A sequence with `tokens` leaves its slot; `n_held` of them are computed.
    pub(crate) fn on_leave(&mut self, sequence: &Sequence, tokens: &Tokens, n_held: u32) {
        self.history.update_text(sequence.group_id, sequence.index, tokens, n_held);
    }

    /// A branch of `group` ends.
    pub(crate) fn on_finish(&mut self, group: &RequestGroup, sequence: &Sequence, reason: &FinishReason) {
        self.on_text(group, &sequence.tokens);
        if group.request.task == Task::Complete {
            let fork_state = self.forks.state_of(group.group_id).cloned();
            let mut source = ForkSource::new(group, sequence.index, fork_state).advanced_to(sequence);
            // The event of a cancelled branch does not publish text that was held back.
            source.has_published_all = sequence.n_predicted() > 0 && *reason != FinishReason::Cancelled;
            self.forks.end(group.request_id, sequence.branch, source, &group.sender);
        }
    }

    /// A request has generated a text, which follows its prompt in `tokens`.
    pub(crate) fn on_text(&self, group: &RequestGroup, tokens: &Tokens) {
        if let Some(generated_ranges) = transcripts::generated_ranges(group, tokens) {
            let (owner, adapters) = (group.request.owner.clone(), group.requested_adapters.clone());
            self.shared.transcripts().add(owner, adapters, tokens.clone(), generated_ranges);
        }
    }

    /// Branch `index` of `group` is cancelled before it was ever in a slot.
    pub(crate) fn on_cancel_waiting(&mut self, group: &RequestGroup, index: u32) {
        let source = ForkSource::new(group, index, self.forks.state_of(group.group_id).cloned());
        self.forks.end(group.request_id, group.index_in_stream(index), source, &group.sender);
    }

    /// The context of a sequence is shifted: its text is another one.
    pub(crate) fn on_shift(&mut self, sequence: &Sequence) {
        self.forks.drop_due(sequence.group_id, sequence.index);
    }

    /// Prefixes were evicted.
    pub(crate) fn on_eviction(&mut self, evicted: impl Iterator<Item = EvictedRun>) {
        self.history.add_evictions(evicted, Instant::now());
    }

    /// A request is removed.
    pub(crate) fn on_remove(&mut self, group_id: u64) {
        self.forks.remove_group(group_id);
    }

    /// A stream has lost its reader.
    pub(crate) fn on_remove_stream(&mut self, request_id: u64) {
        self.forks.remove_stream(request_id);
    }
}
