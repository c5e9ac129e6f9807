//! Why what was computed of a prompt had to be.

use std::ops::Range;
use std::time::Duration;

/// Why what was computed of a prompt had to be, where [`Request::explains_cache`](crate::request::Request::explains_cache) asks for
/// it: told at the end of the first branch, which computes the prompt for the others, and before to whoever asks its stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// Which request; requests are counted in order of submission.
    pub request_id: u64,
    /// The prompt's length in tokens.
    pub n_prompt: u32,
    /// Of these, found computed.
    pub n_found: u32,
    /// Of those, what another request was computing when this one came, and this one waited for.
    pub n_awaited: u32,
    /// All of `[n_found, n_prompt)`, stretch by stretch; none where nothing was computed.
    pub computed: Vec<ComputedRun>,
}

impl Explanation {
    /// Bytes that it takes beside its own, about.
    pub(crate) fn n_bytes(&self) -> usize {
        let of_texts = |one: &ComputedRun| {
            let of_earlier = one.earlier.as_ref().map_or(0, |earlier| earlier.text.len());
            size_of::<ComputedRun>() + one.before.len() + one.here.len() + of_earlier
        };
        self.computed.iter().map(of_texts).sum()
    }

    /// Of what was found, only the first `n_found` tokens could be used.
    pub(crate) fn lower(&mut self, n_found: u32) {
        if n_found < self.n_found {
            let lost = n_found..self.n_found;
            (self.n_found, self.n_awaited) = (n_found, self.n_awaited.min(n_found));
            self.computed.insert(0, ComputedRun::new(lost, Cause::NotRestored));
        }
    }
}

/// A stretch of a prompt that was computed.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputedRun {
    /// Which tokens of the prompt.
    pub range: Range<u32>,
    /// Why.
    pub cause: Cause,
    /// The token of the prompt where the cause is: where texts part, else the first of the stretch.
    pub at: u32,
    /// The same place in bytes of the prompt as its tokens spell it. Pictures and sounds are spelt by nothing.
    pub byte: u64,
    /// And in characters.
    pub character: u64,
    /// The end of what is before that place: a few tokens.
    pub before: String,
    /// The beginning of what is after it: some tokens more.
    pub here: String,
    /// The earlier request that has told the cause; `None` where there is none, or where it was somebody else's.
    pub earlier: Option<EarlierRequest>,
}

impl ComputedRun {
    /// Without its place and its texts.
    pub(crate) fn new(range: Range<u32>, cause: Cause) -> Self {
        let at = range.start;
        let (before, here) = (String::new(), String::new());
        Self { range, cause, at, byte: 0, character: 0, before, here, earlier: None }
    }
}

/// An earlier request of the same owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierRequest {
    /// Which one.
    pub request_id: u64,
    /// What it has in the place of [`ComputedRun::here`]: empty where it ends there.
    pub text: String,
    /// Whether the place is in what was written for it, not in its prompt.
    pub is_in_answer: bool,
}

/// Why a stretch of a prompt was computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// All of the prompt is known, and its last token is computed again for what follows it.
    LastToken,
    /// The same, and this request waited for another one to compute the rest.
    Awaited,
    /// The request was to use nothing that is cached.
    CacheUnused,
    /// No prompt that is remembered begins so.
    NeverSeen,
    /// It follows what is known, and nobody has sent it before.
    New,
    /// It goes on otherwise than an earlier prompt or its answer.
    Differs,
    /// It spells what an earlier request has there, in other tokens.
    Retokenized,
    /// It goes on as an earlier prompt did that is known after another beginning: this one differs within its first
    /// [`BEGINNING`] tokens.
    Beginning,
    /// An earlier prompt differs in its system message.
    SystemChanged,
    /// An earlier prompt differs in the token that begins every text alone: one of the two lacks it or has it twice.
    Opening,
    /// What is known is too short to be worth sharing: fewer than 16 tokens.
    TooShort,
    /// It is known with other adapters.
    OtherAdapters,
    /// It was computed, and is nowhere any more: why, and how long ago, where that is remembered.
    Evicted(Option<(EvictionCause, Duration)>),
    /// What is saved could not be brought back.
    NotRestored,
    /// The sliding window of what is known has moved on.
    Window,
    /// A memory that is a state can go on only where one was kept, and none was here.
    NoSnapshot,
    /// Positions before it are grouped for one prompt alone.
    Grouped,
    /// A picture or a sound is another one here, or is known in part and goes in as a whole.
    Media,
    /// Another request is computing it, in a way that could not be waited for.
    Computing,
    /// An earlier request that had it was over before it was computed.
    Unfinished,
}

/// What something computed had to go for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionCause {
    /// Its cells or its id were needed, and the store did not take it: it is off, full of what is worth more, or too small, or a GPU
    /// computes it sooner than it is copied.
    Pool,
    /// Its bytes were needed in the store.
    Store,
    /// Somebody erased it.
    Erased,
    /// What it held became unknown: a decode failed, or cells were lost.
    Failed,
}

impl EvictionCause {
    /// What answers call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Store => "store",
            Self::Erased => "erased",
            Self::Failed => "failed",
        }
    }
}

/// A prompt that differs within so many tokens has another beginning.
pub const BEGINNING: u32 = 32;

impl Cause {
    /// What answers call it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::LastToken => "last_token",
            Self::Awaited => "awaited",
            Self::CacheUnused => "cache_unused",
            Self::NeverSeen => "never_seen",
            Self::New => "new",
            Self::Differs => "differs",
            Self::Retokenized => "retokenized",
            Self::Beginning => "beginning",
            Self::SystemChanged => "system_changed",
            Self::Opening => "bos",
            Self::TooShort => "too_short",
            Self::OtherAdapters => "other_adapters",
            Self::Evicted(_) => "evicted",
            Self::NotRestored => "not_restored",
            Self::Window => "window",
            Self::NoSnapshot => "no_snapshot",
            Self::Grouped => "grouped",
            Self::Media => "media",
            Self::Computing => "computing",
            Self::Unfinished => "unfinished",
        }
    }
}
