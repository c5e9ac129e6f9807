//! Ends a text at a line that is indented too little: one that no longer belongs to the block of code that is being written.

/// The indentation of the line that a text is at.
///
/// The rule is llama-server's: the first line is free; in every other one, also an empty one, whatever is neither a space nor a tab
/// must come after at least `at_least` of these. The text ends before it. llama-server finds that out a token or two later and
/// then takes back what it has shown already; here it is found out at once, so that a stream holds the same text as the whole
/// answer.
#[derive(Debug, Clone)]
pub(crate) struct Indentation {
    /// 0 is off.
    at_least: u32,
    /// White-space characters of the line so far; `None` once the rest of it is free.
    n_so_far: Option<u32>,
}

impl Indentation {
    /// Of a text that is empty.
    pub(crate) fn new(at_least: u32) -> Self {
        Self { at_least, n_so_far: None }
    }

    /// Takes the next `bytes` of the text; where it ends in them, if it does.
    pub(crate) fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.at_least == 0 {
            return None;
        }
        bytes.iter().position(|byte| match (byte, self.n_so_far) {
            (b' ' | b'\t', Some(n)) => {
                self.n_so_far = Some(n + 1);
                false
            }
            (_, Some(n)) if n < self.at_least => true,
            _ => {
                self.n_so_far = (*byte == b'\n').then_some(0);
                false
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much of a text is left, in pieces of every size.
    fn kept(at_least: u32, text: &str) -> &str {
        let ends: Vec<usize> = (1..=text.len())
            .map(|size| {
                let mut indentation = Indentation::new(at_least);
                let mut pieces = text.as_bytes().chunks(size).enumerate();
                pieces.find_map(|(i, piece)| Some(i * size + indentation.find_end(piece)?)).unwrap_or(text.len())
            })
            .collect();
        assert!(ends.iter().all(|&end| end == ends[0]), "it depends on the pieces: {ends:?}");
        &text[..ends[0]]
    }

    #[test]
    fn the_first_line_is_free_and_every_other_one_is_indented() {
        assert_eq!(kept(2, "a\n  b\n\t\tc\n \t d"), "a\n  b\n\t\tc\n \t d");
        assert_eq!(kept(2, "a\n  b\n c\n  d"), "a\n  b\n ");
        assert_eq!(kept(2, "a\nb"), "a\n");
        assert_eq!(kept(1, "a\n b  c \nd"), "a\n b  c \n");
    }

    #[test]
    fn an_empty_line_ends_it_too_and_one_of_white_space_does_not() {
        assert_eq!(kept(2, "a\n\n  b"), "a\n");
        assert_eq!(kept(2, "a\n  \n  b\n   "), "a\n  \n  b\n   ");
    }

    #[test]
    fn zero_is_off() {
        assert_eq!(kept(0, "a\nb\n\nc"), "a\nb\n\nc");
    }
}
