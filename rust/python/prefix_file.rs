//! Files of saved prefixes, for Python.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;

use super::fork::ThisProcess;
use crate::config::ResolvedConfig;
use crate::error::Error;
use crate::llama::{Model, PrefixFileError, PrefixFiles};
use crate::request::SavedPrefix;

/// Writes and reads prefix files of one engine, without the GIL.
pub(super) struct Files(ThisProcess<PrefixFiles>);

impl Files {
    pub(super) fn new(model: &Arc<Model>, config: &ResolvedConfig) -> Self {
        Self(ThisProcess::new(PrefixFiles::new(Arc::clone(model), config)))
    }

    /// Writes `prefix` to `path`; returns the file's size in bytes.
    ///
    /// # Errors
    /// `OSError`, `ModelLoadError`; `ForkedProcess` in a forked child.
    pub(super) fn write(&self, py: Python<'_>, path: PathBuf, prefix: &SavedPrefix) -> PyResult<u64> {
        let files = self.0.get()?;
        py.detach(move || files.write(&path, prefix)).map_err(|error| to_python_error(py, error))
    }

    /// Reads the file at `path`; returns its prefix and its size in bytes.
    ///
    /// # Errors
    /// `PrefixFileError`, `OSError`, `ModelLoadError`; `ForkedProcess` in a forked child.
    pub(super) fn read(&self, py: Python<'_>, path: PathBuf) -> PyResult<(SavedPrefix, u64)> {
        let files = self.0.get()?;
        py.detach(move || files.read(&path)).map_err(|error| to_python_error(py, error))
    }
}

fn to_python_error(py: Python<'_>, error: PrefixFileError) -> PyErr {
    match error {
        PrefixFileError::Io { path, source, .. } => os_error(py, path, source),
        // The message may reach clients of a server: it contains the name of the model file without its folder.
        PrefixFileError::Model { path, source } => {
            let path = path.file_name().map_or_else(PathBuf::new, PathBuf::from);
            Error::ModelLoad { path, reason: source.to_string() }.into()
        }
        PrefixFileError::Refused(error) => error.into(),
    }
}

/// Creates the `OSError` that Python's own functions would raise: with the subclass of its errno, and the file's name.
fn os_error(py: Python<'_>, path: PathBuf, error: io::Error) -> PyErr {
    let Some(code) = error.raw_os_error() else { return error.into() };
    let message = py.import(intern!(py, "os")).and_then(|os| os.call_method1(intern!(py, "strerror"), (code,)));
    message.map_or_else(|error| error, |message| PyOSError::new_err((code, message.unbind(), path.into_os_string())))
}
