//! A cache explanation, shared by the sequence that computes the prompt and the stream's consumer.

use std::sync::{Arc, Mutex};

use crate::lock::lock;
use crate::request::{Explanation, Token, is_of_medium};
use crate::sampling::TokenStrings;

/// Number of tokens shown before the position of a cause, and after it.
const N_TOKENS_BEFORE: u32 = 8;
pub(crate) const N_TOKENS_AFTER: u32 = 24;

const MAX_EXCERPT: usize = 400;

/// An explanation that the worker may still change while the consumer reads it.
pub(crate) struct SharedExplanation {
    explanation: Mutex<Explanation>,
    prompt: Arc<[Token]>,
    token_strings: TokenStrings,
}

impl SharedExplanation {
    pub(crate) fn new(explanation: Explanation, prompt: Arc<[Token]>, token_strings: TokenStrings) -> Self {
        Self { explanation: Mutex::new(explanation), prompt, token_strings }
    }

    pub(crate) fn lower(&self, n_found: u32) {
        lock(&self.explanation).lower(n_found);
    }

    /// Returns a copy with the text position of each cause and the text around it. Detokenizes the prompt.
    pub(crate) fn with_excerpts(&self) -> Explanation {
        let mut explanation = lock(&self.explanation).clone();
        for run in &mut explanation.computed {
            let (before, after) = self.prompt.split_at(run.position as usize);
            let text = text_of(before, &self.token_strings);
            run.byte_offset = text.len() as u64;
            run.character_offset = text.iter().filter(|&&byte| byte & 0xC0 != 0x80).count() as u64;
            let before = &before[before.len().saturating_sub(N_TOKENS_BEFORE as usize)..];
            let after = &after[..after.len().min(N_TOKENS_AFTER as usize)];
            run.text_before = excerpt_end(&text_of(before, &self.token_strings));
            run.text_at = excerpt(&text_of(after, &self.token_strings));
        }
        explanation
    }
}

pub(crate) fn text_of(tokens: &[Token], token_strings: &TokenStrings) -> Vec<u8> {
    let tokens = tokens.iter().filter(|&&token| !is_of_medium(token));
    tokens.flat_map(|&token| token_strings.spelling(token)).copied().collect()
}

pub(crate) fn excerpt(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(MAX_EXCERPT)]).into_owned()
}

fn excerpt_end(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[text.len().saturating_sub(MAX_EXCERPT)..]).into_owned()
}
