//! What a sequence is still to tell of its prompt.

use crate::engine::sequence::Sequence;
use crate::request::Task;

impl Sequence {
    /// Whether the logits after its token at `position` tell of the next one of its prompt.
    pub(crate) fn reports_after(&self, position: u32) -> bool {
        !self.untold.reported_range(&(position..position + 1), self.n_prompt).is_empty()
    }

    /// Whether log-probabilities of its prompt's tokens are still to be told, which a decode with many rows of logits finds.
    pub(crate) fn reports_prompt(&self) -> bool {
        self.untold.logprobs.as_ref().is_some_and(|logprobs| logprobs.n_told < self.n_prompt)
    }

    /// How many more of its tokens are computed until the first row that tells of its prompt is; 0 where that is the next one.
    pub(crate) fn n_until_report(&self, n_held: u32) -> u32 {
        self.untold.logprobs.as_ref().map_or(0, |logprobs| logprobs.n_told.saturating_sub(n_held + 1))
    }

    /// Upper bound on the cached tokens that it may reuse: the first token that it reports or draws needs the logits before it. Tasks
    /// draw no tokens and may reuse all of theirs, which may be none.
    pub(crate) fn most_found(&self) -> u32 {
        let untold = self.untold.logprobs.as_ref().filter(|logprobs| logprobs.n_told < self.n_prompt);
        match (untold, &self.request.task) {
            (Some(logprobs), _) => logprobs.n_told.saturating_sub(1),
            (None, Task::Complete) => self.n_tokens().saturating_sub(1),
            (None, _) => self.n_tokens(),
        }
    }
}
