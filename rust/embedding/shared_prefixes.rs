//! Finds common prefixes of the texts of a batch: an instruction in front of every text, or a query in front of every document.

use crate::cache::MIN_SHARED;
use crate::request::Token;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CachedPrefix {
    pub(super) n_cached: usize,
    /// Number of computed tokens of this prefix. Larger than `n_cached` if the sliding window has moved on.
    pub(super) n_computed: usize,
}

/// A position at which texts diverge, up to which one of them is computed for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BranchPoint {
    pub(super) text: usize,
    pub(super) n_tokens: usize,
}

/// Returns the common prefix lengths of all pairs of texts, without the last tokens, whose output is the embedding; or 0.
pub(super) fn common_prefix_lengths(texts: &[Vec<Token>]) -> Vec<Vec<usize>> {
    let n_common = |i: usize, j: usize| {
        let (a, b) = (&texts[i], &texts[j]);
        let max = if i == j { 0 } else { a.len().min(b.len()).saturating_sub(1) };
        let n = a.iter().zip(b).take(max).take_while(|(a, b)| a == b).count();
        if n < MIN_SHARED as usize { 0 } else { n }
    };
    (0..texts.len()).map(|i| (0..texts.len()).map(|j| n_common(i, j)).collect()).collect()
}

/// Returns the next position in each text at which another text diverges or its computed prefix ends, if a separate decode is
/// worthwhile. Texts that share a prefix up to the same position have it computed once.
pub(super) fn branch_points(common: &[Vec<usize>], cached: &[CachedPrefix]) -> Vec<BranchPoint> {
    let mut points: Vec<BranchPoint> = Vec::new();
    for (text, (common, prefix)) in common.iter().zip(cached).enumerate() {
        let is_worthwhile = |n: &usize| *n >= prefix.n_cached + MIN_SHARED as usize;
        let Some(n_tokens) = common.iter().copied().chain([prefix.n_computed]).filter(is_worthwhile).min() else { continue };
        if !points.iter().any(|point| point.n_tokens == n_tokens && common[point.text] >= n_tokens) {
            points.push(BranchPoint { text, n_tokens });
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(prefix: Token, n_prefix: usize, rest: &[Token]) -> Vec<Token> {
        [vec![prefix; n_prefix], rest.to_vec()].concat()
    }

    /// The branch points of texts with `n_cached` cached tokens each.
    fn branch_points_of(texts: &[Vec<Token>], n_cached: &[usize]) -> Vec<(usize, usize)> {
        let cached: Vec<CachedPrefix> = n_cached.iter().map(|&n| CachedPrefix { n_cached: n, n_computed: n }).collect();
        branch_points(&common_prefix_lengths(texts), &cached).iter().map(|point| (point.text, point.n_tokens)).collect()
    }

    #[test]
    fn texts_with_a_common_prefix_branch_where_the_first_of_them_diverges() {
        let texts = [text(1, 20, &[7, 8]), text(2, 20, &[7]), text(1, 20, &[9]), text(1, 18, &[])];
        assert_eq!(branch_points_of(&texts, &[0; 4]), [(0, 17)]);
        assert_eq!(branch_points_of(&texts, &[17, 0, 17, 17]), [], "three tokens more are not worth a decode");
    }

    #[test]
    fn two_queries_after_one_instruction_branch_after_it_and_then_after_each_query() {
        let query = |query: Token, document: Token| [vec![1; 20], vec![query; 30], vec![document; 5]].concat();
        let texts = [query(2, 5), query(3, 5), query(2, 6), query(3, 6)];
        assert_eq!(branch_points_of(&texts, &[0; 4]), [(0, 20)]);
        assert_eq!(branch_points_of(&texts, &[20; 4]), [(0, 50), (1, 50)]);
        assert_eq!(branch_points_of(&texts, &[50; 4]), []);
    }

    #[test]
    fn a_short_common_prefix_is_not_worth_a_decode() {
        assert_eq!(branch_points_of(&[text(1, 15, &[7]), text(1, 15, &[8])], &[0; 2]), []);
    }

    #[test]
    fn a_computed_prefix_that_cannot_be_forked_is_computed_separately() {
        let prefix = |n_cached, n_computed| [CachedPrefix { n_cached, n_computed }];
        let alone = common_prefix_lengths(&[text(1, 40, &[7])]);
        assert_eq!(branch_points(&alone, &prefix(0, 40)), [BranchPoint { text: 0, n_tokens: 40 }]);
        assert_eq!(branch_points(&alone, &prefix(25, 40)), []);
    }
}
