//! Events → the plain structs of `weft.events`: each class is looked up once, and called once for each event.
//!
//! The structs are Python's own, so that they can be pickled, compared, encoded and made by hand. A call with positions costs about
//! what making an object of a class from here would, and reading a field of it costs less.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyTuple};

use super::logprobs::PyCompactLogprobs;
use super::prefix;
use crate::request::{
    Cause, ComputedRun, EarlierRequest, Event, Explanation, FinishReason, Finished, Logprob, Logprobs, Progress, PromptLogprobs,
    TokenEvent, Usage,
};
use crate::sampling::TokenStrings;

/// A class of `weft.events`, found when it is first needed.
struct Class {
    name: &'static str,
    found: PyOnceLock<Py<PyAny>>,
}

impl Class {
    const fn new(name: &'static str) -> Self {
        Self { name, found: PyOnceLock::new() }
    }

    fn get<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyAny>> {
        self.found.import(py, "weft.events", self.name)
    }
}

static TOKEN: Class = Class::new("Token");
static LOGPROBS: Class = Class::new("Logprobs");
static LOGPROB: Class = Class::new("Logprob");
static PROMPT_LOGPROBS: Class = Class::new("PromptLogprobs");
static PROGRESS: Class = Class::new("Progress");
static FINISHED: Class = Class::new("Finished");
static USAGE: Class = Class::new("Usage");
static EXPLANATION: Class = Class::new("CacheExplanation");
static COMPUTED: Class = Class::new("ComputedStretch");
static EARLIER: Class = Class::new("EarlierRequest");

/// How log-probabilities are told.
#[derive(Clone, Copy)]
pub(super) struct LogprobFormat<'a> {
    /// Spells the tokens.
    pub(super) lexicon: &'a TokenStrings,
    /// As one object that writes itself out, instead of one for each token.
    pub(super) is_compact: bool,
}

impl LogprobFormat<'_> {
    fn logprobs(self, py: Python<'_>, told: Logprobs) -> PyResult<Bound<'_, PyAny>> {
        if self.is_compact {
            return Ok(Bound::new(py, PyCompactLogprobs::new(told, self.lexicon))?.into_any());
        }
        let top = told.top.iter().map(|&one| logprob(py, one, self.lexicon)).collect::<PyResult<Vec<_>>>()?;
        LOGPROBS.get(py)?.call1((logprob(py, told.chosen, self.lexicon)?, PyTuple::new(py, top)?))
    }
}

/// The Python object of an event.
pub(super) fn to_python<'py>(py: Python<'py>, event: Event, telling: LogprobFormat<'_>) -> PyResult<Bound<'py, PyAny>> {
    match event {
        Event::Token(event) => token(py, event, telling),
        Event::Finished(event) => finished(py, event),
        Event::Progress(Progress { n_prompt, n_cached, n_processed, ms }) => {
            PROGRESS.get(py)?.call1((n_prompt, n_cached, n_processed, ms))
        }
        Event::PromptLogprobs(PromptLogprobs { start, logprobs: told }) => {
            let of_each = |one: Option<Logprobs>| one.map(|one| telling.logprobs(py, one)).transpose();
            let told = told.into_iter().map(of_each).collect::<PyResult<Vec<_>>>()?;
            PROMPT_LOGPROBS.get(py)?.call1((start, PyTuple::new(py, told)?))
        }
    }
}

fn token<'py>(py: Python<'py>, event: TokenEvent, telling: LogprobFormat<'_>) -> PyResult<Bound<'py, PyAny>> {
    let TokenEvent { index, token, text, slot, n_predicted, logprobs: drawn } = event;
    let class = TOKEN.get(py)?;
    match drawn {
        None => class.call1((index, token, text.as_str(), slot, n_predicted)),
        Some(drawn) => class.call1((index, token, text.as_str(), slot, n_predicted, telling.logprobs(py, *drawn)?)),
    }
}

/// The Python object of one token.
pub(super) fn logprob<'py>(
    py: Python<'py>,
    Logprob { token, logprob }: Logprob,
    lexicon: &TokenStrings,
) -> PyResult<Bound<'py, PyAny>> {
    LOGPROB.get(py)?.call1((token, PyBytes::new(py, lexicon.piece(token)), logprob))
}

fn finished(py: Python<'_>, event: Finished) -> PyResult<Bound<'_, PyAny>> {
    let Finished { index, slot, reason, text, usage, is_truncated, made, score, explanation } = event;
    let (reason, stop) = match reason {
        FinishReason::End => (intern!(py, "end"), None),
        FinishReason::Stop(stop) => (intern!(py, "stop"), Some(stop)),
        FinishReason::Length => (intern!(py, "length"), None),
        FinishReason::ContextFull => (intern!(py, "context_full"), None),
        FinishReason::Cancelled => (intern!(py, "cancelled"), None),
    };
    let Usage { n_computed, n_cached, n_predicted, n_held, prompt_ms, predicted_ms } = usage;
    let usage = USAGE.get(py)?.call1((n_computed, n_cached, n_predicted, n_held, prompt_ms, predicted_ms))?;
    let made = made.map(|made| prefix::to_python(py, *made)).transpose()?;
    let explanation = explanation.map(|explanation| explained(py, *explanation)).transpose()?;
    FINISHED.get(py)?.call1((index, reason, usage, slot, stop, text.as_str(), is_truncated, made, explanation, score))
}

pub(super) fn explained(py: Python<'_>, told: Explanation) -> PyResult<Bound<'_, PyAny>> {
    let Explanation { request_id, n_prompt, n_found, n_awaited, computed } = told;
    let computed = computed.into_iter().map(|one| stretch(py, one)).collect::<PyResult<Vec<_>>>()?;
    EXPLANATION.get(py)?.call1((request_id, n_prompt, n_found, n_awaited, PyTuple::new(py, computed)?))
}

fn stretch(py: Python<'_>, told: ComputedRun) -> PyResult<Bound<'_, PyAny>> {
    let ComputedRun { range, cause, at, byte, character, before, here, earlier } = told;
    let of_earlier = |EarlierRequest { request_id, text, is_in_answer }| EARLIER.get(py)?.call1((request_id, text, is_in_answer));
    let earlier = earlier.map(of_earlier).transpose()?;
    let (evicted_for, evicted_s) = match &cause {
        Cause::Evicted(Some((why, ago))) => (Some(why.name()), Some(ago.as_secs_f64())),
        _ => (None, None),
    };
    let why = (range.start, range.end, cause.name(), at, byte, character, before, here, earlier, evicted_for, evicted_s);
    COMPUTED.get(py)?.call1(why)
}
