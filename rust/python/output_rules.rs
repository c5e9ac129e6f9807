//! Conversion of the lazy grammar, preserved tokens and reasoning of a request.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;

use super::convert::{SWITCH, request_field, shorten_repr};
use super::errors::{InvalidRequestError, invalid_request};
use crate::error::{Error, Result};
use crate::llama::Model;
use crate::request::{MAX_PRESERVED, Reasoning, Request, Token, Trigger};

const MAX_MESSAGE_BYTES: usize = 16_384;

const MAX_PRESERVED_BYTES: usize = 16_384;

pub(super) struct OutputRules {
    /// `None` if a constraint applies from the first token on.
    triggers: Option<Vec<Trigger>>,
    preserved: Vec<String>,
    /// Reasoning without its closing tokens, and the message that precedes its end marker.
    reasoning: Option<(Reasoning, String)>,
}

impl OutputRules {
    pub(super) fn apply(self, request: Request, model: &Model) -> Result<Request> {
        let tokens = |text: &str| model.tokenize(text.as_bytes(), false, true);
        let (n, n_bytes) = (self.preserved.len(), self.preserved.iter().map(String::len).sum::<usize>());
        if n > MAX_PRESERVED || n_bytes > MAX_PRESERVED_BYTES {
            let limit = format!("at most {MAX_PRESERVED} of {MAX_PRESERVED_BYTES} bytes together");
            let message = format!("preserved_tokens has {n} strings of {n_bytes} bytes; it must have {limit}");
            return Err(Error::InvalidRequest { param: "preserved_tokens", message });
        }
        if let Some((_, message)) = &self.reasoning
            && message.len() > MAX_MESSAGE_BYTES
        {
            let message =
                format!("the message of reasoning has {} bytes; it must have at most {MAX_MESSAGE_BYTES}", message.len());
            return Err(Error::InvalidRequest { param: "reasoning", message });
        }
        // As in llama-server, a text that is not one token of this vocabulary is ignored: clients list tokens of many models.
        let token = |text: &String| match tokens(text).as_deref() {
            Ok([token]) => Some(*token),
            _ => None,
        };
        let preserved_tokens: Vec<Token> = self.preserved.iter().filter_map(token).collect();
        let constraint = match (request.constraint, self.triggers) {
            (Some(constraint), Some(triggers)) => Some(model.lazy_grammar(constraint, &triggers, &preserved_tokens)?),
            (constraint, _) => constraint,
        };
        let reasoning = self.reasoning.map(|(reasoning, message)| {
            let end_marker = reasoning.ends.first().map(|end| tokens(end)).transpose()?.unwrap_or_default();
            let closing = if reasoning.budget.is_some() { [tokens(&message)?, end_marker].concat() } else { Vec::new() };
            Ok::<_, Error>(Arc::new(Reasoning { closing, ..reasoning }))
        });
        let reasoning = reasoning.transpose()?;
        Ok(Request { constraint, reasoning, preserved_tokens, ..request })
    }
}

pub(super) fn read_output_rules(object: &Bound<'_, PyAny>, has_constraint: bool) -> PyResult<OutputRules> {
    let is_lazy: bool = request_field!(object, "grammar_lazy", SWITCH);
    let triggers: Vec<Bound<'_, PyAny>> = request_field!(object, "grammar_triggers", "a sequence of weft.GrammarTrigger");
    let triggers = triggers.iter().map(read_trigger).collect::<PyResult<Vec<Trigger>>>()?;
    if is_lazy && !has_constraint {
        let message = "grammar_lazy requires a grammar; set grammar or json_schema";
        return Err(InvalidRequestError::new_err(("grammar_lazy", message)));
    }
    let preserved = request_field!(object, "preserved_tokens", "a sequence of strings");
    let reasoning: Option<Bound<'_, PyAny>> = object.getattr(intern!(object.py(), "reasoning"))?.extract()?;
    let reasoning = reasoning.as_ref().map(read_reasoning).transpose()?;
    Ok(OutputRules { triggers: is_lazy.then_some(triggers), preserved, reasoning })
}

#[derive(FromPyObject)]
struct GrammarTrigger {
    kind: String,
    value: String,
    token: Option<Token>,
}

fn read_trigger(value: &Bound<'_, PyAny>) -> PyResult<Trigger> {
    let reject = |message| InvalidRequestError::new_err(("grammar_triggers", message));
    let invalid = || reject(format!("grammar_triggers has {}; each must be a weft.GrammarTrigger", shorten_repr(value)));
    let GrammarTrigger { kind, value: text, token } = value.extract().map_err(|_| invalid())?;
    match &*kind {
        "word" => Ok(Trigger::Word(text)),
        "pattern" => Ok(Trigger::Pattern(text)),
        "pattern_full" => Ok(Trigger::Whole(text)),
        "token" => token.map(Trigger::Token).ok_or_else(invalid),
        _ => Err(reject(format!("grammar_triggers has the kind '{kind}'; it must be word, pattern, pattern_full or token"))),
    }
}

#[derive(FromPyObject)]
struct ReasoningConfig {
    starts: Vec<String>,
    ends: Vec<String>,
    begins_inside: bool,
    budget: Option<u32>,
    message: String,
}

fn read_reasoning(value: &Bound<'_, PyAny>) -> PyResult<(Reasoning, String)> {
    let reject = |_| invalid_request("reasoning", shorten_repr(value), "a weft.ReasoningConfig or None");
    let ReasoningConfig { starts, ends, begins_inside, budget, message } = value.extract().map_err(reject)?;
    Ok((Reasoning { starts, ends, begins_inside, budget, closing: Vec::new() }, message))
}
