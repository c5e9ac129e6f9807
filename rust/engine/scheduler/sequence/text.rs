//! Detokenization: bytes are held back until they are complete UTF-8 and cannot begin a stop string.

use std::sync::Arc;

use smol_str::SmolStr;

use crate::engine::runner::Runner;
use crate::engine::scheduler::sequence::indentation::Indentation;
use crate::request::{FinishReason, Request, Token};

#[derive(Debug, Clone)]
pub(crate) struct Text {
    stops: Arc<[String]>,
    pub(crate) pending: Vec<u8>,
    indentation: Indentation,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextDelta {
    pub(crate) text: SmolStr,
    /// Finish reason, if a stop string or an insufficiently indented line follows.
    pub(crate) end: Option<FinishReason>,
}

impl Text {
    /// `n_indent` is the minimum indentation of its lines, in characters.
    pub(crate) fn new(stops: Arc<[String]>, n_indent: u32) -> Self {
        Self { stops, pending: Vec::new(), indentation: Indentation::new(n_indent) }
    }

    pub(crate) fn restart(&mut self, n_indent: u32) {
        *self = Self::new(Arc::clone(&self.stops), n_indent);
    }

    /// Appends bytes and returns the text that can be published. The earliest stop string wins, then the first in the list.
    pub(crate) fn push(&mut self, append: impl FnOnce(&mut Vec<u8>)) -> TextDelta {
        let n_before = self.pending.len();
        append(&mut self.pending);
        let under_indented = self.indentation.find_end(&self.pending[n_before..]).map(|end| n_before + end);
        let stops = self.stops.iter().filter_map(|stop| Some((find(&self.pending, stop.as_bytes())?, Some(stop))));
        if let Some((end, stop)) = stops.chain(under_indented.map(|end| (end, None))).min_by_key(|&(end, _)| end) {
            let reason = stop.map_or(FinishReason::Length, |stop| FinishReason::Stop(stop.clone()));
            let text = lossy(&self.pending[..end]);
            self.pending.clear();
            return TextDelta { text, end: Some(reason) };
        }
        let n_held_back = self.stops.iter().map(|stop| overlap(&self.pending, stop.as_bytes())).max().unwrap_or(0);
        let n_shown = self.pending.len() - n_held_back.max(incomplete_tail(&self.pending));
        TextDelta { text: self.take(n_shown), end: None }
    }

    pub(crate) fn push_token(&mut self, token: Token, request: &Request, runner: &impl Runner) -> TextDelta {
        self.push(|bytes| append_text(token, request, runner, bytes))
    }

    /// Ends the text and returns what was held back for a stop string. An incomplete character is dropped.
    pub(crate) fn finish(&mut self) -> SmolStr {
        let text = self.take(self.pending.len() - incomplete_tail(&self.pending));
        self.pending.clear();
        text
    }

    pub(crate) fn finish_after(&mut self, text: SmolStr) -> SmolStr {
        let rest = self.finish();
        if rest.is_empty() { text } else { [text, rest].concat().into() }
    }

    fn take(&mut self, n_bytes: usize) -> SmolStr {
        let text = lossy(&self.pending[..n_bytes]);
        self.pending.drain(..n_bytes);
        text
    }
}

pub(crate) fn append_text(token: Token, request: &Request, runner: &impl Runner, bytes: &mut Vec<u8>) {
    if request.preserved_tokens.contains(&token) {
        bytes.extend_from_slice(runner.token_strings().spelling(token));
    } else if !runner.is_end(token) {
        runner.append_piece(token, bytes);
    }
}

fn lossy(bytes: &[u8]) -> SmolStr {
    String::from_utf8_lossy(bytes).into()
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

/// Returns the length of the longest suffix of `bytes` that is a proper prefix of `stop`.
fn overlap(bytes: &[u8], stop: &[u8]) -> usize {
    let longest = bytes.len().min(stop.len() - 1);
    (1..=longest).rev().find(|&n| bytes.ends_with(&stop[..n])).unwrap_or(0)
}

/// Returns the length of an incomplete character at the end of `bytes`.
pub(crate) fn incomplete_tail(bytes: &[u8]) -> usize {
    let is_incomplete = |n: &usize| {
        let tail = &bytes[bytes.len() - n..];
        std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=bytes.len().min(3)).find(is_incomplete).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(stops: &[&str]) -> Text {
        Text::new(stops.iter().map(|&stop| stop.to_owned()).collect(), 0)
    }

    fn push(text: &mut Text, bytes: &[u8]) -> TextDelta {
        text.push(|pending| pending.extend_from_slice(bytes))
    }

    fn shown(text: &str) -> TextDelta {
        TextDelta { text: text.into(), end: None }
    }

    fn ended(text: &str, stop: &str) -> TextDelta {
        TextDelta { text: text.into(), end: Some(FinishReason::Stop(stop.into())) }
    }

    #[test]
    fn text_without_stop_strings_is_published_immediately() {
        let mut growing = text(&[]);
        assert_eq!(push(&mut growing, b"once"), shown("once"));
        assert_eq!(growing.finish(), "");
    }

    #[test]
    fn a_character_is_published_with_its_last_byte() {
        let mut growing = text(&[]);
        for byte in &"🦊".as_bytes()[..3] {
            assert_eq!(push(&mut growing, &[*byte]), shown(""));
        }
        assert_eq!(push(&mut growing, &"🦊".as_bytes()[3..]), shown("🦊"));
    }

    #[test]
    fn an_incomplete_character_at_the_end_is_dropped() {
        let mut growing = text(&[]);
        push(&mut growing, &[b'a', 0xF0, 0x9F]);
        assert_eq!(growing.finish(), "");
    }

    #[test]
    fn an_invalid_byte_becomes_a_replacement_character() {
        let mut growing = text(&[]);
        assert_eq!(push(&mut growing, &[0xFF, b'a']), shown("\u{FFFD}a"));
    }

    #[test]
    fn a_possible_stop_string_is_held_back_until_it_is_ruled_out() {
        let mut growing = text(&["\nUser:"]);
        assert_eq!(push(&mut growing, b"yes\nUs"), shown("yes"));
        assert_eq!(push(&mut growing, b"ual"), shown("\nUsual"));
    }

    #[test]
    fn a_stop_string_across_pieces_ends_the_text_before_it() {
        let mut growing = text(&["stop", "\nUser:"]);
        assert_eq!(push(&mut growing, b"yes\nUs"), shown("yes"));
        assert_eq!(push(&mut growing, b"er: no"), ended("", "\nUser:"));
        assert_eq!(growing.finish(), "");
    }

    #[test]
    fn the_stop_string_that_begins_first_wins() {
        let mut growing = text(&["cd", "bc"]);
        assert_eq!(push(&mut growing, b"abcd"), ended("a", "bc"));
    }

    #[test]
    fn a_partial_stop_string_is_published_at_the_end() {
        let mut growing = text(&["###"]);
        assert_eq!(push(&mut growing, b"a##"), shown("a"));
        assert_eq!(growing.finish(), "##");
    }

    #[test]
    fn an_under_indented_line_ends_the_text_after_its_indentation() {
        let mut growing = Text::new(Arc::new([]), 4);
        assert_eq!(push(&mut growing, b"if x:\n  "), shown("if x:\n  "));
        assert_eq!(push(&mut growing, b"  \tpass\n"), shown("  \tpass\n"));
        assert_eq!(push(&mut growing, b"  y"), TextDelta { text: "  ".into(), end: Some(FinishReason::Length) });
        assert_eq!(growing.finish(), "");
    }

    #[test]
    fn the_earlier_of_a_stop_string_and_an_under_indented_line_ends_the_text() {
        let indented = |stop: &str, pieces: &[&[u8]]| {
            let mut growing = Text::new(Arc::new([stop.to_owned()]), 4);
            pieces.iter().map(|piece| push(&mut growing, piece)).last().unwrap()
        };
        assert_eq!(indented("\nend", &[b"a", b"\nend"]), ended("", "\nend"));
        assert_eq!(indented("end", &[b"a\n", b"the end"]), TextDelta { text: "".into(), end: Some(FinishReason::Length) });
        assert_eq!(indented("\nend", &[b"a\n", b"x"]), TextDelta { text: "\n".into(), end: Some(FinishReason::Length) });
    }

    #[test]
    fn published_pieces_join_to_the_same_text_for_every_chunk_size() {
        let whole = "Grüße, 🦊! #- end ##".as_bytes();
        for size in 1..=whole.len() {
            let mut growing = text(&["###", "#-#"]);
            let mut joined = String::new();
            whole.chunks(size).for_each(|piece| joined.push_str(&push(&mut growing, piece).text));
            joined.push_str(&growing.finish());
            assert_eq!(joined.as_bytes(), whole, "in pieces of {size} bytes");
        }
    }
}
