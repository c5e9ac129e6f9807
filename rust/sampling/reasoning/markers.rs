//! Texts that begin or end something, looked for in a text that grows.

/// The texts, and the end of what was said so far.
#[derive(Debug, Clone)]
pub(super) struct Markers {
    texts: Vec<Box<[u8]>>,
    n_longest: usize,
    /// The last bytes that were said, less than the longest text has, since the last that was found.
    tail: Vec<u8>,
}

/// A text that was found in the tail and the bytes after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// As many of these bytes are before its end, or are its own.
    pub(super) end: usize,
    pub(super) n_bytes: usize,
}

impl Markers {
    /// None of `texts` is empty.
    pub(super) fn new(texts: &[String]) -> Self {
        let texts: Vec<Box<[u8]>> = texts.iter().map(|text| text.as_bytes().into()).collect();
        let n_longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        Self { texts, n_longest, tail: Vec::new() }
    }

    /// The text that ends first in what was said with `bytes` after it; of those that end together, the longest.
    pub(super) fn find(&self, bytes: &[u8]) -> Option<Found> {
        let said = [&self.tail[..], bytes].concat();
        let ends_at = |text: &[u8]| said.windows(text.len()).position(|window| window == text).map(|at| at + text.len());
        let found = self.texts.iter().filter_map(|text| Some((ends_at(text)?, text.len())));
        let (end, n_bytes) = found.min_by_key(|&(end, n_bytes)| (end, usize::MAX - n_bytes))?;
        Some(Found { end: end - self.tail.len(), n_bytes })
    }

    /// `bytes` were said, in which none was found.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        let n_over = (self.tail.len() + 1).saturating_sub(self.n_longest);
        self.tail.drain(..n_over.min(self.tail.len()));
    }

    /// What was said so far is no part of one.
    pub(super) fn clear(&mut self) {
        self.tail.clear();
    }

    /// Whether one begins with `text`, or `text` with one.
    pub(super) fn may_begin(&self, text: &[u8]) -> bool {
        self.texts.iter().any(|marker| marker.starts_with(text) || text.starts_with(marker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn markers(texts: &[&str]) -> Markers {
        Markers::new(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_text_is_found_however_it_is_cut() {
        let whole = b"so </thin</think> on";
        for n in 1..=whole.len() {
            let mut markers = markers(&["</think>", "[END]"]);
            let mut at = 0;
            let found = whole.chunks(n).find_map(|bytes| {
                let found = markers.find(bytes).map(|found| (at + found.end, found.n_bytes));
                markers.push(bytes);
                at += bytes.len();
                assert!(markers.tail.len() < 8);
                found
            });
            assert_eq!(found, Some((17, 8)), "in pieces of {n} bytes");
        }
    }

    #[test]
    fn what_ends_first_is_found_and_of_those_that_end_together_the_longest() {
        let markers = markers(&["b", "ab", "cd", "abc"]);
        assert_eq!(markers.find(b"xabcd"), Some(Found { end: 3, n_bytes: 2 }));
        assert_eq!(markers.find(b"xc"), None);
        assert_eq!(super::tests::markers(&[]).find(b"x"), None);
    }

    #[test]
    fn what_was_before_counts_until_it_is_cleared() {
        let mut markers = markers(&["<a>"]);
        markers.push(b"x<a");
        assert_eq!(markers.find(b">>"), Some(Found { end: 1, n_bytes: 3 }));
        markers.clear();
        assert_eq!(markers.find(b">>"), None);
        assert!(markers.may_begin(b"<") && markers.may_begin(b"<a>b") && !markers.may_begin(b"a"));
    }
}
