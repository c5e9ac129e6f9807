//! Errors of files of saved prefixes, for Python.

use std::io;
use std::path::PathBuf;

use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;

use crate::error::Error;
use crate::llama::PrefixFileError;

pub(super) fn to_python_error(py: Python<'_>, error: PrefixFileError) -> PyErr {
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
