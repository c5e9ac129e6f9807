//! Prompts of rerankers: a query paired with each document, as llama-server builds them.

use llama_cpp_sys_2 as sys;

use crate::error::Result;
use crate::llama::model::Model;
use crate::request::Token;

/// Uses the model's rerank template if it has one, else BERT's sentence pairs, with the separators that the vocabulary requires.
pub fn build_pairs<T: AsRef<[u8]>>(model: &Model, query: &[u8], texts: &[T]) -> Result<Vec<Vec<Token>>> {
    if let Some(template) = model.value("tokenizer.chat_template.rerank") {
        return texts.iter().map(|text| from_template(model, template, query, text.as_ref())).collect();
    }
    let [before, middle, after] = pair_separators(model);
    let query = model.tokenize(query, false, false)?;
    let pair = |text: &T| {
        let text = model.tokenize(text.as_ref(), false, false)?;
        Ok([&before[..], &query, &middle, &text, &after].concat())
    };
    texts.iter().map(pair).collect()
}

/// Substitutes query and text in one pass, so that placeholders inside of them are not replaced.
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

fn pair_separators(model: &Model) -> [Vec<Token>; 3] {
    let vocab = model.vocab();
    let sep = vocab.token(sys::llama_vocab_sep);
    let end = model.eos_token().or(sep).filter(|_| vocab.get(sys::llama_vocab_get_add_eos));
    let middle = end.into_iter().chain(sep.filter(|_| vocab.get(sys::llama_vocab_get_add_sep))).collect();
    [model.bos_token().filter(|_| model.adds_bos()).into_iter().collect(), middle, end.into_iter().collect()]
}
