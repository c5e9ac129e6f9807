//! Errors of a grammar or a schema, with their position in its text.

use std::borrow::Cow;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    /// Character in that line, counted from 1.
    pub column: usize,
    pub message: String,
}

impl ParseError {
    pub(super) fn new(text: &str, at: usize, message: impl Into<String>) -> Self {
        let before = &text.as_bytes()[..at.min(text.len())];
        let line = before.split(|&byte| byte == b'\n').count();
        let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        // Continuation bytes of UTF-8 do not count as columns.
        let n_chars = before[line_start..].iter().filter(|&&byte| byte & 0xC0 != 0x80).count();
        Self { line, column: n_chars + 1, message: message.into() }
    }
}

/// A byte offset and a message.
pub(super) type Refusal = (usize, String);

pub(super) type Result<T, E = Refusal> = std::result::Result<T, E>;

pub(super) fn refuse_at<T>(at: usize, message: impl Into<String>) -> Result<T> {
    Err((at, message.into()))
}

const MAX_EXCERPT: usize = 200;

pub(super) fn excerpt(given: &str) -> Cow<'_, str> {
    match given.char_indices().nth(MAX_EXCERPT) {
        Some((end, _)) => Cow::Owned(format!("{}…", &given[..end])),
        None => Cow::Borrowed(given),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_input_is_truncated() {
        assert_eq!(excerpt(&"é".repeat(200)), "é".repeat(200));
        assert_eq!(excerpt(&"é".repeat(201)), format!("{}…", "é".repeat(200)));
    }

    #[test]
    fn lines_and_columns_count_characters_from_1() {
        let text = "aé\nßx\n";
        let position = |at| (ParseError::new(text, at, "").line, ParseError::new(text, at, "").column);
        assert_eq!([0, 1, 3].map(position), [(1, 1), (1, 2), (1, 3)]);
        assert_eq!([4, 6, 7, 8].map(position), [(2, 1), (2, 2), (2, 3), (3, 1)]);
        assert_eq!(position(99), (3, 1));
    }
}
