//! Pending prompt reports of a sequence.

use crate::engine::scheduler::sequence::Sequence;
use crate::request::Task;

impl Sequence {
    /// Returns true if the logits after its token at `position` are needed to report the next prompt token.
    pub(crate) fn reports_after(&self, position: u32) -> bool {
        !self.pending_report.reported_range(&(position..position + 1), self.n_prompt).is_empty()
    }

    /// Returns true if logprobs of its prompt are still to be reported, which requires many rows of logits.
    pub(crate) fn reports_prompt(&self) -> bool {
        self.pending_report.logprobs.as_ref().is_some_and(|logprobs| logprobs.n_reported < self.n_prompt)
    }

    /// Returns the number of tokens to compute before the first row whose logits are reported; 0 if it is the next one.
    pub(crate) fn n_until_report(&self, n_computed: u32) -> u32 {
        self.pending_report.logprobs.as_ref().map_or(0, |logprobs| logprobs.n_reported.saturating_sub(n_computed + 1))
    }

    /// Returns the maximum number of cached tokens that it may reuse: the first token that it reports or samples needs the
    /// preceding logits. Tasks sample nothing and may reuse all of their tokens.
    pub(crate) fn max_reusable(&self) -> u32 {
        let pending = self.pending_report.logprobs.as_ref().filter(|logprobs| logprobs.n_reported < self.n_prompt);
        match (pending, &self.request.task) {
            (Some(logprobs), _) => logprobs.n_reported.saturating_sub(1),
            (None, Task::Complete) => self.n_tokens().saturating_sub(1),
            (None, _) => self.n_tokens(),
        }
    }
}
