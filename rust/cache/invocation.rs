//! Finds where a text invokes an activated adapter (aLoRA), without copying the text.

use crate::request::Token;

/// Returns the start of the last occurrence of `invocation` in `text`; `None` if it does not occur or is empty.
///
/// Knuth–Morris–Pratt search: each token is read once.
pub fn invoked_at(text: impl IntoIterator<Item = Token>, invocation: &[Token]) -> Option<u32> {
    let borders = borders(invocation);
    let (mut n_matched, mut last) = (0, None);
    for (position, token) in text.into_iter().enumerate() {
        n_matched = extend_match(invocation, &borders, n_matched, token);
        if n_matched > 0 && n_matched == invocation.len() {
            last = Some(position + 1 - n_matched);
        }
    }
    last.map(|position| u32::try_from(position).expect("a text has fewer than 2³² tokens"))
}

/// For each non-empty prefix of `pattern`, the length of its longest proper suffix that is also a prefix of `pattern`.
fn borders(pattern: &[Token]) -> Vec<usize> {
    let mut borders = Vec::with_capacity(pattern.len());
    borders.extend(pattern.first().map(|_| 0));
    for &token in pattern.iter().skip(1) {
        let before = borders.last().copied().unwrap_or(0);
        borders.push(extend_match(pattern, &borders, before, token));
    }
    borders
}

/// Length of the longest prefix of `pattern` that the text ends with after `token`, given `n_matched` before.
fn extend_match(pattern: &[Token], borders: &[usize], mut n_matched: usize, token: Token) -> usize {
    loop {
        if pattern.get(n_matched) == Some(&token) {
            return n_matched + 1;
        }
        if n_matched == 0 {
            return 0;
        }
        n_matched = borders[n_matched - 1];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::draw::rng::Mt19937;

    #[test]
    fn the_search_finds_the_same_occurrence_as_a_naive_one() {
        let mut random = Mt19937::new(17);
        let mut below = |n: u32| random.next_u32() % n;
        let mut n_found = 0;
        for _ in 0..20_000 {
            let n_kinds = 1 + below(3);
            let (n_text, n_invocation) = (below(40), 1 + below(6));
            let mut some = |n: u32| (0..n).map(|_| below(n_kinds).cast_signed()).collect::<Vec<Token>>();
            let (text, invocation) = (some(n_text), some(n_invocation));
            let position =
                text.windows(invocation.len()).rposition(|at| at == invocation).map(|position| u32::try_from(position).unwrap());
            let (before, after) = text.split_at(text.len() / 2);
            assert_eq!(invoked_at(before.iter().chain(after).copied(), &invocation), position, "{invocation:?} in {text:?}");
            n_found += usize::from(position.is_some());
        }
        assert!((5_000..18_000).contains(&n_found), "{n_found}");
    }

    #[test]
    fn an_empty_invocation_or_text_has_no_occurrence() {
        assert_eq!(invoked_at([1, 2], &[]), None);
        assert_eq!(invoked_at([], &[1]), None);
    }
}
