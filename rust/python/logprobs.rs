//! Logprobs in the server's JSON: a thousand Python objects per token would block the event loop for milliseconds.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustc_hash::{FxBuildHasher, FxHashSet};

use super::events;
use super::json::Json;
use super::model::PyModel;
use crate::llama::token_strings;
use crate::request::{Logprob, Logprobs, Token};
use crate::sampling::TokenStrings;

/// Lowest finite value of 32 bits: llama-server writes it for the logarithm of 0, because JSON has no infinity.
const LOWEST: f32 = f32::MIN;

/// Approximate size of one token's JSON in both formats.
const ENTRY_BYTES: usize = 144;

#[pyclass(frozen, module = "weft._native", name = "CompactLogprobs")]
pub(super) struct PyCompactLogprobs {
    logprobs: Logprobs,
    token_strings: TokenStrings,
}

impl PyCompactLogprobs {
    pub(super) fn new(logprobs: Logprobs, token_strings: &TokenStrings) -> Self {
        Self { logprobs, token_strings: token_strings.clone() }
    }

    fn json(&self) -> Json {
        Json::with_capacity((self.logprobs.top.len() + 2) * ENTRY_BYTES)
    }

    /// Writes the leading fields of a token, without the closing brace.
    fn write_leading_fields(&self, json: &mut Json, one: Logprob, is_prob: bool) {
        let piece = self.token_strings.piece(one.token);
        json.push_raw("{\"id\":").push_integer(one.token).push_raw(",\"token\":").push_text(&String::from_utf8_lossy(piece));
        json.push_raw(",\"bytes\":[").push_numbers(piece);
        json.push_raw(if is_prob { "],\"prob\":" } else { "],\"logprob\":" });
        json.push_number(if is_prob { probability(one) } else { logarithm(one) });
    }

    /// Writes the sampled token and its top logprobs, without the closing brace.
    fn write_token(&self, json: &mut Json, with_top: bool, is_prob: bool) {
        self.write_leading_fields(json, self.logprobs.chosen, is_prob);
        json.push_raw(if is_prob { ",\"top_probs\":[" } else { ",\"top_logprobs\":[" });
        if with_top {
            json.push_list(&self.logprobs.top, |json, &top| {
                self.write_leading_fields(json, top, is_prob);
                json.push_raw("}");
            });
        }
        json.push_raw("]");
    }
}

#[pymethods]
impl PyCompactLogprobs {
    /// Creates logprobs from the [`PyCompactLogprobs::pairs`] of another process.
    #[new]
    fn of(model: &PyModel, pairs: Vec<(Token, f32)>) -> PyResult<Self> {
        let mut all = pairs.into_iter().map(|(token, logprob)| Logprob { token, logprob });
        let chosen = all.next().ok_or_else(|| PyValueError::new_err("pairs is empty; it must have the sampled token first"))?;
        Ok(Self { logprobs: Logprobs { chosen, top: all.collect() }, token_strings: token_strings(model.loaded()?) })
    }

    /// Returns the token and then the most likely ones, each with its logprob.
    fn pairs(&self) -> Vec<(Token, f32)> {
        let all = std::iter::once(&self.logprobs.chosen).chain(&self.logprobs.top);
        all.map(|one| (one.token, one.logprob)).collect()
    }

    fn __len__(&self) -> usize {
        self.logprobs.top.len()
    }

    /// Returns the sampled token, or the token of the prompt, as a `Logprob`.
    #[getter]
    fn chosen<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        events::logprob_to_python(py, self.logprobs.chosen, &self.token_strings)
    }

    /// Returns the token and its top logprobs in llama-server's current format.
    fn token_json<'py>(&self, py: Python<'py>, with_top: bool, is_prob: bool) -> Bound<'py, PyBytes> {
        let mut json = self.json();
        self.write_token(&mut json, with_top, is_prob);
        json.push_raw("}").bytes(py)
    }

    /// Returns the token and its top logprobs in the format of `/completion`, with the two fields of 2024.
    fn completion_json<'py>(&self, py: Python<'py>, is_prob: bool) -> Bound<'py, PyBytes> {
        let mut json = self.json();
        let text = |one: Logprob| String::from_utf8_lossy(self.token_strings.piece(one.token));
        self.write_token(&mut json, true, is_prob);
        json.push_raw(",\"content\":").push_text(&text(self.logprobs.chosen)).push_raw(",\"probs\":[");
        json.push_list(&self.logprobs.top, |json, &top| {
            json.push_raw("{\"prob\":")
                .push_number(probability(top))
                .push_raw(",\"tok_str\":")
                .push_text(&text(top))
                .push_raw("}");
        });
        json.push_raw("]}").bytes(py)
    }

    /// Returns the top logprobs as OpenAI's object of texts and logprobs. Tokens whose bytes are not whole characters may have
    /// the same text; the most likely of them is listed.
    fn top_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut json = self.json();
        let mut seen = FxHashSet::with_capacity_and_hasher(self.logprobs.top.len(), FxBuildHasher);
        let texts = self.logprobs.top.iter().map(|&top| (String::from_utf8_lossy(self.token_strings.piece(top.token)), top));
        let unique: Vec<_> = texts.filter(|(text, _)| seen.insert(text.clone())).collect();
        json.push_raw("{");
        json.push_list(&unique, |json, (text, top)| {
            json.push_text(text).push_raw(":").push_number(logarithm(*top));
        });
        json.push_raw("}").bytes(py)
    }
}

fn logarithm(one: Logprob) -> f64 {
    f64::from(one.logprob.max(LOWEST))
}

fn probability(one: Logprob) -> f64 {
    f64::from(one.logprob).exp()
}
