//! Explanations of why parts of a prompt were computed.

use std::ops::Range;
use std::time::Duration;

use crate::config::named_variants;

/// Explains why the computed part of a prompt was not cached, from the start of the first branch on, if
/// [`Request::explains_cache`](crate::request::Request::explains_cache) is set.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    pub request_id: u64,
    pub n_prompt: u32,
    pub n_found: u32,
    /// Cached tokens that another request was computing on arrival, and that this request waited for.
    pub n_awaited: u32,
    /// Consecutive runs that cover `[n_found, n_prompt)`; empty if nothing was computed.
    pub computed: Vec<ComputedRun>,
}

impl Explanation {
    pub(crate) fn n_bytes(&self) -> usize {
        let run_bytes = |run: &ComputedRun| {
            let earlier_bytes = run.earlier.as_ref().map_or(0, |earlier| earlier.text.len());
            size_of::<ComputedRun>() + run.text_before.len() + run.text_at.len() + earlier_bytes
        };
        self.computed.iter().map(run_bytes).sum()
    }

    /// Lowers the cached prefix to `n_found` tokens if the rest could not be reloaded.
    pub(crate) fn lower(&mut self, n_found: u32) {
        if n_found < self.n_found {
            let lost = n_found..self.n_found;
            (self.n_found, self.n_awaited) = (n_found, self.n_awaited.min(n_found));
            self.computed.insert(0, ComputedRun::new(lost, Cause::NotRestored));
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ComputedRun {
    pub range: Range<u32>,
    pub cause: Cause,
    /// Cause and age of the eviction, if the range was evicted and that is recorded.
    pub eviction: Option<(EvictionCause, Duration)>,
    /// Index of the first different prompt token, or else of the first token of the range.
    pub position: u32,
    /// Byte offset of `position` in the prompt's text; images and audio have no text.
    pub byte_offset: u64,
    pub character_offset: u64,
    pub text_before: String,
    pub text_at: String,
    /// The request of the same owner that reveals the cause, if any.
    pub earlier: Option<EarlierRequest>,
}

impl ComputedRun {
    pub(crate) fn new(range: Range<u32>, cause: Cause) -> Self {
        let position = range.start;
        let (text_before, text_at) = (String::new(), String::new());
        Self { range, cause, eviction: None, position, byte_offset: 0, character_offset: 0, text_before, text_at, earlier: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierRequest {
    pub request_id: u64,
    /// Text of that request at the position of [`ComputedRun::text_at`]; empty if it ends there.
    pub text: String,
    /// The position is in its generated text, not in its prompt.
    pub is_in_answer: bool,
}

named_variants! {
    /// Cause for which a run of the prompt was computed, with its name in responses.
    pub enum Cause {
        /// The whole prompt is cached; its last token is computed again to get the logits after it.
        LastToken = "last_token",
        /// As [`Cause::LastToken`], after waiting for another request to compute the rest.
        Awaited = "awaited",
        CacheUnused = "cache_unused",
        /// No recorded prompt has this beginning.
        NeverSeen = "never_seen",
        /// New text after the cached prefix: no earlier request contains it.
        New = "new",
        Differs = "differs",
        Retokenized = "retokenized",
        /// The text matches an earlier prompt that differs within the first [`BEGINNING`] tokens.
        Beginning = "beginning",
        SystemChanged = "system_changed",
        /// The prompt differs from an earlier one only in the BOS token: one of the two lacks it or has it twice.
        Opening = "bos",
        /// The common prefix is too short to share: fewer than 16 tokens.
        TooShort = "too_short",
        OtherAdapters = "other_adapters",
        Evicted = "evicted",
        NotRestored = "not_restored",
        /// The sliding window of the cached sequence has moved past this position.
        Window = "window",
        /// A recurrent state can only be continued at a checkpoint, and this position has none.
        NoCheckpoint = "no_checkpoint",
        /// Earlier positions are grouped for one prompt alone (self-extend).
        Grouped = "grouped",
        /// An image or audio differs here, or is cached only in part and must be computed as a whole.
        Media = "media",
        /// Another request is computing the range, in a form that this one could not wait for.
        Computing = "computing",
        /// An earlier request with this text ended before computing it.
        Unfinished = "unfinished",
    }
}

named_variants! {
    /// Cause of an eviction, with its name in responses.
    pub enum EvictionCause {
        /// The cells or the id were needed, and the host cache did not take it, or a GPU computes it faster than it is copied.
        DeviceCache = "device",
        /// The host cache bytes were needed.
        HostCache = "host",
        Erased = "erased",
        /// The state became invalid: a decode failed, or cells were lost.
        Failed = "failed",
    }
}

/// Prompts that differ within this many tokens have different beginnings.
pub const BEGINNING: u32 = 32;
