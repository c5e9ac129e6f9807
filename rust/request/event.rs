//! Events of a stream.

use smol_str::SmolStr;

use crate::request::{Explanation, PinnedPrefix, SavedPrefix, Token};

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Token(TokenEvent),
    /// Published exactly once per branch, after its last token.
    Finished(Finished),
    /// Progress at the start and after each decode of the prompt, if
    /// [`Request::reports_progress`](crate::request::Request::reports_progress).
    Progress(Progress),
    /// Logprobs in order, before the first token, if [`Request::prompt_logprobs`](crate::request::Request::prompt_logprobs) is
    /// set.
    PromptLogprobs(PromptLogprobs),
}

impl Event {
    /// Returns the approximate size while the event is queued, in bytes.
    pub fn n_bytes(&self) -> usize {
        let logprobs_bytes = |logprobs: &Logprobs| Logprobs::n_bytes(logprobs.top.len());
        size_of::<Self>()
            + match self {
                Self::Token(token) => token.text.len() + token.logprobs.as_deref().map_or(0, logprobs_bytes),
                Self::PromptLogprobs(prompt) => prompt.logprobs.iter().flatten().map(logprobs_bytes).sum(),
                // A task's result is not counted: it is the only event of its stream.
                Self::Finished(finished) => finished.text.len() + finished.explanation.as_deref().map_or(0, Explanation::n_bytes),
                Self::Progress(_) => 0,
            }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    pub n_prompt: u32,
    pub n_cached: u32,
    /// Prompt tokens available so far, cached ones included.
    pub n_processed: u32,
    pub ms: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PromptLogprobs {
    pub start: u32,
    /// Logprobs of each token given all preceding tokens; `None` for the first token of the prompt.
    pub logprobs: Vec<Option<Logprobs>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TokenEvent {
    /// Branch index in the stream: `0 ≤ index < n`, or above that for a fork.
    pub index: u32,
    pub token: Token,
    /// Text that this token completes. [`SmolStr`] stores up to 23 bytes inline, so that few events allocate.
    pub text: SmolStr,
    pub slot: u32,
    /// Tokens of this branch so far, this one included.
    pub n_predicted: u32,
    pub logprobs: Option<Box<Logprobs>>,
}

/// Natural logarithms, of the model's raw distribution, or, with
/// [`SamplingParams::post_sampling_probs`](crate::request::SamplingParams::post_sampling_probs), of the one after the samplers.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    pub chosen: Logprob,
    pub top: Vec<Logprob>,
}

impl Logprobs {
    /// Bytes that are charged for `n` top logprobs: their size at the consumer, which spells tokens out; here an eighth.
    pub const fn n_bytes(n: usize) -> usize {
        (1 + n) * 64
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logprob {
    pub token: Token,
    pub logprob: f32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Branch index in the stream: `0 ≤ index < n`, or above that for a fork.
    pub index: u32,
    /// The slot that the branch ran in; `None` if it was cancelled in the queue.
    pub slot: Option<u32>,
    pub reason: FinishReason,
    /// Rest of the text that was held back as a possible beginning of a stop string; usually empty.
    pub text: SmolStr,
    pub usage: Usage,
    /// The context was full: it was shifted, or the branch ended for lack of context.
    pub is_truncated: bool,
    /// Result of a task other than [`Task::Complete`] and [`Task::Load`].
    pub result: Option<Box<TaskResult>>,
    /// Rank in a beam search, see [`BeamSearch::length_penalty`](crate::request::BeamSearch::length_penalty). `None` for other
    /// requests, and for branches that the search could not fill.
    pub score: Option<f64>,
    /// Explanation of the first branch, if [`Request::explains_cache`](crate::request::Request::explains_cache) is set.
    pub explanation: Option<Box<Explanation>>,
}

impl Finished {
    pub(crate) fn without_tokens(index: u32, reason: FinishReason) -> Self {
        let (text, usage) = (SmolStr::default(), Usage::default());
        Self { index, slot: None, reason, text, usage, is_truncated: false, result: None, score: None, explanation: None }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum TaskResult {
    Pinned(PinnedPrefix),
    Saved(SavedPrefix),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model sampled this end token, or a constraint allowed no further token and the model has no end token.
    End(Option<Token>),
    /// The text reached this stop string, which is not part of the text.
    Stop(String),
    /// A limit of the request was reached: tokens, time, or indentation.
    Length,
    ContextFull,
    /// The branch alone was cancelled, by [`Completions::cancel_branch`](crate::engine::Completions::cancel_branch).
    Cancelled,
}

/// `n_prompt_computed + n_cached` is the available part of the prompt. Only the branch that computed a token counts it in
/// `n_prompt_computed`: the sum over all branches is the number of tokens really computed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    pub n_prompt_computed: u32,
    /// Prompt tokens that were cached or computed by another branch.
    pub n_cached: u32,
    /// Generated tokens, an end token included.
    pub n_predicted: u32,
    /// Tokens that were drafted for speculative decoding.
    pub n_drafted: u32,
    /// Of `n_drafted`, tokens that were generated.
    pub n_draft_accepted: u32,
    /// Computed tokens in the context at the end: the prompt and all but the last generated token; fewer after a context shift.
    pub n_context: u32,
    /// Milliseconds from getting a slot to the first token.
    pub prompt_ms: f64,
    /// Milliseconds from the first token to the last.
    pub predicted_ms: f64,
}
