//! What a sequence is still to tell of its prompt.

use std::ops::Range;

use crate::engine::prompt_logprob_cache::LogprobPosition;
use crate::request::Request;

/// What the first branch of a stream is still to tell of its prompt; the others have nothing to tell.
#[derive(Debug, Default)]
pub(crate) struct PendingPromptReport {
    pub(crate) logprobs: Option<PendingPromptLogprobs>,
    pub(crate) reports_progress: bool,
}

#[derive(Debug)]
pub(crate) struct PendingPromptLogprobs {
    /// How many of the most likely tokens in the place of each.
    pub(crate) n_probs: usize,
    /// `[from, n_told)` of the prompt are told.
    pub(crate) from: u32,
    pub(crate) n_told: u32,
    /// Where what is told next is kept.
    pub(crate) place: Option<LogprobPosition>,
}

impl PendingPromptReport {
    /// Of the first branch of `request`.
    pub(crate) fn new(request: &Request) -> Self {
        let from = request.prompt_logprobs_from;
        let logprobs =
            request.prompt_logprobs.map(|n| PendingPromptLogprobs { n_probs: n as usize, from, n_told: from, place: None });
        Self { logprobs, reports_progress: request.reports_progress }
    }

    /// Which tokens of a prompt the rows of `computed` tell of.
    pub(crate) fn reported_range(&self, computed: &Range<u32>, n_prompt: u32) -> Range<u32> {
        let n_told = self.logprobs.as_ref().map_or(n_prompt, |logprobs| logprobs.n_told);
        (computed.start + 1).max(n_told)..(computed.end + 1).min(n_prompt)
    }
}
