//! Filters that remove unlikely tokens, each equivalent to llama.cpp's sampler of the same name, arithmetic included (single
//! precision, in the order of the candidates): a last bit can end a list one token earlier.

pub(in crate::sampling) mod infill;
pub(in crate::sampling) mod tail_free;
pub(in crate::sampling) mod temperature;
pub(in crate::sampling) mod top_n_sigma;
pub(in crate::sampling) mod typical;
pub(in crate::sampling) mod xtc;

use crate::sampling::candidates::Candidates;

/// Candidates that top-p sorts at first; llama.cpp found the same number to be enough in most cases.
const INITIAL_SORTED: usize = 256;

const SORTED_GROWTH: usize = 4;

/// Keeps the `k ≥ 1` most likely candidates. Source: Fan et al., "Hierarchical Neural Story Generation", 2018.
pub(crate) fn top_k(candidates: &mut Candidates, k: usize) {
    if !candidates.is_sorted {
        candidates.sort(0..k);
        candidates.is_sorted = true;
    }
    candidates.truncate(k);
}

/// Keeps the smallest set of most likely candidates whose probabilities sum to `p`; at least one and `min_keep`. Source: Holtzman
/// et al., "The Curious Case of Neural Text Degeneration", 2019.
pub(crate) fn top_p(candidates: &mut Candidates, p: f32, min_keep: usize) {
    let Some(best) = candidates.best() else { return };
    if p < 1.0 {
        let total = candidates.list.iter().fold(0.0_f32, |sum, candidate| sum + (candidate.logit - best.logit).exp());
        top_p_of(candidates, p, min_keep, total);
    }
}

/// Applies [`top_p`], where `total` is the sum of `exp(logit − best)` over candidates of which only the most likely are listed.
pub(crate) fn top_p_of(candidates: &mut Candidates, p: f32, min_keep: usize, total: f32) {
    let Some(best) = candidates.best() else { return };
    let weight = |logit: f32| (logit - best.logit).exp();
    let mut n_sorted = if candidates.is_sorted { candidates.list.len() } else { 0 };
    let mut sum = 0.0_f32;
    let mut n_kept = 0;
    while n_kept < candidates.list.len() {
        if n_kept == n_sorted {
            n_sorted = (n_sorted * SORTED_GROWTH).max(INITIAL_SORTED);
            candidates.sort(n_kept..n_sorted);
        }
        sum += weight(candidates.list[n_kept].logit) / total;
        n_kept += 1;
        if sum >= p && n_kept >= min_keep {
            break;
        }
    }
    candidates.is_sorted = true;
    if sum >= p {
        candidates.truncate(n_kept.max(min_keep));
    }
}

/// Keeps candidates at least `p` times as likely as the best; at least one and `min_keep`. Source: Nguyen et al., "Turning Up the
/// Heat: Min-p Sampling for Creative and Coherent LLM Outputs", 2024.
pub(crate) fn min_p(candidates: &mut Candidates, p: f32, min_keep: usize) {
    let Some(best) = candidates.best().filter(|_| p > 0.0) else { return };
    let floor = best.logit + p.ln();
    let n_likely = candidates.list.iter().filter(|candidate| candidate.logit >= floor).count();
    // A p above 1 puts the floor above the best logit.
    if n_likely == 0 || n_likely < min_keep {
        candidates.sort_all();
        return candidates.truncate(min_keep.max(1));
    }
    if n_likely < candidates.list.len() {
        candidates.list.retain(|candidate| candidate.logit >= floor);
    }
    candidates.n_impossible = 0;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Token;
    use crate::sampling::row::Row;

    /// Candidates with these probabilities, by token id.
    fn unsorted(probabilities: &[f32]) -> Candidates {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut candidates = Candidates::default();
        candidates.keep_all(Row { logits: &logits, patches: &[] });
        candidates
    }

    fn sorted(probabilities: &[f32]) -> Candidates {
        let mut candidates = unsorted(probabilities);
        candidates.sort(0..probabilities.len());
        candidates.is_sorted = true;
        candidates
    }

    fn tokens(candidates: &Candidates) -> Vec<Token> {
        candidates.list.iter().map(|candidate| candidate.token).collect()
    }

    fn after(mut candidates: Candidates, step: impl Fn(&mut Candidates)) -> Vec<Token> {
        step(&mut candidates);
        tokens(&candidates)
    }

    const PROBABILITIES: [f32; 5] = [0.1, 0.4, 0.05, 0.3, 0.15];

    #[test]
    fn top_p_keeps_the_token_that_reaches_the_sum() {
        for candidates in [sorted(&PROBABILITIES), unsorted(&PROBABILITIES)] {
            assert_eq!(after(candidates.clone(), |c| top_p(c, 0.69, 0)), [1, 3]);
            assert_eq!(after(candidates.clone(), |c| top_p(c, 0.71, 0)), [1, 3, 4]);
        }
    }

    #[test]
    fn top_p_of_zero_keeps_the_best_and_of_one_changes_nothing() {
        for p in [0.0, -1.0] {
            assert_eq!(after(unsorted(&PROBABILITIES), |c| top_p(c, p, 0)), [1]);
        }
        assert_eq!(after(unsorted(&PROBABILITIES), |c| top_p(c, 1.0, 0)), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn top_p_may_keep_more_than_it_sorts_at_first() {
        let candidates = unsorted(&[1.0 / 1024.0; 1_024]);
        assert_eq!(after(candidates, |c| top_p(c, 0.5, 0)).len(), 512);
    }

    #[test]
    fn min_p_keeps_likely_tokens_in_order() {
        assert_eq!(after(unsorted(&PROBABILITIES), |c| min_p(c, 0.3, 0)), [1, 3, 4]);
        assert_eq!(after(sorted(&PROBABILITIES), |c| min_p(c, 0.2, 0)), [1, 3, 4, 0]);
    }

    #[test]
    fn min_p_always_keeps_the_best() {
        for candidates in [sorted(&PROBABILITIES), unsorted(&PROBABILITIES)] {
            assert_eq!(after(candidates.clone(), |c| min_p(c, 1.0, 0)), [1]);
            assert_eq!(after(candidates.clone(), |c| min_p(c, 3.0, 0)), [1]);
            assert_eq!(after(candidates.clone(), |c| min_p(c, 0.0, 0)).len(), 5);
        }
    }

    #[test]
    fn min_keep_keeps_unlikely_tokens_too() {
        for candidates in [sorted(&PROBABILITIES), unsorted(&PROBABILITIES)] {
            assert_eq!(after(candidates.clone(), |c| top_p(c, 0.1, 3)), [1, 3, 4]);
            assert_eq!(after(candidates.clone(), |c| min_p(c, 1.0, 2)), [1, 3]);
            assert_eq!(after(candidates.clone(), |c| min_p(c, 1.0, 9)), [1, 3, 4, 0, 2]);
        }
    }

    #[test]
    fn top_k_sorts_what_it_keeps() {
        assert_eq!(after(unsorted(&PROBABILITIES), |c| top_k(c, 2)), [1, 3]);
        assert_eq!(after(unsorted(&PROBABILITIES), |c| top_k(c, 9)), [1, 3, 4, 0, 2]);
        assert_eq!(after(sorted(&PROBABILITIES), |c| top_k(c, 3)), [1, 3, 4]);
    }

    #[test]
    fn empty_lists_stay_empty() {
        let mut none = Candidates::default();
        top_k(&mut none, 3);
        top_p(&mut none, 0.5, 0);
        min_p(&mut none, 0.5, 0);
        assert_eq!(tokens(&none), [0; 0]);
    }
}
