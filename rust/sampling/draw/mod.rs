//! Two algorithms for drawing a candidate.

pub(in crate::sampling) mod adaptive;
pub(in crate::sampling) mod arithmetic;
pub(in crate::sampling) mod mirostat;
pub(crate) mod rng;

use crate::sampling::candidates::Candidates;
use crate::sampling::draw::rng::Mt19937;
use crate::sampling::row::Candidate;

/// Returns the candidate at `uniform` of the cumulated probabilities, in the order of the list, as llama.cpp's `dist` draws.
pub(crate) fn draw(candidates: &Candidates, uniform: f64) -> Option<Candidate> {
    let best = candidates.best()?;
    let weight = |logit: f32| f64::from((logit - best.logit).exp());
    let total = candidates.list.iter().fold(0.0, |sum, candidate| sum + weight(candidate.logit));
    let target = total * uniform;
    let mut sum = 0.0;
    let drawn = candidates.list.iter().find(|candidate| {
        sum += weight(candidate.logit);
        sum >= target
    });
    Some(drawn.copied().unwrap_or(best))
}

/// Draws an index as `std::discrete_distribution` does; `n_all` counts impossible candidates too. Without a choice takes no number.
///
/// Source: ISO C++ `[rand.dist.samp.discrete]`, in libstdc++'s order of operations.
pub(crate) fn draw_discrete(probabilities: &[f32], n_all: usize, rng: &mut Mt19937) -> usize {
    if n_all < 2 {
        return 0;
    }
    let total = probabilities.iter().fold(0.0_f64, |sum, &p| sum + f64::from(p));
    let uniform = rng.uniform();
    let mut sum = 0.0;
    let drawn = probabilities.iter().position(|&p| {
        sum += f64::from(p) / total;
        sum >= uniform
    });
    drawn.unwrap_or(probabilities.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Token;
    use crate::sampling::row::Row;

    const PROBABILITIES: [f32; 5] = [0.1, 0.4, 0.05, 0.3, 0.15];

    #[test]
    fn a_draw_walks_the_list_in_its_order() {
        let logits = PROBABILITIES.map(f32::ln);
        let mut candidates = Candidates::default();
        candidates.keep_all(Row { logits: &logits, patches: &[] });
        let drawn = |uniform: f64| -> Token { draw(&candidates, uniform).unwrap().token };
        assert_eq!([0.0, 0.09, 0.11, 0.49, 0.51, 0.56, 0.84, 0.86, 0.999_999].map(drawn), [0, 0, 1, 1, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn an_empty_list_gives_no_candidate() {
        assert_eq!(draw(&Candidates::default(), 0.5), None);
    }

    #[test]
    fn a_discrete_draw_takes_a_number_only_if_there_is_a_choice() {
        let mut rng = Mt19937::new(1);
        assert_eq!(draw_discrete(&[1.0], 1, &mut rng), 0);
        assert_eq!(rng.clone().next_u32(), Mt19937::new(1).next_u32());
        assert_eq!(draw_discrete(&[1.0], 2, &mut rng), 0);
        let mut other = Mt19937::new(1);
        other.uniform();
        assert_eq!(rng.next_u32(), other.next_u32());
    }

    #[test]
    fn discrete_draws_follow_the_probabilities() {
        let mut rng = Mt19937::new(9);
        let mut n_drawn = [0.0; 5];
        for _ in 0..30_000 {
            n_drawn[draw_discrete(&PROBABILITIES, 5, &mut rng)] += 1.0 / 30_000.0;
        }
        assert!(
            n_drawn.iter().zip(PROBABILITIES).all(|(share, expected): (&f32, f32)| (share - expected).abs() < 0.01),
            "{n_drawn:?}"
        );
    }
}
