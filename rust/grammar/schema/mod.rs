//! Compiles JSON schemas to grammars.
//!
//! A schema is enforced or refused: no constraining keyword is ignored. Generated JSON always fits the schema, but not
//! everything that fits can be generated: see [`to_gbnf`].
//!
//! The compiler is ours because it enforces more schemas, and without errors: on the JSON Schema test suite of five drafts, 2,305
//! valid and 0 invalid documents can be generated, and 302 schemas are refused; llguidance 1.9.1 generates 1,943 and 57, and
//! refuses 670. llguidance computes masks faster, but the engine rarely needs one: it samples without a mask, checks the sampled
//! token ("accept" below includes the check), and computes a mask only if the grammar rejects that token.
//!
//! Cost and llguidance's, in µs, with a byte-level vocabulary of 128,000 tokens and empty caches, on one core of an Intel Xeon
//! (Emerald Rapids); `scripts/bench_grammar.py`, the best of eleven rounds. Our masks are rows of logits, llguidance's are
//! bitmasks. llguidance's figures include up to 1 µs of Python per call.
//!
//! | document | tokens | compile | llguidance | mask | llguidance | accept | llguidance |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | flat object | 72 | 247 | 476 | 2,723 | 11 | 0.9 | 2.2 |
//! | array of orders | 660 | 1,166 | 1,047 | 2,070 | 12 | 0.6 | 1.0 |
//! | recursive tree | 359 | 209 | 373 | 2,059 | 13 | 1.8 | 1.2 |
//! | any object | 663 | 187 | 415 | 2,963 | 23 | 0.5 | 1.1 |
//! | JSON in GBNF | 663 | 95 | 2,353 | 2,448 | 25 | 0.5 | 1.0 |
//!
//! | file | contents |
//! | --- | --- |
//! | [`alternatives`] | a schema → its alternatives, each a [`shape`]; merges combined and referenced schemas |
//! | [`keywords`] | the keywords of a single schema |
//! | [`negation`] | the alternatives that do not fit a schema |
//! | [`validation`] | whether a value fits, and whether two schemas are disjoint |
//! | [`writer`] | alternatives → rules ([`grammar`]) → GBNF, without rules that no JSON matches |
//! | [`pattern`], [`automaton`] | regular expressions that must or must not match → a DFA |
//! | [`number`] | bounds and divisors, digit by digit |

mod alternatives;
mod automaton;
mod grammar;
mod keywords;
mod negation;
mod number;
mod pattern;
mod shape;
#[cfg(test)]
mod tests;
mod validation;
mod writer;

use super::json::{self, JsonValue};
use super::parse_error::{ParseError, Result, refuse_at};

pub const MAX_SCHEMA_BYTES: usize = 1 << 18;

/// Maximum nesting depth of schemas, references included.
pub const MAX_SCHEMA_DEPTH: usize = 64;

pub const MAX_SCHEMA_PARTS: usize = 4_096;

/// Maximum properties of one object.
pub const MAX_PROPERTIES: usize = 256;

/// Maximum size of a property's name or a reference.
pub const MAX_NAME_BYTES: usize = 256;

pub const MAX_PATTERN_BYTES: usize = 4_096;

/// Maximum alternatives of one schema, after the alternatives of its parts are multiplied.
pub const MAX_ALTERNATIVES: usize = 1_024;

fn refuse<T>(value: &JsonValue, message: impl Into<String>) -> Result<T> {
    refuse_at(value.at, message)
}

fn ensure(is_supported: bool, at: usize, message: impl FnOnce() -> String) -> Result<()> {
    if is_supported { Ok(()) } else { refuse_at(at, message()) }
}

/// Returns the pattern of a format that is enforced; other formats are annotations.
fn format(name: &str) -> Option<&'static str> {
    macro_rules! date {
        () => {
            "(?:[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))|(?:[1-9]\\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)"
        };
    }
    macro_rules! time {
        () => {
            "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
        };
    }
    match name {
        "date" => Some(concat!("^", date!(), "$")),
        "time" => Some(concat!("^", time!(), "$")),
        "date-time" => Some(concat!("^", date!(), "T", time!(), "$")),
        "uuid" => Some("^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"),
        _ => None,
    }
}

/// Compiles a JSON schema, draft 2020-12, to a grammar in GBNF of JSON that fits it.
///
/// Not everything that fits can be generated:
/// - Properties come in the order of the schema. Other properties are generated only if the schema has `additionalProperties`,
///   `patternProperties` or `unevaluatedProperties`, or names no property.
/// - A schema without `type` has the types that its keywords apply to.
/// - A list with `prefixItems` has all of them and no others, unless the schema has `items`, `minItems` or `maxItems`.
/// - If a `oneOf` needs a property to distinguish its schemas, that property is present.
/// - Numbers have at most 16 digits; those with bounds have at most 15 and no exponent. In names and strings with a `pattern`,
///   characters are escaped only if JSON requires it.
/// - `format` supports `date`, `time`, `date-time` and `uuid`.
///
/// # Errors
/// A [`ParseError`] with the invalid or unsupported part of the schema and its position.
pub fn to_gbnf(text: &str) -> Result<String, ParseError> {
    if text.len() > MAX_SCHEMA_BYTES {
        let message = format!("the schema of {} bytes is longer than {MAX_SCHEMA_BYTES} bytes", text.len());
        return Err(ParseError::new(text, MAX_SCHEMA_BYTES, message));
    }
    let root = json::parse(text)?;
    writer::write(&root).map_err(|(at, message)| ParseError::new(text, at, message))
}
