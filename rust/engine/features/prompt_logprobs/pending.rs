//! The report about its prompt that a sequence still owes its stream.

use std::ops::Range;

use crate::engine::features::prompt_logprobs::cache::LogprobPosition;
use crate::request::Request;

/// Pending report of a prompt: progress and logprobs. Only the first branch of a stream has one.
#[derive(Debug, Default)]
pub(crate) struct PendingPromptReport {
    pub(crate) logprobs: Option<PendingPromptLogprobs>,
    pub(crate) reports_progress: bool,
}

#[derive(Debug)]
pub(crate) struct PendingPromptLogprobs {
    /// Number of top logprobs per position.
    pub(crate) n_probs: usize,
    /// `[from, n_reported)` of the prompt has been reported.
    pub(crate) from: u32,
    pub(crate) n_reported: u32,
    /// Insertion point in the logprob cache for the next tokens.
    pub(crate) cache_position: Option<LogprobPosition>,
}

impl PendingPromptReport {
    /// Creates the report that `request` asks for.
    pub(crate) fn new(request: &Request) -> Self {
        let from = request.prompt_logprobs_from;
        let logprobs = request.prompt_logprobs.map(|n| PendingPromptLogprobs {
            n_probs: n as usize,
            from,
            n_reported: from,
            cache_position: None,
        });
        Self { logprobs, reports_progress: request.reports_progress }
    }

    /// Returns the prompt tokens whose logprobs the rows of `computed` yield.
    pub(crate) fn reported_range(&self, computed: &Range<u32>, n_prompt: u32) -> Range<u32> {
        let n_reported = self.logprobs.as_ref().map_or(n_prompt, |logprobs| logprobs.n_reported);
        (computed.start + 1).max(n_reported)..(computed.end + 1).min(n_prompt)
    }
}
