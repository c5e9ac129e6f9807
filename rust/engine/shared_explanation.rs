//! Why what is computed of a prompt has to be, as the sequence that computes it and its reader have it.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::request::{Explanation, Token, is_of_medium};
use crate::sampling::TokenStrings;

/// Tokens that are shown before the place of a cause, and after it.
const SHOWN_BEFORE: u32 = 8;
pub(super) const SHOWN_AFTER: u32 = 24;

/// Most bytes that are shown of each.
const MAX_SHOWN: usize = 400;

/// An explanation that the worker may still change, and that whoever asks may read meanwhile.
pub(crate) struct SharedExplanation {
    /// Without places.
    explanation: Mutex<Explanation>,
    prompt: Arc<[Token]>,
    lexicon: TokenStrings,
}

impl SharedExplanation {
    /// Of `prompt`; `explanation` has no places yet.
    pub(super) fn new(explanation: Explanation, prompt: Arc<[Token]>, lexicon: TokenStrings) -> Self {
        Self { explanation: Mutex::new(explanation), prompt, lexicon }
    }

    /// Of what was found, only the first `n_found` tokens could be used.
    pub(super) fn lower(&self, n_found: u32) {
        self.lock().lower(n_found);
    }

    /// As it is now: where in the text of the prompt each cause is, and what stands there. The text is spelt for it.
    pub(crate) fn shown(&self) -> Explanation {
        let mut explanation = self.lock().clone();
        for one in &mut explanation.computed {
            let (before, after) = self.prompt.split_at(one.at as usize);
            let text: Vec<u8> = spelt(before, &self.lexicon).concat();
            one.byte = text.len() as u64;
            one.character = text.iter().filter(|&&byte| byte & 0xC0 != 0x80).count() as u64;
            one.before = shown_end(&spelt(&before[before.len().saturating_sub(SHOWN_BEFORE as usize)..], &self.lexicon).concat());
            one.here = shown(&spelt(&after[..after.len().min(SHOWN_AFTER as usize)], &self.lexicon).concat());
        }
        explanation
    }

    fn lock(&self) -> MutexGuard<'_, Explanation> {
        self.explanation.lock().expect("no code that holds an explanation can panic")
    }
}

/// What tokens are spelt with, in order; nothing for those of pictures and sounds.
pub(super) fn spelt<'a>(tokens: &[Token], lexicon: &'a TokenStrings) -> Vec<&'a [u8]> {
    tokens.iter().filter(|&&token| !is_of_medium(token)).map(|&token| lexicon.spelling(token)).collect()
}

/// The beginning of a text.
pub(super) fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(MAX_SHOWN)]).into_owned()
}

/// The end of a text.
fn shown_end(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[text.len().saturating_sub(MAX_SHOWN)..]).into_owned()
}
