//! Parsing of large request bodies without the GIL: a list of a million token ids becomes one Python object instead of a
//! million, which would block all other Python code while they are created.

use std::collections::BTreeMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use serde_json::value::RawValue;

use super::background::detached;
use super::compact::{PyBiases, PyTokenIds};
use crate::request::Token;

/// Maximum depth of nested lists and objects. Python's own limit for smaller bodies is about the same.
const MAX_DEPTH: usize = 900;

/// Lists and objects below this size, in bytes, stay in the JSON.
const MIN_COMPACT_BYTES: usize = 4 << 10;

/// Maximum number of values of a body that become Python objects: a few milliseconds.
const MAX_VALUES: usize = 1 << 16;

/// Maximum size of a string, in bytes, that stays in the JSON for Python, which would scan every byte.
const MAX_STRING_BYTES: usize = 64 << 10;

const PLACEHOLDER: &str = "\u{2026}";

/// The remaining JSON, the extracted lists, and the extracted strings with their paths.
type Read<'py> = (Bound<'py, PyBytes>, Bound<'py, PyDict>, Vec<(Bound<'py, PyTuple>, String)>);

struct BodyParts<'a> {
    rest: String,
    lists: Vec<(&'a str, Compact)>,
    strings: Vec<(Vec<PathStep>, String)>,
}

/// A list that becomes one Python object, or one per prompt.
enum Compact {
    Tokens(Vec<Token>),
    Prompts(Vec<Vec<Token>>),
    Biases(Vec<(Token, f32)>),
}

#[derive(Clone, Debug, PartialEq, IntoPyObject)]
enum PathStep {
    Name(String),
    Index(usize),
}

/// Parses a large body and keeps its `fields`; those in `tokens` may be token ids or lists, those in `biases` logit biases.
///
/// Returns the body as JSON with these fields only, without the values that are returned separately: such lists, by field, and
/// long strings, each with the path at which `…` replaces it. Raises `ValueError` if the body is invalid.
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
    let parts = detached(py, || split_body(&body, &fields, &tokens, &biases)).map_err(PyValueError::new_err)?;
    let extracted = PyDict::new(py);
    for (name, value) in parts.lists {
        match value {
            Compact::Tokens(tokens) => extracted.set_item(name, PyTokenIds::from(tokens))?,
            Compact::Prompts(prompts) => {
                let prompts = prompts.into_iter().map(|tokens| Py::new(py, PyTokenIds::from(tokens)));
                extracted.set_item(name, PyList::new(py, prompts.collect::<PyResult<Vec<_>>>()?)?)?;
            }
            Compact::Biases(biases) => extracted.set_item(name, PyBiases::from(biases))?,
        }
    }
    let strings = parts.strings.into_iter().map(|(path, text)| Ok((PyTuple::new(py, path)?, text))).collect::<PyResult<_>>()?;
    Ok((PyBytes::new(py, parts.rest.as_bytes()), extracted, strings))
}

fn split_body<'a>(body: &[u8], fields: &'a [String], tokens: &[String], biases: &[String]) -> Result<BodyParts<'a>, String> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let offset = error.valid_up_to();
        // Python's wording, as for smaller bodies.
        let reason = match (error.error_len(), body[offset]) {
            (None, _) => "unexpected end of data",
            (_, 0x80..=0xc1 | 0xf5..) => "invalid start byte",
            _ => "invalid continuation byte",
        };
        format!("the body is no UTF-8: {reason}")
    })?;
    count_values(text)?;
    // As in Python, the last of several values with one name wins.
    let values: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(|error| {
        if error.is_data() { "the body must be a JSON object".into() } else { format!("the body is no JSON in UTF-8: {error}") }
    })?;
    let mut parts = BodyParts { rest: String::from("{"), lists: Vec::new(), strings: Vec::new() };
    let mut n_values = 0;
    for name in fields {
        let Some(raw) = values.get(name).map(|raw| raw.get()) else { continue };
        let found = if raw.len() < MIN_COMPACT_BYTES {
            None
        } else if tokens.contains(name) {
            parse_token_lists(raw)
        } else if biases.contains(name) {
            parse_biases(raw).map(Compact::Biases)
        } else {
            None
        };
        if let Some(found) = found {
            n_values += if let Compact::Prompts(prompts) = &found { prompts.len() } else { 1 };
            parts.lists.push((name.as_str(), found));
        } else {
            n_values += count_values(raw)?;
            let separator = if parts.rest.len() > 1 { "," } else { "" };
            // The names are fields of our own structs: none needs an escape.
            parts.rest.extend([separator, "\"", name, "\":"]);
            parts.append_without_long_strings(name, raw)?;
        }
        if n_values > MAX_VALUES {
            return Err(format!("the body has too many values besides its token ids and biases: at most {MAX_VALUES} are read"));
        }
    }
    parts.rest.push('}');
    Ok(parts)
}

impl BodyParts<'_> {
    fn append_without_long_strings(&mut self, name: &str, raw: &str) -> Result<(), String> {
        let bytes = raw.as_bytes();
        let mut path = vec![PathStep::Name(name.to_owned())];
        let (mut is_name, mut copied_until, mut position) = (false, 0, 0);
        while position < bytes.len() {
            match bytes[position] {
                b'"' => {
                    let end = find_string_end(bytes, position + 1)?;
                    let quoted = &raw[position..=end];
                    if is_name {
                        path.pop();
                        path.push(PathStep::Name(unquote(quoted)?));
                        is_name = false;
                    } else if quoted.len() > MAX_STRING_BYTES {
                        self.rest.extend([&raw[copied_until..position], "\"", PLACEHOLDER, "\""]);
                        copied_until = end + 1;
                        self.strings.push((path.clone(), unquote(quoted)?));
                    }
                    position = end;
                }
                b'[' => path.push(PathStep::Index(0)),
                b'{' => {
                    path.push(PathStep::Name(String::new()));
                    is_name = true;
                }
                b']' | b'}' => {
                    path.pop();
                    is_name = false;
                }
                b',' => match path.last_mut() {
                    Some(PathStep::Index(index)) => *index += 1,
                    _ => is_name = true,
                },
                _ => {}
            }
            position += 1;
        }
        self.rest.push_str(&raw[copied_until..]);
        Ok(())
    }
}

fn unquote(text: &str) -> Result<String, String> {
    serde_json::from_str(text).map_err(|error| format!("the body is no JSON in UTF-8: {error}"))
}

fn parse_token_lists(raw: &str) -> Option<Compact> {
    if !raw.starts_with('[') {
        return None;
    }
    if let Ok(tokens) = serde_json::from_str(raw) {
        return Some(Compact::Tokens(tokens));
    }
    serde_json::from_str(raw).ok().map(Compact::Prompts)
}

/// Parses logit biases, as pairs or as an object; `false` bans a token.
fn parse_biases(raw: &str) -> Option<Vec<(Token, f32)>> {
    if raw.starts_with('[') {
        let pairs: Vec<(Token, &RawValue)> = serde_json::from_str(raw).ok()?;
        return pairs.into_iter().map(|(token, bias)| Some((token, parse_bias(bias)?))).collect();
    }
    let biases: BTreeMap<&str, &RawValue> = serde_json::from_str(raw).ok()?;
    biases.into_iter().map(|(token, bias)| Some((parse_token(token)?, parse_bias(bias)?))).collect()
}

fn parse_bias(raw: &RawValue) -> Option<f32> {
    if raw.get() == "false" { Some(f32::NEG_INFINITY) } else { serde_json::from_str(raw.get()).ok() }
}

/// Parses a key that is a token id. Rust accepts a leading `+` too, but here the key is then a text.
fn parse_token(key: &str) -> Option<Token> {
    if key.starts_with('+') { None } else { key.parse().ok() }
}

/// Rejects JSON that is nested too deep or has half a surrogate pair. Returns the number of values, at least if it is invalid.
fn count_values(text: &str) -> Result<usize, String> {
    let (mut depth, mut n_values, mut position) = (0_usize, 1, 0);
    let bytes = text.as_bytes();
    while position < bytes.len() {
        match bytes[position] {
            b'"' => position = find_string_end(bytes, position + 1)?,
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
        position += 1;
    }
    Ok(n_values)
}

/// Returns the index of the closing quote, or else the end of the text.
fn find_string_end(bytes: &[u8], mut position: usize) -> Result<usize, String> {
    while position < bytes.len() && bytes[position] != b'"' {
        if bytes[position] != b'\\' {
            position += 1;
            continue;
        }
        match read_code_unit(bytes, position) {
            Some(0xd800..0xdc00) if matches!(read_code_unit(bytes, position + 6), Some(0xdc00..0xe000)) => position += 12,
            Some(unit @ 0xd800..0xe000) => {
                return Err(format!(
                    "the body is no JSON in UTF-8: the escape \\u{unit:04x} at byte {position} is half of a surrogate pair, which stands for \
                     no character"
                ));
            }
            _ => position += 2,
        }
    }
    Ok(position)
}

/// Returns the code unit of the `\u` escape at this index.
fn read_code_unit(bytes: &[u8], position: usize) -> Option<u16> {
    let digits = bytes.get(position..position + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
