//! Prompts of rerankers: a query paired with each document, as llama-server builds them.

use llama_cpp_sys_2 as sys;

use crate::error::Result;
use crate::llama::model::{Model, some_token};
use crate::request::Token;

/// Returns the tokens of the query paired with each text: by the model's rerank template if it has one, else as BERT's sentence
/// pairs, with the separators that the vocabulary requires.
///
/// # Errors
/// As [`Model::tokenize`].
pub fn pairs<T: AsRef<[u8]>>(model: &Model, query: &[u8], texts: &[T]) -> Result<Vec<Vec<Token>>> {
    if let Some(template) = model.value("tokenizer.chat_template.rerank") {
        return texts.iter().map(|text| from_template(model, template, query, text.as_ref())).collect();
    }
    let separators = PairSeparators::of(model);
    let query = model.tokenize(query, false, false)?;
    let pair = |text: &T| {
        let text = model.tokenize(text.as_ref(), false, false)?;
        Ok([&separators.before[..], &query, &separators.middle, &text, &separators.after].concat())
    };
    texts.iter().map(pair).collect()
}

/// Substitutes both in one pass, so that placeholders inside the query or the text are not replaced.
fn from_template(model: &Model, template: &str, query: &[u8], text: &[u8]) -> Result<Vec<Token>> {
    let (mut prompt, mut rest) = (Vec::new(), template);
    while let Some(offset) = rest.find('{') {
        prompt.extend_from_slice(&rest.as_bytes()[..offset]);
        rest = &rest[offset..];
        let (placeholder, replacement) = if rest.starts_with("{query}") {
            ("{query}", query)
        } else if rest.starts_with("{document}") {
            ("{document}", text)
        } else {
            ("{", &b"{"[..])
        };
        prompt.extend_from_slice(replacement);
        rest = &rest[placeholder.len()..];
    }
    prompt.extend_from_slice(rest.as_bytes());
    model.tokenize(&prompt, false, true)
}

/// Tokens around the two texts of a pair.
struct PairSeparators {
    before: Vec<Token>,
    middle: Vec<Token>,
    after: Vec<Token>,
}

impl PairSeparators {
    fn of(model: &Model) -> Self {
        let vocab = model.vocab();
        // SAFETY: the vocabulary lives as long as the model.
        let (adds_bos, adds_eos, adds_sep, sep) = unsafe {
            (
                sys::llama_vocab_get_add_bos(vocab),
                sys::llama_vocab_get_add_eos(vocab),
                sys::llama_vocab_get_add_sep(vocab),
                some_token(sys::llama_vocab_sep(vocab)),
            )
        };
        let end = model.eos_token().or(sep);
        let token_if = |is_added: bool, token: Option<Token>| token.filter(|_| is_added);
        Self {
            before: token_if(adds_bos, model.bos_token()).into_iter().collect(),
            middle: token_if(adds_eos, end).into_iter().chain(token_if(adds_sep, sep)).collect(),
            after: token_if(adds_eos, end).into_iter().collect(),
        }
    }
}
