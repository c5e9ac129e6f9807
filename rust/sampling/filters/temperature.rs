//! Temperature: fixed, or dependent on the model's uncertainty.

use crate::sampling::candidates::Candidates;

/// Divides all logits. 0 and less, or so little that logits overflow, keeps only the most likely candidate.
pub(crate) fn apply_fixed(candidates: &mut Candidates, temperature: f32) {
    let Some(best) = candidates.best() else { return };
    if temperature <= 0.0 || !(best.logit / temperature).is_finite() {
        return candidates.keep_only(best);
    }
    for candidate in &mut candidates.list {
        candidate.logit /= temperature;
    }
}

/// Dynamic temperature. Source: kalomaze, llama.cpp #4972: the entropy, as a fraction of the maximum for this number of
/// candidates, is raised to an exponent and mapped to the bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DynamicTemperature {
    low: f32,
    high: f32,
    exponent: f32,
}

impl DynamicTemperature {
    /// The bounds are `temperature` ± `range`, at least 0; `range` is above 0.
    pub(crate) fn new(temperature: f32, range: f32, exponent: f32) -> Self {
        Self { low: (temperature - range).max(0.0), high: temperature + range, exponent }
    }

    pub(crate) fn apply(self, candidates: &mut Candidates) {
        let n_all = candidates.n_all();
        if n_all < 2 {
            return;
        }
        candidates.sort_all();
        let (_, probabilities) = candidates.softmax();
        let p_log_p = |p: f32| if p > 0.0 { p * p.ln() } else { 0.0 };
        let entropy = probabilities.iter().fold(0.0_f32, |entropy, &p| entropy - p_log_p(p));
        #[expect(clippy::cast_precision_loss, reason = "llama.cpp's number is single precision")]
        let max_entropy = -(1.0 / n_all as f32).ln();
        apply_fixed(candidates, self.low + (self.high - self.low) * (entropy / max_entropy).powf(self.exponent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::row::Row;

    fn candidates_of(logits: &[f32]) -> Candidates {
        let mut candidates = Candidates::default();
        candidates.keep_all(Row { logits, patches: &[] });
        candidates
    }

    /// Returns the remaining logits, in order.
    fn logits_of(candidates: &Candidates) -> Vec<f32> {
        candidates.list.iter().map(|candidate| candidate.logit).collect()
    }

    #[test]
    fn a_low_temperature_sharpens() {
        let mut candidates = candidates_of(&[1.0, 2.0]);
        apply_fixed(&mut candidates, 0.5);
        assert_eq!(logits_of(&candidates), [2.0, 4.0]);
    }

    #[test]
    fn zero_keeps_the_best_and_counts_the_others_as_impossible() {
        for temperature in [0.0, -1.0] {
            let mut candidates = candidates_of(&[1.0, 2.0, 0.0]);
            apply_fixed(&mut candidates, temperature);
            assert_eq!((candidates.list[0].token, candidates.list.len(), candidates.n_impossible), (1, 1, 2));
        }
    }

    #[test]
    fn a_temperature_that_overflows_keeps_the_best() {
        for logits in [[29.0, 30.0], [-29.0, -28.0]] {
            let mut candidates = candidates_of(&logits);
            apply_fixed(&mut candidates, 1e-39);
            assert_eq!((candidates.list[0].token, candidates.list.len()), (1, 1));
        }
    }

    #[test]
    fn certainty_gives_the_low_bound_and_uncertainty_the_high_one() {
        let dynamic = DynamicTemperature::new(1.0, 0.5, 1.0);
        let mut certain = candidates_of(&[500.0, 0.0]);
        dynamic.apply(&mut certain);
        assert_eq!(logits_of(&certain), [1_000.0, 0.0]);
        let mut uncertain = candidates_of(&[3.0, 3.0]);
        dynamic.apply(&mut uncertain);
        assert_eq!(logits_of(&uncertain), [2.0, 2.0]);
    }

    #[test]
    fn the_exponent_shapes_the_mapping() {
        let at = |exponent| {
            let mut candidates = candidates_of(&[1.0, 0.0]);
            DynamicTemperature::new(1.0, 0.9, exponent).apply(&mut candidates);
            candidates.list[0].logit
        };
        assert!(at(0.3) < at(1.0) && at(1.0) < at(3.0), "{} {} {}", at(0.3), at(1.0), at(3.0));
    }

    #[test]
    fn a_single_candidate_keeps_its_logit() {
        let mut candidates = candidates_of(&[3.0]);
        DynamicTemperature::new(1.0, 0.5, 1.0).apply(&mut candidates);
        assert_eq!(logits_of(&candidates), [3.0]);
    }
}
