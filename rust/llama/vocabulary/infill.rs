//! Control tokens for fill-in-the-middle prompts.

use llama_cpp_sys_2 as sys;

use crate::llama::Model;
use crate::request::Token;

/// Fill-in-the-middle tokens, from the vocabulary's metadata or from spellings that llama.cpp recognizes. Models that were not
/// trained for infill lack all of them; some lack the last two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InfillTokens {
    pub prefix: Option<Token>,
    pub suffix: Option<Token>,
    pub middle: Option<Token>,
    pub repository: Option<Token>,
    pub file: Option<Token>,
}

impl Model {
    pub(crate) fn infill_tokens(&self) -> InfillTokens {
        let vocab = self.vocab();
        InfillTokens {
            prefix: vocab.token(sys::llama_vocab_fim_pre),
            suffix: vocab.token(sys::llama_vocab_fim_suf),
            middle: vocab.token(sys::llama_vocab_fim_mid),
            repository: vocab.token(sys::llama_vocab_fim_rep),
            file: vocab.token(sys::llama_vocab_fim_sep),
        }
    }

    pub(crate) fn adds_bos(&self) -> bool {
        self.vocab().get(sys::llama_vocab_get_add_bos)
    }
}
