//! Where a text invokes an activated adapter (aLoRA), found without a copy of the text.

use crate::request::Token;

/// Where `text` has `invocation` for the last time, from where on the adapter counts; `None` where it does not, and where there is
/// nothing to look for.
///
/// As Knuth, Morris and Pratt search: each token is read once, in whatever pieces they come.
///
/// # Panics
/// If there are more than 2³² tokens before it.
#[must_use]
pub fn invoked_at(text: impl IntoIterator<Item = Token>, invocation: &[Token]) -> Option<u32> {
    let borders = borders(invocation);
    let (mut n_matched, mut last) = (0, None);
    for (place, token) in text.into_iter().enumerate() {
        n_matched = extended(invocation, &borders, n_matched, token);
        if n_matched > 0 && n_matched == invocation.len() {
            last = Some(place + 1 - n_matched);
        }
    }
    last.map(|place| u32::try_from(place).expect("a text has fewer than 2³² tokens"))
}

/// Of each beginning of `pattern` but the empty one, the length of the longest shorter one that it ends with.
fn borders(pattern: &[Token]) -> Vec<usize> {
    let mut borders = Vec::with_capacity(pattern.len());
    borders.extend(pattern.first().map(|_| 0));
    for &token in pattern.iter().skip(1) {
        let before = borders.last().copied().unwrap_or(0);
        borders.push(extended(pattern, &borders, before, token));
    }
    borders
}

/// How much of `pattern` a text ends with that ended with the first `n_matched` of it, and goes on with `token`.
fn extended(pattern: &[Token], borders: &[usize], mut n_matched: usize, token: Token) -> usize {
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
    use crate::sampling::rng::Mt19937;

    #[test]
    fn it_is_found_where_a_look_at_every_place_finds_it() {
        let mut random = Mt19937::new(17);
        let mut below = |n: u32| random.next_u32() % n;
        let mut n_found = 0;
        for _ in 0..20_000 {
            let n_kinds = 1 + below(3);
            let (n_text, n_invocation) = (below(40), 1 + below(6));
            let mut some = |n: u32| (0..n).map(|_| below(n_kinds).cast_signed()).collect::<Vec<Token>>();
            let (text, invocation) = (some(n_text), some(n_invocation));
            let place =
                text.windows(invocation.len()).rposition(|at| at == invocation).map(|place| u32::try_from(place).unwrap());
            let (before, after) = text.split_at(text.len() / 2);
            assert_eq!(invoked_at(before.iter().chain(after).copied(), &invocation), place, "{invocation:?} in {text:?}");
            n_found += usize::from(place.is_some());
        }
        assert!((5_000..18_000).contains(&n_found), "{n_found}");
    }

    #[test]
    fn nothing_is_found_where_nothing_is_looked_for() {
        assert_eq!(invoked_at([1, 2], &[]), None);
        assert_eq!(invoked_at([], &[1]), None);
    }
}
