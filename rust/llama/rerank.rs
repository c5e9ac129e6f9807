//! A query and the texts that may answer it, as a reranker reads them: in llama-server's way.

use llama_cpp_sys_2 as sys;

use crate::error::Result;
use crate::llama::model::Model;
use crate::request::Token;

/// The tokens of the query with each of the texts: by the model's own template, where its file has one for it, else as BERT's
/// pairs, with the tokens between them that the vocabulary asks for.
///
/// # Errors
/// As [`Model::tokenize`].
pub fn pairs<T: AsRef<[u8]>>(model: &Model, query: &[u8], texts: &[T]) -> Result<Vec<Vec<Token>>> {
    if let Some(template) = model.value("tokenizer.chat_template.rerank") {
        return texts.iter().map(|text| from_template(model, template, query, text.as_ref())).collect();
    }
    let between = PairSeparators::of(model);
    let query = model.tokenize(query, false, false)?;
    let pair = |text: &T| {
        let text = model.tokenize(text.as_ref(), false, false)?;
        Ok([&between.before[..], &query, &between.middle, &text, &between.after].concat())
    };
    texts.iter().map(pair).collect()
}

/// Both are put in at once, so that what stands in one is never taken for the place of the other.
fn from_template(model: &Model, template: &str, query: &[u8], text: &[u8]) -> Result<Vec<Token>> {
    let (mut prompt, mut rest) = (Vec::new(), template);
    while let Some(at) = rest.find('{') {
        prompt.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at..];
        let (place, what) = if rest.starts_with("{query}") {
            ("{query}", query)
        } else if rest.starts_with("{document}") {
            ("{document}", text)
        } else {
            ("{", &b"{"[..])
        };
        prompt.extend_from_slice(what);
        rest = &rest[place.len()..];
    }
    prompt.extend_from_slice(rest.as_bytes());
    model.tokenize(&prompt, false, true)
}

/// The tokens around the two texts of a pair.
struct PairSeparators {
    before: Vec<Token>,
    middle: Vec<Token>,
    after: Vec<Token>,
}

impl PairSeparators {
    fn of(model: &Model) -> Self {
        let some = |token: sys::llama_token| (token >= 0).then_some(token);
        let vocab = model.vocab();
        // SAFETY: the vocabulary lives as long as the model.
        let (adds_bos, adds_eos, adds_sep, sep) = unsafe {
            (
                sys::llama_vocab_get_add_bos(vocab),
                sys::llama_vocab_get_add_eos(vocab),
                sys::llama_vocab_get_add_sep(vocab),
                some(sys::llama_vocab_sep(vocab)),
            )
        };
        let end = model.eos_token().or(sep);
        let given = |is_added: bool, token: Option<Token>| token.filter(|_| is_added);
        Self {
            before: given(adds_bos, model.bos_token()).into_iter().collect(),
            middle: given(adds_eos, end).into_iter().chain(given(adds_sep, sep)).collect(),
            after: given(adds_eos, end).into_iter().collect(),
        }
    }
}
