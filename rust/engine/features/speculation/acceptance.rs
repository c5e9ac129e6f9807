//! Estimates how likely drafted tokens are accepted, from the predictions of one sequence so far. Pure: values in, values out.
//!
//! The text index predicts each token whether or not it was drafted, so acceptance needs no probing: a sequence whose predictions
//! fail is not drafted for, and is again once they hold.

/// Classes of matches by their length: below 2, 2 to 3, 4 to 7, and so on.
const N_CLASSES: usize = 6;

/// Share of correct predictions by class, on patches, prose and JSON (SmolLM2's tokenizer).
const SHARES: [f64; N_CLASSES] = [0.2, 0.4, 0.7, 0.85, 0.92, 0.95];

/// Tokens that the assumed share counts as.
const ASSUMED_TOKENS: f64 = 4.0;

/// Weight of a prediction, relative to the next one of its class: the last 30 predictions determine the share.
const DECAY: f64 = 0.97;

/// Probability that a predicted token of one sequence is correct, by the length of the match before it.
#[derive(Debug, Clone)]
pub(crate) struct Acceptance {
    /// Correct and all predictions of each class, decayed.
    counts: [[f64; 2]; N_CLASSES],
}

impl Acceptance {
    /// Creates an estimate for predictions from text.
    pub(crate) fn of_text() -> Self {
        Self { counts: SHARES.map(|share| [share * ASSUMED_TOKENS, ASSUMED_TOKENS]) }
    }

    /// Creates an estimate for predictions that a constraint or a model makes, with no match: `share` of them are correct.
    pub(crate) fn assumed(share: f64) -> Self {
        Self { counts: [[share * ASSUMED_TOKENS, ASSUMED_TOKENS]; N_CLASSES] }
    }

    pub(crate) fn observe(&mut self, n_matched: usize, is_correct: bool) {
        let [n_correct, n] = &mut self.counts[class(n_matched)];
        *n_correct = *n_correct * DECAY + f64::from(u8::from(is_correct));
        *n = *n * DECAY + 1.0;
    }

    /// Returns the probability that each of `n` drafted tokens is accepted, with all before it. A draft of accepted tokens
    /// lengthens its match, so the token at `i` follows a match of `n_matched + i`.
    pub(crate) fn survival(&self, n_matched: usize, n: usize) -> Vec<f64> {
        let share = |[n_correct, n]: [f64; 2]| n_correct / n;
        let shares = (n_matched..n_matched + n).map(|n_matched| share(self.counts[class(n_matched)]));
        shares
            .scan(1.0, |all, share| {
                *all *= share;
                Some(*all)
            })
            .collect()
    }
}

fn class(n_matched: usize) -> usize {
    (n_matched.max(1).ilog2() as usize).min(N_CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acceptance_follows_the_last_predictions() {
        let mut acceptance = Acceptance::of_text();
        let first = |acceptance: &Acceptance, n_matched: usize| acceptance.survival(n_matched, 1)[0];
        assert!(first(&acceptance, 2) < first(&acceptance, 8), "longer matches are more reliable");
        for _ in 0..100 {
            acceptance.observe(8, false);
        }
        assert!(first(&acceptance, 8) < 0.05 && first(&acceptance, 2) > 0.3, "classes are independent");
        for _ in 0..100 {
            acceptance.observe(8, true);
        }
        assert!(first(&acceptance, 8) > 0.9);
        let survival = acceptance.survival(2, 40);
        assert!(survival.len() == 40 && survival.is_sorted_by(|a, b| a >= b) && survival[39] > 0.0);
    }
}
