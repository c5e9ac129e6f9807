//! What can go wrong: one variant per thing that a caller can act on.

use std::path::PathBuf;

/// The result of everything here that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Cloneable, because one failed decode ends several streams.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is no model that can be run.
    #[error("cannot load the model {}: {reason}", path.display())]
    ModelLoad {
        /// The file that was asked for.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A setting of the engine is out of range, or two contradict each other.
    #[error("{message}")]
    InvalidConfig {
        /// The setting's name in [`crate::config`].
        param: &'static str,
        /// What was wrong and what would be right.
        message: String,
    },
    /// A field of a request is out of range.
    #[error("{message}")]
    InvalidRequest {
        /// The field's name in [`crate::request`].
        param: &'static str,
        /// What was wrong and what would be right.
        message: String,
    },
    /// The model, or the way that it was loaded, cannot do that.
    #[error("{message}")]
    NotSupported {
        /// What is lacking, and what would have it.
        message: String,
    },
    /// The prompt alone fills the context of a slot.
    #[error("the prompt of {n_prompt} tokens does not fit in the context of {n_ctx} tokens")]
    ContextOverflow {
        /// The prompt's length in tokens.
        n_prompt: usize,
        /// The context of one slot in tokens; a prompt must be shorter.
        n_ctx: usize,
    },
    /// As much waits as may wait.
    #[error("{n_waiting} {unit} are waiting, which is the limit; try again later")]
    QueueFull {
        /// How much waits.
        n_waiting: usize,
        /// Of what: requests, or bytes of pictures and sounds.
        unit: &'static str,
    },
    /// The reader of a stream was too far behind, and read nothing for as long as it was waited for.
    #[error("the stream was ended because its reader is {n_behind} {unit} behind (the limit is {limit})")]
    SlowReader {
        /// How much waits to be read.
        n_behind: usize,
        /// How much may wait.
        limit: usize,
        /// What both are counted in.
        unit: BacklogUnit,
    },
    /// A file of a saved prefix does not belong to this model and cache, or is damaged. Nothing was loaded.
    #[error("cannot load the prefix in {}: {reason}", path.display())]
    PrefixFile {
        /// The file that was asked for.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A saved prefix does not fit this model and cache, though its file is whole. Nothing was loaded.
    #[error("the saved prefix cannot be loaded: {reason}")]
    PrefixRefused {
        /// What is wrong with it.
        reason: String,
    },
    /// A prefix could not be copied out of the cache.
    #[error("the prefix cannot be saved: {reason}")]
    Save {
        /// What the model's memory answered.
        reason: String,
    },
    /// Pinned prefixes would take more than half of the cache.
    #[error("the prefix of {n_bytes} bytes cannot be pinned: {n_pinned_bytes} are pinned already, and {limit} may be")]
    PinsFull {
        /// What it would take.
        n_bytes: u64,
        /// What the pinned prefixes take.
        n_pinned_bytes: u64,
        /// Most bytes of all pinned prefixes.
        limit: u64,
    },
    /// llama.cpp could not compute a step.
    #[error("the model could not compute a step: {reason}")]
    Decode {
        /// llama.cpp's code in words.
        reason: String,
    },
    /// The engine was stopped, or its worker died.
    #[error("the engine has stopped")]
    Stopped,
    /// The caller cancelled work in progress, see [`crate::cancellation`].
    #[error("the work was cancelled")]
    Cancelled,
}

/// An error that may be of one branch of a request.
pub(crate) trait BranchErrorExt: Sized {
    /// Whether both say the same.
    fn is_same(&self, other: &Self) -> bool;

    /// The same error, of one of several branches: a field that is wrong there is named with its branch.
    #[must_use]
    fn of_branch(self, index: usize) -> Self;
}

/// What `read` makes of each of the branches of a request. What is wrong in one of several is told with its place; but what is wrong in
/// all of them alike is wrong in what they share, and told as it is.
///
/// # Errors
/// What `read` answers for the first that is wrong.
pub(crate) fn each_branch<T, U, E: BranchErrorExt>(
    branches: impl ExactSizeIterator<Item = T>,
    read: impl FnMut(T) -> std::result::Result<U, E>,
) -> std::result::Result<Vec<U>, E> {
    let mut all = Vec::with_capacity(branches.len());
    let mut branches = branches.map(read);
    while let Some(branch) = branches.next() {
        match branch {
            Ok(branch) => all.push(branch),
            Err(error) if all.is_empty() && branches.all(|other| other.is_err_and(|other| other.is_same(&error))) => {
                return Err(error);
            }
            Err(error) => return Err(error.of_branch(all.len())),
        }
    }
    Ok(all)
}

impl BranchErrorExt for Error {
    fn is_same(&self, other: &Self) -> bool {
        self == other
    }

    fn of_branch(self, index: usize) -> Self {
        match self {
            Self::InvalidRequest { param, message } => {
                Self::InvalidRequest { param, message: format!("branches[{index}]: {message}") }
            }
            other => other,
        }
    }
}

/// What a stream's bound is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BacklogUnit {
    /// Events, one for each token.
    Events,
    /// Bytes that they take.
    Bytes,
}

impl std::fmt::Display for BacklogUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Events => "events",
            Self::Bytes => "bytes",
        })
    }
}
