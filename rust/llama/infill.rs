//! The tokens by which a model knows what stands before and after a gap that it is to fill.

use llama_cpp_sys_2 as sys;

use crate::llama::Model;
use crate::llama::model::some_token;
use crate::request::Token;

/// The control tokens of a text with a gap, as the vocabulary names them or as llama.cpp knows them by their spelling. Models that
/// were not trained to fill gaps lack all of them, some lack the last two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InfillTokens {
    /// What stands before the gap follows.
    pub prefix: Option<Token>,
    /// What stands after the gap follows.
    pub suffix: Option<Token>,
    /// What belongs into the gap follows.
    pub middle: Option<Token>,
    /// The name of a repository follows.
    pub repository: Option<Token>,
    /// The name of a file follows, and what is in it.
    pub file: Option<Token>,
}

impl Model {
    /// The control tokens of a text with a gap.
    #[must_use]
    pub fn infill_tokens(&self) -> InfillTokens {
        let vocab = self.vocab();
        // SAFETY: the vocabulary lives as long as the model.
        unsafe {
            InfillTokens {
                prefix: some_token(sys::llama_vocab_fim_pre(vocab)),
                suffix: some_token(sys::llama_vocab_fim_suf(vocab)),
                middle: some_token(sys::llama_vocab_fim_mid(vocab)),
                repository: some_token(sys::llama_vocab_fim_rep(vocab)),
                file: some_token(sys::llama_vocab_fim_sep(vocab)),
            }
        }
    }

    /// Whether a text begins with the token that begins texts.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        // SAFETY: the vocabulary lives as long as the model.
        unsafe { sys::llama_vocab_get_add_bos(self.vocab()) }
    }
}
