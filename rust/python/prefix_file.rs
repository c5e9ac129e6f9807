//! Files of saved prefixes, for Python.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;

use super::fork::ThisProcess;
use crate::config::EngineConfig;
use crate::llama::{Model, PrefixFileError, PrefixFiles};
use crate::request::SavedPrefix;

/// Writes and reads files for one engine, without the GIL.
pub(super) struct Files(ThisProcess<PrefixFiles>);

impl Files {
    pub(super) fn new(model: &Arc<Model>, config: &EngineConfig) -> Self {
        Self(ThisProcess::new(PrefixFiles::new(Arc::clone(model), config)))
    }

    /// Writes `prefix` to `path`; returns the file's size in bytes.
    ///
    /// # Errors
    /// `OSError`; `ForkedProcess` in a forked child.
    pub(super) fn write(&self, py: Python<'_>, path: PathBuf, prefix: &SavedPrefix) -> PyResult<u64> {
        let files = self.0.get()?;
        let written = py.detach(|| files.write(&path, prefix).map(|()| size_of_file(&path)));
        written.map_err(|error| raised(py, error))?.map_err(|error| os_error(py, path, error))
    }

    /// Reads the file at `path`; returns its prefix and its size in bytes.
    ///
    /// # Errors
    /// `PrefixFileError`, `OSError`; `ForkedProcess` in a forked child.
    pub(super) fn read(&self, py: Python<'_>, path: PathBuf) -> PyResult<(SavedPrefix, u64)> {
        let files = self.0.get()?;
        let read = py.detach(|| files.read(&path).map(|prefix| (prefix, size_of_file(&path))));
        let (prefix, n_bytes) = read.map_err(|error| raised(py, error))?;
        Ok((prefix, n_bytes.map_err(|error| os_error(py, path, error))?))
    }
}

fn size_of_file(path: &Path) -> io::Result<u64> {
    Ok(fs::metadata(path)?.len())
}

fn raised(py: Python<'_>, error: PrefixFileError) -> PyErr {
    match error {
        PrefixFileError::Io { path, source, .. } => os_error(py, path, source),
        PrefixFileError::Refused(error) => error.into(),
    }
}

/// The `OSError` that Python's own functions would raise: of the class that fits its number, with the file's name.
fn os_error(py: Python<'_>, path: PathBuf, error: io::Error) -> PyErr {
    let Some(code) = error.raw_os_error() else { return error.into() };
    let message = py.import(intern!(py, "os")).and_then(|os| os.call_method1(intern!(py, "strerror"), (code,)));
    message.map_or_else(|error| error, |message| PyOSError::new_err((code, message.unbind(), path.into_os_string())))
}
