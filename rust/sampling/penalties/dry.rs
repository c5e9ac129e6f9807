//! DRY: penalises tokens that would continue a repetition, more for longer repetitions.
//!
//! Source: p-e-w, "DRY: A modern repetition penalty that reliably prevents looping", text-generation-webui #5677, with pi6am's
//! breakers and search of koboldcpp #982, which llama.cpp's `dry` follows.

use std::sync::Arc;

use crate::request::{Dry, Token};
use crate::sampling::{
    candidates::Candidates, patches::Patches, penalties::Penalty, penalties::repeats::Repeats,
    penalties::sequence_breakers::SequenceBreakers, penalties::window::Window, token_strings::TokenStrings,
};

/// Logarithm of the greatest float, which limits the penalty's power.
const LOG_MAX: f32 = 88.722_84;

#[derive(Debug, Clone)]
pub(crate) struct Repetitions {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    max_exponent: usize,
    max_length: usize,
    breakers: Arc<SequenceBreakers>,
    window: Window,
    repeats: Repeats,
    penalties: Vec<(Token, f32)>,
}

impl Repetitions {
    pub(crate) fn new(dry: &Dry, token_strings: &TokenStrings, n_ctx: u32) -> Option<Self> {
        let n_window = u32::try_from(dry.penalty_last_n).unwrap_or(n_ctx) as usize;
        if !dry.is_on() || n_window == 0 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number, truncated as in llama.cpp")]
        let max_exponent = if dry.base > 1.000_001 { (LOG_MAX / dry.base.ln()) as usize } else { 0 };
        let allowed_length = usize::try_from(dry.allowed_length).unwrap_or(0);
        // Without a maximum exponent the power always grows, however slightly.
        let max_length = if max_exponent > 0 { allowed_length.saturating_add(max_exponent) } else { usize::MAX };
        Some(Self {
            multiplier: dry.multiplier,
            base: dry.base,
            allowed_length,
            max_exponent,
            max_length,
            breakers: token_strings.breakers(&dry.sequence_breakers),
            window: Window::new(n_window),
            repeats: Repeats::default(),
            penalties: Vec::new(),
        })
    }

    /// In order of token id; `None` if llama.cpp skips the search.
    pub(crate) fn penalties(&mut self) -> Option<&[(Token, f32)]> {
        self.penalties.clear();
        if self.window.len() <= self.allowed_length {
            return None;
        }
        let limit = self.breakers.n_after_last(&self.window, self.max_length);
        if limit < self.allowed_length {
            return None;
        }
        let matches = self.repeats.find(&self.window, self.allowed_length, limit.min(self.max_length));
        let (multiplier, base) = (f64::from(self.multiplier), f64::from(self.base));
        let penalties = matches.iter().filter(|&&(token, _)| !self.breakers.is_breaker(token)).map(|&(token, length)| {
            let excess = length - self.allowed_length;
            let exponent = if self.max_exponent > 0 { excess.min(self.max_exponent) } else { excess };
            #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "llama.cpp's is single precision")]
            let penalty = (multiplier * base.powf(exponent as f64)) as f32;
            (token, penalty)
        });
        self.penalties.extend(penalties);
        Some(&self.penalties)
    }
}

impl Penalty for Repetitions {
    fn begin(&mut self, prompt: &Arc<[Token]>) {
        self.window.begin(Arc::clone(prompt));
    }

    fn accept(&mut self, token: Token) {
        self.window.push(token);
    }

    fn patch(&mut self, logits: &[f32], patches: &mut Patches) {
        patches.change(logits, self.penalties().unwrap_or_default(), |_, logit, penalty| logit - penalty);
    }

    fn penalize(&mut self, candidates: &mut Candidates) {
        let Some(penalties) = self.penalties() else { return };
        candidates.change(|candidate| {
            let found = penalties.binary_search_by_key(&candidate.token, |&(token, _)| token);
            candidate.logit - found.map_or(0.0, |index| penalties[index].1)
        });
    }

    fn copy(&self) -> Box<dyn Penalty> {
        Box::new(self.clone())
    }

    fn n_bytes(&self) -> usize {
        size_of::<Token>() * self.window.n_copied()
    }

    #[cfg(test)]
    fn n_copied(&self) -> usize {
        self.window.n_copied() + self.repeats.n_copied() + self.penalties.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::token_strings::tests::Pieces;

    const PIECES: [&str; 6] = ["a", "b", "c", "d", "e", "."];
    const DOT: Token = 5;

    fn penalties(dry: &Dry, history: &[Token]) -> Vec<(Token, f32)> {
        let dry = Dry { sequence_breakers: vec![".".to_owned()], ..dry.clone() };
        let mut repetitions = Repetitions::new(&dry, &Pieces::token_strings(&PIECES, 0), 100).unwrap();
        repetitions.begin(&history.into());
        repetitions.penalties().unwrap_or_default().to_vec()
    }

    fn dry() -> Dry {
        Dry { multiplier: 0.5, base: 2.0, allowed_length: 2, penalty_last_n: -1, ..Dry::default() }
    }

    #[test]
    fn a_token_that_continues_a_repetition_is_penalised_by_its_length() {
        assert_eq!(penalties(&dry(), &[0, 1, 2, 4, 0, 1]), [(2, 0.5)]);
        assert_eq!(penalties(&dry(), &[0, 1, 2, 3, 4, 0, 1, 2]), [(3, 1.0)]);
        assert_eq!(penalties(&dry(), &[0, 1, 2, 4, 1]), []);
    }

    #[test]
    fn the_longest_of_several_repetitions_counts() {
        assert_eq!(penalties(&dry(), &[3, 0, 1, 2, 4, 0, 1, 2, 4, 3, 0, 1]), [(2, 1.0)]);
    }

    #[test]
    fn a_breaker_ends_a_repetition_and_is_never_penalised() {
        assert_eq!(penalties(&dry(), &[0, 1, DOT, 2, 3, 4, 0, 1, DOT, 2]), []);
        assert_eq!(penalties(&dry(), &[0, 1, DOT, 3, 0, 1]), []);
    }

    #[test]
    fn only_the_window_counts() {
        let history = [0, 1, 2, 4, 4, 0, 1];
        assert_eq!(penalties(&Dry { penalty_last_n: 7, ..dry() }, &history), [(2, 0.5)]);
        assert_eq!(penalties(&Dry { penalty_last_n: 6, ..dry() }, &history), []);
    }

    #[test]
    fn a_window_of_minus_one_is_the_whole_context() {
        let mut history = vec![0, 1, 2];
        history.extend((0..95).map(|i| 3 + i % 2));
        history.extend([0, 1]);
        assert_eq!(penalties(&dry(), &history), [(2, 0.5)]);
        history.insert(3, 4);
        assert_eq!(penalties(&dry(), &history), []);
    }

    #[test]
    fn the_power_stops_before_it_overflows() {
        let history = vec![0; 99];
        let penalty = penalties(&Dry { base: 100.0, ..dry() }, &history)[0].1;
        assert!(penalty.is_finite() && penalty > 1e30, "{penalty}");
    }

    #[test]
    fn parameters_without_effect_give_none() {
        let token_strings = Pieces::token_strings(&PIECES, 0);
        for off in [Dry::default(), Dry { base: 0.9, ..dry() }, Dry { penalty_last_n: 0, ..dry() }] {
            assert!(Repetitions::new(&off, &token_strings, 100).is_none());
        }
    }

    #[test]
    fn tokens_added_one_by_one_or_together_give_equal_penalties() {
        let history: Vec<Token> = (0..500).map(|i| i * i % 5).collect();
        let dry = Dry { penalty_last_n: 30, ..dry() };
        let token_strings = Pieces::token_strings(&PIECES, 0);
        let mut one_by_one = Repetitions::new(&dry, &token_strings, 100).unwrap();
        for (i, &token) in history.iter().enumerate() {
            one_by_one.accept(token);
            let mut together = Repetitions::new(&dry, &token_strings, 100).unwrap();
            together.begin(&history[..=i].into());
            assert_eq!(one_by_one.penalties(), together.penalties(), "after {i}");
        }
    }
}
