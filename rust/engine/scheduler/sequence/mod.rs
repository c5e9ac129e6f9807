//! A completion being generated: its tokens, text, sampler and context window. `running_sequence` adds its slot and its cells.

mod clock;
mod context_window;
mod indentation;
pub(crate) mod text;
mod tokens;

use std::sync::Arc;
use std::time::Instant;

use crate::cache::Provenance;
use crate::engine::features::hooks;
use crate::engine::features::state::SequenceFeatures;
use crate::engine::ids::{BranchIndex, BranchKey, GroupId, MemberIndex, StreamId};
use crate::engine::runner::{AdapterSchedule, Runner};
use crate::engine::scheduler::checkpoint_positions::CheckpointPositions;
use crate::engine::scheduler::request_group::RequestGroup;
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::request::{Constraint, FinishReason, Logprob, Logprobs, PlacedMedia, Request, Task, Token, TokenEvent, Usage};
use crate::sampling::{self, ReasoningConstraint, Sampler, TokenStrings};
use clock::Clock;
use context_window::ContextWindow;
use text::{Text, TextDelta};
pub(crate) use text::{append_text, incomplete_tail};
pub(crate) use tokens::{Tokens, TokensView};

/// A completion of a request, from its first start in a slot to its end, including preemptions.
pub(crate) struct Sequence {
    pub(crate) group_id: GroupId,
    pub(crate) stream_id: StreamId,
    pub(crate) member: MemberIndex,
    pub(crate) branch: BranchIndex,
    pub(crate) request: Arc<Request>,
    pub(crate) adapter_schedule: AdapterSchedule,
    scheduling_key: SchedulingKey,
    /// Prompt and sampled tokens, without tokens that context shifts dropped.
    pub(crate) tokens: Tokens,
    /// Media of its prompt, in order. A prompt with media is never shifted.
    media: Arc<[PlacedMedia]>,
    /// Length of the prompt, including tokens that context shifts dropped.
    pub(crate) n_prompt: u32,
    pub(crate) n_predicted: u32,
    pub(crate) window: ContextWindow,
    pub(crate) sampler: Sampler,
    pub(crate) runs_together: bool,
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    pub(crate) end_token: Option<Token>,
    /// True if the constraint allows no token and there is no end token.
    is_stuck: bool,
    pub(crate) text: Text,
    sampled: Option<ScoredToken>,
    pub(crate) clock: Clock,
    /// Cached tokens at its first start; `None` before. Later starts do not change it.
    n_cached: Option<u32>,
    /// Maximum number of tokens that were computed when it was preempted.
    n_computed_before: u32,
    pub(crate) checkpoint_positions: CheckpointPositions,
    /// Logits after all of its tokens, if it was preempted before sampling from them.
    pub(crate) kept_logits: Option<Arc<[f32]>>,
    pub(crate) features: SequenceFeatures,
}

impl Sequence {
    pub(crate) fn new(
        group: &RequestGroup,
        member: MemberIndex,
        n_ctx_slot: u32,
        token_strings: &TokenStrings,
        now: Instant,
    ) -> Self {
        let (spec, nth) = group.branch_spec(member);
        let request = Arc::clone(&spec.request);
        let text = Text::new(Arc::clone(&spec.stops), request.n_indent);
        let mut sequence = Self {
            group_id: group.group_id,
            stream_id: group.stream_id,
            member,
            branch: group.branch_index(member),
            adapter_schedule: group.adapter_schedule.clone(),
            scheduling_key: group.scheduling_key(member),
            tokens: Tokens::new(Arc::clone(&group.prompt)),
            media: Arc::clone(&group.media),
            n_prompt: group.n_prompt(),
            n_predicted: 0,
            window: ContextWindow::new(n_ctx_slot, request.context_shift),
            sampler: spec.sampler.branch(request.seed.wrapping_add(nth)),
            runs_together: group.n_together() > 1,
            constraint: start_constraint(&request, token_strings),
            end_token: token_strings.end_tokens().first().copied(),
            is_stuck: false,
            text,
            sampled: None,
            clock: Clock::new(group.submitted, now),
            n_cached: None,
            n_computed_before: 0,
            checkpoint_positions: CheckpointPositions::default(),
            kept_logits: None,
            features: SequenceFeatures::default(),
            request,
        };
        hooks::on_new_sequence(&mut sequence, spec, nth);
        sequence
    }

    /// Returns the media that end after `position`, in order.
    pub(crate) fn media_from(&self, position: u32) -> &[PlacedMedia] {
        &self.media[self.media.partition_point(|placed| placed.end() <= position)..]
    }

    pub(crate) fn scheduling_key(&self) -> SchedulingKey {
        self.scheduling_key
    }

    pub(crate) fn branch_key(&self) -> BranchKey {
        BranchKey { group_id: self.group_id, member: self.member }
    }

    pub(crate) fn provenance(&self) -> Provenance {
        Provenance { group_id: self.group_id.0, owner: self.request.owner.clone() }
    }

    pub(crate) fn is_load(&self) -> bool {
        matches!(self.request.task, Task::Load(_))
    }

    pub(crate) fn n_tokens(&self) -> u32 {
        self.tokens.len()
    }

    pub(crate) fn n_remaining(&self) -> Option<u32> {
        let left = self.request.max_tokens.map(|n| n - self.n_predicted);
        let n_in_window = self.window.n_more(self.n_tokens());
        left.into_iter().chain(n_in_window).min()
    }

    /// A completion needs the logits after its last token; tasks sample nothing and may reuse all of their tokens.
    pub(crate) fn max_reusable(&self) -> u32 {
        let n_last = u32::from(self.request.task == Task::Complete);
        self.n_tokens().saturating_sub(n_last).min(hooks::max_reusable(self))
    }

    /// Drops a part of its context, if permitted; returns the number of preceding tokens, which stay in place.
    pub(crate) fn shift(&mut self) -> Option<u32> {
        let n_before = self.n_tokens();
        let n_kept = self.window.shift(self.n_prompt, &mut self.tokens)?;
        self.adapter_schedule.remove(&(n_kept..n_kept + n_before - self.n_tokens()));
        Some(n_kept)
    }

    /// Returns the position of the last context shift; `None` if its text is complete.
    pub(crate) fn shifted_at(&self) -> Option<u32> {
        self.window.shifted_at
    }

    pub(crate) fn is_full(&self) -> bool {
        self.window.is_full(self.n_tokens())
    }

    /// Records a start in a slot with `n_cached` cached tokens. Returns true for the first start.
    pub(crate) fn start(&mut self, n_cached: u32) -> bool {
        let is_first = self.n_cached.is_none();
        self.n_cached.get_or_insert(n_cached);
        is_first
    }

    /// Records that `n_computed` of its tokens were computed before a preemption: they count as used, even if they are evicted.
    pub(crate) fn record_preemption(&mut self, n_computed: u32) {
        self.n_computed_before = self.n_computed_before.max(n_computed);
    }

    /// Lowers the number of cached prompt tokens and returns the difference; 0 after the first sampled token.
    pub(crate) fn lower_n_cached(&mut self, n_cached: u32) -> u32 {
        if self.n_predicted > 0 {
            return 0;
        }
        let found = self.n_cached.unwrap_or(0);
        self.n_cached = Some(found.min(n_cached));
        hooks::on_lower_n_cached(&self.features, n_cached);
        found.saturating_sub(n_cached)
    }

    /// Samples the next token from the `logits` after the last one, on any thread.
    pub(crate) fn sample(&mut self, logits: &[f32]) {
        if hooks::sample(self, logits) {
            return;
        }
        let sampled = match &mut self.constraint {
            None => Some(self.sampler.sample(logits)),
            Some(constraint) => sampling::draw_allowed(&mut self.sampler, &mut **constraint, logits),
        };
        self.append_sampled(sampled.or(self.end_token), logits);
    }

    /// Appends a token that was sampled from `logits`; `None` if none can be.
    pub(crate) fn append_sampled(&mut self, token: Option<Token>, logits: &[f32]) {
        let Some(token) = token else {
            self.is_stuck = true;
            return;
        };
        let logprobs = self.logprobs_of(token, logits);
        self.append(token);
        self.sampled = Some(ScoredToken { token, logprobs });
    }

    /// Appends a token that its constraint has accepted.
    pub(crate) fn append(&mut self, token: Token) {
        self.tokens.push(token);
        self.n_predicted += 1;
        self.sampler.accept(token);
    }

    pub(crate) fn logprobs_of(&self, token: Token, logits: &[f32]) -> Option<Box<Logprobs>> {
        let params = &self.request.sampling;
        params.logprobs.map(|n| {
            let n = n as usize;
            let scored =
                if params.post_sampling_probs { self.sampler.logprobs(token, n) } else { sampling::logprobs(logits, token, n) };
            Box::new(to_logprobs(scored, token))
        })
    }

    /// Returns `None` if there is no new token.
    pub(crate) fn detokenize(&mut self, runner: &impl Runner, slot: u32, now: Instant) -> Option<SampledToken> {
        let Some(ScoredToken { token, logprobs }) = self.sampled.take() else {
            if self.is_stuck && self.n_predicted == 0 {
                self.clock.end_prompt(now);
            }
            return self.is_stuck.then_some(SampledToken { event: None, last: None, finished: Some(FinishReason::End(None)) });
        };
        let last = self.clock.record_token(now);
        let delta = self.text.push_token(token, &self.request, runner);
        let finished = self.finish_reason(&delta, token, 0, runner);
        let text = if finished.is_some() { self.text.finish_after(delta.text) } else { delta.text };
        let event = TokenEvent { index: self.branch.0, token, text, slot, n_predicted: self.n_predicted, logprobs };
        Some(SampledToken { event: Some(event), last, finished })
    }

    /// Returns the finish reason if `token`, with the text `delta`, is the last one; `n_more` is 1 if it is not appended yet.
    pub(crate) fn finish_reason(
        &self,
        delta: &TextDelta,
        token: Token,
        n_more: u32,
        runner: &impl Runner,
    ) -> Option<FinishReason> {
        let is_late = || {
            let is_over = |limit| delta.text.contains('\n') && self.clock.generation_time() > limit;
            self.request.max_predict_time.is_some_and(is_over)
        };
        match &delta.end {
            Some(end) => Some(end.clone()),
            None if runner.is_end(token) => Some(FinishReason::End(Some(token))),
            None if self.request.max_tokens == Some(self.n_predicted + n_more) || is_late() => Some(FinishReason::Length),
            None if self.window.is_final(self.n_prompt, self.n_tokens() + n_more) => Some(FinishReason::ContextFull),
            None => None,
        }
    }

    /// Ends the sequence at `now` if it may not sample any token.
    pub(crate) fn end_without_token(&mut self, now: Instant) -> Option<FinishReason> {
        if self.request.max_tokens != Some(0) {
            return None;
        }
        self.clock.end_prompt(now);
        Some(FinishReason::Length)
    }

    /// Returns its usage, with `n_computed` tokens computed. If it was cut short, only the computed part of the prompt counts.
    pub(crate) fn usage(&self, n_computed: u32, is_cut_short: bool) -> Usage {
        let n_ever_computed = self.n_computed_before.max(n_computed).min(self.n_prompt);
        let n_available = if is_cut_short && self.n_predicted == 0 { n_ever_computed } else { self.n_prompt };
        let n_cached = self.n_cached().min(n_available);
        Usage {
            n_prompt_computed: n_available - n_cached,
            n_cached,
            n_predicted: self.n_predicted,
            n_drafted: 0,
            n_draft_accepted: 0,
            n_context: n_computed,
            prompt_ms: self.clock.prompt_time().as_secs_f64() * 1e3,
            predicted_ms: self.clock.generation_time().as_secs_f64() * 1e3,
        }
    }

    pub(crate) fn is_truncated(&self) -> bool {
        self.window.is_truncated(self.n_tokens())
    }

    pub(crate) fn n_cached(&self) -> u32 {
        self.n_cached.unwrap_or(0)
    }
}

pub(crate) fn start_constraint(request: &Request, token_strings: &TokenStrings) -> Option<Box<dyn Constraint>> {
    match &request.reasoning {
        None => request.constraint.as_ref().map(|constraint| constraint.0.start()),
        Some(reasoning) => {
            Some(Box::new(ReasoningConstraint::new(Arc::clone(reasoning), request.constraint.clone(), token_strings.clone())))
        }
    }
}

pub(crate) struct SampledToken {
    pub(crate) event: Option<TokenEvent>,
    /// Time of the previous token; `None` for the first one.
    pub(crate) last: Option<Instant>,
    pub(crate) finished: Option<FinishReason>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScoredToken {
    pub(crate) token: Token,
    pub(crate) logprobs: Option<Box<Logprobs>>,
}

pub(crate) fn to_logprobs((own, top): (f32, Vec<(Token, f32)>), token: Token) -> Logprobs {
    let to_logprob = |(token, logprob)| Logprob { token, logprob };
    Logprobs { chosen: to_logprob((token, own)), top: top.into_iter().map(to_logprob).collect() }
}
