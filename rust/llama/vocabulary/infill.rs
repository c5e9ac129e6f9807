//! Control tokens for fill-in-the-middle prompts.

use llama_cpp_sys_2 as sys;

use crate::llama::Model;
use crate::request::Token;

/// Fill-in-the-middle tokens, from the vocabulary's metadata or from spellings that llama.cpp recognizes. Models that were not
/// trained for infill lack all of them; some lack the last two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InfillTokens {
    /// Precedes the text before the gap.
    pub prefix: Option<Token>,
    /// Precedes the text after the gap.
    pub suffix: Option<Token>,
    /// Precedes the text that fills the gap.
    pub middle: Option<Token>,
    /// Precedes the name of a repository.
    pub repository: Option<Token>,
    /// Precedes the name and the contents of a file.
    pub file: Option<Token>,
}

impl Model {
    /// Returns the fill-in-the-middle tokens.
    #[must_use]
    pub fn infill_tokens(&self) -> InfillTokens {
        let vocab = self.vocab();
        InfillTokens {
            prefix: vocab.token(sys::llama_vocab_fim_pre),
            suffix: vocab.token(sys::llama_vocab_fim_suf),
            middle: vocab.token(sys::llama_vocab_fim_mid),
            repository: vocab.token(sys::llama_vocab_fim_rep),
            file: vocab.token(sys::llama_vocab_fim_sep),
        }
    }

    /// Returns whether a text begins with the beginning-of-sequence token.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.vocab().adds(sys::llama_vocab_get_add_bos)
    }
}
