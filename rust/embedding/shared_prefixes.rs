//! Texts of one batch that begin alike: an instruction before every text, or a query before every document.

use crate::cache::MIN_SHARED;
use crate::request::Token;

/// How much of what a text begins with is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CachedPrefix {
    /// Tokens that it can go on from.
    pub(super) n_found: usize,
    /// Tokens that were computed of it, or of a text that begins so. More than the others where what a window sees is gone.
    pub(super) n_known: usize,
}

/// A place where texts part, up to which one of them is computed for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BranchPoint {
    /// Which text is computed.
    pub(super) text: usize,
    /// How many of its tokens.
    pub(super) n_tokens: usize,
}

/// For each two texts the tokens that they begin with in common, but for the last one of each, which is computed for itself: its
/// vector is wanted. Few are none.
pub(super) fn group_by_prefix(texts: &[Vec<Token>]) -> Vec<Vec<usize>> {
    let n_alike = |i: usize, j: usize| {
        let (a, b) = (&texts[i], &texts[j]);
        let most = if i == j { 0 } else { a.len().min(b.len()).saturating_sub(1) };
        let n = a.iter().zip(b).take(most).take_while(|(a, b)| a == b).count();
        if n < MIN_SHARED as usize { 0 } else { n }
    };
    (0..texts.len()).map(|i| (0..texts.len()).map(|j| n_alike(i, j)).collect()).collect()
}

/// The next place for each text where another one leaves it, or where what is known of it ends: as far as is worth a decode of its
/// own after what is there. Texts that stop at the same place after the same tokens have one of them do it.
pub(super) fn branch_points(alike: &[Vec<usize>], reaches: &[CachedPrefix]) -> Vec<BranchPoint> {
    let mut stops: Vec<BranchPoint> = Vec::new();
    for (text, (alike, reach)) in alike.iter().zip(reaches).enumerate() {
        let is_worth_it = |n: &usize| *n >= reach.n_found + MIN_SHARED as usize;
        let Some(n_tokens) = alike.iter().copied().chain([reach.n_known]).filter(is_worth_it).min() else { continue };
        if !stops.iter().any(|stop| stop.n_tokens == n_tokens && alike[stop.text] >= n_tokens) {
            stops.push(BranchPoint { text, n_tokens });
        }
    }
    stops
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(prefix: Token, n_prefix: usize, rest: &[Token]) -> Vec<Token> {
        [vec![prefix; n_prefix], rest.to_vec()].concat()
    }

    /// The stops of texts of which so much is there.
    fn stops_after(texts: &[Vec<Token>], n_found: &[usize]) -> Vec<(usize, usize)> {
        let reaches: Vec<CachedPrefix> = n_found.iter().map(|&n| CachedPrefix { n_found: n, n_known: n }).collect();
        branch_points(&group_by_prefix(texts), &reaches).iter().map(|stop| (stop.text, stop.n_tokens)).collect()
    }

    #[test]
    fn texts_that_begin_alike_stop_where_the_first_of_them_parts_and_each_keeps_a_token_of_its_own() {
        let texts = [text(1, 20, &[7, 8]), text(2, 20, &[7]), text(1, 20, &[9]), text(1, 18, &[])];
        assert_eq!(stops_after(&texts, &[0; 4]), [(0, 17)]);
        assert_eq!(stops_after(&texts, &[17, 0, 17, 17]), [], "three tokens more are not worth a decode");
    }

    #[test]
    fn two_queries_after_one_instruction_stop_after_it_and_then_after_each_query() {
        let query = |query: Token, document: Token| [vec![1; 20], vec![query; 30], vec![document; 5]].concat();
        let texts = [query(2, 5), query(3, 5), query(2, 6), query(3, 6)];
        assert_eq!(stops_after(&texts, &[0; 4]), [(0, 20)]);
        assert_eq!(stops_after(&texts, &[20; 4]), [(0, 50), (1, 50)]);
        assert_eq!(stops_after(&texts, &[50; 4]), []);
    }

    #[test]
    fn few_common_tokens_are_not_worth_a_decode() {
        assert_eq!(stops_after(&[text(1, 15, &[7]), text(1, 15, &[8])], &[0; 2]), []);
    }

    #[test]
    fn what_is_known_but_cannot_be_gone_on_from_is_computed_by_itself() {
        let reach = |n_found, n_known| [CachedPrefix { n_found, n_known }];
        let alone = group_by_prefix(&[text(1, 40, &[7])]);
        assert_eq!(branch_points(&alone, &reach(0, 40)), [BranchPoint { text: 0, n_tokens: 40 }]);
        assert_eq!(branch_points(&alone, &reach(25, 40)), []);
    }
}
