//! Forks of a stream's branches, as its consumer requests them.

use std::sync::Arc;

use crate::engine::output::wake_handle::WakeHandle;
use crate::request::{Request, Token};

/// Maximum size of ended branches that are kept for forks, in bytes: their tokens, media, samplers, grammars and unpublished
/// text. State that the branches of a stream share counts once. The oldest streams are dropped first.
pub const MAX_ENDED_BYTES: usize = 64 << 20;

/// Parameters of a fork, see [`Completions::fork`](crate::engine::Completions::fork).
pub struct Fork {
    pub branch: u32,
    pub at: ForkPoint,
    /// Tokens between the fork position and the text of the forks.
    pub append: Vec<Token>,
    pub kind: ForkKind,
    pub destination: ForkDestination,
}

/// A position in the text of a branch, without its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkPoint {
    /// The end of the text when the worker handles the fork, without an end-of-generation token.
    End,
    Token(u32),
    /// Number of bytes of the detokenized text; a token and a character must end there.
    Byte(usize),
}

/// `R` is a request. Inside the engine, it has its sampler.
pub enum ForkKind<R = Request> {
    /// Number of forks with the parameters of the branch and the state of its penalties and its grammar.
    Continue(u32),
    /// Forks with new parameters, `n` for each request. The text before is their prompt, so that a grammar starts at
    /// the fork. The requests must not set the prompt, suffix or adapters, which are inherited from the branch.
    Restart {
        requests: Vec<R>,
        /// True if they sample with the seeds of their requests; otherwise with the seeds that [`ForkKind::Continue`] assigns.
        with_own_seeds: bool,
    },
}

pub enum ForkDestination {
    /// The stream of the branch, with the next free branch indices.
    SameStream,
    /// A new stream with this wake handle.
    OwnStream(Option<Arc<dyn WakeHandle>>),
}

/// Boundary between the text that a branch had published and the text of its fork. They join without a gap unless text was held
/// back at the boundary as a possible start of a stop string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForkTextBoundary {
    /// Text between the two that neither publishes. Not empty only for forks with new parameters or with appended
    /// tokens.
    pub unshown: String,
    /// Number of characters at the end of the branch's published text that the fork publishes again: text that the branch held
    /// back and released when it finished, where the fork continues beyond that end.
    pub n_shown_again: usize,
}
