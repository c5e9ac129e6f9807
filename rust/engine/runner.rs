//! The interface between the engine and a model.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use crate::cache::{AdapterSchedule, AdapterSet, ForkRule, IdleCost, KvSeqId, MemoryKind, invoked_at};
use crate::config::DraftKind;
use crate::request::{AdapterScale, Media, Token};
use crate::sampling::TokenStrings;

/// Adapters of requests that name none, with their scales. Shared: changes are visible to all workers.
pub type DefaultAdapters = Arc<Mutex<Vec<AdapterScale>>>;

/// One token of one sequence in a decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Owner of the cell that the token fills.
    pub sequence: KvSeqId,
    pub token: Token,
    /// Position in the sequence; continues its cells without a gap.
    pub position: u32,
    pub wants_logits: bool,
}

/// Rows of a plan that embeddings of media fill in place of tokens. They have no logits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaRows {
    /// Consecutive rows of the plan, of one sequence that has no other rows in the plan.
    pub rows: Range<usize>,
    /// The medium, with its embeddings ready.
    pub media: Media,
    /// Position of the first row in the medium. Media with non-causal attention are always complete.
    pub start: u32,
}

/// Input of a decode: tokens of any number of sequences, in order of position for each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// At most `n_ubatch` rows of tokens, and as many for each medium with non-causal attention and for all other media
    /// together; at most `n_outputs` of them require logits.
    pub rows: Vec<Row>,
    pub media: Vec<MediaRows>,
    /// Active adapters of all rows. A change costs graph rebuilds.
    pub adapter_set: AdapterSet,
}

impl Plan {
    pub fn is_of_media(&self) -> bool {
        !self.rows.is_empty() && self.media.iter().map(|media| media.rows.len()).sum::<usize>() == self.rows.len()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct DecodeError {
    /// The backend's error code in words.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// An image with two-dimensional positions can only be saved and moved as a whole, and with windowed memory nothing after
    /// it can. Permanent for such a model.
    #[error("the positions of an image with rows and columns can only be saved as a whole, and not by sliding-window memory")]
    OwnPositions,
    #[error("{0}")]
    Refused(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelocateError {
    /// Nothing was moved.
    #[error("{0}")]
    Refused(StateError),
    /// The cells were released and could not be filled again: the contents of the sequences are invalid.
    #[error("{0}; the moved cells are lost")]
    Lost(StateError),
}

/// A sequence whose next tokens a draft model predicts.
#[derive(Debug, Clone, Copy)]
pub struct DraftRequest<'a> {
    pub sequence: KvSeqId,
    /// The tokens of the sequence, in two parts. All but the last one are computed.
    pub tokens: [&'a [Token]; 2],
    /// Maximum number of drafted tokens, at least 1.
    pub max_draft: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftModelInfo {
    pub kind: DraftKind,
    /// Maximum length of a draft.
    pub max_draft: u32,
    /// A shorter draft takes as long as the longest.
    pub has_fixed_cost: bool,
}

/// Drafts of a draft model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelDrafts {
    /// One per request; empty if nothing can be drafted, or not yet.
    pub drafts: Vec<Vec<Token>>,
    /// Number of tokens of the sequences that the draft model had to compute first.
    pub n_caught_up: u32,
}

/// A model with its KV cells, which [`KvCache`](crate::cache::KvCache) tracks. Every method is called on the worker thread.
/// Implementations check everything that would otherwise abort the process, and return an error.
pub trait Runner {
    /// Returns the length of a row of logits.
    fn n_vocab(&self) -> usize;

    /// Returns the number of adapters; their ids count from 0.
    fn n_adapters(&self) -> u32 {
        0
    }

    /// Returns the invocation tokens of an adapter; empty if it applies from the first token.
    fn invocation(&self, _adapter: u32) -> &[Token] {
        &[]
    }

    fn default_adapters(&self) -> Vec<AdapterScale> {
        Vec::new()
    }

    /// Returns the number of threads of a decode without prompt rows, including the worker's own.
    fn n_threads(&self) -> usize;

    /// Computes the rows of `plan` in one decode and fills one cell per row.
    ///
    /// # Errors
    /// [`DecodeError`] if the backend failed or `plan` breaks a rule. The sequences of `plan` then hold an unknown number of
    /// its rows: drop them, or decode them again after [`Runner::truncate`].
    fn decode(&mut self, plan: &Plan) -> Result<(), DecodeError>;

    /// Returns the `n_vocab` logits after row `row` of the last plan. Panics if that row did not require logits.
    fn logits(&self, row: usize) -> &[f32];

    /// Returns true if cells `[0, n_tokens)` of `from`, which has `n_held` tokens, can be shared.
    fn can_fork(&self, from: KvSeqId, n_held: u32, n_tokens: u32) -> bool;

    /// Shares the cells `[0, n_tokens)` of `from` with `to`, which must be empty. Nothing is computed or copied.
    fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32);

    /// Drops all but the first `n_kept` tokens of `id`. Returns `false`, with nothing dropped, if the model's memory cannot.
    fn truncate(&mut self, id: KvSeqId, n_kept: u32) -> bool;

    fn drop_sequence(&mut self, id: KvSeqId);

    fn memory_kind(&self) -> MemoryKind;

    /// Returns a copy of the cells of `range` of `id`, which must be all of `id` for memory with [`ForkRule::AtEnd`]. The bytes
    /// are stored as returned.
    ///
    /// # Errors
    /// [`StateError`] if the memory refused.
    fn save(&mut self, id: KvSeqId, range: Range<u32>) -> Result<Arc<[u8]>, StateError>;

    /// Returns the first position of `range` from which a saved copy has the complete sliding window: `range.end` if not even the
    /// window at the end is complete, `range.start` for memory without windows.
    fn whole_from(&self, id: KvSeqId, range: &Range<u32>) -> u32;

    /// Appends the tokens `kept` of a saved copy to `id`, which holds `[0, kept.start)`. The copy must be of a range that
    /// contains `kept`, after the same tokens, and as many cells as the copy has must be free. A whole state requires an empty
    /// `id`. Cells are taken in order of position.
    ///
    /// # Errors
    /// [`StateError`] if the memory refused; `id` is unchanged then.
    fn restore(&mut self, id: KvSeqId, bytes: &[u8], kept: Range<u32>) -> Result<(), StateError>;

    /// Returns `range` of `id`, extended so that it does not split an image that can only be saved as a whole.
    fn widen_to_images(&self, _id: KvSeqId, range: Range<u32>) -> Range<u32> {
        range
    }

    /// Moves the cells of `range`, which all of `ids` share, to free cells in order of position. They stay shared. Only for
    /// memory with [`ForkRule::Anywhere`].
    ///
    /// # Errors
    /// [`RelocateError`], which describes the contents of `ids` then.
    fn relocate(&mut self, ids: &[KvSeqId], range: Range<u32>) -> Result<(), RelocateError>;

    /// Gives each `n` consecutive tokens of `range` of `id` one position (self-extend) and moves the following tokens down.
    /// Ranges grouped before end where this one begins, and `n` divides both ends. `id` must not share cells; afterwards it may
    /// only be computed, truncated after `range` and dropped. Only for memory with [`ForkRule::Anywhere`], of a runner created
    /// for [`Limits::grouping`](crate::config::Limits::grouping).
    fn group_positions(&mut self, id: KvSeqId, range: Range<u32>, n: u32) {
        unreachable!("the runner does not support groups of {n} in {range:?} of {id:?}");
    }

    /// Appends the bytes of `token`; control tokens have none.
    fn append_piece(&self, token: Token, bytes: &mut Vec<u8>);

    fn is_end(&self, token: Token) -> bool;

    fn end_tokens(&self) -> &[Token];

    /// Returns the tokens that the model requires never to be sampled.
    fn suppressed_tokens(&self) -> &[Token];

    fn token_strings(&self) -> TokenStrings;

    /// Returns the properties of the draft model, if there is one.
    ///
    /// The state of a draft model follows the sequences: what is forked, truncated or dropped here is so there. What it lacks, such
    /// as restored tokens, makes drafts worse or later, never wrong.
    fn draft_model(&self) -> Option<DraftModelInfo> {
        None
    }

    /// Drafts tokens with a draft model, for sequences that the next decode continues. The draft model computes at most
    /// `max_caught_up` tokens that it lacks; sequences of which it lacks more get no draft yet.
    fn draft(&mut self, requests: &[DraftRequest<'_>], _max_caught_up: u32) -> ModelDrafts {
        ModelDrafts { drafts: vec![Vec::new(); requests.len()], n_caught_up: 0 }
    }

    /// Returns the time in which the draft model has read decodes of the model, since the start.
    fn draft_model_read_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns true if a row's logits depend only on the tokens of its sequence, bit for bit.
    fn is_repeatable(&self) -> bool;

    /// Returns true if Weft's own CPU kernels compute every attention and matrix product of the model.
    fn uses_own_kernels(&self) -> bool {
        false
    }
}
