//! Arithmetic sampling: evenly spaced code points for the branches of a prompt.

use crate::sampling::{candidates::Candidates, draw::rng::Mt19937, row::Candidate};

/// Value of one unit in the last place of a code point: a uniform number has 53 bits.
const RESOLUTION: f64 = f64::EPSILON / 2.0;

/// A point in `[0, 1)` that determines a text.
///
/// Texts divide the interval by their probabilities: each token gets a part of its text's interval, in order of token id.
/// Branch `i` of `n` has the point `(u + i / n) mod 1`: each alone has the same distribution as with other samplers, and
/// together they are spaced evenly.
///
/// Source: Vilnis et al., "Arithmetic Sampling: Parallel Diverse Decoding for Large Language Models", 2022, arXiv 2210.15458.
///
/// A text consumes as many bits as it carries information, so the point is stored relative to the drawn text's interval, `(u −
/// lo) / (hi − lo)`, and low bits come from the branch's own generator: branches that drew the same 53 bits become independent.
#[derive(Debug, Clone)]
pub(crate) struct CodePoint {
    at: f64,
    next: f64,
}

impl CodePoint {
    pub(crate) fn new(seed: u32, nth: u32, n: u32) -> Self {
        let at = (Mt19937::new(seed).uniform() + f64::from(nth) / f64::from(n)).fract();
        Self { at, next: at }
    }

    pub(crate) fn draw(&mut self, candidates: &mut Candidates, rng: &mut Mt19937) -> Option<Candidate> {
        let below = rng.uniform() * RESOLUTION;
        let best = candidates.best()?;
        candidates.list.sort_unstable_by_key(|candidate| candidate.token);
        candidates.is_sorted = false;
        let weight = |logit: f32| f64::from((logit - best.logit).exp());
        let total: f64 = candidates.list.iter().map(|candidate| weight(candidate.logit)).sum();
        let target = self.at * total;
        let (mut low, mut drawn) = (0.0, (best, 0.0, total));
        for &candidate in &candidates.list {
            let part = weight(candidate.logit);
            if part > 0.0 {
                // The last possible candidate also gets what rounding leaves beyond the sum.
                drawn = (candidate, low, part);
            }
            low += part;
            if low > target {
                break;
            }
        }
        let (candidate, low, part) = drawn;
        // The new bits are added after the subtraction: added to the whole point they would be rounded away.
        self.next = ((target - low + below * total) / part).clamp(0.0, 1.0_f64.next_down());
        Some(candidate)
    }

    pub(crate) fn accept(&mut self) {
        self.at = self.next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Token;
    use crate::sampling::row::Row;

    const PROBABILITIES: [f32; 4] = [0.5, 0.125, 0.25, 0.125];

    fn candidates() -> Candidates {
        let logits = PROBABILITIES.map(f32::ln);
        let mut candidates = Candidates::default();
        candidates.keep_best(Row { logits: &logits, patches: &[] }, 4);
        candidates
    }

    /// Returns `length` tokens of branch `nth` of `n`.
    fn text(seed: u32, nth: u32, n: u32, length: usize) -> Vec<Token> {
        let (mut code_point, mut rng) = (CodePoint::new(seed, nth, n), Mt19937::new(seed.wrapping_add(nth)));
        rng.uniform();
        let mut next = || {
            let drawn = code_point.draw(&mut candidates(), &mut rng).unwrap().token;
            code_point.accept();
            drawn
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn a_point_selects_one_token_in_order_of_their_ids() {
        let drawn = |at: f64| {
            let mut code_point = CodePoint { at, next: at };
            (code_point.draw(&mut candidates(), &mut Mt19937::new(1)).unwrap().token, code_point.next)
        };
        for (at, token, next) in [(0.25, 0, 0.5), (0.5625, 1, 0.5), (0.6875, 2, 0.25), (0.9375, 3, 0.5)] {
            let (actual, position) = drawn(at);
            assert_eq!(actual, token);
            assert!((position - next).abs() < 1e-12, "{position}");
        }
    }

    #[test]
    fn branches_draw_each_token_in_proportion_to_its_probability() {
        for seed in 0..50 {
            // 32 evenly spaced points hit each eighth four times, whatever the seed.
            let mut n_drawn = [0; 4];
            (0..32).for_each(|nth| n_drawn[usize::try_from(text(seed, nth, 32, 1)[0]).unwrap()] += 1);
            assert_eq!(n_drawn, [16, 4, 8, 4]);
        }
    }

    #[test]
    fn each_branch_draws_by_the_probabilities_at_every_position() {
        const N: u32 = 20_000;
        // Far beyond the 53 bits of the initial point: each token carries 1.75 bits.
        for position in [0, 1, 40, 79] {
            let mut n_drawn = [0.0; 4];
            (0..N).for_each(|seed| n_drawn[usize::try_from(text(seed, seed % 5, 5, 80)[position]).unwrap()] += 1.0);
            let deviation = |(&actual, expected): (&f64, f32)| {
                let expected = f64::from(expected) * f64::from(N);
                (actual - expected).powi(2) / expected
            };
            let chi_square: f64 = n_drawn.iter().zip(PROBABILITIES).map(deviation).sum();
            // The 99.9th percentile with three degrees of freedom.
            assert!(chi_square < 16.27, "{chi_square} at {position}: {n_drawn:?}");
        }
    }

    #[test]
    fn long_texts_of_branches_differ_and_keep_their_distribution() {
        let texts: Vec<_> = (0..8).map(|nth| text(3, nth, 8, 400)).collect();
        for (i, one) in texts.iter().enumerate() {
            assert!(texts[..i].iter().all(|other| other[..4] != one[..4]), "an eighth apart, they diverge within a few tokens");
            let n_first = one.iter().filter(|&&token| token == 0).count();
            assert!((150..250).contains(&n_first), "{n_first} of 400");
        }
    }

    #[test]
    fn an_empty_list_gives_no_candidate() {
        assert_eq!(CodePoint::new(1, 0, 2).draw(&mut Candidates::default(), &mut Mt19937::new(1)), None);
    }
}
