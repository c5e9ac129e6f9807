//! Large bodies of requests, read without the interpreter: a list of a million token ids is one object here and a million there,
//! and nothing else in Python runs while those are made.

use std::collections::BTreeMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use serde_json::value::RawValue;

use super::background::detached;
use super::compact::{PyBiases, PyTokenIds};
use crate::request::Token;

/// Levels of lists and objects in each other. Where Python reads them, its own limit is about there.
const MAX_DEPTH: usize = 900;

/// A list or object of fewer bytes stays what it is.
const MIN_COMPACT_BYTES: usize = 4 << 10;

/// Most values of a body that become an object in Python each: a few milliseconds of its time.
const MAX_VALUES: usize = 1 << 16;

/// A string of more bytes is not left in what Python reads, which would look at each of them.
const MAX_STRING_BYTES: usize = 64 << 10;

/// What is read in the place of such a string.
const STAND_IN: &str = "\u{2026}";

/// What Python gets: what is left of a body, the lists that were in it, and the strings, each with the way to its place.
type Read<'py> = (Bound<'py, PyBytes>, Bound<'py, PyDict>, Vec<(Bound<'py, PyTuple>, String)>);

/// What is left of a body, as JSON, and what is taken out of it.
struct Parts<'a> {
    rest: String,
    lists: Vec<(&'a str, Compact)>,
    strings: Vec<(Vec<Step>, String)>,
}

/// A field that is one object in Python, or one for each prompt.
enum Compact {
    Tokens(Vec<Token>),
    Prompts(Vec<Vec<Token>>),
    Biases(Vec<(Token, f32)>),
}

/// A step into a value: the name of a field, or the place in a list.
#[derive(Clone, Debug, PartialEq, IntoPyObject)]
enum Step {
    Name(String),
    Index(usize),
}

/// Reads a large body, of which the `fields` matter; of these, `tokens` may be token ids, or lists of them, and `biases` biases of
/// tokens.
///
/// Returns the body as JSON without what does not matter and what is returned beside it: such lists, by their field, and long
/// strings, each with the way to where `…` stands for it.
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
) -> PyResult<Read<'_>> {
    let parts = detached(py, || parts(&body, &fields, &tokens, &biases)).map_err(PyValueError::new_err)?;
    let beside = PyDict::new(py);
    for (name, value) in parts.lists {
        match value {
            Compact::Tokens(tokens) => beside.set_item(name, PyTokenIds::from(tokens))?,
            Compact::Prompts(prompts) => {
                let prompts = prompts.into_iter().map(|tokens| Py::new(py, PyTokenIds::from(tokens)));
                beside.set_item(name, PyList::new(py, prompts.collect::<PyResult<Vec<_>>>()?)?)?;
            }
            Compact::Biases(biases) => beside.set_item(name, PyBiases::from(biases))?,
        }
    }
    let strings = parts.strings.into_iter().map(|(way, text)| Ok((PyTuple::new(py, way)?, text))).collect::<PyResult<_>>()?;
    Ok((PyBytes::new(py, parts.rest.as_bytes()), beside, strings))
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
    let mut parts = Parts { rest: String::from("{"), lists: Vec::new(), strings: Vec::new() };
    let mut n_values = 0;
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
            parts.lists.push((name.as_str(), found));
        } else {
            n_values += survey(raw)?;
            let separator = if parts.rest.len() > 1 { "," } else { "" };
            // The names are those of our own structs: none needs an escape.
            parts.rest.extend([separator, "\"", name, "\":"]);
            parts.lift_strings(name, raw)?;
        }
        if n_values > MAX_VALUES {
            return Err(format!("the body has too many values besides its token ids and biases: at most {MAX_VALUES} are read"));
        }
    }
    parts.rest.push('}');
    Ok(parts)
}

impl Parts<'_> {
    /// Leaves the value of a field, which is JSON, without its long strings.
    fn lift_strings(&mut self, name: &str, raw: &str) -> Result<(), String> {
        let bytes = raw.as_bytes();
        let mut way = vec![Place::Field(name)];
        let (mut is_name, mut n_left, mut at) = (false, 0, 0);
        while at < bytes.len() {
            match bytes[at] {
                b'"' => {
                    let end = end_of_string(bytes, at + 1)?;
                    let quoted = &raw[at..=end];
                    if is_name {
                        way.pop();
                        way.push(Place::Quoted(quoted));
                        is_name = false;
                    } else if quoted.len() > MAX_STRING_BYTES {
                        self.rest.extend([&raw[n_left..at], "\"", STAND_IN, "\""]);
                        n_left = end + 1;
                        self.strings.push((way.iter().map(Place::step).collect::<Result<_, _>>()?, unquoted(quoted)?));
                    }
                    at = end;
                }
                b'[' => way.push(Place::Index(0)),
                b'{' => {
                    way.push(Place::Quoted("\"\""));
                    is_name = true;
                }
                b']' | b'}' => {
                    way.pop();
                    is_name = false;
                }
                b',' => match way.last_mut() {
                    Some(Place::Index(index)) => *index += 1,
                    _ => is_name = true,
                },
                _ => {}
            }
            at += 1;
        }
        self.rest.push_str(&raw[n_left..]);
        Ok(())
    }
}

/// Where a value stands in what holds it, as a text has it.
enum Place<'a> {
    Field(&'a str),
    /// A name with its quotes and escapes.
    Quoted(&'a str),
    Index(usize),
}

impl Place<'_> {
    fn step(&self) -> Result<Step, String> {
        match *self {
            Self::Field(name) => Ok(Step::Name(name.to_owned())),
            Self::Quoted(name) => unquoted(name).map(Step::Name),
            Self::Index(index) => Ok(Step::Index(index)),
        }
    }
}

fn unquoted(text: &str) -> Result<String, String> {
    serde_json::from_str(text).map_err(|error| format!("the body is no JSON in UTF-8: {error}"))
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
            Some(unit @ 0xd800..0xe000) => {
                return Err(format!(
                    "the body is no JSON in UTF-8: the escape \\u{unit:04x} at byte {at} is half of a surrogate pair, which stands for \
                     no character"
                ));
            }
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
