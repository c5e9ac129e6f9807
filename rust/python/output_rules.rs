//! What of a request says when it is held to something, and what of it is a thought.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;

use super::convert::{field, shown};
use super::errors::InvalidRequest;
use crate::error::{Error, Result};
use crate::llama::Model;
use crate::request::{MAX_PRESERVED, Reasoning, Request, Token, Trigger};

/// Most bytes of what is said before the end of a thought whose budget is used up.
const MAX_MESSAGE_BYTES: usize = 16_384;

/// Most bytes of all the texts that are one token each.
const MAX_PRESERVED_BYTES: usize = 16_384;

/// As the caller gave it: what is text here is looked up in the model's vocabulary.
pub(super) struct OutputRules {
    /// `None` where a constraint holds from the first token on.
    triggers: Option<Vec<Trigger>>,
    preserved: Vec<String>,
    /// Its closing tokens are still to be found, and this is said before the first of its ends.
    thought: Option<(Reasoning, String)>,
}

impl OutputRules {
    /// The request with all of it.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for triggers that are refused; what [`Model::tokenize`] answers.
    pub(super) fn apply(self, request: Request, model: &Model) -> Result<Request> {
        let tokens = |text: &str| model.tokenize(text.as_bytes(), false, true);
        let (n, n_bytes) = (self.preserved.len(), self.preserved.iter().map(String::len).sum::<usize>());
        if n > MAX_PRESERVED || n_bytes > MAX_PRESERVED_BYTES {
            let limit = format!("at most {MAX_PRESERVED} of {MAX_PRESERVED_BYTES} bytes together");
            let message = format!("preserved_tokens has {n} texts of {n_bytes} bytes; there may be {limit}");
            return Err(Error::InvalidRequest { param: "preserved_tokens", message });
        }
        if let Some((_, message)) = &self.thought
            && message.len() > MAX_MESSAGE_BYTES
        {
            let message = format!("the thought's message has {} bytes; it may have {MAX_MESSAGE_BYTES}", message.len());
            return Err(Error::InvalidRequest { param: "thought", message });
        }
        // As in llama-server, a text that is no token of this vocabulary is passed over: a client names those of many models.
        let token = |text: &String| match tokens(text).as_deref() {
            Ok([token]) => Some(*token),
            _ => None,
        };
        let preserved_tokens: Vec<Token> = self.preserved.iter().filter_map(token).collect();
        let constraint = match (request.constraint, self.triggers) {
            (Some(constraint), Some(triggers)) => Some(model.lazy(constraint, &triggers, &preserved_tokens)?),
            (constraint, _) => constraint,
        };
        let thought = self.thought.map(|(thought, message)| {
            let last = thought.ends.first().map(|end| tokens(end)).transpose()?.unwrap_or_default();
            let closing = if thought.budget.is_some() { [tokens(&message)?, last].concat() } else { Vec::new() };
            Ok::<_, Error>(Arc::new(Reasoning { closing, ..thought }))
        });
        let thought = thought.transpose()?;
        Ok(Request { constraint, thought, preserved_tokens, ..request })
    }
}

/// Reads these fields of a `weft.Request`, which has a constraint or not.
///
/// # Errors
/// `InvalidRequest` names the first that has the wrong type, and what waits for triggers and is not there.
pub(super) fn read(object: &Bound<'_, PyAny>, has_constraint: bool) -> PyResult<OutputRules> {
    let py = object.py();
    let is_lazy: bool = field("grammar_lazy", "True or False", &object.getattr(intern!(py, "grammar_lazy"))?)?;
    let triggers: Vec<Bound<'_, PyAny>> =
        field("grammar_triggers", "a sequence of weft.GrammarTrigger", &object.getattr(intern!(py, "grammar_triggers"))?)?;
    let triggers = triggers.iter().map(trigger).collect::<PyResult<Vec<Trigger>>>()?;
    if is_lazy && !has_constraint {
        let message = "grammar_lazy is true, and there is neither a grammar nor a JSON schema that could wait";
        return Err(InvalidRequest::new_err(("grammar_lazy", message)));
    }
    let preserved = field("preserved_tokens", "a sequence of strings", &object.getattr(intern!(py, "preserved_tokens"))?)?;
    let thought = object.getattr(intern!(py, "thought"))?;
    let thought = if thought.is_none() { None } else { Some(read_thought(&thought)?) };
    Ok(OutputRules { triggers: is_lazy.then_some(triggers), preserved, thought })
}

fn trigger(value: &Bound<'_, PyAny>) -> PyResult<Trigger> {
    let refuse = || {
        let message = format!("grammar_triggers has {}; each must be a weft.GrammarTrigger", shown(value));
        InvalidRequest::new_err(("grammar_triggers", message))
    };
    let get = |name: &str| value.getattr(name).map_err(|_| refuse());
    let kind: String = get("kind")?.extract().map_err(|_| refuse())?;
    let text: String = get("value")?.extract().map_err(|_| refuse())?;
    match &*kind {
        "word" => Ok(Trigger::Word(text)),
        "pattern" => Ok(Trigger::Pattern(text)),
        "pattern_full" => Ok(Trigger::Whole(text)),
        "token" => Ok(Trigger::Token(get("token")?.extract().map_err(|_| refuse())?)),
        _ => {
            let message = format!("grammar_triggers has one of kind '{kind}'; it must be word, pattern, pattern_full or token");
            Err(InvalidRequest::new_err(("grammar_triggers", message)))
        }
    }
}

/// A thought without its closing tokens, and what is said before its end.
fn read_thought(value: &Bound<'_, PyAny>) -> PyResult<(Reasoning, String)> {
    let refuse =
        || InvalidRequest::new_err(("thought", format!("thought is {}; it must be a weft.Thought or None", shown(value))));
    let get = |name: &str| value.getattr(name).map_err(|_| refuse());
    let texts = |name: &str| get(name)?.extract::<Vec<String>>().map_err(|_| refuse());
    let thought = Reasoning {
        starts: texts("starts")?,
        ends: texts("ends")?,
        begins_inside: get("begins_inside")?.extract().map_err(|_| refuse())?,
        budget: get("budget")?.extract().map_err(|_| refuse())?,
        closing: Vec::new(),
    };
    Ok((thought, get("message")?.extract().map_err(|_| refuse())?))
}
