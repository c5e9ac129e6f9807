//! DRY: a penalty on every token that would go on with a repetition, which grows with the repetition's length.
//!
//! Source: p-e-w, "DRY: A modern repetition penalty that reliably prevents looping", text-generation-webui #5677, with pi6am's
//! breakers and search of koboldcpp #982, which llama.cpp's `dry` follows.

use std::sync::Arc;

use crate::request::{Dry, Token};
use crate::sampling::breakers::Breakers;
use crate::sampling::lexicon::Lexicon;

/// Logarithm of the greatest number, to which the penalty's power is held.
const LOG_MAX: f32 = 88.722_84;

/// Its parameters and what was said.
#[derive(Debug, Clone)]
pub(crate) struct Repetitions {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    max_exponent: usize,
    /// Tokens that count, the last ones; at least 1.
    n_window: usize,
    breakers: Arc<Breakers>,
    /// The last tokens, twice the window at most, so that few are moved.
    history: Vec<Token>,
    /// The last penalties, in order of token id, and how far each place of the window repeats the end; kept for their memory.
    penalties: Vec<(Token, f32)>,
    lengths: Vec<usize>,
}

impl Repetitions {
    /// `None` where the parameters penalise nothing. `n_ctx` is what a window of −1 stands for.
    pub(crate) fn new(dry: &Dry, lexicon: &Lexicon, n_ctx: u32) -> Option<Self> {
        let n_window = u32::try_from(dry.penalty_last_n).unwrap_or(n_ctx) as usize;
        if !dry.is_on() || n_window == 0 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number, cut off as llama.cpp does")]
        let max_exponent = if dry.base > 1.000_001 { (LOG_MAX / dry.base.ln()) as usize } else { 0 };
        Some(Self {
            multiplier: dry.multiplier,
            base: dry.base,
            allowed_length: usize::try_from(dry.allowed_length).unwrap_or(0),
            max_exponent,
            n_window,
            breakers: lexicon.breakers(&dry.sequence_breakers),
            history: Vec::new(),
            penalties: Vec::new(),
            lengths: Vec::new(),
        })
    }

    /// Tells it what was said; only the last tokens, as many as its window holds, matter.
    pub(crate) fn accept(&mut self, tokens: &[Token]) {
        let n_old = tokens.len().saturating_sub(self.n_window);
        self.history.extend_from_slice(&tokens[n_old..]);
        if self.history.len() > 2 * self.n_window {
            self.history.drain(..self.history.len() - self.n_window);
        }
    }

    /// What to subtract from the logits of which tokens, in order of token id; `None` where llama.cpp does not even look for any.
    pub(crate) fn penalties(&mut self) -> Option<&[(Token, f32)]> {
        let window = &self.history[self.history.len().saturating_sub(self.n_window)..];
        self.penalties.clear();
        if window.len() <= self.allowed_length {
            return None;
        }
        let limit = self.breakers.n_after_last(window);
        if limit < self.allowed_length {
            return None;
        }
        repeat_lengths(window, limit, &mut self.lengths);
        let (multiplier, base) = (f64::from(self.multiplier), f64::from(self.base));
        // The token after each repetition would go on with it. Of several repetitions the longest counts.
        let next_tokens = window.iter().rev().zip(&self.lengths[1..]).filter(|&(_, &length)| length >= self.allowed_length);
        let mut next_tokens: Vec<(Token, usize)> = next_tokens.map(|(&token, &length)| (token, length)).collect();
        next_tokens.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        next_tokens.dedup_by_key(|&mut (token, _)| token);
        let penalties = next_tokens.into_iter().filter(|&(token, _)| !self.breakers.is_breaker(token)).map(|(token, length)| {
            let longer = length - self.allowed_length;
            let exponent = if self.max_exponent > 0 { longer.min(self.max_exponent) } else { longer };
            #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "llama.cpp's is single precision")]
            let penalty = (multiplier * base.powf(exponent as f64)) as f32;
            (token, penalty)
        });
        self.penalties.extend(penalties);
        Some(&self.penalties)
    }
}

/// Fills `lengths[k]` with the number of tokens, at most `limit`, in which the window without its last `k` tokens ends as the whole
/// window does; `lengths[0]` means nothing.
///
/// Source: the Z-algorithm (Main and Lorentz, 1984; Gusfield, "Algorithms on Strings, Trees and Sequences", 1997), read from the
/// end on. The limit is held against each length before it is used for others, as llama.cpp does.
fn repeat_lengths(window: &[Token], limit: usize, lengths: &mut Vec<usize>) {
    let n = window.len();
    let from_end = |i: usize| window[n - 1 - i];
    let agree_from = |mut i: usize, k: usize| {
        while i < n && from_end(i) == from_end(i - k) {
            i += 1;
        }
        i
    };
    lengths.clear();
    lengths.resize(n, 0);
    // The stretch `start..end` repeats the window's end; it is the one that reaches farthest.
    let (mut start, mut end) = (0, 1);
    for k in 1..n {
        let known = if k < end { lengths[k - start] } else { 0 };
        if k < end && known < end - k {
            lengths[k] = known;
            continue;
        }
        let reached = agree_from(end.max(k), k);
        lengths[k] = (reached - k).min(limit);
        if reached > k || k < end {
            (start, end) = (k, reached);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::lexicon::tests::Pieces;
    use crate::sampling::rng::Mt19937;

    const PIECES: [&str; 6] = ["a", "b", "c", "d", "e", "."];
    const DOT: Token = 5;

    fn penalties(dry: &Dry, history: &[Token]) -> Vec<(Token, f32)> {
        let dry = Dry { sequence_breakers: vec![".".to_owned()], ..dry.clone() };
        let mut repetitions = Repetitions::new(&dry, &Pieces::lexicon(&PIECES, 0), 100).unwrap();
        repetitions.accept(history);
        repetitions.penalties().unwrap_or_default().to_vec()
    }

    fn dry() -> Dry {
        Dry { multiplier: 0.5, base: 2.0, allowed_length: 2, penalty_last_n: -1, ..Dry::default() }
    }

    #[test]
    fn the_token_that_would_go_on_with_a_repetition_is_penalised_by_its_length() {
        assert_eq!(penalties(&dry(), &[0, 1, 2, 4, 0, 1]), [(2, 0.5)]);
        assert_eq!(penalties(&dry(), &[0, 1, 2, 3, 4, 0, 1, 2]), [(3, 1.0)]);
        assert_eq!(penalties(&dry(), &[0, 1, 2, 4, 1]), []);
    }

    #[test]
    fn of_several_repetitions_the_longest_counts() {
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
    fn parameters_that_penalise_nothing_make_nothing() {
        let lexicon = Pieces::lexicon(&PIECES, 0);
        for off in [Dry::default(), Dry { base: 0.9, ..dry() }, Dry { penalty_last_n: 0, ..dry() }] {
            assert!(Repetitions::new(&off, &lexicon, 100).is_none());
        }
    }

    #[test]
    fn lengths_are_those_that_comparing_every_place_gives() {
        let mut rng = Mt19937::new(6);
        let mut lengths = Vec::new();
        for _ in 0..500 {
            let n = 1 + rng.next_u32() % 60;
            let window: Vec<Token> = (0..n).map(|_| i32::try_from(rng.next_u32() % 3).unwrap()).collect();
            repeat_lengths(&window, window.len(), &mut lengths);
            for k in 1..window.len() {
                let expected =
                    (0..window.len() - k).take_while(|i| window[window.len() - 1 - i] == window[window.len() - 1 - i - k]);
                assert_eq!(lengths[k], expected.count(), "{window:?} without the last {k}");
            }
        }
    }

    #[test]
    fn tokens_told_one_by_one_or_together_are_the_same_history() {
        let history: Vec<Token> = (0..500).map(|i| i * i % 5).collect();
        let dry = Dry { penalty_last_n: 30, ..dry() };
        let lexicon = Pieces::lexicon(&PIECES, 0);
        let mut one_by_one = Repetitions::new(&dry, &lexicon, 100).unwrap();
        for (i, &token) in history.iter().enumerate() {
            one_by_one.accept(&[token]);
            let mut together = Repetitions::new(&dry, &lexicon, 100).unwrap();
            together.accept(&history[..=i]);
            assert_eq!(one_by_one.penalties(), together.penalties(), "after {i}");
        }
    }
}
