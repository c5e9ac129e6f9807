//! JSON schemas → grammars.
//!
//! A schema is held to, or refused: none of its keywords is passed over that asks for something. What is drawn always fits the
//! schema; what fits is not always drawn: see [`to_gbnf`].
//!
//! | file | what it holds |
//! | --- | --- |
//! | [`alternatives`] | a schema → the ways to fit it, each a [`shape`]: what is combined and referred to is merged |
//! | [`keywords`] | what a schema says by itself |
//! | [`negation`] | the ways not to fit one |
//! | [`validation`] | whether a value fits, and whether two schemas have none in common |
//! | [`writer`] | these → rules ([`grammar`]), and the text of the rules that some JSON meets |
//! | [`pattern`], [`automaton`] | regular expressions, met and not met at once → a table |
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

use super::json::{self, Value};
use super::parse_error::ParseError;

/// Most bytes of a schema.
pub const MAX_SCHEMA_BYTES: usize = 1 << 18;

/// Most schemas inside of each other, those that references lead to included.
pub const MAX_SCHEMA_DEPTH: usize = 64;

/// Most schemas that one is made of.
pub const MAX_SCHEMA_PARTS: usize = 4_096;

/// Most properties of one object.
pub const MAX_PROPERTIES: usize = 256;

/// Most bytes of a property's name or a reference.
pub const MAX_NAME_BYTES: usize = 256;

/// Most bytes of a pattern.
pub const MAX_PATTERN_BYTES: usize = 4_096;

/// Most ways to fit one schema, once those of its parts are multiplied.
pub const MAX_WAYS: usize = 1_024;

/// What is wrong, after so many bytes.
type Refusal = (usize, String);

fn refuse<T>(value: &Value, message: impl Into<String>) -> Result<T, Refusal> {
    refuse_at(value.at, message)
}

fn refuse_at<T>(at: usize, message: impl Into<String>) -> Result<T, Refusal> {
    Err((at, message.into()))
}

/// The texts of a format that is held to; the others ask for nothing.
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

/// The grammar in GBNF of JSON that fits a JSON schema, draft 2020-12.
///
/// What fits is not always drawn:
/// - Properties come in the order of the schema, and none that it does not name, unless it says `additionalProperties`,
///   `patternProperties` or `unevaluatedProperties`, or names none at all.
/// - A schema that says no `type` is of the types of which its keywords speak.
/// - A list with `prefixItems` has all of them, and no others, unless the schema says `items`, `minItems` or `maxItems`.
/// - Where a `oneOf` needs a property to tell its schemas apart, that property is there.
/// - Numbers have at most 16 digits, those with bounds 15 and no exponent; a character that JSON need not escape is not escaped
///   in names and where a `pattern` is met.
/// - `format` knows `date`, `time`, `date-time` and `uuid`.
///
/// # Errors
/// [`ParseError`] says what is wrong with it, or cannot be held to, and where.
pub fn to_gbnf(text: &str) -> Result<String, ParseError> {
    if text.len() > MAX_SCHEMA_BYTES {
        let message = format!("the schema of {} bytes is longer than {MAX_SCHEMA_BYTES} bytes", text.len());
        return Err(ParseError::new(text, MAX_SCHEMA_BYTES, message));
    }
    let root = json::read(text)?;
    writer::write(&root).map_err(|(at, message)| ParseError::new(text, at, message))
}
