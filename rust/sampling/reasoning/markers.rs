//! Incremental search for start or end markers in a growing text.

#[derive(Debug, Clone)]
pub(super) struct Markers {
    texts: Vec<Box<[u8]>>,
    pub(super) n_longest: usize,
    /// The bytes since the last match, fewer than the longest marker has.
    tail: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MarkerMatch {
    /// End of the marker, relative to the start of the new bytes.
    pub(super) end: usize,
    pub(super) n_bytes: usize,
}

impl Markers {
    pub(super) fn new(texts: &[String]) -> Self {
        let texts: Vec<Box<[u8]>> = texts.iter().map(|text| text.as_bytes().into()).collect();
        let n_longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        Self { texts, n_longest, tail: Vec::new() }
    }

    /// Returns the marker that ends first, the longest of several.
    pub(super) fn find(&self, bytes: &[u8]) -> Option<MarkerMatch> {
        let text = [&self.tail[..], bytes].concat();
        let end_of =
            |marker: &[u8]| text.windows(marker.len()).position(|window| window == marker).map(|start| start + marker.len());
        let found = self.texts.iter().filter_map(|marker| Some((end_of(marker)?, marker.len())));
        let (end, n_bytes) = found.min_by_key(|&(end, n_bytes)| (end, usize::MAX - n_bytes))?;
        Some(MarkerMatch { end: end - self.tail.len(), n_bytes })
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        let n_over = (self.tail.len() + 1).saturating_sub(self.n_longest);
        self.tail.drain(..n_over.min(self.tail.len()));
    }

    pub(super) fn clear(&mut self) {
        self.tail.clear();
    }

    /// Returns true if one of a marker and `text` starts with the other.
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
    fn a_marker_is_found_in_pieces_of_any_size() {
        let whole = b"so </thin</think> on";
        for n in 1..=whole.len() {
            let mut markers = markers(&["</think>", "[END]"]);
            let mut n_read = 0;
            let found = whole.chunks(n).find_map(|bytes| {
                let found = markers.find(bytes).map(|found| (n_read + found.end, found.n_bytes));
                markers.push(bytes);
                n_read += bytes.len();
                assert!(markers.tail.len() < 8);
                found
            });
            assert_eq!(found, Some((17, 8)), "in pieces of {n} bytes");
        }
    }

    #[test]
    fn the_marker_that_ends_first_is_found_and_the_longest_of_ties() {
        let markers = markers(&["b", "ab", "cd", "abc"]);
        assert_eq!(markers.find(b"xabcd"), Some(MarkerMatch { end: 3, n_bytes: 2 }));
        assert_eq!(markers.find(b"xc"), None);
        assert_eq!(super::tests::markers(&[]).find(b"x"), None);
    }

    #[test]
    fn earlier_bytes_count_until_they_are_cleared() {
        let mut markers = markers(&["<a>"]);
        markers.push(b"x<a");
        assert_eq!(markers.find(b">>"), Some(MarkerMatch { end: 1, n_bytes: 3 }));
        markers.clear();
        assert_eq!(markers.find(b">>"), None);
        assert!(markers.may_begin(b"<") && markers.may_begin(b"<a>b") && !markers.may_begin(b"a"));
    }
}
