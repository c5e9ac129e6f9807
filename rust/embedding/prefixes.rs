//! Texts of one batch that begin alike: an instruction before every text, or a query before every document.

use crate::request::Token;

/// Fewer tokens are computed again: a decode of their own costs more.
const MIN_SHARED: usize = 16;

/// Texts that begin with the same tokens, `n_shared` of them; each has more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Their places in the batch.
    pub texts: Vec<usize>,
    /// Tokens that they have in common; 0 for a text on its own.
    pub n_shared: usize,
}

/// Tokens that two texts begin with in common, but for the last one of each, which is computed for itself: its vector is wanted.
#[must_use]
pub fn n_alike(a: &[Token], b: &[Token]) -> usize {
    let most = a.len().min(b.len()).saturating_sub(1);
    let n = a.iter().zip(b).take(most).take_while(|(a, b)| a == b).count();
    if n < MIN_SHARED { 0 } else { n }
}

/// Puts each text into the group of those that it has most in common with. Every text is in one group, which may be its own.
#[must_use]
pub fn groups(texts: &[Vec<Token>]) -> Vec<Group> {
    let alike = |i: usize, j: usize| if i == j { 0 } else { n_alike(&texts[i], &texts[j]) };
    let all = 0..texts.len();
    // The first text of the group that a text is in.
    let mut first_of: Vec<usize> = all.clone().collect();
    for i in all.clone() {
        let most = all.clone().map(|j| alike(i, j)).max().unwrap_or(0);
        for j in all.clone().filter(|j| most > 0 && alike(i, *j) == most) {
            let (kept, gone) = (first_of[i].min(first_of[j]), first_of[i].max(first_of[j]));
            for first in &mut first_of {
                *first = if *first == gone { kept } else { *first };
            }
        }
    }
    let firsts = all.clone().filter(|i| first_of[*i] == *i);
    let group = |first: usize| {
        let texts: Vec<usize> = all.clone().filter(|i| first_of[*i] == first).collect();
        let n_shared = texts[1..].iter().map(|i| alike(first, *i)).min().unwrap_or(0);
        Group { texts, n_shared }
    };
    firsts.map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(prefix: Token, n_prefix: usize, rest: &[Token]) -> Vec<Token> {
        [vec![prefix; n_prefix], rest.to_vec()].concat()
    }

    #[test]
    fn texts_that_begin_alike_are_a_group_and_each_keeps_a_token_of_its_own() {
        let texts = [text(1, 20, &[7, 8]), text(2, 20, &[7]), text(1, 20, &[9]), text(1, 18, &[])];
        let found = groups(&texts);
        assert_eq!(found, [Group { texts: vec![0, 2, 3], n_shared: 17 }, Group { texts: vec![1], n_shared: 0 }]);
    }

    #[test]
    fn two_requests_with_one_instruction_share_what_each_has_in_common() {
        let query = |query: Token, document: Token| [vec![1; 20], vec![query; 30], vec![document; 5]].concat();
        let texts = [query(2, 5), query(3, 5), query(2, 6), query(3, 6)];
        let found = groups(&texts);
        assert_eq!(found, [Group { texts: vec![0, 2], n_shared: 50 }, Group { texts: vec![1, 3], n_shared: 50 }]);
    }

    #[test]
    fn few_common_tokens_are_not_worth_a_decode() {
        let texts = [text(1, 15, &[7]), text(1, 15, &[8])];
        assert!(groups(&texts).iter().all(|group| group.n_shared == 0 && group.texts.len() == 1));
    }
}
