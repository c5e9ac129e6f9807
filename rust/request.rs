//! What a caller asks for and what a stream yields: plain data that crosses threads.

use std::ops::Range;
use std::sync::Arc;

use smol_str::SmolStr;

use crate::error::{Error, Result};

/// A token id of the model's vocabulary, `0 ≤ id < n_vocab`.
pub type Token = i32;

/// Most completions that one [`Request`] may ask for.
pub const MAX_COMPLETIONS: u32 = 256;

/// Most alternatives per token that [`SamplingParams::n_probs`] may ask for.
pub const MAX_PROBS: u32 = 1_000;

/// Most stop strings of one [`Request`]: each token looks for all of them.
pub const MAX_STOPS: usize = 256;

/// Most bytes of all the stop strings of one [`Request`].
pub const MAX_STOP_BYTES: usize = 65_536;

/// A stretch of a prompt that enters the model in one way.
///
/// Text is tokens; media will be a run of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Run {
    /// Token ids, in order.
    Tokens(Vec<Token>),
}

/// A prompt: its runs, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt {
    runs: Vec<Run>,
}

impl Prompt {
    /// A prompt of one run of tokens.
    #[must_use]
    pub fn from_tokens(tokens: Vec<Token>) -> Self {
        Self { runs: vec![Run::Tokens(tokens)] }
    }

    /// The runs, in order.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Appends a run.
    pub fn push(&mut self, run: Run) {
        self.runs.push(run);
    }

    /// How many positions of the context the prompt takes.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.runs.iter().map(|Run::Tokens(tokens)| tokens.len()).sum()
    }

    /// The token ids, in order.
    #[must_use]
    pub fn into_tokens(self) -> Vec<Token> {
        let mut runs = self.runs.into_iter().map(|Run::Tokens(tokens)| tokens);
        let mut tokens = runs.next().unwrap_or_default();
        for run in runs {
            tokens.extend(run);
        }
        tokens
    }
}

/// How the next token is chosen from a row of logits.
///
/// The defaults and the order of the steps are llama-server's: logit bias, penalties, top-k, top-p, min-p, temperature, draw.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits before the draw; 0 or less takes the most likely token.
    pub temperature: f32,
    /// Keeps the k most likely tokens; 0 or less keeps all.
    pub top_k: i32,
    /// Keeps the smallest set of most likely tokens whose probabilities sum to this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides (or, where negative, multiplies) the logits of tokens seen in the window; 1 is off.
    pub repeat_penalty: f32,
    /// Window of the three penalties in tokens; 0 is off, −1 is the whole context.
    pub repeat_last_n: i32,
    /// Subtracted once from the logit of every token seen in the window.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token for each time it is seen in the window.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens; −∞ bans a token.
    pub logit_bias: Vec<(Token, f32)>,
    /// Bans every end token.
    pub ignore_eos: bool,
    /// Reports the log-probabilities of the chosen token and of this many most likely ones; 0 is off.
    pub n_probs: u32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            ignore_eos: false,
            n_probs: 0,
        }
    }
}

/// What becomes of a prompt once it is computed.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Task {
    /// It is continued.
    #[default]
    Complete,
    /// It stays computed until it is unpinned.
    Pin,
    /// It is copied out of the cache. With `computes` false, only as far as it is cached.
    Save {
        /// Whether what is not cached is computed first.
        computes: bool,
    },
    /// It is not computed, but taken from this copy.
    Load(Arc<SavedPrefix>),
}

/// The computed state of a prompt, outside of the cache. Its bytes mean something only to the same model with the same cache.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SavedPrefix {
    /// The prompt.
    pub tokens: Vec<Token>,
    /// Copies of stretches that follow each other from 0 to the prompt's end.
    pub pieces: Vec<SavedPiece>,
    /// The logits after the prompt, where the state cannot be cut to compute them again.
    pub logits: Option<Vec<f32>>,
}

/// The computed state of a stretch of tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedPiece {
    /// Which tokens of the prompt.
    pub range: Range<u32>,
    /// As [`Runner::save`](crate::engine::runner::Runner::save) made them.
    pub bytes: Arc<[u8]>,
}

/// A prefix that stays computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedPrefix {
    /// Names it when it is unpinned; counts up.
    pub id: u64,
    /// The prefix.
    pub tokens: Vec<Token>,
    /// What its computed state takes, in the pool or in the store, shared or not.
    pub n_bytes: u64,
}

/// What a caller asks for: one prompt, `n` completions.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// What is to be continued; at least one token.
    pub prompt: Prompt,
    /// How many completions, `1 ≤ n ≤` [`MAX_COMPLETIONS`].
    pub n: u32,
    /// Most tokens of one completion; `None` is until the context is full, 0 only computes the prompt.
    pub max_tokens: Option<u32>,
    /// Strings that end a completion, at most [`MAX_STOPS`]; none of them is part of its text.
    pub stop: Vec<String>,
    /// Branch `i` draws from a generator seeded with `seed + i` (modulo 2³²).
    pub seed: u32,
    /// How each branch chooses its tokens.
    pub sampling: SamplingParams,
    /// The slot that its first branch takes where that one is free; [`Task::Load`] waits for it.
    pub slot: Option<u32>,
    /// What becomes of the prompt. All but [`Task::Complete`] have one branch, which draws no token.
    pub task: Task,
}

impl Request {
    /// A request for one completion with default sampling.
    #[must_use]
    pub fn new(prompt: Prompt, seed: u32) -> Self {
        Self {
            prompt,
            n: 1,
            max_tokens: None,
            stop: Vec::new(),
            seed,
            sampling: SamplingParams::default(),
            slot: None,
            task: Task::Complete,
        }
    }

    /// A request that computes `prompt`, or takes what is cached of it, for `task`.
    #[must_use]
    pub fn for_task(prompt: Prompt, task: Task) -> Self {
        Self { max_tokens: Some(0), task, ..Self::new(prompt, 0) }
    }

    /// Checks every field against its range and the model's vocabulary of `n_vocab` pieces.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] names the first field that is out of range.
    pub fn validate(&self, n_vocab: usize) -> Result<()> {
        let in_vocab = |token: Token| usize::try_from(token).is_ok_and(|id| id < n_vocab);
        let sampling = &self.sampling;
        let refuse = |param: &'static str, message: String| Err(Error::InvalidRequest { param, message });
        for Run::Tokens(tokens) in self.prompt.runs() {
            if let Some(token) = tokens.iter().find(|&&token| !in_vocab(token)) {
                return refuse("prompt", format!("token {token} is outside of the vocabulary of {n_vocab} pieces"));
            }
        }
        if self.prompt.n_tokens() == 0 {
            return refuse("prompt", "the prompt holds no tokens; give at least one".into());
        }
        self.validate_task()?;
        if !(1..=MAX_COMPLETIONS).contains(&self.n) {
            return refuse("n", format!("n is {}; it must be 1 to {MAX_COMPLETIONS}", self.n));
        }
        let n_stop_bytes: usize = self.stop.iter().map(String::len).sum();
        if self.stop.len() > MAX_STOPS || n_stop_bytes > MAX_STOP_BYTES {
            let n_stops = self.stop.len();
            let limit = format!("at most {MAX_STOPS} of {MAX_STOP_BYTES} bytes together");
            return refuse("stop", format!("there are {n_stops} stop strings of {n_stop_bytes} bytes; they must be {limit}"));
        }
        if self.stop.iter().any(String::is_empty) {
            return refuse("stop", "a stop string is empty".into());
        }
        if sampling.n_probs > MAX_PROBS {
            return refuse("n_probs", format!("n_probs is {}; it must be 0 to {MAX_PROBS}", sampling.n_probs));
        }
        if sampling.repeat_last_n < -1 {
            return refuse("repeat_last_n", format!("repeat_last_n is {}; it must be −1 or more", sampling.repeat_last_n));
        }
        if !(sampling.repeat_penalty.is_finite() && sampling.repeat_penalty > 0.0) {
            return refuse("repeat_penalty", format!("repeat_penalty is {}; it must be above 0", sampling.repeat_penalty));
        }
        let finite = [
            ("temperature", sampling.temperature),
            ("top_p", sampling.top_p),
            ("min_p", sampling.min_p),
            ("presence_penalty", sampling.presence_penalty),
            ("frequency_penalty", sampling.frequency_penalty),
        ];
        if let Some((param, value)) = finite.into_iter().find(|(_, value)| !value.is_finite()) {
            return refuse(param, format!("{param} is {value}; it must be a finite number"));
        }
        if let Some((token, _)) = sampling.logit_bias.iter().find(|(token, _)| !in_vocab(*token)) {
            return refuse("logit_bias", format!("token {token} is outside of the vocabulary of {n_vocab} pieces"));
        }
        if let Some((token, bias)) = sampling.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            return refuse("logit_bias", format!("the bias of token {token} is {bias}; it must be a number or −∞"));
        }
        Ok(())
    }

    /// Checks what the task needs of the other fields.
    fn validate_task(&self) -> Result<()> {
        let refuse = |param: &'static str, message: &str| Err(Error::InvalidRequest { param, message: message.to_owned() });
        if self.task == Task::Complete {
            return Ok(());
        }
        if self.n != 1 || self.max_tokens != Some(0) {
            return refuse("n", "a prompt that is not continued has one branch of no tokens: set n to 1 and max_tokens to 0");
        }
        let Task::Load(saved) = &self.task else { return Ok(()) };
        let is_prompt = self.prompt.runs().iter().flat_map(|Run::Tokens(tokens)| tokens).eq(&saved.tokens);
        let mut end = 0;
        let is_whole = saved.pieces.iter().all(|piece| {
            let follows = piece.range.start == end && piece.range.end > end;
            end = piece.range.end;
            follows
        });
        if !is_prompt || !is_whole || end as usize != saved.tokens.len() {
            return refuse("prompt", "the saved pieces must hold all of the prompt, one after the other, and nothing else");
        }
        Ok(())
    }
}

/// What a stream yields.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// One token of one branch.
    Token(TokenEvent),
    /// The end of one branch; exactly one per branch, after its last token.
    Finished(Finished),
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
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// Of the token that was drawn.
    pub chosen: Logprob,
    /// The most likely tokens, most likely first.
    pub top: Vec<Logprob>,
}

/// One token with its log-probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprob {
    /// The token id.
    pub token: Token,
    /// The bytes that the token stands for, perhaps no whole character.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// The end of one branch.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Which branch, `0 ≤ index < n`.
    pub index: u32,
    /// The slot that the branch ran in.
    pub slot: u32,
    /// Why it ended.
    pub reason: FinishReason,
    /// What it cost.
    pub usage: Usage,
    /// What a task other than [`Task::Complete`] and [`Task::Load`] made.
    pub made: Option<Box<Made>>,
}

/// What a task made.
#[derive(Debug, Clone, PartialEq)]
pub enum Made {
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
    /// `max_tokens` was reached.
    Length,
    /// The context was full before `max_tokens` was reached.
    ContextFull,
}

/// What one branch cost.
///
/// `n_computed + n_cached` is the prompt's length in every branch: the branch that computed a token counts it in `n_computed`,
/// the others in `n_cached`, so that the branches' `n_computed` add up to what was really computed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// Prompt tokens computed by this branch.
    pub n_computed: u32,
    /// Prompt tokens that this branch found computed.
    pub n_cached: u32,
    /// Tokens drawn, an end token included.
    pub n_predicted: u32,
    /// Milliseconds from the start in a slot to the first token.
    pub prompt_ms: f64,
    /// Milliseconds from the first token to the last.
    pub predicted_ms: f64,
}
