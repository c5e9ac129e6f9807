//! How often tokens stand in a window.

use std::sync::Arc;

use crate::request::Token;

/// To change the logit of one token apart from the row costs as much as to go over so many of the row's. Measured in a row of
/// 152,064: 46 ns and 0.23.
pub(crate) const PER_TOKEN: usize = 256;

/// Counts that changed are looked at one by one beside a pass over the row; so many of the row's cost as much as one of them.
const PER_CHANGE: usize = 32;

/// To sort a token takes as long as to look at so many counts.
const PER_ID: usize = 16;

/// So many changes are never too many.
const MIN_CHANGES: usize = 64;

/// How often each token stands in a window.
///
/// What was counted at once is shared, and only what has changed since stands apart: a clone costs as much as there are changes.
/// Of them there are few; where they become too many, they are counted together with the rest anew.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenCounts {
    base: Arc<Base>,
    /// In order of token id, each token once: what is true in place of the base. A count may be 0 here.
    changed: Vec<(Token, u32)>,
}

/// Counts of many tokens.
#[derive(Debug)]
pub(crate) enum Base {
    /// Those that are not 0, in order of token id: they are few for their ids.
    Few(Vec<(Token, u32)>),
    /// By token id.
    Many(Vec<u32>),
}

impl Default for Base {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl TokenCounts {
    /// Of these tokens. A negative one, which no row holds, does not count, here and below.
    pub(crate) fn of(tokens: &[Token]) -> Self {
        let ids = || tokens.iter().filter_map(|&token| usize::try_from(token).ok());
        let n_ids = ids().max().map_or(0, |last| last + 1);
        if tokens.len() < n_ids / PER_ID {
            let mut sorted: Vec<Token> = tokens.iter().copied().filter(|&token| token >= 0).collect();
            sorted.sort_unstable();
            let count = |equals: &[Token]| (equals[0], u32::try_from(equals.len()).expect("a window fits into a context"));
            return Self::new(Base::Few(sorted.chunk_by(|a, b| a == b).map(count).collect()));
        }
        let mut counts = vec![0; n_ids];
        ids().for_each(|id| counts[id] += 1);
        Self::new(Base::Many(counts))
    }

    fn new(base: Base) -> Self {
        Self { base: Arc::new(base.fitting()), changed: Vec::new() }
    }

    /// What is shared, and the changes to it, in order of token id.
    pub(crate) fn parts(&self) -> (&Base, &[(Token, u32)]) {
        (&self.base, &self.changed)
    }

    /// Bytes that it takes, what it shares with its clones included.
    pub(crate) fn n_bytes(&self) -> usize {
        let base = match &*self.base {
            Base::Few(few) => size_of_val(&few[..]),
            Base::Many(counts) => size_of_val(&counts[..]),
        };
        base + size_of_val(&self.changed[..])
    }

    /// How often `token` stands there.
    pub(crate) fn get(&self, token: Token) -> u32 {
        match self.changed.binary_search_by_key(&token, |&(changed, _)| changed) {
            Ok(at) => self.changed[at].1,
            Err(_) => self.base.get(token),
        }
    }

    /// It stands there once more.
    pub(crate) fn add(&mut self, token: Token) {
        self.change(token, |count| count + 1);
    }

    /// It stands there once less than it did.
    pub(crate) fn remove(&mut self, token: Token) {
        self.change(token, |count| count.checked_sub(1).expect("every token of the window is counted"));
    }

    fn change(&mut self, token: Token, change: impl FnOnce(u32) -> u32) {
        if token < 0 {
            return;
        }
        match self.changed.binary_search_by_key(&token, |&(changed, _)| changed) {
            Ok(at) => self.changed[at].1 = change(self.changed[at].1),
            Err(at) => self.changed.insert(at, (token, change(self.base.get(token)))),
        }
        if self.changed.len() > self.max_changes() {
            let mut list = Vec::new();
            self.list(&mut list);
            *self = Self::new(Base::Few(list));
        }
    }

    fn max_changes(&self) -> usize {
        let n = match &*self.base {
            Base::Few(_) => self.changed.last().map_or(0, |&(last, _)| index(last) / PER_TOKEN),
            Base::Many(counts) => counts.len() / PER_CHANGE,
        };
        n.max(MIN_CHANGES)
    }

    /// Fills `list` with the counts that are not 0, in order of token id.
    pub(crate) fn list(&self, list: &mut Vec<(Token, u32)>) {
        list.clear();
        match &*self.base {
            Base::Few(few) => merge(few.iter().copied(), &self.changed, list),
            Base::Many(counts) => merge((0..).zip(counts.iter().copied()), &self.changed, list),
        }
        list.retain(|&(_, count)| count > 0);
    }
}

impl Base {
    /// The same counts, in a list where there are few of them for the ids up to the last.
    fn fitting(self) -> Self {
        let (n_counts, n_ids) = match &self {
            Self::Few(list) => (list.len(), list.last().map_or(0, |&(last, _)| index(last) + 1)),
            Self::Many(counts) => (counts.iter().filter(|&&count| count > 0).count(), counts.len()),
        };
        let are_few = n_counts <= MIN_CHANGES.max(n_ids / PER_TOKEN);
        match self {
            Self::Few(list) if !are_few => {
                let mut counts = vec![0; n_ids];
                for (token, count) in list {
                    counts[index(token)] = count;
                }
                Self::Many(counts)
            }
            Self::Many(counts) if are_few => Self::Few((0..).zip(counts).filter(|&(_, count)| count > 0).collect()),
            fits => fits,
        }
    }

    fn get(&self, token: Token) -> u32 {
        match self {
            Self::Few(list) => list.binary_search_by_key(&token, |&(seen, _)| seen).map_or(0, |at| list[at].1),
            Self::Many(counts) => usize::try_from(token).ok().and_then(|at| counts.get(at)).copied().unwrap_or(0),
        }
    }
}

/// Appends both lists, which are in order of token id, in that order; of a token of both, what `changed` says.
fn merge(base: impl Iterator<Item = (Token, u32)>, changed: &[(Token, u32)], into: &mut Vec<(Token, u32)>) {
    let mut changed = changed.iter().copied().peekable();
    for (token, count) in base {
        while let Some(before) = changed.next_if(|&(changed, _)| changed < token) {
            into.push(before);
        }
        into.push(changed.next_if(|&(changed, _)| changed == token).unwrap_or((token, count)));
    }
    into.extend(changed);
}

/// Where a token that is counted stands among all ids.
fn index(token: Token) -> usize {
    usize::try_from(token).expect("negative tokens are not counted")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::sampling::rng::Mt19937;

    fn list(counts: &TokenCounts) -> Vec<(Token, u32)> {
        let mut list = vec![(9, 9)];
        counts.list(&mut list);
        list
    }

    #[test]
    fn tokens_are_counted_one_by_one_as_they_are_together() {
        let mut rng = Mt19937::new(4);
        for (n_ids, n_window, n_said) in [(5, 3, 50), (100, 40, 900), (3_000, 2_000, 9_000), (100_000, 300, 2_000)] {
            let mut token = || Token::try_from(rng.next_u32() % n_ids).unwrap() - 1;
            let said: Vec<Token> = (0..n_said).map(|_| token()).collect();
            let mut counts = TokenCounts::of(&said[..n_window]);
            for end in n_window..n_said {
                counts.add(said[end]);
                counts.remove(said[end - n_window]);
                if end % 97 == 0 || end + 1 == n_said {
                    let mut expected = BTreeMap::new();
                    for &token in said[end + 1 - n_window..=end].iter().filter(|&&token| token >= 0) {
                        *expected.entry(token).or_insert(0) += 1;
                    }
                    assert!((-1..200).all(|token| counts.get(token) == expected.get(&token).copied().unwrap_or(0)));
                    assert_eq!(list(&counts), expected.into_iter().collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn many_tokens_for_their_ids_are_kept_by_id_and_few_in_a_list() {
        let is_many = |tokens: &[Token]| matches!(TokenCounts::of(tokens).parts().0, Base::Many(_));
        let tokens: Vec<Token> = (0..1_000).collect();
        assert!(is_many(&tokens) && !is_many(&tokens[..MIN_CHANGES]));
        let apart: Vec<Token> = (0..1_000).map(|i| i * 300).collect();
        assert!(!is_many(&apart));
    }

    #[test]
    fn there_are_few_changes_whatever_is_said() {
        let shared = TokenCounts::of(&(0..100_000).collect::<Vec<_>>());
        let mut counts = shared.clone();
        assert!(Arc::ptr_eq(&shared.base, &counts.base));
        let mut n_anew = 0;
        for token in 0..100_000 {
            let base = Arc::clone(&counts.base);
            counts.add(token);
            n_anew += u32::from(!Arc::ptr_eq(&base, &counts.base));
            assert!(counts.changed.len() <= 100_000 / PER_CHANGE);
        }
        assert_eq!(n_anew, 31);
        let mut few = TokenCounts::of(&[0]);
        for token in (0..).step_by(1_000).take(1_000) {
            few.add(token);
            assert!(few.changed.len() <= MIN_CHANGES.max(index(token) / PER_TOKEN));
        }
    }
}
