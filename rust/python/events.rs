//! Conversion of events to the structs of `weft.events`: each class is looked up once, and called once per event.
//!
//! The structs are defined in Python, so that they can be pickled, compared, encoded and constructed. A call with positional
//! arguments costs about as much as creating an object of a class defined here, and reading its fields costs less.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyTuple};

use super::logprobs::PyCompactLogprobs;
use super::prefix;
use crate::config::Named;
use crate::request::{
    ComputedRun, EarlierRequest, Event, Explanation, FinishReason, Finished, Logprob, Logprobs, Progress, PromptLogprobs,
    TokenEvent, Usage,
};
use crate::sampling::TokenStrings;

macro_rules! class {
    ($py:expr, $name:literal) => {{
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        CLASS.import($py, "weft.events", $name)?
    }};
}

#[derive(Clone, Copy)]
pub(super) struct LogprobFormat<'a> {
    pub(super) token_strings: &'a TokenStrings,
    /// One object that serializes itself, instead of one object per token.
    pub(super) is_compact: bool,
}

impl LogprobFormat<'_> {
    fn logprobs(self, py: Python<'_>, logprobs: Logprobs) -> PyResult<Bound<'_, PyAny>> {
        if self.is_compact {
            return Ok(Bound::new(py, PyCompactLogprobs::new(logprobs, self.token_strings))?.into_any());
        }
        let top = logprobs.top.iter().map(|&one| logprob_to_python(py, one, self.token_strings)).collect::<PyResult<Vec<_>>>()?;
        class!(py, "Logprobs").call1((logprob_to_python(py, logprobs.chosen, self.token_strings)?, PyTuple::new(py, top)?))
    }
}

pub(super) fn to_python<'py>(py: Python<'py>, event: Event, format: LogprobFormat<'_>) -> PyResult<Bound<'py, PyAny>> {
    match event {
        Event::Token(event) => token_to_python(py, event, format),
        Event::Finished(event) => finished_to_python(py, event),
        Event::Progress(Progress { n_prompt, n_cached, n_processed, ms }) => {
            class!(py, "Progress").call1((n_prompt, n_cached, n_processed, ms))
        }
        Event::PromptLogprobs(PromptLogprobs { start, logprobs }) => {
            let convert = |one: Option<Logprobs>| one.map(|one| format.logprobs(py, one)).transpose();
            let logprobs = logprobs.into_iter().map(convert).collect::<PyResult<Vec<_>>>()?;
            class!(py, "PromptLogprobs").call1((start, PyTuple::new(py, logprobs)?))
        }
    }
}

fn token_to_python<'py>(py: Python<'py>, event: TokenEvent, format: LogprobFormat<'_>) -> PyResult<Bound<'py, PyAny>> {
    let TokenEvent { index, token, text, slot, n_predicted, logprobs } = event;
    let class = class!(py, "Token");
    match logprobs {
        None => class.call1((index, token, text.as_str(), slot, n_predicted)),
        Some(logprobs) => class.call1((index, token, text.as_str(), slot, n_predicted, format.logprobs(py, *logprobs)?)),
    }
}

pub(super) fn logprob_to_python<'py>(
    py: Python<'py>,
    Logprob { token, logprob }: Logprob,
    token_strings: &TokenStrings,
) -> PyResult<Bound<'py, PyAny>> {
    class!(py, "Logprob").call1((token, PyBytes::new(py, token_strings.piece(token)), logprob))
}

fn finished_to_python(py: Python<'_>, event: Finished) -> PyResult<Bound<'_, PyAny>> {
    let Finished { index, slot, reason, text, usage, is_truncated, result, score, explanation } = event;
    let is_context_full = reason == FinishReason::ContextFull;
    let (finish_reason, stop_reason) = match reason {
        FinishReason::End(token) => (intern!(py, "stop"), token.into_pyobject(py)?),
        FinishReason::Stop(stop) => (intern!(py, "stop"), stop.into_pyobject(py)?.into_any()),
        FinishReason::Length | FinishReason::ContextFull => (intern!(py, "length"), py.None().into_bound(py)),
        FinishReason::Cancelled => (intern!(py, "cancelled"), py.None().into_bound(py)),
    };
    let Usage { n_prompt_computed, n_cached, n_predicted, n_context, prompt_ms, predicted_ms, n_drafted, n_draft_accepted } =
        usage;
    let usage = class!(py, "Usage").call1((
        n_prompt_computed,
        n_cached,
        n_predicted,
        n_context,
        prompt_ms,
        predicted_ms,
        n_drafted,
        n_draft_accepted,
    ))?;
    let result = result.map(|result| prefix::to_python(py, *result)).transpose()?;
    let explanation = explanation.map(|explanation| explanation_to_python(py, *explanation)).transpose()?;
    let text = text.as_str();
    let fields =
        (index, finish_reason, usage, slot, stop_reason, text, is_context_full, is_truncated, result, explanation, score);
    class!(py, "Finished").call1(fields)
}

pub(super) fn explanation_to_python(py: Python<'_>, explanation: Explanation) -> PyResult<Bound<'_, PyAny>> {
    let Explanation { request_id, n_prompt, n_found, n_awaited, computed } = explanation;
    let computed = computed.into_iter().map(|one| computed_run_to_python(py, one)).collect::<PyResult<Vec<_>>>()?;
    class!(py, "CacheExplanation").call1((request_id, n_prompt, n_found, n_awaited, PyTuple::new(py, computed)?))
}

fn computed_run_to_python(py: Python<'_>, run: ComputedRun) -> PyResult<Bound<'_, PyAny>> {
    let ComputedRun { range, cause, eviction, position, byte_offset, character_offset, text_before, text_at, earlier } = run;
    let convert_earlier =
        |EarlierRequest { request_id, text, is_in_answer }| class!(py, "EarlierRequest").call1((request_id, text, is_in_answer));
    let earlier = earlier.map(convert_earlier).transpose()?;
    let (evicted_for, evicted_s) = eviction.map(|(cause, age)| (cause.name(), age.as_secs_f64())).unzip();
    class!(py, "ComputedRange").call1((
        range.start,
        range.end,
        cause.name(),
        position,
        byte_offset,
        character_offset,
        text_before,
        text_at,
        earlier,
        evicted_for,
        evicted_s,
    ))
}
