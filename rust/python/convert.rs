//! Conversion of requests to the crate's plain data. `InvalidRequestError` names the caller's parameter.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyByteArray, PyBytes, PyString};

use super::adapters;
use super::compact::{PyBiases, PyTokenIds};
use super::diversity;
use super::errors::{InvalidRequestError, invalid_request};
use super::media::{self, PyMixedPrompt};
use super::output_rules::{self, OutputRules};
use crate::config::Named;
use crate::error::Result;
use crate::llama::Model;
use crate::request::{
    ContextShift, Dry, Mirostat, Prompt, Request, SamplerKind, SamplingParams, SharedConstraint, Speculation, Token,
};

pub(super) enum PromptInput {
    Text(TextInput),
    Tokens(Vec<Token>),
    Shared(Arc<Vec<Token>>),
    Parts(Vec<media::PromptPart>),
    /// Parts, tokenized.
    Mixed(Py<PyMixedPrompt>),
}

impl PromptInput {
    pub(super) fn parses_special(&self) -> bool {
        matches!(self, Self::Text(_) | Self::Parts(_))
    }

    pub(super) fn read(self, model: &Model) -> Result<Prompt> {
        Ok(match self {
            Self::Tokens(tokens) => Prompt::from_tokens(tokens),
            Self::Shared(tokens) => Prompt::from_tokens(Arc::unwrap_or_clone(tokens)),
            // As llama-server tokenizes a raw prompt: clients that write their own template need the special tokens.
            Self::Text(text) => Prompt::from_tokens(model.tokenize(text.as_bytes(), true, true)?),
            Self::Parts(parts) => media::join_parts(&parts, model, true, true)?,
            Self::Mixed(mixed) => mixed.get().of(model)?,
        })
    }

    pub(super) fn read_continuation(self, parses_special: bool, model: &Model) -> Result<Vec<Token>> {
        match self {
            Self::Text(text) => model.tokenize_on(text.as_bytes(), parses_special),
            given => Ok(given.read(model)?.into_tokens()),
        }
    }
}

/// A request without its prompt.
pub(super) struct RequestInput {
    suffix: Option<PromptInput>,
    prediction: Option<PromptInput>,
    request: Request,
    constraint_input: Option<OutputConstraint>,
    output_rules: OutputRules,
}

impl RequestInput {
    pub(super) fn complete(
        self,
        prompt: Prompt,
        parses_special: bool,
        model: &Model,
        constraints: &mut Constraints,
    ) -> Result<Request> {
        let Self { suffix, prediction, mut request, constraint_input, output_rules } = self;
        let read = |input: Option<PromptInput>| input.map_or(Ok(Vec::new()), |it| it.read_continuation(parses_special, model));
        let suffix = read(suffix)?;
        request.speculation.prediction = read(prediction)?.into();
        let constraint = constraint_input.map(|constraint_input| constraints.read(constraint_input, model)).transpose()?;
        let context_shift = request.context_shift.map(|shift| keep_bos(shift, model));
        output_rules.apply(Request { prompt, suffix, constraint, context_shift, ..request }, model)
    }
}

/// Compiled constraints of the branches of one request, each compiled once.
#[derive(Default)]
pub(super) struct Constraints(Vec<(OutputConstraint, Result<SharedConstraint>)>);

impl Constraints {
    fn read(&mut self, constraint_input: OutputConstraint, model: &Model) -> Result<SharedConstraint> {
        if let Some((_, cached)) = self.0.iter().find(|(cached, _)| *cached == constraint_input) {
            return cached.clone();
        }
        let read = match &constraint_input {
            OutputConstraint::Grammar(text) => model.grammar(text),
            OutputConstraint::JsonSchema(text) => model.json_schema(text),
        };
        self.0.push((constraint_input, read.clone()));
        read
    }
}

/// Adds the BOS token to `n_keep` if the model has one, as llama-server does.
fn keep_bos(shift: ContextShift, model: &Model) -> ContextShift {
    let opening = model.tokenize(b"", true, true).unwrap_or_default();
    let adds_bos = model.bos_token().is_some_and(|bos| opening.first() == Some(&bos));
    ContextShift { n_keep: shift.n_keep.map(|n| n.saturating_add(adds_bos.into())), ..shift }
}

#[derive(PartialEq)]
enum OutputConstraint {
    Grammar(PyBackedStr),
    JsonSchema(PyBackedStr),
}

pub(super) fn get_attribute<'py>(object: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
    object.getattr(name).map_err(|_| {
        let given = object.get_type().name().map_or_else(|_| "this object".into(), |name| name.to_string());
        PyTypeError::new_err(format!("a request must be a weft.Request, not {given}"))
    })
}

/// Converts the attribute `$name` of a `weft.Request`; `$what` describes its valid values.
macro_rules! request_field {
    ($request:expr, $name:literal, $what:expr) => {{
        use $crate::python::convert::{get_attribute, read_field};
        read_field($name, $what, &get_attribute($request, intern!($request.py(), $name))?)?
    }};
}

pub(super) use request_field;

pub(super) fn read_prompt_of(object: &Bound<'_, PyAny>) -> PyResult<PromptInput> {
    read_prompt(&get_attribute(object, intern!(object.py(), "prompt"))?)
}

pub(super) const COUNT: &str = "an integer from 0 to 2³² − 1";
pub(super) const NUMBER: &str = "a number";
pub(super) const SWITCH: &str = "True or False";

/// Converts all but the prompt; [`Request::validate`] checks the ranges.
pub(super) fn read_request<'py>(object: &Bound<'py, PyAny>) -> PyResult<RequestInput> {
    let py = object.py();
    let get = |name: &Bound<'py, PyString>| get_attribute(object, name);
    let seed: Option<u32> = request_field!(object, "seed", COUNT);
    let context_shift: bool = request_field!(object, "context_shift", SWITCH);
    let n_keep: Option<u32> = request_field!(object, "n_keep", COUNT);
    // Only `weft.request.internal.InternalRequest` has these fields.
    let internal = |name| object.getattr_opt(name).map(|value| value.unwrap_or_else(|| py.None().into_bound(py)));
    let owner: Option<PyBackedStr> = read_field("owner", "a string", &internal(intern!(py, "owner"))?)?;
    let system_end: Option<u32> = read_field("system_end", COUNT, &internal(intern!(py, "system_end"))?)?;
    let n: u32 = request_field!(object, "n", "a positive integer");
    let n_batch: Option<u32> = request_field!(object, "n_batch", "a count");
    let max_predict_ms: Option<f64> = request_field!(object, "max_predict_ms", NUMBER);
    let max_token_gap_ms: Option<f64> = request_field!(object, "max_token_gap_ms", "a number from 1 to 60000");
    let request = Request {
        n,
        diversity: diversity::read_diversity(object, n)?,
        max_tokens: request_field!(object, "max_tokens", COUNT),
        stop: request_field!(object, "stop", "a sequence of strings"),
        seed: seed.map_or_else(|| generate_seed(py), Ok)?,
        sampling: read_sampling(object)?,
        adapters: adapters::read_adapter_set(&get(intern!(py, "adapters"))?)?,
        context_shift: context_shift.then_some(ContextShift { n_keep, n_discard: request_field!(object, "n_discard", COUNT) }),
        priority: request_field!(object, "priority", "an integer from −100 to 100"),
        max_token_gap: max_token_gap_ms.map(|ms| read_milliseconds("max_token_gap_ms", ms, "1 to 60000")).transpose()?,
        max_chunk: n_batch,
        max_predict_time: max_predict_ms.map(|ms| read_milliseconds("max_predict_ms", ms, "0 or more")).transpose()?,
        n_indent: request_field!(object, "n_indent", COUNT),
        uses_cache: request_field!(object, "use_cache", SWITCH),
        prompt_logprobs: request_field!(object, "prompt_logprobs", "an integer from 0 to 1000"),
        prompt_logprobs_from: request_field!(object, "prompt_logprobs_from", COUNT),
        reports_progress: request_field!(object, "report_progress", SWITCH),
        checkpoints_at: request_field!(object, "checkpoints_at", "a sequence of integers from 0 to 2³² − 1"),
        keeps_answers: request_field!(object, "cache_answers", SWITCH),
        explains_cache: request_field!(object, "explain_cache", SWITCH),
        owner: owner.as_deref().map(Into::into),
        system_end,
        speculation: Speculation {
            max_draft: request_field!(object, "max_draft", "an integer from 0 to 64"),
            ..Speculation::default()
        },
        slot: read_slot(&get(intern!(py, "slot"))?)?,
        ..Request::default()
    };
    let constraint_input = read_constraint(object)?;
    let output_rules = output_rules::read_output_rules(object, constraint_input.is_some())?;
    let suffix = read_text_or_tokens("suffix_prompt", &get(intern!(py, "suffix_prompt"))?)?;
    let prediction = read_text_or_tokens("prediction", &get(intern!(py, "prediction"))?)?;
    Ok(RequestInput { suffix, prediction, request, constraint_input, output_rules })
}

fn read_sampling<'py>(object: &Bound<'py, PyAny>) -> PyResult<SamplingParams> {
    let py = object.py();
    let get = |name: &Bound<'py, PyString>| get_attribute(object, name);
    let penalty_prompt: Option<Bound<'_, PyAny>> = get(intern!(py, "penalty_prompt"))?.extract()?;
    let mut params = SamplingParams {
        samplers: read_samplers(&get(intern!(py, "samplers"))?)?,
        top_k: request_field!(object, "top_k", "an integer below 2³¹"),
        min_keep: request_field!(object, "min_keep", COUNT),
        repeat_penalty: request_field!(object, "repeat_penalty", NUMBER),
        repeat_last_n: request_field!(object, "repeat_last_n", "an integer from −1 to 2³¹ − 1"),
        penalize_nl: request_field!(object, "penalize_nl", SWITCH),
        penalty_prompt: penalty_prompt.map(|ids| read_tokens("penalty_prompt", &ids)).transpose()?,
        dry: Dry {
            allowed_length: request_field!(object, "dry_allowed_length", "an integer below 2³¹"),
            penalty_last_n: request_field!(object, "dry_penalty_last_n", "an integer from −1 to 2³¹ − 1"),
            sequence_breakers: request_field!(object, "dry_sequence_breakers", "a sequence of strings"),
            ..Dry::default()
        },
        mirostat: read_mirostat(&get(intern!(py, "mirostat"))?)?,
        adaptive_decay: request_field!(object, "adaptive_decay", NUMBER),
        logit_bias: read_biases(&get(intern!(py, "logit_bias"))?)?,
        ignore_eos: request_field!(object, "ignore_eos", SWITCH),
        logprobs: request_field!(object, "logprobs", "an integer from 0 to 1000"),
        post_sampling_probs: request_field!(object, "post_sampling_probs", SWITCH),
        ..SamplingParams::default()
    };
    for (name, value) in params.numbers_mut() {
        *value = read_field(name, NUMBER, &get(&PyString::intern(py, name))?)?;
    }
    Ok(params)
}

fn read_constraint(object: &Bound<'_, PyAny>) -> PyResult<Option<OutputConstraint>> {
    let grammar: Option<PyBackedStr> = request_field!(object, "grammar", "a string");
    // As in llama-server, an empty grammar is no grammar.
    match (grammar.filter(|grammar| !grammar.is_empty()), request_field!(object, "json_schema", "a string")) {
        (grammar, None) => Ok(grammar.map(OutputConstraint::Grammar)),
        (None, schema) => Ok(schema.map(OutputConstraint::JsonSchema)),
        (Some(_), Some(_)) => {
            let message = "json_schema cannot be combined with grammar; omit one of them";
            Err(InvalidRequestError::new_err(("json_schema", message)))
        }
    }
}

/// Converts the value of the parameter `name`, which must be `what`.
pub(super) fn read_field<'py, T: FromPyObjectOwned<'py>>(
    name: &'static str,
    what: &str,
    value: &Bound<'py, PyAny>,
) -> PyResult<T> {
    value.extract().map_err(|_| invalid_request(name, shorten_repr(value), what))
}

fn read_samplers(value: &Bound<'_, PyAny>) -> PyResult<Vec<SamplerKind>> {
    let names: Vec<String> = read_field("samplers", "a sequence of sampler names", value)?;
    let kind = |name: &String| {
        SamplerKind::parse(name).ok_or_else(|| {
            let known = SamplerKind::NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            InvalidRequestError::new_err(("samplers", format!("samplers has '{name}'; each must be one of {known}")))
        })
    };
    names.iter().map(kind).collect()
}

fn read_mirostat(value: &Bound<'_, PyAny>) -> PyResult<Mirostat> {
    match value.extract() {
        Ok(0) => Ok(Mirostat::Off),
        Ok(1) => Ok(Mirostat::V1),
        Ok(2) => Ok(Mirostat::V2),
        _ => Err(invalid_request("mirostat", shorten_repr(value), "0, 1 or 2")),
    }
}

fn read_milliseconds(name: &'static str, ms: f64, limits: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(ms / 1000.0).map_err(|_| invalid_request(name, ms, limits))
}

pub(super) fn read_slot<'py, T: FromPyObjectOwned<'py>>(value: &Bound<'py, PyAny>) -> PyResult<T> {
    read_field("slot", "the index of a slot, from 0", value)
}

pub(super) fn read_branch_index(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    read_field("index", "the index of a branch, from 0", value)
}

pub(super) fn read_prompt(value: &Bound<'_, PyAny>) -> PyResult<PromptInput> {
    if value.is_instance_of::<PyString>() {
        return read_text("prompt", value).map(PromptInput::Text);
    }
    if let Ok(ids) = value.cast::<PyTokenIds>() {
        return Ok(PromptInput::Shared(Arc::clone(&ids.get().tokens)));
    }
    if let Ok(mixed) = value.cast::<PyMixedPrompt>() {
        return Ok(PromptInput::Mixed(mixed.clone().unbind()));
    }
    if media::has_parts(value) {
        return media::read_parts(value).map(PromptInput::Parts);
    }
    read_tokens("prompt", value).map(PromptInput::Tokens)
}

pub(super) fn read_text_or_tokens(name: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Option<PromptInput>> {
    if value.is_none() {
        return Ok(None);
    }
    if value.is_instance_of::<PyString>() {
        return read_text(name, value).map(|text| Some(PromptInput::Text(text)));
    }
    read_tokens(name, value).map(|tokens| Some(PromptInput::Tokens(tokens)))
}

fn read_biases(value: &Bound<'_, PyAny>) -> PyResult<Vec<(Token, f32)>> {
    if let Ok(biases) = value.cast::<PyBiases>() {
        return Ok(biases.get().pairs.clone());
    }
    read_field("logit_bias", "a sequence of pairs of a token id and a number", value)
}

/// A Python string, or bytes that need not be UTF-8; borrowed, not copied.
#[derive(FromPyObject)]
pub(super) enum TextInput {
    Str(PyBackedStr),
    Bytes(PyBackedBytes),
}

impl TextInput {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Str(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Reads a string or bytes. A string with a lone surrogate is not UTF-8.
pub(super) fn read_text(name: &'static str, value: &Bound<'_, PyAny>) -> PyResult<TextInput> {
    value.extract().map_err(|_| {
        let what = if value.is_instance_of::<PyString>() { "a string without lone surrogates" } else { "a string" };
        invalid_request(name, shorten_repr(value), what)
    })
}

pub(super) fn read_tokens(name: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Vec<Token>> {
    if let Ok(ids) = value.cast::<PyTokenIds>() {
        return Ok(ids.get().tokens.to_vec());
    }
    // Bytes are a sequence of integers too, but are never meant as token ids.
    let is_bytes = value.is_instance_of::<PyBytes>() || value.is_instance_of::<PyByteArray>();
    match value.extract() {
        Ok(tokens) if !is_bytes => Ok(tokens),
        _ => {
            let or_text = if matches!(name, "prompt" | "suffix_prompt" | "append") { "a string or " } else { "" };
            Err(invalid_request(name, shorten_repr(value), &format!("{or_text}a sequence of token ids below 2³¹")))
        }
    }
}

/// Returns the `repr` of a value, shortened for a message.
pub(super) fn shorten_repr(value: &Bound<'_, PyAny>) -> String {
    const N_CHARS: usize = 60;
    let shown =
        value.repr().map_or_else(|_| "an object without a representation".into(), |text| text.to_string_lossy().into_owned());
    match shown.char_indices().nth(N_CHARS) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

fn generate_seed(py: Python<'_>) -> PyResult<u32> {
    let bytes = py.import(intern!(py, "os"))?.call_method1(intern!(py, "urandom"), (size_of::<u32>(),))?;
    Ok(u32::from_ne_bytes(bytes.extract()?))
}
