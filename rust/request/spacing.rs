/// Characters after which JSON may have white space.
const BEFORE: &[u8] = b"{[,:]}\"";

/// Characters before which the white space is remembered: others are mostly in strings, as the slash in `http://`.
const AFTER: &[u8] = b"{[\"]}-0123456789";

/// As many bytes of white space as grammars of JSON schemas allow.
const MAX_SPACE: usize = 22;

/// White space that the JSON of one text has after each kind of character: likely it comes again.
#[derive(Debug, Clone)]
pub struct Spacing {
    /// After the character of [`BEFORE`] at the same index.
    spaces: [Vec<u8>; BEFORE.len()],
    /// The last character other than white space, and the white space after it.
    last: u8,
    space: Vec<u8>,
}

impl Default for Spacing {
    /// The style of Python's `json.dumps`.
    fn default() -> Self {
        let space = |before: u8| if matches!(before, b',' | b':') { vec![b' '] } else { Vec::new() };
        Self { spaces: std::array::from_fn(|index| space(BEFORE[index])), last: 0, space: Vec::new() }
    }
}

impl Spacing {
    /// Reads the next bytes of the text.
    pub fn read(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte.is_ascii_whitespace() {
                if self.space.len() < MAX_SPACE {
                    self.space.push(byte);
                }
                continue;
            }
            if let Some(index) = index(self.last).filter(|_| AFTER.contains(&byte)) {
                self.spaces[index].clone_from(&self.space);
            }
            self.space.clear();
            self.last = byte;
        }
    }

    /// Returns the white space that is expected after the text so far and `more`.
    pub fn after(&self, more: &[u8]) -> &[u8] {
        let last = match more {
            [.., last] => *last,
            [] if self.space.is_empty() => self.last,
            [] => return &[],
        };
        index(last).map_or(&[], |index| &self.spaces[index])
    }
}

fn index(byte: u8) -> Option<usize> {
    BEFORE.iter().position(|&before| before == byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_expected_where_the_text_had_it() {
        let mut spacing = Spacing::default();
        assert_eq!(
            [&b"{"[..], b"\"a\":", b"1,", b"[", b"\xC3"].map(|text| spacing.after(text)),
            [&b""[..], b" ", b" ", b"", b""]
        );
        spacing.read(b"{\n  \"a\":\"http://a, b:c\",");
        assert_eq!([&b"{"[..], b":", b",", b"x"].map(|text| spacing.after(text)), [&b"\n  "[..], b"", b" ", b""]);
        assert_eq!(spacing.after(b""), b" ");
        spacing.read(b"\n");
        assert_eq!(spacing.after(b""), b"", "it is there already");
        spacing.read(b"  \"");
        assert_eq!(spacing.after(b"1,"), b"\n  ");
    }
}
