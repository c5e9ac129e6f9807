//! Errors: one variant per condition that a caller can act on.

use std::path::PathBuf;

/// The result of this crate's fallible functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the engine. Cloneable, because one failed decode ends several streams.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "messages show what most fields are")]
pub enum Error {
    /// The file is not a supported model.
    #[error("cannot load the model {}: {reason}", path.display())]
    ModelLoad { path: PathBuf, reason: String },
    /// A setting of the engine is out of range, or two contradict each other.
    #[error("{message}")]
    InvalidConfig {
        /// Name of the setting in [`crate::config`].
        param: &'static str,
        message: String,
    },
    /// A field of a request is out of range.
    #[error("{message}")]
    InvalidRequest {
        /// Name of the field in [`crate::request`].
        param: &'static str,
        message: String,
    },
    /// The model, or its configuration, does not support the operation.
    #[error("{message}")]
    NotSupported {
        /// Description of the missing capability and of its requirements.
        message: String,
    },
    /// The prompt alone fills the context of a slot.
    #[error("the prompt of {n_prompt} tokens does not fit in the context of {n_ctx} tokens")]
    ContextOverflow {
        n_prompt: usize,
        /// The context of one slot in tokens; a prompt must be shorter.
        n_ctx: usize,
    },
    /// A queue limit is reached.
    #[error("the queue is full ({n_waiting} {}); retry later", if *n_waiting == 1 { unit.trim_end_matches('s') } else { unit })]
    QueueFull {
        n_waiting: usize,
        /// Unit: requests, or bytes of images and audio.
        unit: &'static str,
    },
    /// The consumer of a stream had too long a backlog, and read nothing until the timeout.
    #[error("the stream was ended because its consumer is {n_behind} {unit} behind; at most {limit} may be unread")]
    SlowConsumer {
        n_behind: usize,
        limit: usize,
        /// Unit of both: events, one per token, or bytes of them.
        unit: &'static str,
    },
    /// A file of a saved prefix does not belong to this model and cache, or is damaged. Nothing was loaded.
    #[error("cannot load the prefix in {}: {reason}", path.display())]
    PrefixFile { path: PathBuf, reason: String },
    /// A saved prefix does not fit this model and cache, though its file is intact. Nothing was loaded.
    #[error("cannot load the saved prefix: {reason}")]
    PrefixRefused { reason: String },
    /// A prefix could not be copied out of the cache.
    #[error("cannot save the prefix: {reason}")]
    Save { reason: String },
    /// Pinned prefixes would take more than half of the cache.
    #[error(
        "cannot pin the prefix of {n_bytes} bytes: of at most {limit} bytes, {n_pinned_bytes} are pinned; unpin another prefix"
    )]
    PinsFull { n_bytes: u64, n_pinned_bytes: u64, limit: u64 },
    /// llama.cpp could not compute a step.
    #[error("decoding failed: {reason}")]
    Decode { reason: String },
    /// The engine was stopped, or its worker died.
    #[error("the engine has stopped")]
    Stopped,
    /// The caller cancelled work in progress, see [`crate::cancellation`].
    #[error("the operation was cancelled")]
    Cancelled,
}

/// An error that can be attributed to one branch of a request.
pub(crate) trait BranchErrorExt: Sized {
    fn equals(&self, other: &Self) -> bool;

    /// Adds the index of the branch to the message for an invalid field.
    #[must_use]
    fn of_branch(self, index: usize) -> Self;
}

/// Calls `read` for each branch of a request. The first error is attributed to its branch, unless all branches fail with the
/// same error: then its cause is in their shared fields, and it is returned unchanged.
pub(crate) fn each_branch<T, U, E: BranchErrorExt>(
    branches: impl ExactSizeIterator<Item = T>,
    read: impl FnMut(T) -> std::result::Result<U, E>,
) -> std::result::Result<Vec<U>, E> {
    let mut results = Vec::with_capacity(branches.len());
    let mut branches = branches.map(read);
    while let Some(branch) = branches.next() {
        match branch {
            Ok(branch) => results.push(branch),
            Err(error) if results.is_empty() && branches.all(|other| other.is_err_and(|other| other.equals(&error))) => {
                return Err(error);
            }
            Err(error) => return Err(error.of_branch(results.len())),
        }
    }
    Ok(results)
}

impl BranchErrorExt for Error {
    fn equals(&self, other: &Self) -> bool {
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
