//! Where in a text something is wrong.

use std::borrow::Cow;

/// What is wrong with a text, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// The line, counted from 1.
    pub line: usize,
    /// The character of that line, counted from 1.
    pub column: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

impl ParseError {
    /// A flaw of `text` at the byte `at`.
    pub(super) fn new(text: &str, at: usize, message: impl Into<String>) -> Self {
        let before = &text.as_bytes()[..at.min(text.len())];
        let n_lines = before.split(|&byte| byte == b'\n').count() - 1;
        let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        // The bytes that continue a character are no column of their own.
        let n_chars = before[line_start..].iter().filter(|&&byte| byte & 0xC0 != 0x80).count();
        Self { line: n_lines + 1, column: n_chars + 1, message: message.into() }
    }
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message)
    }
}

/// Most characters of what was given that a flaw repeats.
const MAX_SHOWN: usize = 200;

/// The beginning of what was given, as a flaw repeats it.
pub(super) fn shown(given: &str) -> Cow<'_, str> {
    match given.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => Cow::Owned(format!("{}…", &given[..end])),
        None => Cow::Borrowed(given),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_is_long_the_beginning_is_shown() {
        assert_eq!(shown(&"é".repeat(200)), "é".repeat(200));
        assert_eq!(shown(&"é".repeat(201)), format!("{}…", "é".repeat(200)));
    }

    #[test]
    fn lines_and_columns_count_characters_from_1() {
        let text = "aé\nßx\n";
        let place = |at| (ParseError::new(text, at, "").line, ParseError::new(text, at, "").column);
        assert_eq!([0, 1, 3].map(place), [(1, 1), (1, 2), (1, 3)]);
        assert_eq!([4, 6, 7, 8].map(place), [(2, 1), (2, 2), (2, 3), (3, 1)]);
        assert_eq!(place(99), (3, 1));
    }
}
