//! Finds where tokens invoke an activated adapter (aLoRA).

use crate::request::Token;

/// Returns the start of the last occurrence of `invocation` in `tokens`; `None` if it does not occur or is empty.
pub fn invoked_at(tokens: impl IntoIterator<Item = Token>, invocation: &[Token]) -> Option<u32> {
    let tokens: Vec<Token> = tokens.into_iter().collect();
    let last = tokens.windows(invocation.len().max(1)).rposition(|part| part == invocation)?;
    Some(u32::try_from(last).expect("a text has fewer than 2³² tokens"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_occurrence_is_found() {
        assert_eq!(invoked_at([1, 2, 3, 2, 3, 4], &[2, 3]), Some(3));
        assert_eq!(invoked_at([1, 2, 3], &[1, 2]), Some(0));
        assert_eq!(invoked_at([1, 2, 3], &[2, 3]), Some(1));
        assert_eq!(invoked_at([5, 5, 5], &[5, 5]), Some(1), "occurrences may overlap");
        assert_eq!(invoked_at([2, 1, 2, 3], &[2, 3, 1]), None);
        assert_eq!(invoked_at([1, 2], &[1, 2, 3]), None);
    }

    #[test]
    fn an_empty_invocation_or_text_has_no_occurrence() {
        assert_eq!(invoked_at([1, 2], &[]), None);
        assert_eq!(invoked_at([], &[1]), None);
    }
}
