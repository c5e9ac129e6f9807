//! Ends a text at an under-indented line, which is no longer part of the block of code that is generated.

/// Detects an under-indented line. As in llama-server, the first line is exempt; in every other one, even an empty one, at least
/// `min_spaces` spaces or tabs must precede the first other character, before which the text ends. llama-server detects this a
/// token or two later and truncates text that it has already streamed; here streamed and whole answers are equal.
#[derive(Debug, Clone)]
pub(crate) struct Indentation {
    /// 0 disables the rule.
    min_spaces: u32,
    /// Spaces and tabs of the line so far; `None` once the rest of it is exempt.
    n_spaces: Option<u32>,
}

impl Indentation {
    pub(crate) fn new(min_spaces: u32) -> Self {
        Self { min_spaces, n_spaces: None }
    }

    /// Adds the next `bytes` of the text; returns the position in them at which the text ends, if any.
    pub(crate) fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.min_spaces == 0 {
            return None;
        }
        bytes.iter().position(|byte| match (byte, self.n_spaces) {
            (b' ' | b'\t', Some(n)) => {
                self.n_spaces = Some(n + 1);
                false
            }
            (_, Some(n)) if n < self.min_spaces => true,
            _ => {
                self.n_spaces = (*byte == b'\n').then_some(0);
                false
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text before its end, independent of the chunk size.
    fn before_end(min_spaces: u32, text: &str) -> &str {
        let ends: Vec<usize> = (1..=text.len())
            .map(|size| {
                let mut indentation = Indentation::new(min_spaces);
                let mut pieces = text.as_bytes().chunks(size).enumerate();
                pieces.find_map(|(i, piece)| Some(i * size + indentation.find_end(piece)?)).unwrap_or(text.len())
            })
            .collect();
        assert!(ends.iter().all(|&end| end == ends[0]), "it depends on the pieces: {ends:?}");
        &text[..ends[0]]
    }

    #[test]
    fn the_first_line_is_exempt_and_every_other_one_must_be_indented() {
        assert_eq!(before_end(2, "a\n  b\n\t\tc\n \t d"), "a\n  b\n\t\tc\n \t d");
        assert_eq!(before_end(2, "a\n  b\n c\n  d"), "a\n  b\n ");
        assert_eq!(before_end(2, "a\nb"), "a\n");
        assert_eq!(before_end(1, "a\n b  c \nd"), "a\n b  c \n");
    }

    #[test]
    fn an_empty_line_ends_the_text_and_a_line_of_white_space_does_not() {
        assert_eq!(before_end(2, "a\n\n  b"), "a\n");
        assert_eq!(before_end(2, "a\n  \n  b\n   "), "a\n  \n  b\n   ");
    }

    #[test]
    fn zero_disables_the_rule() {
        assert_eq!(before_end(0, "a\nb\n\nc"), "a\nb\n\nc");
    }
}
