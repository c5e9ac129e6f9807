//! Positions at which a text can be cut without changing its tokens, for `SentencePiece` vocabularies.
//!
//! llama.cpp merges neighbouring characters into pieces and encodes the remainder byte by byte, copying all previous tokens for each
//! such character: 80,000 of them take 80 times as long as 10,000. So a long text is tokenized in chunks. A cut between two characters
//! is safe if no piece of the vocabulary contains the two in a row: then no merge crosses it.

use std::collections::HashSet;
use std::ops::Range;

/// A character in llama.cpp's sense: its bytes, at most four, as one number.
type Symbol = u32;

/// U+2581, which represents a space in vocabularies.
const SPACE: Symbol = 0xe2_96_81;

#[derive(Debug, Default)]
pub(crate) struct SafeCuts {
    inner_pairs: HashSet<(Symbol, Symbol)>,
}

impl SafeCuts {
    pub(crate) fn new<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut inner_pairs = HashSet::new();
        for piece in pieces {
            let mut previous = None;
            for (_, symbol) in symbols(piece) {
                inner_pairs.extend(previous.map(|previous| (previous, symbol)));
                previous = Some(symbol);
            }
        }
        Self { inner_pairs }
    }

    /// Cuts `text` into the shortest chunks of at least `min_bytes` bytes that safe cuts allow; the last one may be shorter.
    pub(crate) fn chunks(&self, text: &[u8], min_bytes: usize) -> Vec<Range<usize>> {
        let mut chunks = Vec::new();
        let (mut start, mut previous) = (0, None);
        for (range, symbol) in symbols(text) {
            // llama.cpp first replaces spaces by three bytes; one inside a character, which is not UTF-8, changes all that follow.
            if range.len() > 1 && text[range.clone()].contains(&b' ') {
                break;
            }
            let is_safe = previous.is_some_and(|previous| !self.inner_pairs.contains(&(previous, symbol)));
            if is_safe && range.start - start >= min_bytes {
                chunks.push(start..range.start);
                start = range.start;
            }
            previous = Some(symbol);
        }
        chunks.extend((start < text.len()).then_some(start..text.len()));
        chunks
    }
}

/// Splits a text into characters as llama.cpp does: the first byte determines the length, even if the text is not UTF-8.
fn symbols(text: &[u8]) -> impl Iterator<Item = (Range<usize>, Symbol)> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let start = next;
        let n_bytes = match text.get(start)? {
            0xf0.. => 4,
            0xe0.. => 3,
            0xc0.. => 2,
            _ => 1,
        };
        next = text.len().min(start + n_bytes);
        let symbol = match &text[start..next] {
            b" " => SPACE,
            bytes => bytes.iter().fold(0, |symbol, &byte| symbol << 8 | Symbol::from(byte)),
        };
        Some((start..next, symbol))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(pieces: &[&str]) -> SafeCuts {
        SafeCuts::new(pieces.iter().map(|piece| piece.as_bytes()))
    }

    fn chunks(pieces: &[&str], text: &str, min_bytes: usize) -> Vec<String> {
        let chunks = cuts(pieces).chunks(text.as_bytes(), min_bytes);
        chunks.into_iter().map(|chunk| text[chunk].to_owned()).collect()
    }

    #[test]
    fn a_text_is_cut_where_no_piece_spans_the_cut() {
        assert_eq!(chunks(&["ab", "bc", "日本"], "abcab日日本", 1), ["abc", "ab", "日", "日本"]);
        assert_eq!(chunks(&["▁a"], "a a ▁a", 1), ["a", " a", " ", "▁a"]);
        assert_eq!(chunks(&[], "a日", 1), ["a", "日"]);
        assert_eq!(chunks(&["ab"], "", 1), [""; 0]);
    }

    #[test]
    fn a_chunk_ends_at_the_first_safe_cut_after_the_minimum_length() {
        assert_eq!(chunks(&["aa"], "aaaabbbbcaa", 3), ["aaaa", "bbb", "bcaa"]);
        let many = "日".repeat(100_000);
        let longest = chunks(&["a日", "日a"], &many, 1024).iter().map(String::len).max();
        assert_eq!(longest, Some(1026));
    }

    #[test]
    fn invalid_utf_8_is_separated_as_in_llama_cpp() {
        let parts = |text: &[u8]| symbols(text).map(|(range, _)| range.start).collect::<Vec<_>>();
        assert_eq!(parts(b"\xff\x80a\xe6\x97b"), [0, 4, 5]);
        assert_eq!(parts(b"\x80\x80a\xe6\x97"), [0, 1, 2, 3]);
        assert_eq!(cuts(&[]).chunks(b"\xe6\x97 ab", 1).len(), 1);
        assert_eq!(cuts(&[]).chunks(b"a\xe6\x97\xa5 b", 1), [0..1, 1..4, 4..5, 5..6]);
    }
}
