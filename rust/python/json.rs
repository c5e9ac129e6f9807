//! A writer of JSON that needs no Python objects.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

#[derive(Default)]
pub(super) struct Json(Vec<u8>);

impl Json {
    pub(super) fn with_capacity(n_bytes: usize) -> Self {
        Self(Vec::with_capacity(n_bytes))
    }

    pub(super) fn of_list<T>(items: &[T], write: impl FnMut(&mut Self, &T)) -> Self {
        let mut json = Self::default();
        json.push_raw("[").push_list(items, write).push_raw("]");
        json
    }

    pub(super) fn push_raw(&mut self, text: &str) -> &mut Self {
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    pub(super) fn push_text(&mut self, text: &str) -> &mut Self {
        serde_json::to_writer(&mut self.0, text).expect("memory takes what is written");
        self
    }

    pub(super) fn push_number(&mut self, number: f64) -> &mut Self {
        serde_json::to_writer(&mut self.0, &number).expect("memory takes what is written");
        self
    }

    pub(super) fn push_integer(&mut self, number: i32) -> &mut Self {
        serde_json::to_writer(&mut self.0, &number).expect("memory takes what is written");
        self
    }

    pub(super) fn push_numbers(&mut self, bytes: &[u8]) -> &mut Self {
        self.push_list(bytes, |json, &byte| {
            json.push_integer(byte.into());
        })
    }

    pub(super) fn push_list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) -> &mut Self {
        for (nth, item) in items.iter().enumerate() {
            if nth > 0 {
                self.0.push(b',');
            }
            write(self, item);
        }
        self
    }

    pub(super) fn bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0)
    }
}
