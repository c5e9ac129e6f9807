//! What a sequence has said, and the two penalties that look at it.

use std::sync::Arc;

use crate::request::{SamplerKind, SamplingParams, Token};
use crate::sampling::candidates::Candidates;
use crate::sampling::dry::Repetitions;
use crate::sampling::patches::Patches;
use crate::sampling::penalties::Penalties;
use crate::sampling::token_strings::TokenStrings;

/// A step that changes the logits of what was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Penalty {
    /// Of the tokens in a window.
    Window,
    /// Of the tokens that would go on with a repetition.
    Repetitions,
}

/// The last tokens, as far as one of the penalties needs them.
#[derive(Debug, Clone)]
pub(crate) struct History {
    penalties: Option<Penalties>,
    repetitions: Option<Repetitions>,
    /// Whether [`SamplingParams::penalty_prompt`] stands in the prompt's place.
    has_penalty_prompt: bool,
}

impl History {
    /// Remembers what the penalties among `kinds` need.
    pub(crate) fn new(params: &SamplingParams, kinds: &[SamplerKind], lexicon: &TokenStrings, n_ctx: u32) -> Self {
        let has = |kind| kinds.contains(&kind);
        let mut penalties = has(SamplerKind::Penalties).then(|| Penalties::new(params, lexicon.newline(), n_ctx)).flatten();
        if let (Some(penalties), Some(prompt)) = (&mut penalties, &params.penalty_prompt) {
            penalties.begin(prompt.as_slice().into());
        }
        let repetitions = has(SamplerKind::Dry).then(|| Repetitions::new(&params.dry, lexicon, n_ctx)).flatten();
        Self { penalties, repetitions, has_penalty_prompt: params.penalty_prompt.is_some() }
    }

    /// Whether the parameters let this penalty change anything.
    pub(crate) fn has(&self, penalty: Penalty) -> bool {
        match penalty {
            Penalty::Window => self.penalties.is_some(),
            Penalty::Repetitions => self.repetitions.is_some(),
        }
    }

    /// Remembers the prompt, which comes before all else.
    pub(crate) fn accept_prompt(&mut self, prompt: &Arc<[Token]>) {
        if let Some(penalties) = self.penalties.as_mut().filter(|_| !self.has_penalty_prompt) {
            penalties.begin(Arc::clone(prompt));
        }
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.begin(Arc::clone(prompt));
        }
    }

    /// Remembers a token of the answer.
    pub(crate) fn accept(&mut self, token: Token) {
        if let Some(penalties) = &mut self.penalties {
            penalties.accept(token);
        }
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.accept(token);
        }
    }

    /// Penalises the tokens of a row.
    pub(crate) fn patch(&mut self, penalty: Penalty, logits: &[f32], patches: &mut Patches) {
        match (penalty, &mut self.penalties, &mut self.repetitions) {
            (Penalty::Window, Some(penalties), _) => penalties.patch(logits, patches),
            (Penalty::Repetitions, _, Some(repetitions)) => {
                let found = repetitions.penalties().unwrap_or_default();
                patches.change(logits, found, |_, logit, penalty| logit - penalty);
            }
            _ => {}
        }
    }

    /// Penalises candidates, in whatever order they are.
    pub(crate) fn penalize(&mut self, penalty: Penalty, candidates: &mut Candidates) {
        match (penalty, &self.penalties, &mut self.repetitions) {
            (Penalty::Window, Some(penalties), _) => penalties.penalize(candidates),
            (Penalty::Repetitions, _, Some(repetitions)) => {
                if let Some(found) = repetitions.penalties() {
                    candidates.change(|candidate| candidate.logit - of(found, candidate.token).unwrap_or(0.0));
                }
            }
            _ => {}
        }
    }

    /// Bytes that it takes, about, but for the prompt.
    pub(crate) fn n_bytes(&self) -> usize {
        self.penalties.as_ref().map_or(0, Penalties::n_bytes) + self.repetitions.as_ref().map_or(0, Repetitions::n_bytes)
    }

    /// How many tokens and counts a clone would copy.
    #[cfg(test)]
    pub(crate) fn n_own(&self) -> usize {
        self.penalties.as_ref().map_or(0, Penalties::n_own) + self.repetitions.as_ref().map_or(0, Repetitions::n_own)
    }
}

/// What comes with `token` in a list in order of token id.
fn of<T: Copy>(list: &[(Token, T)], token: Token) -> Option<T> {
    list.binary_search_by_key(&token, |&(listed, _)| listed).ok().map(|at| list[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Dry;
    use crate::sampling::token_strings::tests::Pieces;

    const LOGITS: [f32; 6] = [4.0, -4.0, 3.0, 2.0, 1.0, 0.0];

    fn history(params: &SamplingParams) -> History {
        History::new(params, &SamplerKind::DEFAULT, &Pieces::none(&[]), 100)
    }

    /// What a penalty makes of the row and of its candidates, which must be the same.
    fn penalised(history: &mut History, penalty: Penalty) -> Vec<(Token, f32)> {
        let params = SamplingParams::default();
        let mut patches = Patches::new(&params, &[]);
        patches.begin(&LOGITS);
        let mut candidates = Candidates::default();
        candidates.keep_all(patches.row(&LOGITS));
        history.penalize(penalty, &mut candidates);
        history.patch(penalty, &LOGITS, &mut patches);
        let mut patched = Candidates::default();
        patched.keep_all(patches.row(&LOGITS));
        assert_eq!(candidates.list, patched.list);
        let changed = patched.list.iter().filter(|candidate| {
            let before = LOGITS[usize::try_from(candidate.token).unwrap()];
            candidate.logit.to_bits() != before.to_bits()
        });
        changed.map(|candidate| (candidate.token, candidate.logit)).collect()
    }

    #[test]
    fn both_penalties_see_the_prompt_and_the_answer() {
        let dry = Dry { multiplier: 1.0, base: 2.0, allowed_length: 1, ..Dry::default() };
        let mut history = history(&SamplingParams { presence_penalty: 1.0, dry, ..SamplingParams::default() });
        history.accept_prompt(&[0, 1, 2].into());
        history.accept(0);
        assert_eq!(penalised(&mut history, Penalty::Window), [(0, 3.0), (1, -5.0), (2, 2.0)]);
        assert_eq!(penalised(&mut history, Penalty::Repetitions), [(1, -5.0)]);
    }

    #[test]
    fn the_window_may_have_another_prompt_but_repetitions_may_not() {
        let dry = Dry { multiplier: 1.0, base: 2.0, allowed_length: 1, ..Dry::default() };
        let penalty_prompt = Some(vec![5]);
        let mut history = history(&SamplingParams { presence_penalty: 1.0, dry, penalty_prompt, ..SamplingParams::default() });
        history.accept_prompt(&[0, 1, 2].into());
        history.accept(0);
        assert_eq!(penalised(&mut history, Penalty::Window), [(0, 3.0), (5, -1.0)]);
        assert_eq!(penalised(&mut history, Penalty::Repetitions), [(1, -5.0)]);
    }

    #[test]
    fn what_has_no_effect_is_not_there() {
        let history = history(&SamplingParams::default());
        assert!(!history.has(Penalty::Window) && !history.has(Penalty::Repetitions));
        let params = SamplingParams { presence_penalty: 1.0, ..SamplingParams::default() };
        assert!(!History::new(&params, &[SamplerKind::TopK], &Pieces::none(&[]), 100).has(Penalty::Window));
    }
}
