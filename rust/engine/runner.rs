//! The one seam between the engine and a model.

use std::ops::Range;
use std::sync::{Arc, Mutex};

pub use crate::cache::{AdapterSchedule, AdapterSet, ForkRule, IdleCost, KvSeqId, MemoryKind, invoked_at};
use crate::request::{AdapterScale, Media, Token};
use crate::sampling::TokenStrings;

/// The adapters of requests that name none, each with its scale: whoever computes beside the engine sees what is said later.
pub type DefaultAdapters = Arc<Mutex<Vec<AdapterScale>>>;

/// One token of one sequence in a decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Who computes it and owns the cell that it fills.
    pub sequence: KvSeqId,
    /// The token.
    pub token: Token,
    /// Its place in the sequence; continues what the sequence holds, without a gap.
    pub position: u32,
    /// Whether the logits after this token are wanted.
    pub wants_logits: bool,
}

/// Rows of a plan that vectors fill in place of tokens. None of them wants logits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaRows {
    /// Which rows of the plan: some that follow each other in one sequence, which has no others in the plan.
    pub rows: Range<usize>,
    /// The medium, whose vectors are ready.
    pub media: Media,
    /// The first row's place in the medium. Of one that sees ahead, all places are among the rows.
    pub start: u32,
}

/// Which tokens of which sequences go into the next decode: any number of rows per sequence, in order of position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The rows; at most `n_ubatch` of tokens, and as many of each medium that sees ahead and of all others together. At
    /// most `n_outputs` of them want logits.
    pub rows: Vec<Row>,
    /// Which of them are of media, in order.
    pub media: Vec<MediaRows>,
    /// The adapters that all of them are computed with. A change of them costs some graphs, so it is not made in every decode.
    pub variant: AdapterSet,
}

impl Plan {
    /// Whether vectors fill all of its rows.
    #[must_use]
    pub fn is_of_media(&self) -> bool {
        !self.rows.is_empty() && self.media.iter().map(|media| media.rows.len()).sum::<usize>() == self.rows.len()
    }
}

/// Why a decode failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct DecodeError {
    /// The backend's code in words.
    pub reason: String,
}

/// Why a piece could not be saved or restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A picture whose rows and columns are counted has other positions than places, so that it is saved and moved whole or not at
    /// all, and nothing behind it where a memory sees through a window. Of such a model that is so again and again.
    #[error("a picture whose rows and columns are counted is saved whole or not at all, and by no memory with a window")]
    OwnPositions,
    /// What the memory answered.
    #[error("{0}")]
    Refused(String),
}

/// Why cells could not be moved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelocateError {
    /// Nothing was moved.
    #[error("{0}")]
    Refused(StateError),
    /// They were given up and could not be taken anew: what the ids hold is of no use.
    #[error("{0}; what was moved is lost")]
    Lost(StateError),
}

/// A model with its KV cells, as the worker sees it. Every call is made on the worker's thread.
///
/// The caller keeps count of cells and positions (see [`KvCache`](crate::cache::KvCache)); an implementation checks what would
/// otherwise end the process, and answers with an error.
pub trait Runner {
    /// Length of a row of logits.
    fn n_vocab(&self) -> usize;

    /// How many adapters there are; each is known by its number, from 0.
    fn n_adapters(&self) -> u32 {
        0
    }

    /// The tokens from whose last place in a prompt on this adapter counts (aLoRA); none where it counts from the beginning.
    fn invocation(&self, _adapter: u32) -> &[Token] {
        &[]
    }

    /// The adapters that are on where nobody says otherwise, each with its scale.
    fn default_adapters(&self) -> Vec<AdapterScale> {
        Vec::new()
    }

    /// Threads that compute a decode without rows of prompts, the worker's own among them. Between decodes they have nothing to do.
    fn n_threads(&self) -> usize;

    /// Computes the rows of `plan` in one decode and fills one cell for each.
    ///
    /// # Errors
    /// [`DecodeError`] if the backend failed or `plan` breaks a rule; the sequences of `plan` then hold an unknown number of its
    /// rows and must be dropped or decoded again after [`Runner::truncate`].
    fn decode(&mut self, plan: &Plan) -> Result<(), DecodeError>;

    /// The logits after row `row` of the last plan, `n_vocab` long.
    ///
    /// # Panics
    /// If that row did not want logits.
    fn logits(&self, row: usize) -> &[f32];

    /// Whether `[0, n_tokens)` of `from`, which holds `n_held` tokens, can be given to another id.
    fn can_fork(&self, from: KvSeqId, n_held: u32, n_tokens: u32) -> bool;

    /// Gives the cells of `[0, n_tokens)` of `from` to `to` as well; `to` holds nothing before. Nothing is computed or copied.
    fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32);

    /// Forgets all but the first `n_kept` tokens of `id`. `false` where the model's memory cannot; then nothing was forgotten.
    fn truncate(&mut self, id: KvSeqId, n_kept: u32) -> bool;

    /// Forgets everything that `id` holds.
    fn drop_sequence(&mut self, id: KvSeqId);

    /// What the memory can do.
    fn memory_kind(&self) -> MemoryKind;

    /// A copy of what `id` holds of the tokens of `range`, on its own; of a memory that forks [`ForkRule::AtEnd`] the whole state,
    /// and `range` is all that `id` holds. Nothing changes. The bytes are where they stay: whoever keeps them copies them no more.
    ///
    /// # Errors
    /// [`StateError`] if the memory refused.
    fn save(&mut self, id: KvSeqId, range: Range<u32>) -> Result<Arc<[u8]>, StateError>;

    /// From which position of `range` on a piece that is saved now holds what a sliding window sees; `range.end` where it lacks the
    /// end, `range.start` for every other memory.
    fn whole_from(&self, id: KvSeqId, range: &Range<u32>) -> u32;

    /// Appends the tokens of `kept` of a saved piece to `id`, which holds `[0, kept.start)`; the piece was saved of a range that
    /// contains `kept`, after the same tokens. As many cells as the piece has must be free. A whole state goes to an `id` that
    /// holds nothing. The tokens of the piece take cells in the order of their positions.
    ///
    /// # Errors
    /// [`StateError`] if the memory refused the piece; then `id` holds what it held before.
    fn restore(&mut self, id: KvSeqId, piece: &[u8], kept: Range<u32>) -> Result<(), StateError>;

    /// `range` of `id`, made as much longer as keeps it from cutting what is saved and moved whole or not at all.
    fn widened(&self, _id: KvSeqId, range: Range<u32>) -> Range<u32> {
        range
    }

    /// Moves the cells of `range`, which every one of `ids` holds in common, to free ones, in the order of their positions; all of
    /// them go on sharing them. Only for a memory that forks [`ForkRule::Anywhere`].
    ///
    /// # Errors
    /// [`RelocateError`] says what `ids` hold then.
    fn relocate(&mut self, ids: &[KvSeqId], range: Range<u32>) -> Result<(), RelocateError>;

    /// Gives the tokens of `range` of `id` one position for each `n` of them, and moves what follows up: what was grouped before it
    /// ends where it begins, and `n` divides both its ends. `id` shares no cell. From then on it is computed, cut after `range` and
    /// dropped, and nothing else. Only for a memory that forks [`ForkRule::Anywhere`], of a runner that was made for
    /// [`Limits::grouping`](crate::config::Limits::grouping).
    fn group(&mut self, id: KvSeqId, range: Range<u32>, n: u32) {
        unreachable!("a runner was not made for the groups of {n} in {range:?} of {id:?}");
    }

    /// Appends the bytes that `token` stands for; control tokens stand for none.
    fn append_piece(&self, token: Token, bytes: &mut Vec<u8>);

    /// Whether `token` ends a text.
    fn is_end(&self, token: Token) -> bool;

    /// Every token that ends a text.
    fn end_tokens(&self) -> &[Token];

    /// Tokens that the model asks never to draw.
    fn suppressed_tokens(&self) -> &[Token];

    /// The vocabulary, for samplers, which ask it on other threads.
    fn lexicon(&self) -> TokenStrings;

    /// Whether a row's logits depend on the tokens of its own sequence alone, bit by bit: not on the other rows of a decode, nor on
    /// where cells are, how a prompt was cut, or how many threads compute.
    fn is_repeatable(&self) -> bool;

    /// Whether Weft's own kernels compute every attention and every product of the model, on the CPU.
    fn uses_own_kernels(&self) -> bool {
        false
    }
}
