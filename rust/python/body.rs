//! Large bodies of requests, read without the interpreter: a list of a million token ids is one object here and a million there,
//! and nothing else in Python runs while those are made.

use std::collections::BTreeMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList};
use serde_json::value::RawValue;

use super::aside::detached;
use super::compact::{PyBiases, PyTokenIds};
use crate::request::Token;

/// Levels of lists and objects in each other. Where Python reads them, its own limit is about there.
const MAX_DEPTH: usize = 900;

/// A list or object of fewer bytes stays what it is.
const MIN_COMPACT_BYTES: usize = 4 << 10;

/// Most values of a body that become an object in Python each: a few milliseconds of its time.
const MAX_VALUES: usize = 1 << 16;

/// What is left of a body, as JSON, and the fields that are taken out of it.
type Parts<'a> = (String, Vec<(&'a str, Compact)>);

/// A field that is one object in Python, or one for each prompt.
enum Compact {
    Tokens(Vec<Token>),
    Prompts(Vec<Vec<Token>>),
    Biases(Vec<(Token, f32)>),
}

/// Reads a large body, of which the `fields` matter; of these, `tokens` may be token ids, or lists of them, and `biases` biases of
/// tokens.
///
/// Returns the body as JSON without what does not matter and what is returned beside it: such lists, by their field.
///
/// # Errors
/// `ValueError` says what is wrong with the body.
#[pyfunction]
#[pyo3(signature = (body, *, fields, tokens, biases))]
#[expect(clippy::needless_pass_by_value, reason = "what is read without the interpreter is the function's own")]
pub(super) fn read_body(
    py: Python<'_>,
    body: PyBackedBytes,
    fields: Vec<String>,
    tokens: Vec<String>,
    biases: Vec<String>,
) -> PyResult<(Bound<'_, PyBytes>, Bound<'_, PyDict>)> {
    let (rest, compact) = detached(py, || parts(&body, &fields, &tokens, &biases)).map_err(PyValueError::new_err)?;
    let beside = PyDict::new(py);
    for (name, value) in compact {
        match value {
            Compact::Tokens(tokens) => beside.set_item(name, PyTokenIds::from(tokens))?,
            Compact::Prompts(prompts) => {
                let prompts = prompts.into_iter().map(|tokens| Py::new(py, PyTokenIds::from(tokens)));
                beside.set_item(name, PyList::new(py, prompts.collect::<PyResult<Vec<_>>>()?)?)?;
            }
            Compact::Biases(biases) => beside.set_item(name, PyBiases::from(biases))?,
        }
    }
    Ok((PyBytes::new(py, rest.as_bytes()), beside))
}

fn parts<'a>(body: &[u8], fields: &'a [String], tokens: &[String], biases: &[String]) -> Result<Parts<'a>, String> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let place = error.valid_up_to();
        // In Python's words, which say it of smaller bodies.
        let reason = match (error.error_len(), body[place]) {
            (None, _) => "unexpected end of data",
            (_, 0x80..=0xc1 | 0xf5..) => "invalid start byte",
            _ => "invalid continuation byte",
        };
        format!("the body is no UTF-8: {reason}")
    })?;
    survey(text)?;
    // As in Python, of two values by one name the last holds.
    let values: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(|error| {
        if error.is_data() { "the body must be a JSON object".into() } else { format!("the body is no JSON in UTF-8: {error}") }
    })?;
    let (mut rest, mut n_values, mut compact) = (String::from("{"), 0, Vec::new());
    for name in fields {
        let Some(raw) = values.get(name).map(|raw| raw.get()) else { continue };
        let found = if raw.len() < MIN_COMPACT_BYTES {
            None
        } else if tokens.contains(name) {
            token_lists(raw)
        } else if biases.contains(name) {
            pairs(raw).map(Compact::Biases)
        } else {
            None
        };
        if let Some(found) = found {
            n_values += if let Compact::Prompts(prompts) = &found { prompts.len() } else { 1 };
            compact.push((name.as_str(), found));
        } else {
            n_values += survey(raw)?;
            let separator = if rest.len() > 1 { "," } else { "" };
            // The names are those of our own structs: none needs an escape.
            rest.extend([separator, "\"", name, "\":", raw]);
        }
        if n_values > MAX_VALUES {
            return Err(format!("the body has too many values besides its token ids and biases: at most {MAX_VALUES} are read"));
        }
    }
    rest.push('}');
    Ok((rest, compact))
}

/// Token ids, or lists of them.
fn token_lists(raw: &str) -> Option<Compact> {
    if !raw.starts_with('[') {
        return None;
    }
    if let Ok(tokens) = serde_json::from_str(raw) {
        return Some(Compact::Tokens(tokens));
    }
    serde_json::from_str(raw).ok().map(Compact::Prompts)
}

/// Biases of tokens, as pairs or as an object; `false` bans.
fn pairs(raw: &str) -> Option<Vec<(Token, f32)>> {
    if raw.starts_with('[') {
        let pairs: Vec<(Token, &RawValue)> = serde_json::from_str(raw).ok()?;
        return pairs.into_iter().map(|(token, bias)| Some((token, bias_of(bias)?))).collect();
    }
    let biases: BTreeMap<&str, &RawValue> = serde_json::from_str(raw).ok()?;
    biases.into_iter().map(|(token, bias)| Some((token_of(token)?, bias_of(bias)?))).collect()
}

fn bias_of(raw: &RawValue) -> Option<f32> {
    if raw.get() == "false" { Some(f32::NEG_INFINITY) } else { serde_json::from_str(raw.get()).ok() }
}

/// A key that is a number; Rust reads a leading `+` too, which is the beginning of a text here.
fn token_of(key: &str) -> Option<Token> {
    if key.starts_with('+') { None } else { key.parse().ok() }
}

/// How many values a text of JSON has, at least if it is none.
///
/// # Errors
/// Where it is nested too deep, or spells half a character.
fn survey(text: &str) -> Result<usize, String> {
    let (mut depth, mut n_values, mut at) = (0_usize, 1, 0);
    let bytes = text.as_bytes();
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = end_of_string(bytes, at + 1)?,
            b',' => n_values += 1,
            b'[' | b'{' => {
                n_values += 1;
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err("the body is nested too deep".into());
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    Ok(n_values)
}

/// The place of the quote that ends a string, or of the text's end.
fn end_of_string(bytes: &[u8], mut at: usize) -> Result<usize, String> {
    while at < bytes.len() && bytes[at] != b'"' {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        match unit(bytes, at) {
            Some(0xd800..0xdc00) if matches!(unit(bytes, at + 6), Some(0xdc00..0xe000)) => at += 12,
            Some(0xd800..0xe000) => return Err("the body is no JSON in UTF-8: it spells half of a surrogate pair".into()),
            _ => at += 2,
        }
    }
    Ok(at)
}

/// The number of an escape by number that stands here.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
