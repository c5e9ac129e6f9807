//! Triggers of lazy grammars.

use crate::request::Token;

/// Condition that starts a lazy grammar.
///
/// Patterns are regular expressions over bytes, in the syntax of the `regex` crate: `\d`, `\s` and `\w` are ASCII, `.` is any
/// byte but a line feed. Look-around and back references are not supported, which bounds the cost of a byte of text by the
/// length of the pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trigger {
    /// Token that the grammar includes.
    Token(Token),
    /// Text, at any offset within tokens, that the grammar includes.
    Word(String),
    /// A match of this pattern anywhere in the text. The grammar starts at the first non-empty group, or else at the match.
    Pattern(String),
    /// A match of this pattern with the whole text so far. The grammar starts as for `Pattern`.
    Whole(String),
}
