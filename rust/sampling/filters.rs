//! The steps that narrow the candidates down, and the draw: each as llama.cpp's sampler of the same name, with `min_keep` = 0.
//!
//! The arithmetic (single precision, in the order of the candidates) is llama.cpp's too, since a sum that differs in its last bit
//! can end a list one token earlier.

use crate::request::Token;
use crate::sampling::candidates::Candidates;

/// How many candidates top-p sorts at first; llama.cpp found the same number to be enough most of the time.
const FIRST_SORTED: usize = 256;

/// How many times as many it has sorted after each further step.
const SORTED_GROWTH: usize = 4;

/// Keeps the smallest set of most likely candidates whose probabilities sum to `p` or more; at least one. 1 and more keep all.
///
/// Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019.
pub(crate) fn top_p(candidates: &mut Candidates, p: f32) {
    let Some(best) = candidates.best() else { return };
    if p < 1.0 {
        let total = candidates.list.iter().fold(0.0_f32, |sum, candidate| sum + (candidate.logit - best.logit).exp());
        top_p_of(candidates, p, total);
    }
}

/// As [`top_p`], where `total` is the sum of `exp(logit − best)` over candidates of which only the most likely are listed.
pub(crate) fn top_p_of(candidates: &mut Candidates, p: f32, total: f32) {
    let Some(best) = candidates.best() else { return };
    let weight = |logit: f32| (logit - best.logit).exp();
    let mut n_sorted = if candidates.is_sorted { candidates.list.len() } else { 0 };
    let mut sum = 0.0_f32;
    let mut n_kept = 0;
    while n_kept < candidates.list.len() {
        if n_kept == n_sorted {
            n_sorted = (n_sorted * SORTED_GROWTH).max(FIRST_SORTED);
            candidates.sort(n_kept..n_sorted);
        }
        sum += weight(candidates.list[n_kept].logit) / total;
        n_kept += 1;
        if sum >= p {
            break;
        }
    }
    candidates.list.truncate(n_kept);
    candidates.is_sorted = true;
}

/// Keeps the candidates that are at least `p` times as likely as the most likely one; that one always. 0 and less keep all.
///
/// Source: Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", 2024.
pub(crate) fn min_p(candidates: &mut Candidates, p: f32) {
    let Some(best) = candidates.best().filter(|_| p > 0.0) else { return };
    let floor = best.logit + p.ln();
    // A p above 1 puts the floor above the best logit itself.
    candidates.list.retain(|candidate| candidate.logit >= floor || *candidate == best);
}

/// Divides the logits by a temperature above 0.
pub(crate) fn temperature(candidates: &mut Candidates, temperature: f32) {
    for candidate in &mut candidates.list {
        candidate.logit /= temperature;
    }
}

/// The candidate at `uniform`, of `[0, 1)`, of the summed probabilities, in the order of the list; `None` where there is none.
pub(crate) fn draw(candidates: &Candidates, uniform: f64) -> Option<Token> {
    let best = candidates.best()?;
    let weight = |logit: f32| f64::from((logit - best.logit).exp());
    let total = candidates.list.iter().fold(0.0, |sum, candidate| sum + weight(candidate.logit));
    let target = total * uniform;
    let mut sum = 0.0;
    let drawn = candidates.list.iter().find(|candidate| {
        sum += weight(candidate.logit);
        sum >= target
    });
    Some(drawn.copied().unwrap_or(best).token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::candidates::Row;

    /// Candidates of these probabilities, by token id.
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
            assert_eq!(after(candidates.clone(), |c| top_p(c, 0.69)), [1, 3]);
            assert_eq!(after(candidates.clone(), |c| top_p(c, 0.71)), [1, 3, 4]);
        }
    }

    #[test]
    fn top_p_of_nothing_keeps_the_best_and_of_one_changes_nothing() {
        for p in [0.0, -1.0] {
            assert_eq!(after(unsorted(&PROBABILITIES), |c| top_p(c, p)), [1]);
        }
        assert_eq!(after(unsorted(&PROBABILITIES), |c| top_p(c, 1.0)), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn top_p_reaches_beyond_what_it_sorts_at_first() {
        let candidates = unsorted(&[1.0 / 1024.0; 1_024]);
        assert_eq!(after(candidates, |c| top_p(c, 0.5)).len(), 512);
    }

    #[test]
    fn min_p_keeps_the_order_and_what_is_likely_enough() {
        assert_eq!(after(unsorted(&PROBABILITIES), |c| min_p(c, 0.3)), [1, 3, 4]);
        assert_eq!(after(sorted(&PROBABILITIES), |c| min_p(c, 0.2)), [1, 3, 4, 0]);
    }

    #[test]
    fn min_p_keeps_the_best_whatever_is_asked() {
        for candidates in [sorted(&PROBABILITIES), unsorted(&PROBABILITIES)] {
            assert_eq!(after(candidates.clone(), |c| min_p(c, 1.0)), [1]);
            assert_eq!(after(candidates.clone(), |c| min_p(c, 3.0)), [1]);
            assert_eq!(after(candidates.clone(), |c| min_p(c, 0.0)).len(), 5);
        }
    }

    #[test]
    fn a_low_temperature_sharpens() {
        let mut candidates = sorted(&[0.8, 0.2]);
        temperature(&mut candidates, 0.5);
        let difference = candidates.list[0].logit - candidates.list[1].logit;
        assert!((difference - 2.0 * 4.0_f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn a_draw_walks_the_list_in_its_order() {
        let drawn = |uniform: f64| draw(&unsorted(&PROBABILITIES), uniform).unwrap();
        assert_eq!([0.0, 0.09, 0.11, 0.49, 0.51, 0.56, 0.84, 0.86, 0.999_999].map(drawn), [0, 0, 1, 1, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn nothing_is_drawn_from_nothing() {
        let mut none = Candidates::default();
        top_p(&mut none, 0.5);
        min_p(&mut none, 0.5);
        temperature(&mut none, 0.5);
        assert_eq!(draw(&none, 0.5), None);
    }
}
