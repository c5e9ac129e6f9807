//! Logprobs of a row of logits, before the sampling parameters.

use crate::request::Token;
use crate::sampling::{candidates::Candidates, row::Row};

/// Returns the logprobs of `token` and of the `n` most likely tokens of the raw row, most likely and then lowest first.
///
/// An impossible token has −∞ and is never listed. NaN counts as −∞, and infinite logits share the whole probability. Accurate
/// to about 10⁻⁶.
pub fn logprobs(logits: &[f32], token: Token, n: usize) -> (f32, Vec<(Token, f32)>) {
    let mut candidates = Candidates::default();
    candidates.keep_best(Row { logits, patches: &[] }, n.max(1));
    let Some(best) = candidates.best() else { return (f32::NEG_INFINITY, Vec::new()) };
    let max_logit = below_infinity(best.logit);
    #[expect(clippy::cast_possible_truncation, reason = "the logarithm of a sum of at most 2³¹ numbers up to 1 is small")]
    let log_total = sum_exp(logits, max_logit).ln() as f32;
    let logprob = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { below_infinity(logit) - max_logit - log_total };
    let chosen = usize::try_from(token).ok().and_then(|id| logits.get(id)).map_or(f32::NEG_INFINITY, |&logit| logprob(logit));
    let top = candidates.list.iter().take(n).map(|candidate| (candidate.token, logprob(candidate.logit))).collect();
    (chosen, top)
}

/// Limits a logit to the greatest finite number; NaN stays NaN.
fn below_infinity(logit: f32) -> f32 {
    if logit > f32::MAX { f32::MAX } else { logit }
}

/// Sums the exponentials of all logits relative to `max_logit`. NaN counts as −∞.
fn sum_exp(logits: &[f32], max_logit: f32) -> f64 {
    // Many parallel sums let the compiler vectorise without reordering any sum; they are short enough for single precision.
    const N_LANES: usize = 64;
    let term = |&logit: &f32| exp(below_infinity(logit) - max_logit);
    let sum_block = |block: &[f32]| {
        let mut lanes = [0.0_f32; N_LANES];
        let (parts, rest) = block.as_chunks::<N_LANES>();
        for part in parts {
            lanes.iter_mut().zip(part).for_each(|(lane, logit)| *lane += term(logit));
        }
        lanes.iter().copied().chain(rest.iter().map(term)).map(f64::from).sum::<f64>()
    };
    logits.chunks(16 * N_LANES).map(sum_block).sum()
}

/// e to a power of at most 0, which compilers can vectorise; relative error below 10⁻⁵, 0 for NaN and below −87.
fn exp(power: f32) -> f32 {
    // Adding 1.5 · 2²³ leaves the nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    let doublings = power * std::f32::consts::LOG2_E;
    let rounded = doublings + ROUND;
    let part = (doublings - (rounded - ROUND)) * std::f32::consts::LN_2;
    let series =
        1.0 + part * (1.0 + part * (0.5 + part * (1.0 / 6.0 + part * (1.0 / 24.0 + part * (1.0 / 120.0 + part / 720.0)))));
    let scale = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if power > -87.0 { series * scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::draw::rng::Mt19937;

    fn close(a: f32, b: f32) -> bool {
        (a - b).abs() < 2e-6 * b.abs().max(1.0)
    }

    #[test]
    fn probabilities_give_their_logarithms() {
        let logits = [0.1_f32, 0.6, 0.3].map(f32::ln);
        let (chosen, top) = logprobs(&logits, 2, 2);
        assert!(close(chosen, 0.3_f32.ln()));
        assert_eq!(top.iter().map(|&(token, _)| token).collect::<Vec<_>>(), [1, 2]);
        assert!(close(top[0].1, 0.6_f32.ln()) && close(top[1].1, chosen));
    }

    #[test]
    fn random_rows_agree_with_double_precision() {
        let mut rng = Mt19937::new(5);
        for n_vocab in [1, 15, 16, 1_000, 50_000] {
            #[expect(clippy::cast_possible_truncation, reason = "any number will do")]
            let logits: Vec<f32> = (0..n_vocab).map(|_| (rng.uniform() * 40.0 - 20.0) as f32).collect();
            let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            for (token, logprob) in logprobs(&logits, 0, 10).1 {
                #[expect(clippy::cast_possible_truncation, reason = "compared in single precision")]
                let expected = (f64::from(logits[usize::try_from(token).unwrap()]) - total.ln()) as f32;
                assert!(close(logprob, expected), "{logprob} is not {expected} at {n_vocab} tokens");
            }
        }
    }

    #[test]
    fn huge_logits_do_not_overflow() {
        let (chosen, top) = logprobs(&[1e30, -1e30, 1e30], 1, 2);
        assert!(close(chosen, -2e30));
        assert_eq!(top, [(0, -2.0_f32.ln()), (2, -2.0_f32.ln())]);
    }

    #[test]
    fn infinite_logits_share_the_whole_probability() {
        let (chosen, top) = logprobs(&[f32::INFINITY, 5.0, f32::INFINITY], 2, 1);
        assert_eq!((chosen, top), (-2.0_f32.ln(), vec![(0, -2.0_f32.ln())]));
    }

    #[test]
    fn impossible_tokens_have_no_probability_and_are_not_listed() {
        let row = [f32::NAN, f32::NEG_INFINITY, 2.0];
        assert_eq!(logprobs(&row, 0, 3), (f32::NEG_INFINITY, vec![(2, 0.0)]));
        assert_eq!(logprobs(&row, 1, 0), (f32::NEG_INFINITY, vec![]));
        assert_eq!(logprobs(&row, 3, 0), (f32::NEG_INFINITY, vec![]));
        assert_eq!(logprobs(&row, -1, 0), (f32::NEG_INFINITY, vec![]));
    }

    #[test]
    fn a_row_without_possible_tokens_lists_none() {
        assert_eq!(logprobs(&[f32::NAN; 40], 3, 5), (f32::NEG_INFINITY, vec![]));
        assert_eq!(logprobs(&[], 0, 5), (f32::NEG_INFINITY, vec![]));
    }

    #[test]
    fn ties_come_in_order_of_token_id() {
        let (_, top) = logprobs(&[1.0; 500], 499, 3);
        assert_eq!(top.iter().map(|&(token, _)| token).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
