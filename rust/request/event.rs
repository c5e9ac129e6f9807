//! What a stream yields.

use smol_str::SmolStr;

use crate::request::{Explanation, PinnedPrefix, SavedPrefix, Token};

/// What a stream yields.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// One token of one branch.
    Token(TokenEvent),
    /// The end of one branch; exactly one per branch, after its last token.
    Finished(Finished),
    /// How far the prompt is computed, where [`Request::reports_progress`](crate::request::Request::reports_progress) asks for it:
    /// at the start, and after each decode that computed a part of it.
    Progress(Progress),
    /// Log-probabilities of a stretch of the prompt, where
    /// [`Request::prompt_logprobs`](crate::request::Request::prompt_logprobs) asks for them: in order, before the first token.
    PromptLogprobs(PromptLogprobs),
}

impl Event {
    /// Bytes that it takes while it waits to be read, about.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        let of_logprobs = |logprobs: &Logprobs| Logprobs::n_bytes(logprobs.top.len());
        size_of::<Self>()
            + match self {
                Self::Token(token) => token.text.len() + token.logprobs.as_deref().map_or(0, of_logprobs),
                Self::PromptLogprobs(prompt) => prompt.logprobs.iter().flatten().map(of_logprobs).sum(),
                // What a task makes is all that its stream holds.
                Self::Finished(finished) => finished.text.len() + finished.explanation.as_deref().map_or(0, Explanation::n_bytes),
                Self::Progress(_) => 0,
            }
    }
}

/// How far a prompt is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// The prompt's length in tokens.
    pub n_prompt: u32,
    /// Of these, found computed.
    pub n_cached: u32,
    /// Computed by now, those that were found included.
    pub n_processed: u32,
    /// Milliseconds since the start in a slot.
    pub ms: f64,
}

/// Log-probabilities of a stretch of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptLogprobs {
    /// The stretch begins with this token of the prompt.
    pub start: u32,
    /// Of each token after all those before it; `None` for the prompt's first, which comes after nothing.
    pub logprobs: Vec<Option<Logprobs>>,
}

/// One token of one branch.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenEvent {
    /// Which branch, `0 ≤ index < n`.
    pub index: u32,
    /// The token that was drawn; an end token is reported too.
    pub token: Token,
    /// Text that became safe to show with this token: empty while bytes are held back. The texts of a branch join to its whole answer.
    ///
    /// Up to 23 bytes lie in the event itself: few tokens are longer, and so few events need an allocation.
    pub text: SmolStr,
    /// The slot that the branch runs in.
    pub slot: u32,
    /// Tokens of this branch so far, this one included.
    pub n_predicted: u32,
    /// Log-probabilities, where [`SamplingParams::n_probs`] asks for them.
    pub logprobs: Option<Box<Logprobs>>,
}

/// Log-probabilities (natural logarithm) under the model's raw distribution, before bias, penalties and filters.
///
/// Where [`SamplingParams::post_sampling_probs`](crate::request::SamplingParams::post_sampling_probs) asks for it, of what the
/// samplers left instead: then fewer tokens are listed where fewer were left, and none that could not be drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// Of the token that was drawn, or that the prompt has there.
    pub chosen: Logprob,
    /// The most likely tokens, most likely first.
    pub top: Vec<Logprob>,
}

impl Logprobs {
    /// Bytes that they count for with `n` of the most likely tokens: about what they come to for whoever reads them, where each
    /// token is spelt out. While they wait they take an eighth of that.
    #[must_use]
    pub const fn n_bytes(n: usize) -> usize {
        (1 + n) * 64
    }
}

/// One token with its log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logprob {
    /// The token id.
    pub token: Token,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// The end of one branch.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Which branch, `0 ≤ index < n`.
    pub index: u32,
    /// The slot that the branch ran in; `None` where it was cancelled before it was in one.
    pub slot: Option<u32>,
    /// Why it ended.
    pub reason: FinishReason,
    /// The end of its text, where that was held back in case a stop string followed and no token came to show it; else empty.
    pub text: SmolStr,
    /// What it cost.
    pub usage: Usage,
    /// Whether its context was full: tokens were dropped from its beginning to go on, or there was no room for another one.
    pub is_truncated: bool,
    /// What a task other than [`Task::Complete`] and [`Task::Load`] made.
    pub made: Option<Box<TaskResult>>,
    /// What ranks it among the others of a search: the logarithm of its text's probability, divided by the number of its tokens
    /// raised to [`BeamSearch::length_penalty`](crate::request::BeamSearch::length_penalty), or that logarithm itself where the
    /// search is stochastic. `None` for all others, and where it has found too few.
    pub score: Option<f64>,
    /// Why what was computed of the prompt had to be, where [`Request::explains_cache`](crate::request::Request::explains_cache) asks
    /// for it; in the first branch alone.
    pub explanation: Option<Box<Explanation>>,
}

/// What a task made.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskResult {
    /// By [`Task::Pin`].
    Pinned(PinnedPrefix),
    /// By [`Task::Save`].
    Saved(SavedPrefix),
}

/// Why a branch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model drew an end token.
    End,
    /// The text reached this stop string, which is not part of it.
    Stop(String),
    /// A limit that the request sets was reached: of tokens, of time, or a line with too little indentation.
    Length,
    /// The context was full before that.
    ContextFull,
    /// It alone was cancelled: by [`Completions::cancel_branch`](crate::engine::Completions::cancel_branch).
    Cancelled,
}

/// What one branch cost.
///
/// `n_computed + n_cached` is the prompt's length in every branch: the branch that computed a token counts it in `n_computed`,
/// the others in `n_cached`, so that the branches' `n_computed` add up to what was really computed. Of a branch that was cancelled
/// they are as much of the prompt as it had by then.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// Prompt tokens computed by this branch.
    pub n_computed: u32,
    /// Prompt tokens that this branch found computed.
    pub n_cached: u32,
    /// Tokens drawn, an end token included.
    pub n_predicted: u32,
    /// Tokens of the branch that were computed and in its context at its end: of the prompt, and of the prediction all but the
    /// last; fewer where the context was shifted.
    pub n_held: u32,
    /// Milliseconds from the start in a slot to the first token.
    pub prompt_ms: f64,
    /// Milliseconds from the first token to the last.
    pub predicted_ms: f64,
}
