//! One completion being written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::cache::Restore;
use crate::engine::job::Job;
use crate::engine::runner::{Runner, SequenceId};
use crate::engine::text::{Shown, Text};
use crate::request::{Constraint, FinishReason, Logprob, Logprobs, SavedPrefix, Token, TokenEvent, Usage};
use crate::sampling::{self, Sampler};

/// One completion of a request, from its first start in a slot to its end: what survives a preemption.
///
/// Where it runs is [`Running`]'s business. It is prefilling while several of its tokens wait to be computed, and decoding while
/// the last one does.
pub(crate) struct Sequence {
    /// Which request; the younger, the larger.
    pub(crate) request_id: u64,
    /// Which of its branches.
    pub(crate) index: u32,
    /// Prompt and prediction.
    pub(crate) tokens: Vec<Token>,
    pub(crate) n_prompt: u32,
    /// Most tokens that it may draw, cut to what its context holds.
    n_limit: u32,
    /// Why it ends where that limit is reached.
    limit_reason: FinishReason,
    sampler: Sampler,
    /// What its tokens are held to.
    constraint: Option<Box<dyn Constraint>>,
    /// What ends it where the constraint allows no token that can be drawn.
    end_token: Option<Token>,
    /// Whether that is so, and there is no end token.
    is_stuck: bool,
    text: Text,
    n_probs: usize,
    /// What was chosen and not shown yet.
    chosen: Option<Chosen>,
    clock: Clock,
    /// `None` until it was placed for the first time: what later placements find counts for nobody.
    n_cached: Option<u32>,
}

#[derive(Debug)]
struct Clock {
    started: Instant,
    first_token: Option<Instant>,
    last_token: Instant,
}

impl Sequence {
    /// The next branch of `job` that was never in a slot; of its context it may use `n_ctx_slot` tokens.
    pub(crate) fn new(request_id: u64, job: &Job, n_ctx_slot: u32, end_tokens: &[Token], now: Instant) -> Self {
        let prompt = &job.prompt;
        let n_prompt = u32::try_from(prompt.len()).expect("a prompt that fits the context was admitted");
        let n_room = n_ctx_slot - n_prompt;
        let (n_limit, limit_reason) = match job.max_tokens {
            Some(n) if n <= n_room => (n, FinishReason::Length),
            _ => (n_room, FinishReason::ContextFull),
        };
        let index = job.n_started;
        let seed = job.seed.wrapping_add(index);
        let mut sampler = Sampler::new(&job.sampling, seed, end_tokens, n_ctx_slot);
        for &token in prompt {
            sampler.accept(token);
        }
        Self {
            request_id,
            index,
            tokens: prompt.clone(),
            n_prompt,
            n_limit,
            limit_reason,
            sampler,
            constraint: job.constraint.as_ref().map(|constraint| constraint.0.start()),
            end_token: end_tokens.first().copied(),
            is_stuck: false,
            text: Text::new(Arc::clone(&job.stops)),
            n_probs: job.sampling.n_probs as usize,
            chosen: None,
            clock: Clock { started: now, first_token: None, last_token: now },
            n_cached: None,
        }
    }

    pub(crate) fn n_tokens(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("a sequence fits its context")
    }

    pub(crate) fn n_predicted(&self) -> u32 {
        self.n_tokens() - self.n_prompt
    }

    pub(crate) fn n_remaining(&self) -> u32 {
        self.n_limit - self.n_predicted()
    }

    /// It starts in a slot, with `n_cached` of its tokens found computed. `true` where it is the first time.
    pub(crate) fn start(&mut self, n_cached: u32) -> bool {
        let is_first = self.n_cached.is_none();
        self.n_cached.get_or_insert(n_cached);
        is_first
    }

    /// Of what it found, only `n_cached` tokens could be used; returns how many of its prompt it lost by that.
    pub(crate) fn lower_n_cached(&mut self, n_cached: u32) -> u32 {
        let found = self.n_cached.unwrap_or(0);
        self.n_cached = Some(found.min(n_cached));
        found.saturating_sub(n_cached)
    }

    /// Chooses the next token from the `logits` after its last one, on whichever thread; [`Sequence::show`] says which.
    pub(crate) fn choose(&mut self, logits: &[f32]) {
        let drawn = match &mut self.constraint {
            None => Some(self.sampler.sample(logits)),
            Some(constraint) => sampling::draw_allowed(&mut self.sampler, &mut **constraint, logits),
        };
        let Some(token) = drawn.or(self.end_token) else {
            self.is_stuck = true;
            return;
        };
        let logprobs = (self.n_probs > 0).then(|| sampling::logprobs(logits, token, self.n_probs));
        self.tokens.push(token);
        self.sampler.accept(token);
        self.chosen = Some(Chosen { token, logprobs });
    }

    /// Turns the token that was chosen before `now` into text, and says whether that ends it. `None` where none was chosen since the
    /// last one that was shown.
    pub(crate) fn show(&mut self, runner: &impl Runner, slot: u32, now: Instant) -> Option<Drawn> {
        let Some(Chosen { token, logprobs }) = self.chosen.take() else {
            return self.is_stuck.then_some(Drawn { event: None, finished: Some(FinishReason::End) });
        };
        self.clock.first_token.get_or_insert(now);
        self.clock.last_token = now;
        let is_end = runner.is_end(token);
        let Shown { mut text, stop } = self.text.push(|bytes| {
            if !is_end {
                runner.append_piece(token, bytes);
            }
        });
        let finished = match stop {
            Some(stop) => Some(FinishReason::Stop(stop)),
            None if is_end => Some(FinishReason::End),
            None if self.n_remaining() == 0 => Some(self.limit_reason.clone()),
            None => None,
        };
        if finished.is_some() {
            let rest = self.text.finish();
            if !rest.is_empty() {
                text = [text, rest].concat().into();
            }
        }
        let logprobs = logprobs.map(|logprobs| Box::new(named(logprobs, token, runner)));
        let event = TokenEvent { index: self.index, token, text, slot, n_predicted: self.n_predicted(), logprobs };
        Some(Drawn { event: Some(event), finished })
    }

    /// Why it ends at `now` without a token, where it may draw none: its prompt is computed.
    pub(crate) fn end_without_token(&mut self, now: Instant) -> Option<FinishReason> {
        if self.n_limit > 0 {
            return None;
        }
        self.clock.last_token = now;
        Some(self.limit_reason.clone())
    }

    pub(crate) fn usage(&self) -> Usage {
        let n_cached = self.n_cached.unwrap_or(0);
        let Clock { started, first_token, last_token } = self.clock;
        let first_token = first_token.unwrap_or(last_token);
        Usage {
            n_computed: self.n_prompt - n_cached,
            n_cached,
            n_predicted: self.n_predicted(),
            prompt_ms: (first_token - started).as_secs_f64() * 1e3,
            predicted_ms: (last_token - first_token).as_secs_f64() * 1e3,
        }
    }

    pub(crate) fn n_cached(&self) -> u32 {
        self.n_cached.unwrap_or(0)
    }

    /// Sequences by age: of two, the one whose request came first is older, then the one with the lower index.
    pub(crate) fn age(&self) -> (u64, u32) {
        (self.request_id, self.index)
    }
}

/// A token that was drawn, and why it was the last one, if it was.
pub(crate) struct Drawn {
    /// `None` where none could be drawn.
    pub(crate) event: Option<TokenEvent>,
    pub(crate) finished: Option<FinishReason>,
}

/// A token with its own log-probability and those of the most likely ones, where they are asked for.
struct Chosen {
    token: Token,
    logprobs: Option<(f32, Vec<(Token, f32)>)>,
}

/// The log-probabilities of `token` and of the most likely ones, with what they stand for.
fn named((chosen, top): (f32, Vec<(Token, f32)>), token: Token, runner: &impl Runner) -> Logprobs {
    let named = |token, logprob| {
        let mut bytes = Vec::new();
        runner.append_piece(token, &mut bytes);
        Logprob { token, bytes, logprob }
    };
    Logprobs { chosen: named(token, chosen), top: top.into_iter().map(|(token, logprob)| named(token, logprob)).collect() }
}

/// A sequence in a slot.
pub(crate) struct Running {
    pub(crate) sequence: Sequence,
    pub(crate) slot: u32,
    /// Owns its cells.
    pub(crate) id: SequenceId,
    /// `[0, n_held)` of its tokens is computed.
    pub(crate) n_held: u32,
    /// How many more the next decode computes.
    pub(crate) n_planned: u32,
    /// What is to be restored before anything is computed.
    pub(crate) restores: VecDeque<Restore>,
    /// The logits after all of its tokens, where they come with what is restored.
    pub(crate) logits: Option<Arc<[f32]>>,
    /// What was copied so far, where it is to be saved.
    pub(crate) saved: SavedPrefix,
    /// Why it ends with this step.
    pub(crate) end: Option<FinishReason>,
}

impl Running {
    /// Tokens that wait to be computed or restored: the one drawn last, or a prompt's rest; none where a prompt is all there is.
    pub(crate) fn n_uncomputed(&self) -> u32 {
        self.sequence.n_tokens() - self.n_held
    }

    /// Tokens that the next decode could compute.
    pub(crate) fn n_ready(&self) -> u32 {
        if self.restores.is_empty() { self.n_uncomputed() } else { 0 }
    }

    /// The tokens that the next decode computes.
    pub(crate) fn planned(&self) -> &[Token] {
        &self.sequence.tokens[self.n_held as usize..(self.n_held + self.n_planned) as usize]
    }

    /// Whether the next decode computes its last token, so that another can be drawn.
    pub(crate) fn will_draw(&self) -> bool {
        self.n_planned == self.n_uncomputed()
    }

    /// Whether the next decode computes one token that was drawn, or the last one of a prompt.
    pub(crate) fn is_decoding(&self) -> bool {
        self.n_planned == 1 && self.will_draw()
    }

    /// The tokens that it holds.
    pub(crate) fn held(&self) -> &[Token] {
        &self.sequence.tokens[..self.n_held as usize]
    }
}
