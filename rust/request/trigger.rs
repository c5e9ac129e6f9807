//! What begins a grammar that is not followed from the first token on.

use crate::request::Token;

/// What a lazy grammar waits for.
///
/// Patterns are regular expressions over bytes, in the syntax of the `regex` crate: `\d`, `\s` and `\w` are ASCII, `.` is any byte
/// but a line feed. There are no look-arounds and no back references, so that a byte of the text costs no more than the pattern is
/// long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trigger {
    /// This token; the grammar begins with it.
    Token(Token),
    /// This text, wherever it begins in a token or ends in one; the grammar begins with it.
    Word(String),
    /// A text that this pattern finds somewhere. The grammar begins with the first group that holds something, else with the match.
    Pattern(String),
    /// All of the text so far, where this pattern matches it. The grammar begins as above.
    Whole(String),
}
