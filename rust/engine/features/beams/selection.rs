//! Selection of beams, as functions of plain values.
//!
//! A beam is a text in progress, and its successors are that text with one more token. The deterministic search follows Hugging
//! Face's transformers (`generation/utils.py`, `_beam_search`; llama.cpp's own search, removed in 2024, ranked by plain sums):
//! among the `2 · width` likeliest successors, a successor that ends a text is kept if it is among the first `width`, and the
//! others are continued. The random search is stochastic beam search, which draws whole texts without replacement (Kool, van
//! Hoof and Welling, "Stochastic Beams and Where to Find Them", 2019, arXiv 1903.06059, algorithm 1).

use crate::request::Token;
use crate::sampling::draw::rng::Mt19937;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BeamScore {
    /// Natural logarithm of the text's probability after its prompt.
    pub(crate) logprob: f64,
    /// Sort key, the greatest first: the log-probability, perturbed in a random search.
    pub(crate) rank: f64,
}

impl BeamScore {
    pub(crate) const EMPTY: Self = Self { logprob: 0.0, rank: 0.0 };
}

/// A token that may follow the text of a beam, and the score of the text with it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Extension {
    pub(crate) token: Token,
    pub(crate) score: BeamScore,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Successor {
    pub(crate) parent: usize,
    pub(crate) nth: usize,
    pub(crate) token: Token,
    pub(crate) score: BeamScore,
}

#[derive(Debug, PartialEq)]
pub(crate) struct BeamSelection<E> {
    /// Successors to continue, best first.
    pub(crate) live: Vec<Successor>,
    pub(crate) ended: Vec<(Successor, E)>,
}

pub(crate) fn propose_likeliest(distribution: &[(Token, f64)], parent: BeamScore, n: usize) -> Vec<Extension> {
    let extension = |&(token, logprob): &(Token, f64)| {
        let logprob = parent.logprob + logprob;
        Extension { token, score: BeamScore { logprob, rank: logprob } }
    };
    keep_best(distribution.iter().map(extension).collect(), n)
}

/// Returns the `n` tokens drawn first after a text with score `parent`. Gumbel noise perturbs their log-probabilities,
/// conditioned on the maximum being the parent's rank, so that a rank does not depend on the order of computation.
pub(crate) fn propose_drawn(distribution: &[(Token, f64)], parent: BeamScore, n: usize, rng: &mut Mt19937) -> Vec<Extension> {
    let perturbed: Vec<f64> = distribution.iter().map(|&(_, logprob)| parent.logprob + logprob + rng.gumbel()).collect();
    let greatest = perturbed.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let extension = |(&(token, logprob), perturbed): (&(Token, f64), f64)| {
        // Appendix B.3: avoids overflow and the logarithm of a difference of nearly equal numbers.
        let v = parent.rank - perturbed + log_1m_exp(perturbed - greatest);
        let rank = parent.rank - v.max(0.0) - (-v.abs()).exp().ln_1p();
        Extension { token, score: BeamScore { logprob: parent.logprob + logprob, rank } }
    };
    keep_best(distribution.iter().zip(perturbed).map(extension).collect(), n)
}

/// Returns ln(1 − eˣ) for x of at most 0.
fn log_1m_exp(x: f64) -> f64 {
    if x > -std::f64::consts::LN_2 { (-x.exp_m1()).ln() } else { (-x.exp()).ln_1p() }
}

fn keep_best(mut extensions: Vec<Extension>, n: usize) -> Vec<Extension> {
    let order = |a: &Extension, b: &Extension| b.score.rank.total_cmp(&a.score.rank).then(a.token.cmp(&b.token));
    if n < extensions.len() && n > 0 {
        extensions.select_nth_unstable_by(n - 1, order);
    }
    extensions.truncate(n);
    extensions.sort_unstable_by(order);
    extensions
}

/// Returns all proposed successors, best first; ties go to the lower beam.
fn rank_successors(extensions: &[Vec<Extension>]) -> Vec<Successor> {
    let of_beam = |(parent, extensions): (usize, &Vec<Extension>)| {
        let one = move |(nth, &Extension { token, score })| Successor { parent, nth, token, score };
        extensions.iter().enumerate().map(one).collect::<Vec<_>>()
    };
    let mut all: Vec<Successor> = extensions.iter().enumerate().flat_map(of_beam).collect();
    all.sort_by(|a, b| b.score.rank.total_cmp(&a.score.rank).then((a.parent, a.nth).cmp(&(b.parent, b.nth))));
    all
}

/// A successor that ends its text is kept if it is among the `width` likeliest of all; `ends` returns how it ends.
pub(crate) fn choose_likeliest<E>(
    extensions: &[Vec<Extension>],
    width: usize,
    ends: impl FnMut(&Successor) -> Option<E>,
) -> BeamSelection<E> {
    choose(extensions, width, ends, |_, _, n_live| n_live == width)
}

pub(crate) fn choose_drawn<E>(
    extensions: &[Vec<Extension>],
    ranks: &[f64],
    width: usize,
    ends: impl FnMut(&Successor) -> Option<E>,
) -> BeamSelection<E> {
    choose(extensions, width, ends, |successor, position, _| {
        position + ranks.iter().filter(|&&rank| rank >= successor.score.rank).count() >= width
    })
}

fn choose<E>(
    extensions: &[Vec<Extension>],
    width: usize,
    mut ends: impl FnMut(&Successor) -> Option<E>,
    is_over: impl Fn(&Successor, usize, usize) -> bool,
) -> BeamSelection<E> {
    let mut chosen = BeamSelection { live: Vec::new(), ended: Vec::new() };
    for (position, successor) in rank_successors(extensions).into_iter().enumerate() {
        if is_over(&successor, position, chosen.live.len()) {
            break;
        }
        match ends(&successor) {
            None => chosen.live.push(successor),
            Some(end) if position < width => chosen.ended.push((successor, end)),
            Some(_) => {}
        }
    }
    chosen
}

pub(crate) fn normalize_score(logprob: f64, n_tokens: u32, length_penalty: f32) -> f64 {
    logprob / f64::from(n_tokens).powf(f64::from(length_penalty))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const N_VOCAB: Token = 4;
    const LENGTH: usize = 3;

    /// The distribution after `text`: different for every text; token 0 ends a text.
    fn distribution_after(text: &[Token]) -> Vec<(Token, f64)> {
        let weight = |token: Token| {
            let mixed = text.iter().fold(token + 1, |mixed, &earlier| (mixed * 7 + earlier * 5 + 3) % 11);
            f64::from(mixed) + 0.5
        };
        let total: f64 = (0..N_VOCAB).map(weight).sum();
        (0..N_VOCAB).map(|token| (token, (weight(token) / total).ln())).collect()
    }

    /// Returns every complete text with the logarithm of its probability.
    fn complete_texts() -> Vec<(Vec<Token>, f64)> {
        let (mut complete, mut incomplete) = (Vec::new(), vec![(Vec::new(), 0.0)]);
        while let Some((text, logprob)) = incomplete.pop() {
            for (token, token_logprob) in distribution_after(&text) {
                let longer = ([&text[..], &[token]].concat(), logprob + token_logprob);
                if is_complete(&longer.0) { complete.push(longer) } else { incomplete.push(longer) }
            }
        }
        complete
    }

    fn is_complete(text: &[Token]) -> bool {
        text.len() == LENGTH || text.last() == Some(&0)
    }

    /// Returns the texts that a search finds, best first.
    fn search(width: usize, mut seed: Option<u32>) -> Vec<(Vec<Token>, BeamScore)> {
        let (mut live, mut ended) = (vec![(Vec::new(), BeamScore::EMPTY)], Vec::<(Vec<Token>, BeamScore)>::new());
        while !live.is_empty() {
            let propose = |(text, score): &(Vec<Token>, BeamScore)| match &mut seed {
                None => propose_likeliest(&distribution_after(text), *score, 2 * width),
                Some(seed) => {
                    *seed = seed.wrapping_add(1_000_003);
                    propose_drawn(&distribution_after(text), *score, width, &mut Mt19937::derived(*seed, 1, 2))
                }
            };
            let extensions: Vec<_> = live.iter().map(propose).collect();
            let text = |of: &Successor| [&live[of.parent].0[..], &[of.token]].concat();
            let ends = |of: &Successor| is_complete(&text(of)).then_some(());
            let ranks: Vec<f64> = ended.iter().map(|(_, score)| score.rank).collect();
            let chosen = match seed {
                None => choose_likeliest(&extensions, width, ends),
                Some(_) => choose_drawn(&extensions, &ranks, width, ends),
            };
            ended.extend(chosen.ended.iter().map(|(of, ())| (text(of), of.score)));
            live = chosen.live.iter().map(|of| (text(of), of.score)).collect();
            ended.sort_by(|(_, a), (_, b)| b.rank.total_cmp(&a.rank));
            ended.truncate(width);
        }
        ended
    }

    #[test]
    fn a_wide_search_finds_the_likeliest_texts_in_their_order() {
        let mut all = complete_texts();
        all.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let found = search(64, None);
        for ((text, score), (best, logprob)) in found.iter().zip(&all).take(10) {
            assert_eq!(text, best);
            assert!((score.logprob - logprob).abs() < 1e-12);
        }
    }

    #[test]
    fn a_search_of_width_one_takes_the_likeliest_token_each_time() {
        let mut text = Vec::new();
        while !is_complete(&text) {
            text.push(distribution_after(&text).into_iter().max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap().0);
        }
        assert_eq!(search(1, None)[0].0, text);
    }

    #[test]
    fn a_successor_that_ends_a_text_counts_among_the_first_and_is_not_replaced() {
        let extension = |token, rank| Extension { token, score: BeamScore { logprob: rank, rank } };
        let extensions =
            [vec![extension(0, -1.0), extension(5, -2.0), extension(6, -5.0)], vec![extension(7, -3.0), extension(0, -4.0)]];
        let chosen = choose_likeliest(&extensions, 2, |of| (of.token == 0).then_some("end"));
        assert_eq!(chosen.live.iter().map(|of| (of.parent, of.token)).collect::<Vec<_>>(), [(0, 5), (1, 7)]);
        assert_eq!(chosen.ended.iter().map(|(of, _)| (of.parent, of.token)).collect::<Vec<_>>(), [(0, 0)]);
        let chosen = choose_likeliest(&extensions, 3, |of| (of.token == 0).then_some("end"));
        assert_eq!((chosen.live.len(), chosen.ended.len()), (3, 1), "the other end is the fourth");
    }

    #[test]
    fn texts_that_ended_keep_their_ranks_among_drawn_texts() {
        let extension = |token, rank| Extension { token, score: BeamScore { logprob: -9.0, rank } };
        let extensions = [vec![extension(1, 3.0), extension(2, 1.0)], vec![extension(0, 2.0), extension(3, 0.0)]];
        let chosen = choose_drawn(&extensions, &[2.5, -1.0], 3, |of| (of.token == 0).then_some(()));
        assert_eq!(chosen.live.iter().map(|of| of.token).collect::<Vec<_>>(), [1]);
        assert_eq!(chosen.ended.iter().map(|(of, ())| of.token).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_drawn_text_has_the_rank_of_its_best_successor() {
        let mut rng = Mt19937::new(4);
        for seed in 0..200 {
            let parent = BeamScore { logprob: -f64::from(seed) / 10.0, rank: f64::from(seed % 17) - 8.0 };
            let extensions = propose_drawn(&distribution_after(&[1]), parent, 4, &mut rng);
            assert!((extensions[0].score.rank - parent.rank).abs() < 1e-9, "{extensions:?} after {parent:?}");
            assert!(extensions.iter().all(|of| of.score.rank.is_finite()));
        }
    }

    /// Returns the chi-square distance of counts from their expectation, and the degrees of freedom.
    fn chi_square(n_drawn: &BTreeMap<Vec<Vec<Token>>, f64>, expected: &BTreeMap<Vec<Vec<Token>>, f64>) -> (f64, usize) {
        let (mut sum, mut n, mut rare) = (0.0, 0, (0.0, 0.0));
        for (texts, &expected_count) in expected {
            let count = n_drawn.get(texts).copied().unwrap_or(0.0);
            if expected_count < 8.0 {
                rare = (rare.0 + count, rare.1 + expected_count);
            } else {
                (sum, n) = (sum + (count - expected_count).powi(2) / expected_count, n + 1);
            }
        }
        (sum + (rare.0 - rare.1).powi(2) / rare.1.max(1.0), n)
    }

    #[test]
    fn texts_are_drawn_without_replacement_by_their_probabilities() {
        const N: u32 = 60_000;
        let all = complete_texts();
        let total: f64 = all.iter().map(|(_, logprob)| logprob.exp()).sum();
        assert!((total - 1.0).abs() < 1e-9, "all texts are listed");
        let mut expected = BTreeMap::new();
        for (first, a) in &all {
            for (second, b) in all.iter().filter(|(second, _)| second != first) {
                let p = a.exp() * b.exp() / (1.0 - a.exp());
                expected.insert(vec![first.clone(), second.clone()], p * f64::from(N));
            }
        }
        let mut n_drawn = BTreeMap::new();
        for seed in 0..N {
            let texts: Vec<_> = search(2, Some(seed)).into_iter().map(|(text, _)| text).collect();
            assert_eq!(texts.len(), 2);
            *n_drawn.entry(texts).or_insert(0.0) += 1.0;
        }
        let (sum, n) = chi_square(&n_drawn, &expected);
        // The 99.9th percentile, by Wilson and Hilferty.
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        let n = n as f64;
        let limit = n * (1.0 - 2.0 / (9.0 * n) + 3.09 * (2.0 / (9.0 * n)).sqrt()).powi(3);
        assert!(n > 100.0 && sum < limit, "{sum} of at most {limit} with {n} degrees of freedom");
    }

    #[test]
    fn a_length_penalty_of_one_ranks_by_the_mean_and_of_zero_by_the_sum() {
        assert!((normalize_score(-6.0, 3, 1.0) + 2.0).abs() < 1e-12);
        assert!((normalize_score(-6.0, 3, 0.0) + 6.0).abs() < 1e-12);
        assert!(normalize_score(-6.0, 9, 2.0) > normalize_score(-6.0, 9, 1.0), "a greater penalty favours long texts");
    }
}
