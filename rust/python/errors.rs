//! Conversion of [`Error`] to the Python class of the same meaning.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::{import_exception, intern};

use crate::error::{BranchErrorExt, Error};
use crate::llama;

import_exception!(weft.errors, ModelLoadError);
import_exception!(weft.errors, InvalidConfigError);
import_exception!(weft.errors, InvalidRequestError);
import_exception!(weft.errors, NotSupportedError);
import_exception!(weft.errors, ContextOverflowError);
import_exception!(weft.errors, QueueFullError);
import_exception!(weft.errors, SlowConsumerError);
import_exception!(weft.errors, PrefixFileError);
import_exception!(weft.errors, PrefixSaveError);
import_exception!(weft.errors, PinBudgetError);
import_exception!(weft.errors, DecodeError);
import_exception!(weft.errors, EngineStoppedError);
import_exception!(weft.errors, ForkedProcessError);
import_exception!(weft.errors, WorkCancelledError);

impl BranchErrorExt for PyErr {
    fn equals(&self, other: &Self) -> bool {
        Python::attach(|py| details(py, self).is_some_and(|mine| Some(mine) == details(py, other)))
    }

    fn of_branch(self, index: usize) -> Self {
        match Python::attach(|py| details(py, &self)) {
            Some((param, message)) => InvalidRequestError::new_err((param, format!("branches[{index}]: {message}"))),
            None => self,
        }
    }
}

/// Creates the error of a parameter that is `given`, but must be `valid`.
pub(super) fn invalid_config(param: &'static str, given: impl Display, valid: &str) -> PyErr {
    InvalidConfigError::new_err((param, format!("{param} is {given}; it must be {valid}")))
}

/// As [`invalid_config`].
pub(super) fn invalid_request(param: &'static str, given: impl Display, valid: &str) -> PyErr {
    InvalidRequestError::new_err((param, format!("{param} is {given}; it must be {valid}")))
}

fn details(py: Python<'_>, error: &PyErr) -> Option<(String, String)> {
    let attribute = |name| error.value(py).getattr(name).ok()?.extract::<String>().ok();
    error.is_instance_of::<InvalidRequestError>(py).then_some(())?;
    Some((attribute("param")?, attribute("message")?))
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        // No wildcard: a new variant requires a class here to compile.
        match error {
            Error::ModelLoad { path, reason } => ModelLoadError::new_err((path, reason)),
            Error::InvalidConfig { param, message } => InvalidConfigError::new_err((param, message)),
            Error::InvalidRequest { param, message } => InvalidRequestError::new_err((param, message)),
            Error::NotSupported { message } => NotSupportedError::new_err((message,)),
            Error::ContextOverflow { n_prompt, n_ctx } => ContextOverflowError::new_err((n_prompt, n_ctx)),
            Error::QueueFull { n_waiting, unit } => QueueFullError::new_err((n_waiting, unit)),
            Error::SlowConsumer { n_behind, limit, unit } => SlowConsumerError::new_err((n_behind, limit, unit)),
            Error::PrefixFile { path, reason } => PrefixFileError::new_err((path, reason)),
            // The caller that loads the file adds its path.
            Error::PrefixRefused { reason } => PrefixFileError::new_err((String::new(), reason)),
            Error::Save { reason } => PrefixSaveError::new_err((reason,)),
            Error::PinsFull { n_bytes, n_pinned_bytes, limit } => PinBudgetError::new_err((n_bytes, n_pinned_bytes, limit)),
            Error::Decode { reason } => DecodeError::new_err((reason,)),
            Error::Stopped => EngineStoppedError::new_err(()),
            Error::Cancelled => WorkCancelledError::new_err(()),
        }
    }
}

impl From<llama::PrefixFileError> for PyErr {
    fn from(error: llama::PrefixFileError) -> Self {
        use llama::PrefixFileError::{Io, Model, Refused};

        match error {
            Io { path, source, .. } => Python::attach(|py| os_error(py, path, source)),
            // The message may reach clients of a server: it contains the name of the model file without its folder.
            Model { path, source } => {
                let path = path.file_name().map_or_else(PathBuf::new, PathBuf::from);
                Error::ModelLoad { path, reason: source.to_string() }.into()
            }
            Refused(error) => error.into(),
        }
    }
}

/// Creates the error that Python's own functions would raise: of the subclass of its errno, with the file's name.
fn os_error(py: Python<'_>, path: PathBuf, error: io::Error) -> PyErr {
    let Some(code) = error.raw_os_error() else { return error.into() };
    let message = py.import(intern!(py, "os")).and_then(|os| os.call_method1(intern!(py, "strerror"), (code,)));
    message.map_or_else(|error| error, |message| PyOSError::new_err((code, message.unbind(), path.into_os_string())))
}
