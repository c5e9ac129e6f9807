//! Tokens → text: bytes are held back until they are whole UTF-8 and cannot be the start of a stop string.
//! What ends a text by what it says is found here too.

use std::sync::Arc;

use smol_str::{SmolStr, SmolStrBuilder};

use crate::engine::sequence::indentation::Indentation;
use crate::request::FinishReason;

/// The text of one branch as it grows.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    /// Shared by the branches of a request.
    stops: Arc<[String]>,
    /// Bytes that no caller has seen yet.
    held: Vec<u8>,
    indentation: Indentation,
}

/// What [`Text::push`] found out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextDelta {
    /// Text that became safe to show.
    pub(crate) text: SmolStr,
    /// Why it is the last, where a stop string or a line that is indented too little follows it.
    pub(crate) end: Option<FinishReason>,
}

impl Text {
    /// Ends at any of `stops`, and at a line that is indented by fewer than `n_indent` characters.
    pub(crate) fn new(stops: Arc<[String]>, n_indent: u32) -> Self {
        Self { stops, held: Vec::new(), indentation: Indentation::new(n_indent) }
    }

    /// The first bytes of a character that others have shown nothing of.
    pub(crate) fn hold(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    pub(crate) fn held(&self) -> &[u8] {
        &self.held
    }

    /// What comes now is a text of its own, which ends as this one does.
    pub(crate) fn begin_again(&mut self, n_indent: u32) {
        self.held.clear();
        self.indentation = Indentation::new(n_indent);
    }

    /// Takes the bytes that `append` adds. The stop string that begins first wins; of two that begin together, the one that is
    /// listed first.
    pub(crate) fn push(&mut self, append: impl FnOnce(&mut Vec<u8>)) -> TextDelta {
        let n_before = self.held.len();
        append(&mut self.held);
        let too_little = self.indentation.find_end(&self.held[n_before..]).map(|at| n_before + at);
        let first =
            self.stops.iter().enumerate().filter_map(|(index, stop)| Some((find(&self.held, stop.as_bytes())?, index))).min();
        let stop = first.map(|(at, index)| (at, FinishReason::Stop(self.stops[index].clone())));
        let ends = stop.into_iter().chain(too_little.map(|at| (at, FinishReason::Length)));
        if let Some((at, reason)) = ends.min_by_key(|&(at, _)| at) {
            let text = lossy(&self.held[..at]);
            self.held.clear();
            return TextDelta { text, end: Some(reason) };
        }
        let n_stop = self.stops.iter().map(|stop| overlap(&self.held, stop.as_bytes())).max().unwrap_or(0);
        let n_shown = self.held.len() - n_stop.max(incomplete_tail(&self.held));
        TextDelta { text: self.show(n_shown), end: None }
    }

    /// The branch has ended: what was held back in case of a stop string is text after all. An unfinished character is not.
    pub(crate) fn finish(&mut self) -> SmolStr {
        let text = self.show(self.held.len() - incomplete_tail(&self.held));
        self.held.clear();
        text
    }

    fn show(&mut self, n_bytes: usize) -> SmolStr {
        let text = lossy(&self.held[..n_bytes]);
        self.held.drain(..n_bytes);
        text
    }
}

/// The text of `bytes`, U+FFFD for what is no UTF-8, as [`String::from_utf8_lossy`] has it, but without a string in between.
fn lossy(bytes: &[u8]) -> SmolStr {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.into();
    }
    let mut text = SmolStrBuilder::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    text.finish()
}

/// Where `needle` first begins in `bytes`.
fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

/// Length of the longest end of `bytes` that is a start of `stop`, but not all of it.
fn overlap(bytes: &[u8], stop: &[u8]) -> usize {
    let longest = bytes.len().min(stop.len() - 1);
    (1..=longest).rev().find(|&n| bytes.ends_with(&stop[..n])).unwrap_or(0)
}

/// Length of the character at the end of `bytes` whose last bytes have not come yet.
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
        text.push(|held| held.extend_from_slice(bytes))
    }

    fn shown(text: &str) -> TextDelta {
        TextDelta { text: text.into(), end: None }
    }

    fn ended(text: &str, stop: &str) -> TextDelta {
        TextDelta { text: text.into(), end: Some(FinishReason::Stop(stop.into())) }
    }

    #[test]
    fn text_without_stop_strings_is_shown_at_once() {
        let mut growing = text(&[]);
        assert_eq!(push(&mut growing, b"once"), shown("once"));
        assert_eq!(growing.finish(), "");
    }

    #[test]
    fn a_character_is_shown_when_its_last_byte_has_come() {
        let mut growing = text(&[]);
        for byte in &"🦊".as_bytes()[..3] {
            assert_eq!(push(&mut growing, &[*byte]), shown(""));
        }
        assert_eq!(push(&mut growing, &"🦊".as_bytes()[3..]), shown("🦊"));
    }

    #[test]
    fn an_unfinished_character_at_the_end_is_left_out() {
        let mut growing = text(&[]);
        push(&mut growing, &[b'a', 0xF0, 0x9F]);
        assert_eq!(growing.finish(), "");
    }

    #[test]
    fn a_byte_that_can_never_be_text_becomes_a_replacement_character() {
        let mut growing = text(&[]);
        assert_eq!(push(&mut growing, &[0xFF, b'a']), shown("\u{FFFD}a"));
    }

    #[test]
    fn broken_text_is_what_the_standard_library_makes_of_it() {
        for bytes in
            [&b"a\xFF\xFEb"[..], b"\xE2\x82x\xE2\x82\xAC", b"\xC3\xC3\xA9 and more than an event holds \xF0\x9F\x92", b""]
        {
            assert_eq!(&*lossy(bytes), &*String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn what_may_be_a_stop_string_is_held_back_until_it_is_not() {
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
    fn a_held_back_start_of_a_stop_string_is_shown_at_the_end() {
        let mut growing = text(&["###"]);
        assert_eq!(push(&mut growing, b"a##"), shown("a"));
        assert_eq!(growing.finish(), "##");
    }

    #[test]
    fn a_line_that_is_indented_too_little_ends_the_text_where_its_indentation_ends() {
        let mut growing = Text::new(Arc::new([]), 4);
        assert_eq!(push(&mut growing, b"if x:\n  "), shown("if x:\n  "));
        assert_eq!(push(&mut growing, b"  \tpass\n"), shown("  \tpass\n"));
        assert_eq!(push(&mut growing, b"  y"), TextDelta { text: "  ".into(), end: Some(FinishReason::Length) });
        assert_eq!(growing.finish(), "");
    }

    #[test]
    fn of_a_stop_string_and_a_line_the_one_that_begins_first_ends_the_text() {
        let indented = |stop: &str, pieces: &[&[u8]]| {
            let mut growing = Text::new(Arc::new([stop.to_owned()]), 4);
            pieces.iter().map(|piece| push(&mut growing, piece)).last().unwrap()
        };
        assert_eq!(indented("\nend", &[b"a", b"\nend"]), ended("", "\nend"));
        assert_eq!(indented("end", &[b"a\n", b"the end"]), TextDelta { text: "".into(), end: Some(FinishReason::Length) });
        assert_eq!(indented("\nend", &[b"a\n", b"x"]), TextDelta { text: "\n".into(), end: Some(FinishReason::Length) });
    }

    #[test]
    fn pieces_join_to_the_same_text_however_they_are_cut() {
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
