//! The pending report of a sequence about its prompt.

use std::ops::Range;

use crate::engine::features::prompt_logprobs::cache::{LogprobPosition, PromptLogprobCache};
use crate::engine::features::state::SequenceFeatures;
use crate::engine::numbers::to_u32;
use crate::engine::scheduler::request_group::RequestGroup;
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::engine::scheduler::sequence::Sequence;
use crate::request::{Logprobs, Request};

/// Maximum bytes of prompt logprobs reported per step: a consumer that keeps up never exceeds the limits of its stream.
const MAX_REPORTED_BYTES: usize = 4 << 20;

/// Pending report of a prompt: progress and logprobs. Only the first branch of a stream has one.
#[derive(Debug, Default)]
pub(crate) struct PendingPromptReport {
    pub(crate) logprobs: Option<PendingPromptLogprobs>,
    pub(crate) reports_progress: bool,
}

#[derive(Debug)]
pub(crate) struct PendingPromptLogprobs {
    pub(crate) n_probs: usize,
    /// `[from, n_reported)` of the prompt has been reported.
    pub(crate) from: u32,
    pub(crate) n_reported: u32,
    pub(crate) cache_position: Option<LogprobPosition>,
}

impl PendingPromptReport {
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

    pub(crate) fn reported_range(&self, computed: &Range<u32>, n_prompt: u32) -> Range<u32> {
        let n_reported = self.logprobs.as_ref().map_or(n_prompt, |logprobs| logprobs.n_reported);
        (computed.start + 1).max(n_reported)..(computed.end + 1).min(n_prompt)
    }

    /// Returns the number of tokens whose logprobs were reported, if more of `n_prompt` are still to be reported.
    pub(crate) fn n_reported(&self, n_prompt: u32) -> Option<u32> {
        self.logprobs.as_ref().map(|logprobs| logprobs.n_reported).filter(|&n_reported| n_reported < n_prompt)
    }
}

fn n_reported(sequence: &Sequence) -> Option<u32> {
    sequence.features.prompt_logprobs.n_reported(sequence.n_prompt)
}

/// Moves the pending report of a group to the branch that starts.
pub(crate) fn on_start(group: &mut RequestGroup, sequence: &mut Sequence) {
    sequence.features.prompt_logprobs = std::mem::take(&mut group.pending.prompt_logprobs);
}

/// Returns the pending report of a sequence that ends before its first token to its group, for the next branch that starts.
pub(crate) fn on_end(sequence: &mut Sequence, pending: &mut SequenceFeatures) {
    let report = &sequence.features.prompt_logprobs;
    if sequence.n_predicted == 0 && (report.reports_progress || report.n_reported(sequence.n_prompt).is_some()) {
        pending.prompt_logprobs = std::mem::take(&mut sequence.features.prompt_logprobs);
    }
}

pub(crate) fn wants_logits(sequence: &Sequence, position: u32) -> bool {
    !sequence.features.prompt_logprobs.reported_range(&(position..position + 1), sequence.n_prompt).is_empty()
}

/// Returns how many cached tokens a sequence may reuse: the first token that it reports needs the preceding logits.
pub(crate) fn max_reusable(sequence: &Sequence) -> u32 {
    n_reported(sequence).map_or(u32::MAX, |n_reported| n_reported.saturating_sub(1))
}

pub(crate) fn n_rows_wanted(running: &RunningSequence) -> Option<u32> {
    let n_reported = n_reported(&running.sequence)?;
    Some(running.n_uncomputed().saturating_sub(n_reported.saturating_sub(running.n_computed + 1) + 1))
}

pub(crate) fn max_rows(running: &RunningSequence, n_more: u32) -> u32 {
    let Some(n_reported) = n_reported(&running.sequence) else { return u32::MAX };
    let n_probs = running.sequence.request.prompt_logprobs.unwrap_or(0) as usize;
    let n_per_step = to_u32(MAX_REPORTED_BYTES / Logprobs::n_bytes(n_probs));
    n_reported.saturating_sub(running.n_computed + 1).saturating_add(1 + n_more.min(n_per_step))
}

/// Returns true if the reported logprobs may come from the logprob cache, which has only the best token.
pub(crate) fn uses_cache(group: &RequestGroup) -> bool {
    group.request.prompt_logprobs.is_some_and(|n| n <= 1) && group.request.uses_cache
}

pub(crate) fn first_uncached(cache: &PromptLogprobCache, group: &RequestGroup) -> Option<u32> {
    // The first token has no logprob.
    let from = group.pending.prompt_logprobs.logprobs.as_ref()?.n_reported.max(1);
    Some(from + if uses_cache(group) { cache.n_cached(&group.adapter_schedule, &group.prompt, from) } else { 0 })
}

/// Returns how many of `n_common` tokens that `running` computes are usable: the logprobs that it reports will be cached, but the
/// row before the first uncached one must be computed.
pub(crate) fn n_usable(running: &RunningSequence, group: &RequestGroup, first_uncached: u32, n_common: u32) -> u32 {
    let Sequence { features, n_prompt, .. } = &running.sequence;
    let reports_before = features.prompt_logprobs.logprobs.as_ref().is_some_and(|report| report.from <= first_uncached);
    let will_be_cached = if uses_cache(group) && reports_before { n_common.min(*n_prompt) } else { 0 };
    will_be_cached.max(first_uncached) - 1
}
