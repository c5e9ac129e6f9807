//! What a caller asks for and what a stream yields: plain data that crosses threads.

mod constraint;
mod diversity;
mod event;
mod explanation;
mod media;
mod reasoning;
mod sampler_kind;
mod sampling;
mod trigger;

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
pub use trigger::Trigger;

use crate::error::{Error, Result};

/// A token id of the model's vocabulary, `0 ≤ id < n_vocab`.
pub type Token = i32;

/// An adapter, by its number from 0, and what its change of the weights is multiplied by.
pub type AdapterScale = (u32, f32);

/// Most completions that one [`Request`] may ask for.
pub const MAX_COMPLETIONS: u32 = 256;

/// Most stop strings of one [`Request`]: each token looks for all of them.
pub const MAX_STOPS: usize = 256;

/// Most bytes of all the stop strings of one [`Request`].
pub const MAX_STOP_BYTES: usize = 65_536;

/// Most log-probabilities of one prompt, those of the most likely tokens included: some hundreds of megabytes, where nobody reads
/// them.
pub const MAX_PROMPT_PROBS: usize = 1 << 21;

/// The highest [`Request::priority`]; the lowest is as far below 0.
pub const MAX_PRIORITY: i32 = 100;

/// The longest [`Request::max_token_gap`].
pub const LONGEST_GAP: Duration = Duration::from_secs(60);

/// Most places of [`Request::snapshots_at`]: each is a whole state to save.
pub const MAX_CHECKPOINTS: usize = 16;

/// Most of [`Request::preserved_tokens`].
pub const MAX_PRESERVED: usize = 256;

/// A stretch of a prompt that enters the model in one way.
///
/// Text is tokens; a picture or a sound is vectors.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Run {
    /// Token ids, in order.
    Tokens(Vec<Token>),
    /// A picture, a sound, or a part of one.
    Media(Media),
}

impl Run {
    /// How many positions of the context it takes.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Media(media) => media.n_tokens() as usize,
        }
    }
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

    /// Appends a run, where there is something in it.
    pub fn push(&mut self, run: Run) {
        if run.n_tokens() > 0 {
            self.runs.push(run);
        }
    }

    /// How many positions of the context the prompt takes.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.runs.iter().map(Run::n_tokens).sum()
    }

    /// The pictures and sounds, in order.
    #[must_use]
    pub fn media(&self) -> Vec<PlacedMedia> {
        let mut start = 0;
        let placed = self.runs.iter().filter_map(|run| {
            let at = start;
            start += u32::try_from(run.n_tokens()).expect("a prompt has fewer than 2³² tokens");
            match run {
                Run::Tokens(_) => None,
                Run::Media(media) => Some(PlacedMedia { start: at, media: media.clone() }),
            }
        });
        placed.collect()
    }

    /// Whether it has a picture or a sound.
    #[must_use]
    pub fn has_media(&self) -> bool {
        self.runs.iter().any(|run| matches!(run, Run::Media(_)))
    }

    /// What stands in each place, in order, one by one; as [`Prompt::into_tokens`].
    pub fn ids(&self) -> impl Iterator<Item = Token> {
        self.runs.iter().flat_map(|run| {
            let (tokens, media) = match run {
                Run::Tokens(tokens) => (tokens.as_slice(), None),
                Run::Media(media) => (&[][..], Some(media)),
            };
            tokens.iter().copied().chain(media.into_iter().flat_map(Media::ids))
        })
    }

    /// What stands in each place, in order: token ids, and the ids of media.
    #[must_use]
    pub fn into_tokens(self) -> Vec<Token> {
        let mut tokens = Vec::new();
        for run in self.runs {
            match run {
                Run::Tokens(run) if tokens.is_empty() => tokens = run,
                Run::Tokens(run) => tokens.extend(run),
                Run::Media(media) => tokens.extend(media.ids()),
            }
        }
        tokens
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
    /// The adapters that it was computed with, as those of a [`Request`].
    pub adapters: Vec<AdapterScale>,
    /// As of a [`Request`].
    pub invoked_at: Option<u32>,
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
#[derive(Debug, Clone, PartialEq)]
pub struct PinnedPrefix {
    /// Names it when it is unpinned; counts up.
    pub id: u64,
    /// The prefix.
    pub tokens: Vec<Token>,
    /// What its computed state takes, in the pool or in the store, shared or not.
    pub n_bytes: u64,
    /// The adapters that it was computed with, each with its scale.
    pub adapters: Vec<AdapterScale>,
    /// As of a [`Request`].
    pub invoked_at: Option<u32>,
}

/// What the last sequence of a slot has computed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SlotContents {
    /// The tokens.
    pub tokens: Vec<Token>,
    /// The adapters that they were computed with, each with its scale.
    pub adapters: Vec<AdapterScale>,
    /// As of a [`Request`].
    pub invoked_at: Option<u32>,
}

/// What a completion does whose context is full: it drops its middle, computes what follows again, and goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextShift {
    /// So many tokens of the beginning are kept, but never the last four that the context holds; `None` keeps the whole prompt. A
    /// token that begins every text is one of them, since only the vocabulary knows of it: whoever counts as llama-server does adds it.
    pub n_keep: Option<u32>,
    /// So many of the computed tokens after them are dropped, but never all; 0 drops half of those.
    pub n_discard: u32,
}

/// What a caller asks for: one prompt, `n` completions.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is asked for on its own")]
pub struct Request {
    /// What is to be continued; at least one token.
    pub prompt: Prompt,
    /// Tokens that follow the prompt: its own text of one branch of
    /// [`Engine::submit_branches`](crate::engine::Engine::submit_branches), where the prompt is what all of them share.
    pub suffix: Vec<Token>,
    /// How many completions, `1 ≤ n ≤` [`MAX_COMPLETIONS`].
    pub n: u32,
    /// What they have to do with each other.
    pub diversity: Diversity,
    /// Most tokens of one completion; `None` is until the context is full, 0 only computes the prompt.
    pub max_tokens: Option<u32>,
    /// Strings that end a completion, at most [`MAX_STOPS`]; none of them is part of its text.
    pub stop: Vec<String>,
    /// Branch `i` draws from a generator seeded with `seed + i` (modulo 2³²).
    pub seed: u32,
    /// How each branch chooses its tokens.
    pub sampling: SamplingParams,
    /// The adapters that prompt and completions are computed with, each at most once, by its number and with its scale; what is not
    /// named is off. `None` is what [`Engine::set_adapters`](crate::engine::Engine::set_adapters) said last. At most one of them is an
    /// activated one (aLoRA), which counts from its invocation on, and nowhere in a prompt that lacks that.
    pub adapters: Option<Vec<AdapterScale>>,
    /// From which token on its activated adapter counts; `None` is the last place of its invocation in the prompt.
    pub invoked_at: Option<u32>,
    /// What each branch is held to; the prompt is not told to it. It holds from the first token on, or from the end of a thought:
    /// see [`Request::thought`].
    pub constraint: Option<SharedConstraint>,
    /// Which part of a completion is a thought, and how long it may be.
    pub thought: Option<Arc<Reasoning>>,
    /// Tokens that are shown with their spelling, also where they are control tokens or end the text; at most [`MAX_PRESERVED`].
    pub preserved_tokens: Vec<Token>,
    /// Whether a full context is shifted; otherwise it ends the completion.
    pub context_shift: Option<ContextShift>,
    /// Of requests that wait, and of prompts that are computed, those of the highest priority go first; −[`MAX_PRIORITY`] to
    /// [`MAX_PRIORITY`]. A priority counts as much as having come
    /// [`TURNS_PER_PRIORITY`](crate::engine::TURNS_PER_PRIORITY) turns earlier, so that nobody waits for ever.
    pub priority: i32,
    /// The longest time between two tokens of its completions that others' prompts may cause, 1 ms to [`LONGEST_GAP`]; `None` leaves
    /// it to [`Limits::max_token_gap`](crate::config::Limits::max_token_gap).
    pub max_token_gap: Option<Duration>,
    /// Most tokens of its prompt that one step computes, at least 1; `None` leaves it to the scheduler.
    pub max_chunk: Option<u32>,
    /// Ends a completion with the first new line that it shows later than so long after its first token.
    pub max_predict_time: Option<Duration>,
    /// Ends a completion at a line that is indented by fewer white-space characters than this, after its first; 0 is off.
    pub n_indent: u32,
    /// Whether what is cached of the prompt is used; otherwise all of it is computed.
    pub uses_cache: bool,
    /// Reports the log-probabilities of the prompt's tokens and of this many most likely ones in the place of each; at most
    /// [`MAX_PROBS`], and [`MAX_PROMPT_PROBS`] in all.
    pub prompt_logprobs: Option<u32>,
    /// Of the prompt's tokens, those from this one on: what stands before it is taken from the cache, but for the token right before
    /// it. Below the prompt's length, and 0 where [`Request::prompt_logprobs`] asks for none.
    pub prompt_logprobs_from: u32,
    /// Whether the stream tells how far the prompt is computed.
    pub reports_progress: bool,
    /// Where, in tokens of the prompt, a memory that cannot be cut keeps a snapshot besides at the prompt's end, in order; at most
    /// [`MAX_CHECKPOINTS`]. A later prompt that has only the tokens up to there goes on from it. With a sliding window, what it sees at
    /// the end of any prompt is kept: where this names a place, in the device cache. Other memories go on from anywhere.
    pub snapshots_at: Vec<u32>,
    /// Whether what was written for earlier requests with this, of the same owner, is computed in the tokens that it was written in,
    /// where the prompt spells it: what was written is then known, however the tokenizer cuts it.
    pub keeps_answers: bool,
    /// Whether its stream tells why what is computed of the prompt has to be: when asked, as soon as its first branch has begun in a
    /// slot, and at the end of that.
    pub explains_cache: bool,
    /// Whose request it is; `None` is whoever names nobody. What others sent or were told is in no explanation.
    pub owner: Option<Arc<str>>,
    /// The system's message ends before this token of the prompt; `None` where there is none, or nobody knows.
    pub system_end: Option<u32>,
    /// The slot that its first branch takes where that one is free; [`Task::Load`] waits for it.
    pub slot: Option<u32>,
    /// What becomes of the prompt. All but [`Task::Complete`] have one branch, which draws no token.
    pub task: Task,
}

/// Checks a set of adapters, of which there are `n_adapters`.
///
/// # Errors
/// [`Error::InvalidRequest`] names the first that is not there, is named twice, or has a scale that is no number.
pub fn validate_adapters(adapters: &[AdapterScale], n_adapters: u32) -> Result<()> {
    let refuse = |message: String| Err(Error::InvalidRequest { param: "adapters", message });
    for (place, &(id, scale)) in adapters.iter().enumerate() {
        if id >= n_adapters {
            let known = match n_adapters {
                0 => "none is loaded".to_owned(),
                n => format!("there are {n}, counted from 0"),
            };
            return refuse(format!("adapters has {id}; {known}"));
        }
        if !scale.is_finite() {
            return refuse(format!("adapters has a scale of {scale} for {id}; it must be a finite number"));
        }
        if adapters[..place].iter().any(|&(other, _)| other == id) {
            return refuse(format!("adapters names {id} twice"));
        }
    }
    Ok(())
}

impl Request {
    /// A request for one completion with default sampling.
    #[must_use]
    pub fn new(prompt: Prompt, seed: u32) -> Self {
        Self {
            prompt,
            suffix: Vec::new(),
            n: 1,
            diversity: Diversity::None,
            max_tokens: None,
            stop: Vec::new(),
            seed,
            sampling: SamplingParams::default(),
            adapters: None,
            invoked_at: None,
            constraint: None,
            thought: None,
            preserved_tokens: Vec::new(),
            context_shift: None,
            priority: 0,
            max_token_gap: None,
            max_chunk: None,
            max_predict_time: None,
            n_indent: 0,
            uses_cache: true,
            prompt_logprobs: None,
            prompt_logprobs_from: 0,
            reports_progress: false,
            snapshots_at: Vec::new(),
            keeps_answers: false,
            explains_cache: false,
            owner: None,
            system_end: None,
            slot: None,
            task: Task::Complete,
        }
    }

    /// Prompt and suffix, in tokens.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.prompt.n_tokens() + self.suffix.len()
    }

    /// Whether this and `other`, which are two branches of one stream, may begin with the same computed tokens and the logits after
    /// them: their tokens are equal, and so is what the engine does with a prompt. How they go on may differ.
    #[must_use]
    pub(crate) fn begins_as(&self, other: &Self) -> bool {
        let of = |one: &Self| (one.priority, one.slot, one.uses_cache, one.keeps_answers, one.max_chunk, one.owner.clone());
        of(self) == of(other)
            && self.task == other.task
            && self.suffix == other.suffix
            && self.snapshots_at == other.snapshots_at
            && self.prompt == other.prompt
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
        let refuse = |param: &'static str, message: String| Err(Error::InvalidRequest { param, message });
        for run in self.prompt.runs() {
            let Run::Tokens(tokens) = run else { continue };
            if let Some(token) = tokens.iter().find(|&&token| !in_vocab(token)) {
                return refuse("prompt", format!("token {token} is outside of the vocabulary of {n_vocab} pieces"));
            }
        }
        if let Some(token) = self.suffix.iter().find(|&&token| !in_vocab(token)) {
            return refuse("suffix_prompt", format!("token {token} is outside of the vocabulary of {n_vocab} pieces"));
        }
        if self.prompt.n_tokens() == 0 {
            return refuse("prompt", "the prompt holds no tokens; give at least one".into());
        }
        self.validate_task()?;
        self.validate_media()?;
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
        if let Some(n) = self.prompt_logprobs.filter(|&n| n > MAX_PROBS) {
            return refuse("prompt_logprobs", format!("prompt_logprobs is {n}; it must be 0 to {MAX_PROBS}"));
        }
        let (from, n_prompt) = (self.prompt_logprobs_from, self.n_tokens());
        if from > 0 && self.prompt_logprobs.is_none() {
            return refuse("prompt_logprobs_from", "prompt_logprobs_from needs prompt_logprobs; set that too".to_owned());
        }
        if from as usize >= n_prompt {
            let limit = format!("it must be below the prompt's {n_prompt} tokens");
            return refuse("prompt_logprobs_from", format!("prompt_logprobs_from is {from}; {limit}"));
        }
        let n_told = self.prompt_logprobs.map_or(0, |n| (n as usize + 1) * (n_prompt - from as usize));
        if n_told > MAX_PROMPT_PROBS {
            let limit = format!("a prompt has at most {MAX_PROMPT_PROBS} of them; ask for fewer or shorten the prompt");
            return refuse("prompt_logprobs", format!("prompt_logprobs asks for {n_told} log-probabilities; {limit}"));
        }
        if self.priority.checked_abs().is_none_or(|priority| priority > MAX_PRIORITY) {
            let limits = format!("it must be {} to {MAX_PRIORITY}", -MAX_PRIORITY);
            return refuse("priority", format!("priority is {}; {limits}", self.priority));
        }
        if let Some(gap) = self.max_token_gap.filter(|gap| !(Duration::from_millis(1)..=LONGEST_GAP).contains(gap)) {
            let limits = format!("it must be 1 to {}", LONGEST_GAP.as_millis());
            return refuse("max_token_gap_ms", format!("max_token_gap_ms is {}; {limits}", gap.as_secs_f64() * 1e3));
        }
        if self.max_chunk == Some(0) {
            return refuse("n_batch", "n_batch is 0; it must be at least 1".to_owned());
        }
        self.validate_snapshots()?;
        if self.preserved_tokens.len() > MAX_PRESERVED {
            let n = self.preserved_tokens.len();
            return refuse("preserved_tokens", format!("preserved_tokens has {n} tokens; it may have {MAX_PRESERVED}"));
        }
        if let Some(token) = self.preserved_tokens.iter().find(|&&token| !in_vocab(token)) {
            return refuse("preserved_tokens", format!("token {token} is outside of the vocabulary of {n_vocab} pieces"));
        }
        self.thought.as_ref().map_or(Ok(()), |thought| thought.validate(n_vocab))?;
        self.diversity.validate(self)?;
        self.sampling.validate(n_vocab)
    }

    fn validate_snapshots(&self) -> Result<()> {
        let (places, n_prompt) = (&self.snapshots_at, self.n_tokens());
        let refuse = |message: String| Err(Error::InvalidRequest { param: "snapshots_at", message });
        if places.len() > MAX_CHECKPOINTS {
            return refuse(format!("snapshots_at has {} places; it may have at most {MAX_CHECKPOINTS}", places.len()));
        }
        if !places.is_sorted_by(|a, b| a < b) {
            return refuse("snapshots_at must be in order, each place once".into());
        }
        if let Some(at) = places.iter().find(|&&at| at == 0 || at as usize >= n_prompt) {
            return refuse(format!("snapshots_at has {at}; a place must be after a token of the {n_prompt} and before the last"));
        }
        Ok(())
    }

    /// Checks what a prompt with pictures or sounds cannot have.
    fn validate_media(&self) -> Result<()> {
        let refuse = |param: &'static str, message: &str| Err(Error::InvalidRequest { param, message: message.to_owned() });
        if !self.prompt.has_media() {
            return Ok(());
        }
        if matches!(self.prompt.runs().last(), Some(Run::Media(_))) && self.suffix.is_empty() {
            return refuse(
                "prompt",
                "the prompt ends with a picture or a sound, after which nothing can be drawn; add a text after it",
            );
        }
        if self.prompt_logprobs.is_some() {
            return refuse(
                "prompt_logprobs",
                "there are no log-probabilities of a prompt with a picture or a sound; leave them out",
            );
        }
        if self.context_shift.is_some() {
            return refuse("context_shift", "a context that holds a picture or a sound is not shifted; leave context_shift out");
        }
        match self.task {
            Task::Complete | Task::Pin => Ok(()),
            Task::Save { .. } | Task::Load(_) => refuse(
                "prompt",
                "what is computed of a picture or a sound is not saved to a file: its name there would mean nothing",
            ),
        }
    }

    /// Checks what the task needs of the other fields.
    fn validate_task(&self) -> Result<()> {
        let refuse = |param: &'static str, message: &str| Err(Error::InvalidRequest { param, message: message.to_owned() });
        if self.task == Task::Complete {
            return Ok(());
        }
        if !self.suffix.is_empty() {
            return refuse("suffix_prompt", "a prompt that is not continued has no suffix; put it behind the prompt");
        }
        if self.n != 1 || self.max_tokens != Some(0) {
            return refuse("n", "a prompt that is not continued has one branch of no tokens: set n to 1 and max_tokens to 0");
        }
        let Task::Load(saved) = &self.task else { return Ok(()) };
        let is_prompt = match self.prompt.runs() {
            [Run::Tokens(tokens)] => *tokens == saved.tokens,
            _ => self.prompt.clone().into_tokens() == saved.tokens,
        };
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
