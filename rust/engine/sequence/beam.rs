//! A completion that is one of the beams of a search.

use crate::engine::runner::Runner;
use crate::engine::sequence::text::{Text, TextDelta};
use crate::engine::sequence::tokens::Tokens;
use crate::engine::sequence::{Sequence, append_text, named};
use crate::request::{BeamSearch, Constraint, FinishReason, Logprobs, Token};
use crate::sampling::beams::{BeamScore, Proposal, drawn, likeliest};
use crate::sampling::rng::Mt19937;
use crate::sampling::{self, AllowedTokens, Sampler};
use smol_str::SmolStr;

/// A beam, or a place for one.
pub(crate) struct Beam {
    pub(crate) search: BeamSearch,
    /// Whether it has a text. If not, its slot waits for one to go on with.
    pub(crate) is_live: bool,
    /// Where it stood when it was last chosen, the best at 0.
    pub(crate) place: u32,
    pub(crate) worth: BeamScore,
    /// The end of its text that its stream has not heard yet.
    pub(crate) untold: Vec<BeamToken>,
    /// What it proposes to go on with, once its last token is computed.
    pub(crate) proposals: Option<Vec<ProposedToken>>,
    /// Of the first beam alone.
    pub(crate) found: Option<Box<SearchResults>>,
}

/// What a search has found and told; its first beam keeps it, whatever that one is doing.
pub(crate) struct SearchResults {
    pub(crate) teller: TextCursor,
    /// The tokens that its stream has heard: all of its texts begin with them.
    pub(crate) told: Vec<Token>,
    /// The whole texts, best first; no more than there are beams.
    pub(crate) texts: Vec<FinishedText>,
}

/// A text that has ended.
pub(crate) struct FinishedText {
    /// What comes after the tokens that were told.
    pub(crate) untold: Vec<BeamToken>,
    pub(crate) reason: FinishReason,
    /// The greater is the better.
    pub(crate) rank: f64,
    /// What is told of that.
    pub(crate) score: f64,
}

/// A token that a beam proposes, and what is told of it.
pub(crate) struct ProposedToken {
    pub(crate) proposal: Proposal,
    pub(crate) logprobs: Option<Box<Logprobs>>,
}

/// A token that a beam has written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BeamToken {
    pub(crate) token: Token,
    pub(crate) logprobs: Option<Box<Logprobs>>,
}

/// What another beam begins with that goes on where one is.
pub(crate) struct BeamPrefix {
    tokens: Tokens,
    n_predicted: u32,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    text: Text,
    untold: Vec<BeamToken>,
}

impl Beam {
    /// The first has the text that all of them begin with.
    pub(super) fn new(search: BeamSearch, index: u32, text: &Text) -> Self {
        let teller = || TextCursor { text: text.clone(), n_told: 0 };
        let found = (index == 0).then(|| Box::new(SearchResults { teller: teller(), told: Vec::new(), texts: Vec::new() }));
        Self { search, is_live: index == 0, place: 0, worth: BeamScore::EMPTY, untold: Vec::new(), proposals: None, found }
    }
}

impl Sequence {
    /// Finds what may follow the `logits` after its last token, on whichever thread: a search decides which of it does.
    pub(super) fn propose(&mut self, logits: &[f32]) {
        let distribution = self.distribution(logits);
        let (seed, n_predicted) = (self.request.seed, self.n_predicted);
        let Some(beam) = &mut self.beam else { return };
        let width = beam.search.width as usize;
        let proposals = if beam.search.is_stochastic {
            // Two beams that go on from one draw on their own.
            drawn(&distribution, beam.worth, width, &mut Mt19937::derived(seed, 1 + n_predicted, beam.place))
        } else {
            likeliest(&distribution, beam.worth, 2 * width)
        };
        let proposed =
            proposals.into_iter().map(|proposal| ProposedToken { proposal, logprobs: self.logprobs_of(proposal.token, logits) });
        let proposed = proposed.collect();
        if let Some(beam) = &mut self.beam {
            beam.proposals = Some(proposed);
        }
    }

    /// What may follow, as the samplers and the constraint leave it: an end where that is nothing.
    fn distribution(&mut self, logits: &[f32]) -> Vec<(Token, f64)> {
        let found = match sampling::next_allowed(self.constraint.as_deref_mut(), logits) {
            AllowedTokens::Any(row) => self.sampler.distribution(&row),
            AllowedTokens::Forced(token) => {
                let alone = |id| if id == token { 0.0 } else { f32::NEG_INFINITY };
                let row: Vec<f32> = (0..).zip(logits).map(|(id, _)| alone(id)).collect();
                // What is told of the draw is read from the chain.
                self.sampler.distribution(&row);
                vec![(token, 0.0)]
            }
        };
        let is_over = found.is_empty() && self.constraint.is_some();
        if is_over { self.end_token.map(|token| (token, 0.0)).into_iter().collect() } else { found }
    }

    /// The log-probabilities of a token that may be drawn from `logits`, where they are told.
    fn logprobs_of(&self, token: Token, logits: &[f32]) -> Option<Box<Logprobs>> {
        let params = &self.request.sampling;
        let n = params.n_probs as usize;
        (n > 0).then(|| {
            let told =
                if params.post_sampling_probs { self.sampler.logprobs(token, n) } else { sampling::logprobs(logits, token, n) };
            Box::new(named(told, token))
        })
    }

    /// Why `token` would end its text; `None` where it would not.
    pub(crate) fn end_with(&self, token: Token, runner: &impl Runner) -> Option<FinishReason> {
        let is_end = runner.is_end(token);
        let TextDelta { end, .. } = self.text.clone().push(|bytes| append_text(token, self.request(), runner, bytes));
        match end {
            Some(end) => Some(end),
            None if is_end => Some(FinishReason::End),
            None if self.request.max_tokens == Some(self.n_predicted + 1) => Some(FinishReason::Length),
            None if self.window.is_final(self.n_prompt, self.n_tokens() + 1) => Some(FinishReason::ContextFull),
            None => None,
        }
    }

    /// What another beam needs that goes on where this one is.
    pub(crate) fn stem(&self) -> BeamPrefix {
        BeamPrefix {
            tokens: self.tokens.clone(),
            n_predicted: self.n_predicted,
            // Without what the last row left in it; a beam takes no number from its generator.
            sampler: self.sampler.branch(self.request.seed),
            constraint: self.constraint.as_ref().map(|constraint| constraint.copy()),
            text: self.text.clone(),
            untold: self.beam.as_ref().map(|beam| beam.untold.clone()).unwrap_or_default(),
        }
    }

    /// From here on it goes on with this.
    pub(crate) fn adopt_prefix(&mut self, stem: BeamPrefix) {
        let BeamPrefix { tokens, n_predicted, sampler, constraint, text, untold } = stem;
        (self.tokens, self.n_predicted, self.sampler, self.constraint, self.text) =
            (tokens, n_predicted, sampler, constraint, text);
        if let Some(beam) = &mut self.beam {
            (beam.is_live, beam.untold, beam.proposals) = (true, untold, None);
        }
    }

    /// It has no text any more, and waits for one to go on with.
    pub(crate) fn drop_text(&mut self) {
        if let Some(beam) = &mut self.beam {
            (beam.is_live, beam.proposals) = (false, None);
            beam.untold.clear();
        }
    }

    /// A token that a search has chosen, which makes its text worth so much and puts it at this place.
    pub(crate) fn write(&mut self, written: BeamToken, worth: BeamScore, place: u32, runner: &impl Runner) {
        let token = written.token;
        self.tokens.push(token);
        self.n_predicted += 1;
        self.sampler.accept(token);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        self.text.push(|bytes| append_text(token, &self.request, runner, bytes));
        if let Some(beam) = &mut self.beam {
            beam.untold.push(written);
            (beam.worth, beam.place, beam.proposals) = (worth, place, None);
        }
    }

    /// Its prompt alone.
    pub(crate) fn tokens_of_prompt(&self) -> Tokens {
        self.tokens.of_prompt()
    }

    /// Tokens were drawn at `now`, for whichever beams.
    pub(crate) fn tick(&mut self, now: std::time::Instant) {
        self.clock.draw(now);
    }
}

/// How much of a text a stream has heard.
#[derive(Debug, Clone)]
pub(crate) struct TextCursor {
    text: Text,
    /// In tokens.
    pub(crate) n_told: u32,
}

impl TextCursor {
    /// The text that becomes safe to show with `token`; with the last one, that is all of the rest.
    pub(crate) fn tell(&mut self, of: &Sequence, token: Token, is_last: bool, runner: &impl Runner) -> SmolStr {
        self.n_told += 1;
        let TextDelta { text, .. } = self.text.push(|bytes| append_text(token, of.request(), runner, bytes));
        if !is_last {
            return text;
        }
        let rest = self.rest();
        if rest.is_empty() { text } else { [text, rest].concat().into() }
    }

    /// What was held back, since nothing follows it.
    pub(crate) fn rest(&mut self) -> SmolStr {
        self.text.finish()
    }
}
