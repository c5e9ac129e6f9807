//! Penalties on what was said lately.
//!
//! Sources: the repeat penalty is Keskar et al., "CTRL: A Conditional Transformer Language Model for Controllable Generation", 2019,
//! with negative logits multiplied instead of divided, so that the token always becomes less likely; presence and frequency are
//! those of `OpenAI`'s API reference.

use std::collections::VecDeque;

use crate::request::{SamplingParams, Token};

/// Repeat, presence and frequency penalties over a window of the last tokens.
#[derive(Debug, Clone)]
pub(crate) struct Penalties {
    repeat: f32,
    presence: f32,
    frequency: f32,
    /// Stands in the window like any other token, but is not penalised.
    spared: Option<Token>,
    /// Tokens that count, the last ones; at least 1.
    n_window: usize,
    window: VecDeque<Token>,
    /// How often each token stands in the window, in order of token id; no token with a count of 0.
    counts: Vec<(Token, u32)>,
}

impl Penalties {
    /// `None` where the parameters penalise nothing. `newline` is the token that [`SamplingParams::penalize_nl`] spares, and
    /// `n_ctx` what a window of −1 stands for.
    pub(crate) fn new(params: &SamplingParams, newline: Option<Token>, n_ctx: u32) -> Option<Self> {
        let is_neutral =
            [params.repeat_penalty - 1.0, params.presence_penalty, params.frequency_penalty].iter().all(|&change| change == 0.0);
        let n_window = u32::try_from(params.repeat_last_n).unwrap_or(n_ctx) as usize;
        (!is_neutral && n_window > 0).then(|| Self {
            repeat: params.repeat_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            spared: newline.filter(|_| !params.penalize_nl),
            n_window,
            window: VecDeque::new(),
            counts: Vec::new(),
        })
    }

    /// Tells them everything that was said so far; only the last tokens, as many as the window holds, matter.
    pub(crate) fn accept_all(&mut self, tokens: &[Token]) {
        let last = &tokens[tokens.len().saturating_sub(self.n_window)..];
        if self.window.is_empty() {
            self.window.extend(last);
            let mut sorted = last.to_vec();
            sorted.sort_unstable();
            let count = |equals: &[Token]| (equals[0], u32::try_from(equals.len()).expect("a window fits into a context"));
            self.counts.extend(sorted.chunk_by(|a, b| a == b).map(count));
        } else {
            for &token in last {
                self.accept(token);
            }
        }
    }

    /// Tells them what was said.
    pub(crate) fn accept(&mut self, token: Token) {
        if self.window.len() == self.n_window
            && let Some(oldest) = self.window.pop_front()
        {
            self.forget(oldest);
        }
        self.window.push_back(token);
        match self.counts.binary_search_by_key(&token, |&(seen, _)| seen) {
            Ok(at) => self.counts[at].1 += 1,
            Err(at) => self.counts.insert(at, (token, 1)),
        }
    }

    /// How often each token stands in the window, in order of token id.
    pub(crate) fn counts(&self) -> &[(Token, u32)] {
        &self.counts
    }

    fn forget(&mut self, token: Token) {
        let at = self.counts.binary_search_by_key(&token, |&(seen, _)| seen).expect("every token of the window is counted");
        self.counts[at].1 -= 1;
        if self.counts[at].1 == 0 {
            self.counts.remove(at);
        }
    }

    /// The logit of a token that stands `count` times in the window, in llama.cpp's order of operations.
    pub(crate) fn penalize(&self, token: Token, logit: f32, count: u32) -> f32 {
        if self.spared == Some(token) {
            return logit;
        }
        let repeated = if logit <= 0.0 { logit * self.repeat } else { logit / self.repeat };
        #[expect(
            clippy::cast_precision_loss,
            reason = "a window of more than 2²⁴ tokens holds one token that often only in theory"
        )]
        let count = count as f32;
        repeated - (count * self.frequency + self.presence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the penalties make of logits of 4 and −4, after this was said.
    fn penalised(params: &SamplingParams, history: &[Token]) -> Vec<(Token, f32, f32)> {
        let mut one_by_one = Penalties::new(params, Some(9), 100).unwrap();
        let mut together = one_by_one.clone();
        for &token in history {
            one_by_one.accept(token);
        }
        together.accept_all(history);
        assert_eq!(one_by_one.counts(), together.counts());
        let at = |logit, (token, count)| together.penalize(token, logit, count);
        together.counts().iter().map(|&seen| (seen.0, at(4.0, seen), at(-4.0, seen))).collect()
    }

    #[test]
    fn repetition_divides_what_is_positive_and_multiplies_what_is_negative() {
        let params = SamplingParams { repeat_penalty: 2.0, ..SamplingParams::default() };
        assert_eq!(penalised(&params, &[0, 1, 1]), [(0, 2.0, -8.0), (1, 2.0, -8.0)]);
    }

    #[test]
    fn presence_counts_once_and_frequency_each_time() {
        let params = SamplingParams { presence_penalty: 1.0, frequency_penalty: 0.25, ..SamplingParams::default() };
        assert_eq!(penalised(&params, &[2, 0, 2, 2]), [(0, 2.75, -5.25), (2, 2.25, -5.75)]);
    }

    #[test]
    fn newlines_may_be_spared() {
        let params = SamplingParams { presence_penalty: 1.0, ..SamplingParams::default() };
        assert_eq!(penalised(&params, &[9, 0]), [(0, 3.0, -5.0), (9, 3.0, -5.0)]);
        let params = SamplingParams { penalize_nl: false, repeat_last_n: 2, ..params };
        assert_eq!(penalised(&params, &[1, 0, 9]), [(0, 3.0, -5.0), (9, 4.0, -4.0)]);
    }

    #[test]
    fn the_window_forgets_what_is_older_than_it() {
        let params = SamplingParams { frequency_penalty: 1.0, repeat_last_n: 3, ..SamplingParams::default() };
        assert_eq!(penalised(&params, &[0, 0, 1, 2, 2]), [(1, 3.0, -5.0), (2, 2.0, -6.0)]);
    }

    #[test]
    fn a_window_of_minus_one_is_the_whole_context() {
        let params = SamplingParams { frequency_penalty: 1.0, repeat_last_n: -1, ..SamplingParams::default() };
        let mut history = vec![0; 3];
        history.extend([1; 100]);
        assert_eq!(penalised(&params, &history), [(1, -96.0, -104.0)]);
        assert_eq!(penalised(&params, &history[1..102]), [(0, 3.0, -5.0), (1, -95.0, -103.0)]);
    }

    #[test]
    fn what_is_said_later_joins_what_was_said_at_once() {
        let params = SamplingParams { frequency_penalty: 1.0, repeat_last_n: 3, ..SamplingParams::default() };
        let mut penalties = Penalties::new(&params, None, 100).unwrap();
        penalties.accept_all(&[7, 7, 5, 5]);
        penalties.accept(6);
        assert_eq!(penalties.counts(), [(5, 2), (6, 1)]);
        penalties.accept_all(&[1, 1]);
        assert_eq!(penalties.counts(), [(1, 2), (6, 1)]);
    }

    #[test]
    fn neutral_parameters_make_nothing() {
        assert!(Penalties::new(&SamplingParams::default(), None, 100).is_none());
        let params = SamplingParams { repeat_penalty: 2.0, repeat_last_n: 0, ..SamplingParams::default() };
        assert!(Penalties::new(&params, None, 100).is_none());
    }
}
