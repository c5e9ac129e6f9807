//! A completion that is a beam of a search.

use crate::engine::features::beams::selection::{BeamScore, Extension, propose_drawn, propose_likeliest};
use crate::engine::runner::Runner;
use crate::engine::scheduler::sequence::text::{Text, TextDelta};
use crate::engine::scheduler::sequence::{ScoredToken, Sequence, Tokens};
use crate::request::{BeamSearch, Constraint, FinishReason, Logprobs, Request, Token};
use crate::sampling::draw::rng::Mt19937;
use crate::sampling::{self, AllowedTokens, Sampler};
use smol_str::SmolStr;

pub(crate) struct Beam {
    pub(crate) search: BeamSearch,
    /// True if it has a text; if not, its slot waits for one to continue.
    pub(crate) is_live: bool,
    /// Rank when it was last chosen, 0 for the best.
    pub(crate) rank: u32,
    pub(crate) score: BeamScore,
    pub(crate) unpublished: Vec<ScoredToken>,
    /// `Some` once its last token is computed.
    pub(crate) proposals: Option<Vec<ProposedToken>>,
    pub(crate) results: Option<Box<SearchResults>>,
}

/// The first beam keeps them, whether or not it is live.
pub(crate) struct SearchResults {
    pub(super) cursor: TextCursor,
    /// All texts of the search begin with these tokens.
    pub(crate) published: Vec<Token>,
    /// Finished texts, best first; at most one per beam.
    pub(crate) texts: Vec<FinishedText>,
}

pub(crate) struct FinishedText {
    pub(crate) unpublished: Vec<ScoredToken>,
    pub(crate) reason: FinishReason,
    /// Order among the texts; greater is better.
    pub(crate) rank: f64,
    pub(crate) score: f64,
}

pub(crate) struct ProposedToken {
    pub(crate) extension: Extension,
    pub(crate) logprobs: Option<Box<Logprobs>>,
}

pub(super) struct BeamPrefix {
    tokens: Tokens,
    n_predicted: u32,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    text: Text,
    unpublished: Vec<ScoredToken>,
}

impl Beam {
    pub(crate) fn new(search: BeamSearch, index: u32, text: &Text) -> Self {
        let cursor = || TextCursor { text: text.clone(), n_published: 0 };
        let results =
            (index == 0).then(|| Box::new(SearchResults { cursor: cursor(), published: Vec::new(), texts: Vec::new() }));
        Self { search, is_live: index == 0, rank: 0, score: BeamScore::EMPTY, unpublished: Vec::new(), proposals: None, results }
    }
}

impl Sequence {
    /// Proposes next tokens from `logits`, on any thread; the search chooses among the proposals of all beams.
    pub(crate) fn propose(&mut self, logits: &[f32]) {
        let distribution = self.distribution(logits);
        let Some(beam) = &self.features.beams else { return };
        let width = beam.search.width as usize;
        let proposals = if beam.search.is_stochastic {
            // Beams that continue the same text sample independently.
            propose_drawn(
                &distribution,
                beam.score,
                width,
                &mut Mt19937::derived(self.request.seed, 1 + self.n_predicted, beam.rank),
            )
        } else {
            propose_likeliest(&distribution, beam.score, 2 * width)
        };
        let to_proposed = |extension: Extension| ProposedToken { extension, logprobs: self.logprobs_of(extension.token, logits) };
        let proposed = proposals.into_iter().map(to_proposed).collect();
        if let Some(beam) = &mut self.features.beams {
            beam.proposals = Some(proposed);
        }
    }

    /// Returns the distribution after the samplers and the constraint; only the end token if the constraint allows no other.
    fn distribution(&mut self, logits: &[f32]) -> Vec<(Token, f64)> {
        let candidates = match sampling::next_allowed(self.constraint.as_deref_mut(), logits) {
            AllowedTokens::Any(row) => self.sampler.distribution(&row),
            AllowedTokens::Forced(token) => {
                let logit_of = |id| if id == token { 0.0 } else { f32::NEG_INFINITY };
                let row: Vec<f32> = (0..).zip(logits).map(|(id, _)| logit_of(id)).collect();
                // The reported logprobs are read from the sampler's chain.
                self.sampler.distribution(&row);
                vec![(token, 0.0)]
            }
        };
        let is_over = candidates.is_empty() && self.constraint.is_some();
        if is_over { self.end_token.map(|token| (token, 0.0)).into_iter().collect() } else { candidates }
    }

    pub(crate) fn end_with(&self, token: Token, runner: &impl Runner) -> Option<FinishReason> {
        let delta = self.text.clone().push_token(token, &self.request, runner);
        self.finish_reason(&delta, token, 1, runner)
    }

    pub(super) fn prefix(&self) -> BeamPrefix {
        BeamPrefix {
            tokens: self.tokens.clone(),
            n_predicted: self.n_predicted,
            // Without the state of the last row; a beam takes no number from its generator.
            sampler: self.sampler.branch(self.request.seed),
            constraint: self.constraint.clone(),
            text: self.text.clone(),
            unpublished: self.features.beams.as_ref().map(|beam| beam.unpublished.clone()).unwrap_or_default(),
        }
    }

    pub(super) fn adopt_prefix(&mut self, prefix: BeamPrefix) {
        (self.tokens, self.n_predicted, self.sampler) = (prefix.tokens, prefix.n_predicted, prefix.sampler);
        (self.constraint, self.text) = (prefix.constraint, prefix.text);
        if let Some(beam) = &mut self.features.beams {
            (beam.is_live, beam.unpublished, beam.proposals) = (true, prefix.unpublished, None);
        }
    }

    pub(crate) fn drop_text(&mut self) {
        if let Some(beam) = &mut self.features.beams {
            (beam.is_live, beam.proposals) = (false, None);
            beam.unpublished.clear();
        }
    }

    pub(crate) fn write(&mut self, chosen: ScoredToken, score: BeamScore, rank: u32, runner: &impl Runner) {
        let token = chosen.token;
        self.append(token);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        self.text.push_token(token, &self.request, runner);
        if let Some(beam) = &mut self.features.beams {
            beam.unpublished.push(chosen);
            (beam.score, beam.rank, beam.proposals) = (score, rank, None);
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct TextCursor {
    text: Text,
    pub(crate) n_published: u32,
}

impl TextCursor {
    pub(crate) fn advance(&mut self, request: &Request, token: Token, is_last: bool, runner: &impl Runner) -> SmolStr {
        self.n_published += 1;
        let TextDelta { text, .. } = self.text.push_token(token, request, runner);
        if is_last { self.text.finish_after(text) } else { text }
    }

    pub(crate) fn remaining_text(&mut self) -> SmolStr {
        self.text.finish()
    }
}
