//! Repeat, presence and frequency penalties.
//!
//! Repeat: Keskar et al., "CTRL: A Conditional Transformer Language Model for Controllable Generation", 2019, but negative
//! logits are multiplied, so that the token always becomes less likely. Presence and frequency: `OpenAI`'s API reference.

pub(in crate::sampling) mod counts;
pub(in crate::sampling) mod dry;
pub(in crate::sampling) mod repeats;
pub(in crate::sampling) mod sequence_breakers;
pub(in crate::sampling) mod window;

use std::fmt;
use std::sync::Arc;

use crate::request::{SamplingParams, Token};
use crate::sampling::penalties::counts::{Base, TokenCounts};
use crate::sampling::{candidates::Candidates, patches::Patches, penalties::window::Window};

pub(crate) trait Penalty: fmt::Debug + Send + Sync {
    /// Adds the prompt, which must come first; only its last tokens, as many as the window holds, are kept.
    fn begin(&mut self, prompt: &Arc<[Token]>);

    fn accept(&mut self, token: Token);

    fn patch(&mut self, logits: &[f32], patches: &mut Patches);

    /// Candidates may be in any order.
    fn penalize(&mut self, candidates: &mut Candidates);

    fn copy(&self) -> Box<dyn Penalty>;

    /// Returns the approximate size without the shared part of the window.
    fn n_bytes(&self) -> usize;

    #[cfg(test)]
    fn n_copied(&self) -> usize;
}

impl Clone for Box<dyn Penalty> {
    fn clone(&self) -> Self {
        self.copy()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Penalties {
    rule: Rule,
    /// True if [`SamplingParams::penalty_prompt`] replaces the prompt.
    has_own_prompt: bool,
    window: Window,
    counts: TokenCounts,
    row_counts: Vec<(Token, u32)>,
    overrides: Vec<(usize, f32)>,
}

#[derive(Debug, Clone, Copy)]
struct Rule {
    repeat: f32,
    presence: f32,
    frequency: f32,
    exempt: Option<Token>,
}

impl Penalties {
    /// `None` if the parameters penalise nothing. `newline` is what [`SamplingParams::penalize_nl`] exempts.
    pub(crate) fn new(params: &SamplingParams, newline: Option<Token>, n_ctx: u32) -> Option<Self> {
        let is_neutral =
            [params.repeat_penalty - 1.0, params.presence_penalty, params.frequency_penalty].iter().all(|&change| change == 0.0);
        let n_window = u32::try_from(params.repeat_last_n).unwrap_or(n_ctx) as usize;
        let rule = Rule {
            repeat: params.repeat_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            exempt: newline.filter(|_| !params.penalize_nl),
        };
        if is_neutral || n_window == 0 {
            return None;
        }
        let mut window = Window::new(n_window);
        window.begin(params.penalty_prompt.as_deref().unwrap_or_default().into());
        Some(Self {
            rule,
            has_own_prompt: params.penalty_prompt.is_some(),
            counts: TokenCounts::of(&window.slices().concat()),
            window,
            row_counts: Vec::new(),
            overrides: Vec::new(),
        })
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> Vec<(Token, u32)> {
        let mut list = Vec::new();
        self.counts.list(&mut list);
        list
    }
}

impl Penalty for Penalties {
    fn begin(&mut self, prompt: &Arc<[Token]>) {
        if !self.has_own_prompt {
            self.window.begin(Arc::clone(prompt));
            self.counts = TokenCounts::of(&self.window.slices().concat());
        }
    }

    fn accept(&mut self, token: Token) {
        self.counts.add(token);
        if let Some(oldest) = self.window.push(token) {
            self.counts.remove(oldest);
        }
    }

    /// As patches if the tokens are few, else in one pass over the row.
    fn patch(&mut self, logits: &[f32], patches: &mut Patches) {
        let Self { rule, counts, row_counts, overrides, .. } = self;
        match counts.parts() {
            (Base::Sparse(_), _) => {
                counts.list(row_counts);
                patches.change(logits, row_counts, |token, logit, count| rule.penalize(token, logit, count));
            }
            (Base::Dense(base), changed) => patches.change_row(logits, |row| {
                overrides.clear();
                let exempt = rule.exempt.map(|token| (token, 0));
                for (token, count) in changed.iter().copied().chain(exempt) {
                    if let Some((index, &logit)) = usize::try_from(token).ok().and_then(|index| Some(index).zip(row.get(index))) {
                        overrides.push((index, rule.penalize(token, logit, count)));
                    }
                }
                rule.penalize_all(row, base);
                for &(index, logit) in overrides.iter() {
                    row[index] = logit;
                }
            }),
        }
    }

    fn penalize(&mut self, candidates: &mut Candidates) {
        candidates.change(|candidate| self.rule.penalize(candidate.token, candidate.logit, self.counts.get(candidate.token)));
    }

    fn copy(&self) -> Box<dyn Penalty> {
        Box::new(self.clone())
    }

    fn n_bytes(&self) -> usize {
        self.counts.n_bytes() + size_of::<Token>() * self.window.n_copied()
    }

    #[cfg(test)]
    fn n_copied(&self) -> usize {
        self.window.n_copied() + self.counts.parts().1.len() + self.row_counts.len() + self.overrides.len()
    }
}

impl Rule {
    fn penalize(self, token: Token, logit: f32, count: u32) -> f32 {
        if self.exempt == Some(token) { logit } else { self.change(logit, count) }
    }

    /// Penalises a row by the counts of its first tokens, without the exemption. Compilers vectorise it.
    fn penalize_all(self, row: &mut [f32], counts: &[u32]) {
        for (logit, &count) in row.iter_mut().zip(counts) {
            *logit = self.change(*logit, count);
        }
    }

    #[inline]
    fn change(self, logit: f32, count: u32) -> f32 {
        let repeated = if logit <= 0.0 { logit * self.repeat } else { logit / self.repeat };
        #[expect(
            clippy::cast_precision_loss,
            reason = "a window of more than 2²⁴ tokens holds one token that often only in theory"
        )]
        let penalised = repeated - (count as f32 * self.frequency + self.presence);
        if count == 0 { logit } else { penalised }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::draw::rng::Mt19937;

    /// Returns the penalised logits of 4 and −4 for each token of `history`.
    fn penalised(params: &SamplingParams, history: &[Token]) -> Vec<(Token, f32, f32)> {
        let mut one_by_one = Penalties::new(params, Some(9), 100).unwrap();
        let mut together = one_by_one.clone();
        for &token in history {
            one_by_one.accept(token);
        }
        together.begin(&history.into());
        assert_eq!(one_by_one.counts(), together.counts());
        let at = |logit, (token, count)| together.rule.penalize(token, logit, count);
        together.counts().iter().map(|&entry| (entry.0, at(4.0, entry), at(-4.0, entry))).collect()
    }

    #[test]
    fn repeat_penalty_divides_positive_and_multiplies_negative_logits() {
        let params = SamplingParams { repeat_penalty: 2.0, ..SamplingParams::default() };
        assert_eq!(penalised(&params, &[0, 1, 1]), [(0, 2.0, -8.0), (1, 2.0, -8.0)]);
    }

    #[test]
    fn presence_counts_once_and_frequency_each_time() {
        let params = SamplingParams { presence_penalty: 1.0, frequency_penalty: 0.25, ..SamplingParams::default() };
        assert_eq!(penalised(&params, &[2, 0, 2, 2]), [(0, 2.75, -5.25), (2, 2.25, -5.75)]);
    }

    #[test]
    fn newlines_may_be_exempt() {
        let params = SamplingParams { presence_penalty: 1.0, ..SamplingParams::default() };
        assert_eq!(penalised(&params, &[9, 0]), [(0, 3.0, -5.0), (9, 3.0, -5.0)]);
        let params = SamplingParams { penalize_nl: false, repeat_last_n: 2, ..params };
        assert_eq!(penalised(&params, &[1, 0, 9]), [(0, 3.0, -5.0), (9, 4.0, -4.0)]);
    }

    #[test]
    fn tokens_older_than_the_window_do_not_count() {
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
    fn later_tokens_are_added_to_the_initial_counts() {
        let params = SamplingParams { frequency_penalty: 1.0, repeat_last_n: 3, ..SamplingParams::default() };
        let mut penalties = Penalties::new(&params, None, 100).unwrap();
        penalties.begin(&[7, 7, 5, 5].into());
        penalties.accept(6);
        assert_eq!(penalties.counts(), [(5, 2), (6, 1)]);
        penalties.accept(1);
        penalties.accept(1);
        assert_eq!(penalties.counts(), [(1, 2), (6, 1)]);
    }

    #[test]
    fn neutral_parameters_give_none() {
        assert!(Penalties::new(&SamplingParams::default(), None, 100).is_none());
        let params = SamplingParams { repeat_penalty: 2.0, repeat_last_n: 0, ..SamplingParams::default() };
        assert!(Penalties::new(&params, None, 100).is_none());
    }

    #[test]
    fn a_row_is_penalised_equally_token_by_token_and_in_one_pass() {
        let mut rng = Mt19937::new(12);
        let mut below = |n: u32| rng.next_u32() % n;
        let params = SamplingParams {
            repeat_penalty: 1.3,
            presence_penalty: -0.4,
            frequency_penalty: 0.17,
            penalize_nl: false,
            repeat_last_n: -1,
            logit_bias: vec![(3, 1.0), (70, f32::NEG_INFINITY), (71, -3.0)],
            ..SamplingParams::default()
        };
        for n_ids in [20, 200, 40_000] {
            let n_vocab = 200 + n_ids / 2;
            #[expect(clippy::cast_precision_loss, reason = "any number will do")]
            let logits: Vec<f32> = (0..n_vocab).map(|_| below(1_000) as f32 / 100.0 - 5.0).collect();
            let mut penalties = Penalties::new(&params, Some(5), 4_000).unwrap();
            let history: Vec<Token> = (0..6_000).map(|_| Token::try_from(below(n_ids)).unwrap()).collect();
            penalties.begin(&history[..3_000].into());
            for (n, &token) in (3_000..).zip(&history[3_000..]) {
                penalties.accept(token);
                if n % 251 != 0 {
                    continue;
                }
                let (mut patched, mut expected) = (Patches::new(&params, &[]), Patches::new(&params, &[]));
                patched.begin(&logits);
                penalties.patch(&logits, &mut patched);
                expected.begin(&logits);
                let by_definition = |row: &mut [f32]| {
                    for (token, count) in penalties.counts().into_iter().filter(|&(token, _)| token != 5) {
                        let Some(logit) = row.get_mut(usize::try_from(token).unwrap()) else { continue };
                        *logit = if *logit <= 0.0 { *logit * 1.3 } else { *logit / 1.3 };
                        #[expect(clippy::cast_precision_loss, reason = "at most 4,000")]
                        let subtracted = count as f32 * 0.17 + -0.4;
                        *logit -= subtracted;
                    }
                };
                expected.change_row(&logits, by_definition);
                let (mut expected_candidates, mut candidates) = (Candidates::default(), Candidates::default());
                expected_candidates.keep_all(expected.row(&logits));
                candidates.keep_all(patched.row(&logits));
                assert_eq!(candidates.list, expected_candidates.list, "{n_ids} ids, after {n}");
            }
        }
    }
}
