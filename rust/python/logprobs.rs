//! Log-probabilities as the server writes them: JSON made here, since to make a thousand objects of each token, and to write these
//! out again, holds the event loop for milliseconds.

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

/// The least number of 32 bits: what llama-server writes for the logarithm of 0, as JSON has no infinity.
const LOWEST: f32 = f32::MIN;

/// Bytes that one token comes to, about, with two shapes of it.
const ENTRY_BYTES: usize = 144;

/// `weft._native.CompactLogprobs`.
#[pyclass(frozen, module = "weft._native", name = "CompactLogprobs")]
pub(super) struct PyCompactLogprobs {
    logprobs: Logprobs,
    lexicon: TokenStrings,
}

impl PyCompactLogprobs {
    pub(super) fn new(logprobs: Logprobs, lexicon: &TokenStrings) -> Self {
        Self { logprobs, lexicon: lexicon.clone() }
    }

    /// With room for all tokens.
    fn json(&self) -> Json {
        Json::with_capacity((self.logprobs.top.len() + 2) * ENTRY_BYTES)
    }

    /// The fields of a token that it begins with, without the last brace.
    fn begin(&self, json: &mut Json, one: Logprob, is_prob: bool) {
        let piece = self.lexicon.piece(one.token);
        json.raw("{\"id\":").integer(one.token).raw(",\"token\":").text(&String::from_utf8_lossy(piece));
        json.raw(",\"bytes\":[").numbers(piece);
        json.raw(if is_prob { "],\"prob\":" } else { "],\"logprob\":" });
        json.number(if is_prob { probability(one) } else { logarithm(one) });
    }

    /// The drawn token and what was likely in its place, without the last brace.
    fn drawn(&self, json: &mut Json, with_top: bool, is_prob: bool) {
        self.begin(json, self.logprobs.chosen, is_prob);
        json.raw(if is_prob { ",\"top_probs\":[" } else { ",\"top_logprobs\":[" });
        if with_top {
            json.list(&self.logprobs.top, |json, &top| {
                self.begin(json, top, is_prob);
                json.raw("}");
            });
        }
        json.raw("]");
    }
}

#[pymethods]
impl PyCompactLogprobs {
    /// Of what [`PyCompactLogprobs::pairs`] of another process has told, spelt by the vocabulary of `model`.
    #[new]
    fn of(model: &PyModel, pairs: Vec<(Token, f32)>) -> PyResult<Self> {
        let mut all = pairs.into_iter().map(|(token, logprob)| Logprob { token, logprob });
        let chosen = all.next().ok_or_else(|| PyValueError::new_err("there is no token"))?;
        Ok(Self { logprobs: Logprobs { chosen, top: all.collect() }, lexicon: token_strings(model.loaded()?) })
    }

    /// The token, then the most likely ones, each with its log-probability.
    fn pairs(&self) -> Vec<(Token, f32)> {
        let all = std::iter::once(&self.logprobs.chosen).chain(&self.logprobs.top);
        all.map(|one| (one.token, one.logprob)).collect()
    }

    /// How many of the most likely tokens there are.
    fn __len__(&self) -> usize {
        self.logprobs.top.len()
    }

    /// The token that was drawn, or that the prompt has there, as a `Logprob`.
    #[getter]
    fn chosen<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        events::logprob(py, self.logprobs.chosen, &self.lexicon)
    }

    /// The token, and the most likely ones in its place, in llama-server's shape of today.
    fn token_json<'py>(&self, py: Python<'py>, with_top: bool, is_prob: bool) -> Bound<'py, PyBytes> {
        let mut json = self.json();
        self.drawn(&mut json, with_top, is_prob);
        json.raw("}").bytes(py)
    }

    /// The same as `/completion` tells it, with the two fields of 2024.
    fn completion_json<'py>(&self, py: Python<'py>, is_prob: bool) -> Bound<'py, PyBytes> {
        let mut json = self.json();
        let text = |one: Logprob| String::from_utf8_lossy(self.lexicon.piece(one.token));
        self.drawn(&mut json, true, is_prob);
        json.raw(",\"content\":").text(&text(self.logprobs.chosen)).raw(",\"probs\":[");
        json.list(&self.logprobs.top, |json, &top| {
            json.raw("{\"prob\":").number(probability(top)).raw(",\"tok_str\":").text(&text(top)).raw("}");
        });
        json.raw("]}").bytes(py)
    }

    /// The most likely tokens as OpenAI's object of texts and log-probabilities. Two tokens may be spelt alike where their bytes are
    /// no whole characters; it has the likelier.
    fn top_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut json = self.json();
        let mut known = FxHashSet::with_capacity_and_hasher(self.logprobs.top.len(), FxBuildHasher);
        let texts = self.logprobs.top.iter().map(|&top| (String::from_utf8_lossy(self.lexicon.piece(top.token)), top));
        let firsts: Vec<_> = texts.filter(|(text, _)| known.insert(text.clone())).collect();
        json.raw("{");
        json.list(&firsts, |json, (text, top)| {
            json.text(text).raw(":").number(logarithm(*top));
        });
        json.raw("}").bytes(py)
    }
}

/// Of a token, as JSON can have it.
fn logarithm(one: Logprob) -> f64 {
    f64::from(one.logprob.max(LOWEST))
}

fn probability(one: Logprob) -> f64 {
    f64::from(one.logprob).exp()
}
