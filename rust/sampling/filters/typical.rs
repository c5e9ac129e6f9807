//! Locally typical sampling. Source: Meister et al., "Locally Typical Sampling", 2022.

use crate::sampling::{candidates::Candidates, order};

/// Keeps the candidates whose surprise is nearest to the mean until their sum exceeds `p`; at least one and `min_keep`.
///
/// llama.cpp's entropy becomes NaN if a probability underflows (or is 0, after top-n-σ); here the term counts as 0.
pub(crate) fn typical(candidates: &mut Candidates, p: f32, min_keep: usize) {
    candidates.sort_all();
    let (list, probabilities) = candidates.softmax();
    let entropy = probabilities.iter().filter(|&&p| p > 0.0).fold(0.0_f32, |entropy, p| entropy + -p * p.ln());
    let distances = probabilities.iter().map(|p| (-p.ln() - entropy).abs());
    // Distances are not negative, and the bits of such floats have the order of the floats.
    let ranks = distances.zip(0_u64..).map(|(distance, index)| (u64::from(distance.to_bits()) << 32) | index).collect();
    let (kept, is_enough) = order::with_sorted(ranks, |ranks| {
        let positions = ranks.iter().map(|rank| usize::try_from(rank & 0xffff_ffff).expect("an index fits into a usize"));
        let mut sum = 0.0_f32;
        let mut kept = Vec::new();
        let is_enough = positions.into_iter().any(|position| {
            sum += probabilities[position];
            kept.push(list[position]);
            sum > p && kept.len() >= min_keep
        });
        (kept, is_enough)
    });
    candidates.list = kept;
    candidates.is_sorted = false;
    if is_enough {
        candidates.n_impossible = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Token;
    use crate::sampling::row::Row;

    fn kept(probabilities: &[f32], p: f32, min_keep: usize) -> Vec<Token> {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut candidates = Candidates::default();
        candidates.keep_all(Row { logits: &logits, patches: &[] });
        typical(&mut candidates, p, min_keep);
        candidates.list.iter().map(|candidate| candidate.token).collect()
    }

    // The entropy is 1.28 nats; the surprises are 0.69, 1.39, 2.30, 2.53 and 2.66.
    const PROBABILITIES: [f32; 5] = [0.5, 0.1, 0.25, 0.08, 0.07];

    #[test]
    fn the_nearest_to_the_mean_surprise_come_first() {
        assert_eq!(kept(&PROBABILITIES, 0.2, 0), [2]);
        assert_eq!(kept(&PROBABILITIES, 0.7, 0), [2, 0]);
        assert_eq!(kept(&PROBABILITIES, 0.99, 0), [2, 0, 1, 3, 4]);
    }

    #[test]
    fn the_most_likely_token_may_be_removed() {
        assert_eq!(kept(&PROBABILITIES, 0.1, 0), [2]);
    }

    #[test]
    fn min_keep_candidates_remain() {
        assert_eq!(kept(&PROBABILITIES, 0.1, 3), [2, 0, 1]);
        assert_eq!(kept(&PROBABILITIES, 0.1, 9).len(), 5);
    }

    #[test]
    fn nearly_impossible_tokens_do_not_matter() {
        let mut with_rest = PROBABILITIES.to_vec();
        with_rest.extend([0.0, 1e-45]);
        assert_eq!(kept(&with_rest, 0.7, 0), [2, 0]);
    }

    #[test]
    fn an_empty_list_stays_empty() {
        assert_eq!(kept(&[], 0.5, 1), [0; 0]);
    }
}
