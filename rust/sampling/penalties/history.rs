//! Token history of a sequence, and the two penalties that use it.

use std::sync::Arc;

use crate::request::{SamplerKind, SamplingParams, Token};
use crate::sampling::candidates::Candidates;
use crate::sampling::patches::Patches;
use crate::sampling::penalties::Penalties;
use crate::sampling::penalties::dry::Repetitions;
use crate::sampling::token_strings::TokenStrings;

/// A step that penalises tokens of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Penalty {
    /// The tokens in a window.
    Window,
    /// DRY: the tokens that would continue a repetition.
    Repetitions,
}

/// The last tokens, as many as the penalties need.
#[derive(Debug, Clone)]
pub(crate) struct History {
    penalties: Option<Penalties>,
    repetitions: Option<Repetitions>,
    /// True if [`SamplingParams::penalty_prompt`] replaces the prompt.
    has_penalty_prompt: bool,
}

impl History {
    /// Creates the history that the penalties among `kinds` need.
    pub(crate) fn new(params: &SamplingParams, kinds: &[SamplerKind], token_strings: &TokenStrings, n_ctx: u32) -> Self {
        let has = |kind| kinds.contains(&kind);
        let mut penalties = has(SamplerKind::Penalties).then(|| Penalties::new(params, token_strings.newline(), n_ctx)).flatten();
        if let (Some(penalties), Some(prompt)) = (&mut penalties, &params.penalty_prompt) {
            penalties.begin(prompt.as_slice().into());
        }
        let repetitions = has(SamplerKind::Dry).then(|| Repetitions::new(&params.dry, token_strings, n_ctx)).flatten();
        Self { penalties, repetitions, has_penalty_prompt: params.penalty_prompt.is_some() }
    }

    /// Returns whether this penalty has an effect.
    pub(crate) fn has(&self, penalty: Penalty) -> bool {
        match penalty {
            Penalty::Window => self.penalties.is_some(),
            Penalty::Repetitions => self.repetitions.is_some(),
        }
    }

    /// Adds the prompt, which must come first.
    pub(crate) fn accept_prompt(&mut self, prompt: &Arc<[Token]>) {
        if let Some(penalties) = self.penalties.as_mut().filter(|_| !self.has_penalty_prompt) {
            penalties.begin(Arc::clone(prompt));
        }
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.begin(Arc::clone(prompt));
        }
    }

    pub(crate) fn accept(&mut self, token: Token) {
        if let Some(penalties) = &mut self.penalties {
            penalties.accept(token);
        }
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.accept(token);
        }
    }

    pub(crate) fn patch(&mut self, penalty: Penalty, logits: &[f32], patches: &mut Patches) {
        match (penalty, &mut self.penalties, &mut self.repetitions) {
            (Penalty::Window, Some(penalties), _) => penalties.patch(logits, patches),
            (Penalty::Repetitions, _, Some(repetitions)) => {
                let penalties = repetitions.penalties().unwrap_or_default();
                patches.change(logits, penalties, |_, logit, penalty| logit - penalty);
            }
            _ => {}
        }
    }

    /// Penalises candidates, in any order.
    pub(crate) fn penalize(&mut self, penalty: Penalty, candidates: &mut Candidates) {
        match (penalty, &self.penalties, &mut self.repetitions) {
            (Penalty::Window, Some(penalties), _) => penalties.penalize(candidates),
            (Penalty::Repetitions, _, Some(repetitions)) => {
                if let Some(penalties) = repetitions.penalties() {
                    candidates.change(|candidate| {
                        let found = penalties.binary_search_by_key(&candidate.token, |&(token, _)| token);
                        candidate.logit - found.map_or(0.0, |at| penalties[at].1)
                    });
                }
            }
            _ => {}
        }
    }

    /// Returns the approximate memory in bytes, without the prompt.
    pub(crate) fn n_bytes(&self) -> usize {
        self.penalties.as_ref().map_or(0, Penalties::n_bytes) + self.repetitions.as_ref().map_or(0, Repetitions::n_bytes)
    }

    #[cfg(test)]
    pub(crate) fn n_copied(&self) -> usize {
        self.penalties.as_ref().map_or(0, Penalties::n_copied) + self.repetitions.as_ref().map_or(0, Repetitions::n_copied)
    }
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

    /// Returns the changes that a penalty makes to the row, and asserts that it changes candidates equally.
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
    fn both_penalties_cover_the_prompt_and_generated_tokens() {
        let dry = Dry { multiplier: 1.0, base: 2.0, allowed_length: 1, ..Dry::default() };
        let mut history = history(&SamplingParams { presence_penalty: 1.0, dry, ..SamplingParams::default() });
        history.accept_prompt(&[0, 1, 2].into());
        history.accept(0);
        assert_eq!(penalised(&mut history, Penalty::Window), [(0, 3.0), (1, -5.0), (2, 2.0)]);
        assert_eq!(penalised(&mut history, Penalty::Repetitions), [(1, -5.0)]);
    }

    #[test]
    fn the_penalty_prompt_replaces_the_prompt_for_the_window_only() {
        let dry = Dry { multiplier: 1.0, base: 2.0, allowed_length: 1, ..Dry::default() };
        let penalty_prompt = Some(vec![5]);
        let mut history = history(&SamplingParams { presence_penalty: 1.0, dry, penalty_prompt, ..SamplingParams::default() });
        history.accept_prompt(&[0, 1, 2].into());
        history.accept(0);
        assert_eq!(penalised(&mut history, Penalty::Window), [(0, 3.0), (5, -1.0)]);
        assert_eq!(penalised(&mut history, Penalty::Repetitions), [(1, -5.0)]);
    }

    #[test]
    fn penalties_without_effect_are_absent() {
        let history = history(&SamplingParams::default());
        assert!(!history.has(Penalty::Window) && !history.has(Penalty::Repetitions));
        let params = SamplingParams { presence_penalty: 1.0, ..SamplingParams::default() };
        assert!(!History::new(&params, &[SamplerKind::TopK], &Pieces::none(&[]), 100).has(Penalty::Window));
    }
}
