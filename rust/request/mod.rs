//! Requests and the events of their streams: plain data that crosses threads.
#![expect(missing_docs, reason = "items with a clear name and type need no comment")]

mod constraint;
mod diversity;
mod event;
mod explanation;
mod media;
mod reasoning;
mod sampler_kind;
mod sampling;
mod spacing;
mod speculation;
mod trigger;

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub use constraint::{Constraint, ConstraintSource, SharedConstraint};
pub use diversity::{BeamSearch, Diversity, MAX_LENGTH_PENALTY, MIN_BEAMS};
pub use event::{Event, FinishReason, Finished, Logprob, Logprobs, Progress, PromptLogprobs, TaskResult, TokenEvent, Usage};
pub use explanation::{BEGINNING, Cause, ComputedRun, EarlierRequest, EvictionCause, Explanation};
pub use media::{Encoding, MEDIA_MARKER, Media, Medium, PlacedMedia, is_of_medium};
pub use reasoning::{MAX_CLOSING, MAX_MARKER_BYTES, MAX_MARKERS, Reasoning};
pub use sampler_kind::SamplerKind;
pub use sampling::{Dry, MAX_BREAKER_BYTES, MAX_BREAKERS, MAX_PROBS, MAX_SAMPLERS, Mirostat, SamplingParams};
pub use spacing::Spacing;
pub use speculation::{MAX_DRAFT, Replay, Speculation};
pub use trigger::Trigger;

use crate::error::{Error, Result};

/// A token id of the model's vocabulary, `0 ≤ id < n_vocab`.
pub type Token = i32;

/// An adapter index, counted from 0, and the factor that scales the adapter's change of the weights.
pub type AdapterScale = (u32, f32);

pub const MAX_COMPLETIONS: u32 = 256;

/// Maximum length of [`Request::stop`]; every token is checked against all of them.
pub const MAX_STOPS: usize = 256;

pub const MAX_STOP_BYTES: usize = 65_536;

/// Logprobs of one prompt, top ones included: some hundreds of megabytes if a slow consumer leaves them buffered.
pub const MAX_PROMPT_PROBS: usize = 1 << 21;

/// Highest [`Request::priority`]; the lowest is `-MAX_PRIORITY`.
pub const MAX_PRIORITY: i32 = 100;

pub const LONGEST_GAP: Duration = Duration::from_secs(60);

pub const MAX_CHECKPOINTS: usize = 16;

pub const MAX_PRESERVED: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PromptRun {
    Tokens(Vec<Token>),
    Media(Media),
}

impl PromptRun {
    pub fn n_tokens(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Media(media) => media.n_tokens() as usize,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt {
    runs: Vec<PromptRun>,
}

impl Prompt {
    pub fn from_tokens(tokens: Vec<Token>) -> Self {
        Self { runs: vec![PromptRun::Tokens(tokens)] }
    }

    pub(crate) fn runs(&self) -> &[PromptRun] {
        &self.runs
    }

    pub fn push(&mut self, run: PromptRun) {
        if run.n_tokens() > 0 {
            self.runs.push(run);
        }
    }

    pub fn n_tokens(&self) -> usize {
        self.runs.iter().map(PromptRun::n_tokens).sum()
    }

    pub(crate) fn media(&self) -> Vec<PlacedMedia> {
        let (mut end, mut placed) = (0, Vec::new());
        for run in &self.runs {
            let start = end;
            end += u32::try_from(run.n_tokens()).expect("a prompt has fewer than 2³² tokens");
            if let PromptRun::Media(media) = run {
                placed.push(PlacedMedia { start, media: media.clone() });
            }
        }
        placed
    }

    pub(crate) fn has_media(&self) -> bool {
        self.runs.iter().any(|run| matches!(run, PromptRun::Media(_)))
    }

    pub fn ids(&self) -> impl Iterator<Item = Token> {
        self.runs.iter().flat_map(|run| {
            let (tokens, media) = match run {
                PromptRun::Tokens(tokens) => (tokens.as_slice(), None),
                PromptRun::Media(media) => (&[][..], Some(media)),
            };
            tokens.iter().copied().chain(media.into_iter().flat_map(Media::ids))
        })
    }

    /// One id per position: of tokens, and of media.
    pub(crate) fn into_tokens(mut self) -> Vec<Token> {
        match self.runs.as_mut_slice() {
            [PromptRun::Tokens(tokens)] => std::mem::take(tokens),
            _ => self.ids().collect(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub enum Task {
    #[default]
    Complete,
    Pin,
    Save {
        /// If false, only the cached prefix is copied.
        computes: bool,
    },
    Load(Arc<SavedPrefix>),
}

/// The computed state of a prompt, readable by the same model with the same cache configuration.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SavedPrefix {
    pub tokens: Vec<Token>,
    /// Copies of consecutive cell runs that cover the prompt from 0 to its end.
    pub runs: Vec<SavedRun>,
    /// Logits after the prompt, for memories whose state cannot be truncated to compute them again.
    pub logits: Option<Vec<f32>>,
    pub adapters: Vec<AdapterScale>,
    pub invoked_at: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SavedRun {
    pub range: Range<u32>,
    /// State in the format of [`Runner::save`](crate::engine::runner::Runner::save).
    pub bytes: Arc<[u8]>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PinnedPrefix {
    pub id: u64,
    pub tokens: Vec<Token>,
    /// Size of the computed state in the device cache or the host cache, in bytes, shared cells included.
    pub n_bytes: u64,
    pub adapters: Vec<AdapterScale>,
    pub invoked_at: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct SlotContents {
    pub tokens: Vec<Token>,
    pub adapters: Vec<AdapterScale>,
    pub invoked_at: Option<u32>,
}

/// Context shift: a completion whose context is full drops tokens of its middle, computes the rest again, and continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextShift {
    /// Tokens to keep at the beginning, BOS included, never the last four of the context; `None` keeps the whole prompt.
    pub n_keep: Option<u32>,
    /// Computed tokens to drop after the kept ones, but never all of them; 0 drops half.
    pub n_discard: u32,
}

/// A client's request: one prompt, `n` completions. The derived default is not valid.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent options of a request")]
pub struct Request {
    pub prompt: Prompt,
    /// Tokens after the prompt that belong to one of several [branches](crate::engine::Engine::submit_branches).
    pub suffix: Vec<Token>,
    /// Number of completions, `1 ≤ n ≤` [`MAX_COMPLETIONS`].
    pub n: u32,
    pub diversity: Diversity,
    /// Maximum tokens of one completion; `None` generates until the context is full, 0 only computes the prompt.
    pub max_tokens: Option<u32>,
    /// Strings that end a completion, at most [`MAX_STOPS`]; they are not part of its text.
    pub stop: Vec<String>,
    /// Branch `i` draws from a generator seeded with `seed + i` (modulo 2³²).
    pub seed: u32,
    pub sampling: SamplingParams,
    /// Adapters, each at most once; `None` is the set of the last
    /// [`Engine::set_adapters`](crate::engine::Engine::set_adapters). At most one is an activated `LoRA` (aLoRA), which applies
    /// from its invocation tokens on.
    pub adapters: Option<Vec<AdapterScale>>,
    /// First token that the activated `LoRA` applies to; `None` selects the last occurrence of its invocation tokens.
    pub invoked_at: Option<u32>,
    pub constraint: Option<SharedConstraint>,
    pub speculation: Speculation,
    pub reasoning: Option<Arc<Reasoning>>,
    /// Tokens that appear in the text even if they are control or end tokens; at most [`MAX_PRESERVED`].
    pub preserved_tokens: Vec<Token>,
    /// `None` ends a completion whose context is full.
    pub context_shift: Option<ContextShift>,
    /// −[`MAX_PRIORITY`] to [`MAX_PRIORITY`], higher first. One unit outweighs
    /// [`STARTS_PER_PRIORITY`](crate::engine::STARTS_PER_PRIORITY) starts of later branches, so that no request starves.
    pub priority: i32,
    /// Maximum pause between tokens due to prefill of others, 1 ms to [`LONGEST_GAP`]; `None` uses the engine's.
    pub max_token_gap: Option<Duration>,
    /// Maximum tokens of its prompt in one step, at least 1; `None` leaves the chunk size to the scheduler.
    pub max_chunk: Option<u32>,
    /// Ends a completion at the first newline that it generates later than this after its first token.
    pub max_predict_time: Option<Duration>,
    /// Ends a completion at a line, after its first, with fewer characters of indentation than this; 0 is off.
    pub n_indent: u32,
    pub uses_cache: bool,
    /// Top logprobs per prompt token, in addition to its own; at most [`MAX_PROBS`], and [`MAX_PROMPT_PROBS`] in total.
    pub prompt_logprobs: Option<u32>,
    /// First prompt token whose logprobs are reported; tokens before its predecessor can come from the cache.
    pub prompt_logprobs_from: u32,
    pub reports_progress: bool,
    /// Positions of further checkpoints in the prompt, in order, at most [`MAX_CHECKPOINTS`], for memories that cannot be
    /// truncated: a prompt that shares only the tokens before one resumes there.
    pub checkpoints_at: Vec<u32>,
    /// Replaces text of the prompt that was generated for the same owner by the generated tokens, to match the cache.
    pub keeps_answers: bool,
    pub explains_cache: bool,
    /// Owner of the request; `None` is one owner too. An explanation contains no text of other owners.
    pub owner: Option<Arc<str>>,
    /// Index of the prompt token after the system message; `None` if there is no system message or its end is unknown.
    pub system_end: Option<u32>,
    /// Preferred slot of the first branch, used if it is free; [`Task::Load`] waits for it.
    pub slot: Option<u32>,
    /// Every task but [`Task::Complete`] has one branch that generates no tokens.
    pub task: Task,
}

pub(crate) fn reject<T>(param: &'static str, message: impl Into<String>) -> Result<T> {
    Err(Error::InvalidRequest { param, message: message.into() })
}

#[cfg(test)]
fn rejected_param_of(result: Result<()>) -> Option<&'static str> {
    match result {
        Ok(()) => None,
        Err(Error::InvalidRequest { param, .. }) => Some(param),
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn ensure(holds: bool, param: &'static str, message: impl Display) -> Result<()> {
    if holds { Ok(()) } else { reject(param, message.to_string()) }
}

pub(crate) fn ensure_value(is_valid: bool, param: &'static str, value: impl Display, valid: impl Display) -> Result<()> {
    ensure(is_valid, param, format_args!("{param} is {value}; it must be {valid}"))
}

fn ensure_at_most(param: &'static str, n: Option<u32>, max: u32) -> Result<()> {
    n.map_or(Ok(()), |n| ensure_value(n <= max, param, n, format_args!("0 to {max}")))
}

fn validate_len(param: &'static str, n: usize, unit: &str, max: usize) -> Result<()> {
    ensure(n <= max, param, format_args!("{param} has {n} {unit}; at most {max} are allowed"))
}

pub(crate) fn is_in_vocabulary(token: Token, n_vocab: usize) -> bool {
    usize::try_from(token).is_ok_and(|id| id < n_vocab)
}

pub(crate) fn validate_tokens<'a>(
    param: &'static str,
    tokens: impl IntoIterator<Item = &'a Token>,
    n_vocab: usize,
) -> Result<()> {
    match tokens.into_iter().find(|&&token| !is_in_vocabulary(token, n_vocab)) {
        Some(token) => reject(param, format!("token {token} is not in the vocabulary ({n_vocab} tokens)")),
        None => Ok(()),
    }
}

pub(crate) fn validate_adapters(adapters: &[AdapterScale], n_adapters: u32) -> Result<()> {
    for (i, &(id, scale)) in adapters.iter().enumerate() {
        if id >= n_adapters {
            let loaded = match n_adapters {
                0 => "none is loaded".to_owned(),
                n => format!("there are {n}, counted from 0"),
            };
            return reject("adapters", format!("adapters has {id}; {loaded}"));
        }
        let message = format_args!("adapters has a scale of {scale} for {id}; it must be a finite number");
        ensure(scale.is_finite(), "adapters", message)?;
        let is_new = adapters[..i].iter().all(|&(other, _)| other != id);
        ensure(is_new, "adapters", format_args!("adapters has {id} twice"))?;
    }
    Ok(())
}

impl Request {
    pub fn new(prompt: Prompt, seed: u32) -> Self {
        Self { prompt, seed, n: 1, uses_cache: true, ..Self::default() }
    }

    pub fn n_tokens(&self) -> usize {
        self.prompt.n_tokens() + self.suffix.len()
    }

    /// Returns true if two branches of one stream can share all computed tokens and the logits after them.
    pub(crate) fn can_share_prompt_with(&self, other: &Self) -> bool {
        let prompt_fields = |r: &Self| (r.priority, r.slot, r.uses_cache, r.keeps_answers, r.max_chunk, r.owner.clone());
        prompt_fields(self) == prompt_fields(other)
            && self.task == other.task
            && self.suffix == other.suffix
            && self.checkpoints_at == other.checkpoints_at
            && self.prompt == other.prompt
    }

    /// Creates a request that computes `prompt`, or reuses its cached prefix, for `task`.
    pub fn for_task(prompt: Prompt, task: Task) -> Self {
        Self { max_tokens: Some(0), task, ..Self::new(prompt, 0) }
    }

    pub(crate) fn validate(&self, n_vocab: usize) -> Result<()> {
        for run in self.prompt.runs() {
            if let PromptRun::Tokens(tokens) = run {
                validate_tokens("prompt", tokens, n_vocab)?;
            }
        }
        validate_tokens("suffix_prompt", &self.suffix, n_vocab)?;
        validate_tokens("prediction", self.speculation.prediction.iter(), n_vocab)?;
        ensure_at_most("max_draft", self.speculation.max_draft, MAX_DRAFT)?;
        ensure(self.prompt.n_tokens() > 0, "prompt", "the prompt is empty; it must have at least one token")?;
        self.validate_task()?;
        self.validate_media()?;
        ensure_value((1..=MAX_COMPLETIONS).contains(&self.n), "n", self.n, format_args!("1 to {MAX_COMPLETIONS}"))?;
        let n_stop_bytes: usize = self.stop.iter().map(String::len).sum();
        if self.stop.len() > MAX_STOPS || n_stop_bytes > MAX_STOP_BYTES {
            let limit = format!("at most {MAX_STOPS} strings of {MAX_STOP_BYTES} bytes in total are allowed");
            return reject("stop", format!("stop has {} strings of {n_stop_bytes} bytes in total; {limit}", self.stop.len()));
        }
        ensure(!self.stop.iter().any(String::is_empty), "stop", "stop has an empty string; remove it")?;
        ensure_at_most("prompt_logprobs", self.prompt_logprobs, MAX_PROBS)?;
        let (from, n_prompt) = (self.prompt_logprobs_from, self.n_tokens());
        if from > 0 && self.prompt_logprobs.is_none() {
            return reject("prompt_logprobs_from", "prompt_logprobs_from needs prompt_logprobs; set that too");
        }
        let valid = format_args!("below the prompt's {n_prompt} tokens");
        ensure_value((from as usize) < n_prompt, "prompt_logprobs_from", from, valid)?;
        let n_logprobs = self.prompt_logprobs.map_or(0, |n| (n as usize + 1) * (n_prompt - from as usize));
        if n_logprobs > MAX_PROMPT_PROBS {
            let limit = format!("a prompt has at most {MAX_PROMPT_PROBS} of them; ask for fewer or shorten the prompt");
            return reject("prompt_logprobs", format!("prompt_logprobs asks for {n_logprobs} log-probabilities; {limit}"));
        }
        let valid = format_args!("{} to {MAX_PRIORITY}", -MAX_PRIORITY);
        ensure_value((-MAX_PRIORITY..=MAX_PRIORITY).contains(&self.priority), "priority", self.priority, valid)?;
        if let Some(gap) = self.max_token_gap {
            let is_valid = (Duration::from_millis(1)..=LONGEST_GAP).contains(&gap);
            let valid = format_args!("1 to {}", LONGEST_GAP.as_millis());
            ensure_value(is_valid, "max_token_gap_ms", gap.as_secs_f64() * 1e3, valid)?;
        }
        ensure_value(self.max_chunk != Some(0), "n_batch", 0, "at least 1")?;
        self.validate_checkpoints()?;
        validate_len("preserved_tokens", self.preserved_tokens.len(), "tokens", MAX_PRESERVED)?;
        validate_tokens("preserved_tokens", &self.preserved_tokens, n_vocab)?;
        self.reasoning.as_ref().map_or(Ok(()), |reasoning| reasoning.validate(n_vocab))?;
        self.diversity.validate(self)?;
        self.sampling.validate(n_vocab)
    }

    fn validate_checkpoints(&self) -> Result<()> {
        let (positions, n_prompt) = (&self.checkpoints_at, self.n_tokens());
        validate_len("checkpoints_at", positions.len(), "positions", MAX_CHECKPOINTS)?;
        let is_sorted = positions.is_sorted_by(|a, b| a < b);
        ensure(is_sorted, "checkpoints_at", "checkpoints_at must be in ascending order without duplicates")?;
        let outside = positions.iter().find(|&&position| position == 0 || position as usize >= n_prompt);
        let limits = format_args!("a position must be above 0 and below the prompt's {n_prompt} tokens");
        outside.map_or(Ok(()), |position| reject("checkpoints_at", format!("checkpoints_at has {position}; {limits}")))
    }

    fn validate_media(&self) -> Result<()> {
        if !self.prompt.has_media() {
            return Ok(());
        }
        if matches!(self.prompt.runs().last(), Some(PromptRun::Media(_))) && self.suffix.is_empty() {
            return reject("prompt", "the prompt ends with an image or audio; add text after it");
        }
        let logprobs = ("prompt_logprobs", self.prompt_logprobs.is_some());
        for (param, is_set) in [logprobs, ("context_shift", self.context_shift.is_some())] {
            ensure(!is_set, param, format_args!("{param} is not supported for a prompt with images or audio; leave it out"))?;
        }
        match self.task {
            Task::Complete | Task::Pin => Ok(()),
            Task::Save { .. } | Task::Load(_) => {
                reject("prompt", "a prompt with images or audio cannot be saved to a file; remove them")
            }
        }
    }

    fn validate_task(&self) -> Result<()> {
        if self.task == Task::Complete {
            return Ok(());
        }
        if !self.suffix.is_empty() {
            return reject("suffix_prompt", "suffix_prompt is only supported for completions; append it to the prompt");
        }
        if self.n != 1 || self.max_tokens != Some(0) {
            return reject("n", "a prompt that is only computed has one branch without tokens; set n to 1 and max_tokens to 0");
        }
        let Task::Load(saved) = &self.task else { return Ok(()) };
        let is_prompt_equal = self.prompt.ids().eq(saved.tokens.iter().copied());
        let mut end = 0;
        let is_contiguous = saved.runs.iter().all(|run| {
            let follows = run.range.start == end && run.range.end > end;
            end = run.range.end;
            follows
        });
        let is_covered = is_prompt_equal && is_contiguous && end as usize == saved.tokens.len();
        ensure(is_covered, "prompt", "the saved runs must cover the prompt exactly, in order and without gaps")
    }
}
