//! [`Error`] → the Python class of the same meaning, with its numbers as attributes.

use pyo3::import_exception;
use pyo3::prelude::*;

use crate::error::{BranchErrorExt, Error};

import_exception!(weft.errors, ModelLoadError);
import_exception!(weft.errors, InvalidConfig);
import_exception!(weft.errors, InvalidRequest);
import_exception!(weft.errors, NotSupported);
import_exception!(weft.errors, ContextOverflow);
import_exception!(weft.errors, QueueFull);
import_exception!(weft.errors, SlowReader);
import_exception!(weft.errors, PrefixFileError);
import_exception!(weft.errors, PrefixSaveError);
import_exception!(weft.errors, PinsFull);
import_exception!(weft.errors, DecodeError);
import_exception!(weft.errors, EngineStopped);
import_exception!(weft.errors, ForkedProcess);
import_exception!(weft.errors, WorkCancelledError);

impl BranchErrorExt for PyErr {
    fn is_same(&self, other: &Self) -> bool {
        Python::attach(|py| invalid(py, self).is_some_and(|told| Some(told) == invalid(py, other)))
    }

    fn of_branch(self, index: usize) -> Self {
        match Python::attach(|py| invalid(py, &self)) {
            Some((param, message)) => InvalidRequest::new_err((param, format!("branches[{index}]: {message}"))),
            None => self,
        }
    }
}

/// The field that is wrong and what is said of it, where that is the error.
fn invalid(py: Python<'_>, error: &PyErr) -> Option<(String, String)> {
    let told = |name| error.value(py).getattr(name).ok()?.extract::<String>().ok();
    error.is_instance_of::<InvalidRequest>(py).then_some(())?;
    Some((told("param")?, told("message")?))
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        // No wildcard: a new variant must be given its class here before this compiles.
        match error {
            Error::ModelLoad { path, reason } => ModelLoadError::new_err((path, reason)),
            Error::InvalidConfig { param, message } => InvalidConfig::new_err((param, message)),
            Error::InvalidRequest { param, message } => InvalidRequest::new_err((param, message)),
            Error::NotSupported { message } => NotSupported::new_err((message,)),
            Error::ContextOverflow { n_prompt, n_ctx } => ContextOverflow::new_err((n_prompt, n_ctx)),
            Error::QueueFull { n_waiting, unit } => QueueFull::new_err((n_waiting, unit)),
            Error::SlowReader { n_behind, limit, unit } => SlowReader::new_err((n_behind, limit, unit.to_string())),
            Error::PrefixFile { path, reason } => PrefixFileError::new_err((path, reason)),
            // Whoever loads a file knows its path.
            Error::PrefixRefused { reason } => PrefixFileError::new_err((String::new(), reason)),
            Error::Save { reason } => PrefixSaveError::new_err((reason,)),
            Error::PinsFull { n_bytes, n_pinned_bytes, limit } => PinsFull::new_err((n_bytes, n_pinned_bytes, limit)),
            Error::Decode { reason } => DecodeError::new_err((reason,)),
            Error::Stopped => EngineStopped::new_err(()),
            Error::Cancelled => WorkCancelledError::new_err(()),
        }
    }
}
