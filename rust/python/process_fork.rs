//! Values that a forked child process must not use.

use std::process;

use pyo3::prelude::*;

use super::errors::ForkedProcessError;

/// A value that depends on threads of this process.
///
/// `fork` copies the memory but not the threads: in the child, a call or a drop would wait for a worker that does not exist.
/// There, [`ThisProcess::get`] fails, and the drop leaks the value, whose memory was shared with the parent anyway.
#[derive(Debug)]
pub(super) struct ThisProcess<T> {
    process_id: u32,
    /// `None` after [`ThisProcess::take`].
    value: Option<T>,
}

impl<T> ThisProcess<T> {
    pub(super) fn new(value: T) -> Self {
        Self { process_id: process::id(), value: Some(value) }
    }

    /// # Errors
    /// `ForkedProcessError` in a child of the process that created the value.
    pub(super) fn get(&self) -> PyResult<&T> {
        let process_id = process::id();
        match &self.value {
            Some(value) if process_id == self.process_id => Ok(value),
            _ => Err(ForkedProcessError::new_err((self.process_id, process_id))),
        }
    }

    /// Takes the value for a drop; `None` in a forked child.
    pub(super) fn take(&mut self) -> Option<T> {
        self.value.take_if(|_| process::id() == self.process_id)
    }
}

impl<T> Drop for ThisProcess<T> {
    fn drop(&mut self) {
        if process::id() != self.process_id {
            std::mem::forget(self.value.take());
        }
    }
}
