//! One completion being written.

mod beam;
mod clock;
mod context_window;
mod fork_state;
mod indentation;
mod pending_prompt_report;
mod text;
mod tokens;

use std::sync::Arc;
use std::time::Instant;

use crate::engine::checkpoint_positions::CheckpointPositions;
use crate::engine::pending_prompt_report::PendingPromptReport;
use crate::engine::request_group::RequestGroup;
use crate::engine::runner::{AdapterSchedule, Runner};
use crate::engine::scheduling_key::SchedulingKey;
use crate::engine::shared_explanation::SharedExplanation;
use crate::request::{Constraint, Diversity, FinishReason, Logprob, Logprobs, PlacedMedia, Request, Token, TokenEvent, Usage};
use crate::sampling::{self, AllowedTokens, DistinctFirstTokens, Sampler, Thinking, TokenStrings};
pub(crate) use beam::{Beam, BeamToken, FinishedText, ProposedToken, SearchResults};
use clock::Clock;
use context_window::ContextWindow;
pub(crate) use fork_state::ForkState;
use smol_str::SmolStr;
pub(crate) use text::incomplete_tail;
use text::{Text, TextDelta};
pub(crate) use tokens::{Tokens, TokensView};

/// One completion of a request, from its first start in a slot to its end: what survives a preemption.
///
/// Where it runs, and what it is doing there, is [`Running`](crate::engine::running::Running)'s business.
pub(crate) struct Sequence {
    /// Which job.
    pub(crate) request_id: u64,
    /// Which request, as its reader knows it.
    pub(crate) stream_id: u64,
    /// Which branch of the job.
    pub(crate) index: u32,
    /// The same branch, as its stream counts them.
    pub(crate) branch: u32,
    request: Arc<Request>,
    /// How it is computed.
    pub(crate) variants: AdapterSchedule,
    seniority: SchedulingKey,
    /// Prompt and prediction, but for what context shifts have dropped.
    pub(crate) tokens: Tokens,
    /// The pictures and sounds of its prompt, in order. Such a prompt is never shifted.
    media: Arc<[PlacedMedia]>,
    /// The prompt's length, whatever is left of it.
    pub(crate) n_prompt: u32,
    n_predicted: u32,
    window: ContextWindow,
    /// Where its context was shifted last: what follows is the newest of its text.
    shifted_at: Option<u32>,
    sampler: Sampler,
    /// Where its first token comes from, and which of them it is, where it is drawn together with those of others.
    first: Option<(Arc<DistinctFirstTokens>, u32)>,
    /// Of a search, what it is there.
    pub(crate) beam: Option<Box<Beam>>,
    /// What its tokens are held to.
    constraint: Option<Box<dyn Constraint>>,
    /// What ends it where the constraint allows no token that can be drawn.
    end_token: Option<Token>,
    /// Whether that is so, and there is no end token.
    is_stuck: bool,
    text: Text,
    /// What was chosen and not shown yet.
    chosen: Option<ScoredChoice>,
    clock: Clock,
    /// `None` until it was placed for the first time: what later placements find counts for nobody.
    n_cached: Option<u32>,
    /// Most tokens that it had computed when it was preempted.
    n_reached: u32,
    /// Where in its prompt a memory that cannot be cut, or sees through a window, keeps what it has, besides at the end.
    pub(crate) snapshots_at: CheckpointPositions,
    /// What its stream is still to hear of its prompt.
    pub(crate) untold: PendingPromptReport,
    /// Why what is computed of the prompt has to be, where it is to tell that.
    pub(crate) explanation: Option<Arc<SharedExplanation>>,
}

impl Sequence {
    /// Branch `index` of `request_group`, which was never in a slot; of its context it may use `n_ctx_slot` tokens.
    pub(crate) fn new(job: &RequestGroup, index: u32, n_ctx_slot: u32, lexicon: &TokenStrings, now: Instant) -> Self {
        let (way, nth) = job.way(index);
        let request = Arc::clone(&way.request);
        let text = Text::new(Arc::clone(&way.stops), request.n_indent);
        let mut sampler = way.sampler.branch(request.seed.wrapping_add(nth));
        if request.diversity == Diversity::Arithmetic {
            sampler.draw_by_code_point(request.seed, nth, way.n);
        }
        Self {
            request_id: job.request_id,
            stream_id: job.stream_id,
            index,
            branch: way.first + nth,
            variants: job.variants.clone(),
            seniority: job.seniority(index),
            tokens: Tokens::new(Arc::clone(&job.prompt)),
            media: Arc::clone(&job.media),
            n_prompt: job.n_prompt(),
            n_predicted: 0,
            window: ContextWindow::new(n_ctx_slot, request.context_shift),
            shifted_at: None,
            sampler,
            beam: request.diversity.beams().map(|&search| Box::new(Beam::new(search, nth, &text))),
            first: way.firsts.clone().map(|firsts| (firsts, nth)),
            constraint: constraint(&request, lexicon),
            end_token: lexicon.end_tokens().first().copied(),
            is_stuck: false,
            text,
            chosen: None,
            clock: Clock::new(now),
            n_cached: None,
            n_reached: 0,
            snapshots_at: CheckpointPositions::default(),
            untold: PendingPromptReport::default(),
            explanation: None,
            request,
        }
    }

    /// What was asked for.
    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// The pictures and sounds that end after `place`, in order.
    pub(crate) fn media_from(&self, place: u32) -> &[PlacedMedia] {
        &self.media[self.media.partition_point(|placed| placed.end() <= place)..]
    }

    pub(crate) fn seniority(&self) -> SchedulingKey {
        self.seniority
    }

    pub(crate) fn n_tokens(&self) -> u32 {
        self.tokens.len()
    }

    pub(crate) fn n_predicted(&self) -> u32 {
        self.n_predicted
    }

    /// Tokens that it may still draw; `None` is no limit.
    pub(crate) fn n_remaining(&self) -> Option<u32> {
        let left = self.request.max_tokens.map(|n| n - self.n_predicted);
        let room = self.window.n_more(self.n_tokens());
        left.into_iter().chain(room).min()
    }

    /// Drops a part of its context, where that may be done; returns how many of its first tokens stay where they are.
    pub(crate) fn shift(&mut self) -> Option<u32> {
        let n_before = self.n_tokens();
        let n_kept = self.window.shift(self.n_prompt, &mut self.tokens)?;
        self.variants.remove(&(n_kept..n_kept + n_before - self.n_tokens()));
        self.shifted_at = Some(n_kept);
        Some(n_kept)
    }

    /// Where its context was shifted last; `None` where all of its text is there.
    pub(crate) fn shifted_at(&self) -> Option<u32> {
        self.shifted_at
    }

    /// How it chooses: it has seen its prompt and what it has drawn.
    pub(crate) fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// Whether its context must be shifted before it can go on.
    pub(crate) fn is_full(&self) -> bool {
        self.window.is_full(self.n_tokens())
    }

    /// It starts in a slot, with `n_cached` of its tokens found computed. `true` where it is the first time.
    pub(crate) fn start(&mut self, n_cached: u32) -> bool {
        let is_first = self.n_cached.is_none();
        self.n_cached.get_or_insert(n_cached);
        is_first
    }

    /// Records that `n_held` of its tokens are computed when it is preempted: its usage counts them, whatever of them stays cached.
    pub(crate) fn reach(&mut self, n_held: u32) {
        self.n_reached = self.n_reached.max(n_held);
    }

    /// Of what it found, only `n_cached` tokens could be used; returns how many of its prompt it lost by that. Once it has drawn, what
    /// it finds is its own.
    pub(crate) fn lower_n_cached(&mut self, n_cached: u32) -> u32 {
        if self.n_predicted > 0 {
            return 0;
        }
        let found = self.n_cached.unwrap_or(0);
        self.n_cached = Some(found.min(n_cached));
        if let Some(explanation) = &self.explanation {
            explanation.lower(n_cached);
        }
        found.saturating_sub(n_cached)
    }

    /// Chooses the next token from the `logits` after its last one, on whichever thread; [`Sequence::show`] says which.
    ///
    /// A beam chooses none and proposes some, of which its search chooses.
    pub(crate) fn choose(&mut self, logits: &[f32]) {
        if self.beam.is_some() {
            return self.propose(logits);
        }
        let is_first = self.first.is_some();
        let drawn = match (self.first.take(), &mut self.constraint) {
            (Some((firsts, nth)), _) => self.choose_first(&firsts, nth, logits),
            (None, None) => Some(self.sampler.sample(logits)),
            (None, Some(constraint)) => sampling::draw_allowed(&mut self.sampler, &mut **constraint, logits),
        };
        let Some(token) = drawn.or(self.end_token.filter(|_| !is_first)) else {
            self.is_stuck = true;
            return;
        };
        let params = &self.request.sampling;
        let logprobs = (params.n_probs > 0).then(|| {
            let n = params.n_probs as usize;
            if params.post_sampling_probs { self.sampler.logprobs(token, n) } else { sampling::logprobs(logits, token, n) }
        });
        self.tokens.push(token);
        self.n_predicted += 1;
        self.sampler.accept(token);
        self.chosen = Some(ScoredChoice { token, logprobs });
    }

    /// The first token, which no other branch has; `None` where all that could be drawn are taken.
    fn choose_first(&mut self, firsts: &DistinctFirstTokens, nth: u32, logits: &[f32]) -> Option<Token> {
        let token = match sampling::next_allowed(self.constraint.as_deref_mut(), logits) {
            AllowedTokens::Forced(token) => (nth == 0).then_some(token)?,
            AllowedTokens::Any(row) => {
                // What is told of the draw is read from its own chain.
                self.sampler.distribution(&row);
                firsts.draw(nth, &row)?
            }
        };
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        Some(token)
    }

    /// Turns the token that was chosen before `now` into text, and says whether that ends it. `None` where none was chosen since the
    /// last one that was shown.
    pub(crate) fn show(&mut self, runner: &impl Runner, slot: u32, now: Instant) -> Option<SampledToken> {
        let Some(ScoredChoice { token, logprobs }) = self.chosen.take() else {
            if self.is_stuck && self.n_predicted == 0 {
                self.clock.end(now);
            }
            return self.is_stuck.then_some(SampledToken { event: None, finished: Some(FinishReason::End) });
        };
        self.clock.draw(now);
        let is_end = runner.is_end(token);
        let TextDelta { mut text, end } = self.text.push(|bytes| append_text(token, &self.request, runner, bytes));
        let is_late = || self.request.max_predict_time.is_some_and(|limit| text.contains('\n') && self.clock.predicted() > limit);
        let finished = match end {
            Some(end) => Some(end),
            None if is_end => Some(FinishReason::End),
            None if self.request.max_tokens == Some(self.n_predicted) || is_late() => Some(FinishReason::Length),
            None if self.window.is_final(self.n_prompt, self.n_tokens()) => Some(FinishReason::ContextFull),
            None => None,
        };
        if finished.is_some() {
            let rest = self.text.finish();
            if !rest.is_empty() {
                text = [text, rest].concat().into();
            }
        }
        let logprobs = logprobs.map(|logprobs| Box::new(named(logprobs, token)));
        let event = TokenEvent { index: self.branch, token, text, slot, n_predicted: self.n_predicted(), logprobs };
        Some(SampledToken { event: Some(event), finished })
    }

    /// Why it ends at `now` without a token, where it may draw none: its prompt is computed.
    pub(crate) fn end_without_token(&mut self, now: Instant) -> Option<FinishReason> {
        if self.request.max_tokens != Some(0) {
            return None;
        }
        self.clock.end(now);
        Some(FinishReason::Length)
    }

    /// What it cost, where `n_held` of its tokens are computed. Of one that was cut short that is as much of the prompt as it came to.
    pub(crate) fn usage(&self, n_held: u32, is_cut_short: bool) -> Usage {
        let n_most = self.n_reached.max(n_held).min(self.n_prompt);
        let n_reached = if is_cut_short && self.n_predicted == 0 { n_most } else { self.n_prompt };
        let n_cached = self.n_cached().min(n_reached);
        Usage {
            n_computed: n_reached - n_cached,
            n_cached,
            n_predicted: self.n_predicted,
            n_held,
            prompt_ms: self.clock.before_tokens().as_secs_f64() * 1e3,
            predicted_ms: self.clock.predicted().as_secs_f64() * 1e3,
        }
    }

    /// Milliseconds since it first started in a slot.
    pub(crate) fn elapsed_ms(&self, now: Instant) -> f64 {
        self.clock.since_start(now).as_secs_f64() * 1e3
    }

    /// Whether its context was full, in a way that the caller may want to know: what was drawn last saw less than all before it, or
    /// nothing more could be drawn.
    pub(crate) fn is_truncated(&self) -> bool {
        self.window.is_truncated(self.n_tokens())
    }

    pub(crate) fn n_cached(&self) -> u32 {
        self.n_cached.unwrap_or(0)
    }

    /// Text that was held back in case a stop string followed, and that nothing follows now. Where a token ended the text, that has
    /// shown it, and this is empty.
    pub(crate) fn rest_of_text(&mut self) -> SmolStr {
        self.text.finish()
    }
}

/// What `token` adds to the text of a branch of `request`.
pub(crate) fn append_text(token: Token, request: &Request, runner: &impl Runner, bytes: &mut Vec<u8>) {
    if request.preserved_tokens.contains(&token) {
        bytes.extend_from_slice(runner.lexicon().spelling(token));
    } else if !runner.is_end(token) {
        runner.append_piece(token, bytes);
    }
}

/// What the tokens of a branch are held to.
fn constraint(request: &Request, lexicon: &TokenStrings) -> Option<Box<dyn Constraint>> {
    match &request.thought {
        None => request.constraint.as_ref().map(|constraint| constraint.0.start()),
        Some(thought) => Some(Box::new(Thinking::new(Arc::clone(thought), request.constraint.clone(), lexicon.clone()))),
    }
}

/// A token that was drawn, and why it was the last one, if it was.
pub(crate) struct SampledToken {
    /// `None` where none could be drawn.
    pub(crate) event: Option<TokenEvent>,
    pub(crate) finished: Option<FinishReason>,
}

/// A token with its own log-probability and those of the most likely ones, where they are asked for.
struct ScoredChoice {
    token: Token,
    logprobs: Option<(f32, Vec<(Token, f32)>)>,
}

/// The log-probabilities of `token` and of the most likely ones.
pub(crate) fn named((chosen, top): (f32, Vec<(Token, f32)>), token: Token) -> Logprobs {
    let named = |(token, logprob)| Logprob { token, logprob };
    Logprobs { chosen: named((token, chosen)), top: top.into_iter().map(named).collect() }
}
