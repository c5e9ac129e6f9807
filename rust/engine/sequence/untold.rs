//! What a sequence is still to tell of its prompt.

use std::ops::Range;

use crate::engine::recall::Place;
use crate::engine::sequence::Sequence;
use crate::request::Request;

/// What the first branch of a request is still to tell of its prompt; the others have nothing to tell.
#[derive(Debug, Default)]
pub(crate) struct Untold {
    pub(crate) logprobs: Option<UntoldLogprobs>,
    pub(crate) reports_progress: bool,
}

#[derive(Debug)]
pub(crate) struct UntoldLogprobs {
    /// How many of the most likely tokens in the place of each.
    pub(crate) n_probs: usize,
    /// `[from, n_told)` of the prompt are told.
    pub(crate) from: u32,
    pub(crate) n_told: u32,
    /// Where what is told next is kept.
    pub(crate) place: Option<Place>,
}

impl Untold {
    /// Of a branch of `request`, before which another one has started or not.
    pub(crate) fn new(request: &Request, has_elder: bool) -> Self {
        if has_elder {
            return Self::default();
        }
        let from = request.prompt_logprobs_from;
        let logprobs = request.prompt_logprobs.map(|n| UntoldLogprobs { n_probs: n as usize, from, n_told: from, place: None });
        Self { logprobs, reports_progress: request.reports_progress }
    }

    /// Which tokens of a prompt the rows of `computed` tell of.
    pub(crate) fn told_by(&self, computed: &Range<u32>, n_prompt: u32) -> Range<u32> {
        let n_told = self.logprobs.as_ref().map_or(n_prompt, |logprobs| logprobs.n_told);
        (computed.start + 1).max(n_told)..(computed.end + 1).min(n_prompt)
    }
}

impl Sequence {
    /// Whether the logits after its token at `position` tell of the next one of its prompt.
    pub(crate) fn tells_after(&self, position: u32) -> bool {
        !self.untold.told_by(&(position..position + 1), self.n_prompt).is_empty()
    }

    /// Whether log-probabilities of its prompt's tokens are still to be told, which a decode with many rows of logits finds.
    pub(crate) fn tells_of_prompt(&self) -> bool {
        self.untold.logprobs.as_ref().is_some_and(|logprobs| logprobs.n_told < self.n_prompt)
    }

    /// How many more of its tokens are computed until the first row that tells of its prompt is; 0 where that is the next one.
    pub(crate) fn n_until_told(&self, n_held: u32) -> u32 {
        self.untold.logprobs.as_ref().map_or(0, |logprobs| logprobs.n_told.saturating_sub(n_held + 1))
    }

    /// Most tokens that it may find computed: what it must tell of needs the logits before it.
    pub(crate) fn most_found(&self) -> u32 {
        let untold = self.untold.logprobs.as_ref().filter(|logprobs| logprobs.n_told < self.n_prompt);
        untold.map_or(self.n_tokens() - 1, |logprobs| logprobs.n_told.saturating_sub(1))
    }
}
