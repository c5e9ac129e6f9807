//! The model's vocabulary as samplers use it.

use std::borrow::Cow;
use std::ffi::c_char;
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use crate::llama::model::Model;
use crate::request::Token;
use crate::sampling::{TokenStrings, Vocabulary};

pub(crate) fn token_strings(model: &Arc<Model>) -> TokenStrings {
    TokenStrings::new(ModelVocabulary(Arc::clone(model)))
}

struct ModelVocabulary(Arc<Model>);

impl Vocabulary for ModelVocabulary {
    fn n_vocab(&self) -> usize {
        self.0.n_vocab()
    }

    fn spelling(&self, token: Token) -> &[u8] {
        self.0.piece(token).unwrap_or_default()
    }

    fn spelling_alone(&self, token: Token) -> Cow<'_, [u8]> {
        let spelling = self.spelling(token);
        // llama.cpp strips only spaces.
        if !spelling.contains(&b' ') {
            return Cow::Borrowed(spelling);
        }
        let mut alone = vec![0_u8; spelling.len()];
        let length = i32::try_from(alone.len()).expect("a token's spelling is shorter than 2 GiB");
        let (vocab, buffer) = (self.0.vocab().as_ptr(), alone.as_mut_ptr().cast::<c_char>());
        // SAFETY: the model is alive; one token is readable and `length` bytes are writable.
        let n = unsafe { sys::llama_detokenize(vocab, &raw const token, 1, buffer, length, false, true) };
        alone.truncate(usize::try_from(n).unwrap_or(0));
        Cow::Owned(alone)
    }

    fn piece(&self, token: Token) -> &[u8] {
        self.0.text_piece(token).unwrap_or_default()
    }

    fn tokenize(&self, text: &[u8]) -> Vec<Token> {
        self.0.tokenize(text, false, false).expect("samplers ask for the tokens of a few bytes")
    }

    fn tokenize_on(&self, text: &[u8]) -> Vec<Token> {
        self.0.tokenize_on(text, false).expect("a draft is a few bytes")
    }

    fn newline(&self) -> Option<Token> {
        self.0.vocab().token(sys::llama_vocab_nl)
    }

    fn opening(&self) -> Option<Token> {
        self.0.bos_token()
    }

    fn is_end(&self, token: Token) -> bool {
        self.0.is_end(token)
    }

    fn end_tokens(&self) -> &[Token] {
        self.0.end_tokens()
    }

    fn end_of_turn(&self) -> Option<Token> {
        self.0.eot_token().or_else(|| self.0.eos_token())
    }
}
