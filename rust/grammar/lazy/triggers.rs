//! Checks and compiles the triggers of a lazy grammar.

use std::sync::Arc;

use regex_automata::nfa::thompson::{NFA, WhichCaptures};
use regex_syntax::hir::{Hir, Look};

use super::super::parse_error::excerpt;
use super::search::{CompiledPattern, Search};
use crate::request::{Token, Trigger};

/// Maximum number of triggers: each token is searched for all of them.
pub const MAX_TRIGGERS: usize = 64;

/// Maximum size of all words and patterns of a grammar.
pub const MAX_TRIGGER_BYTES: usize = 16_384;

/// Maximum size of all compiled patterns; this bounds the cost per byte of the text.
const MAX_COMPILED_BYTES: usize = 1 << 19;

/// The triggers of a lazy grammar, compiled once for all branches.
#[derive(Debug)]
pub struct Triggers {
    pub(super) tokens: Vec<Token>,
    /// In order of priority.
    patterns: Vec<Arc<CompiledPattern>>,
}

impl Triggers {
    /// # Errors
    /// A message if there is no trigger, the limits are exceeded, a pattern is invalid, or a pattern requires a search whose
    /// cost grows with the text.
    pub fn new(triggers: &[Trigger]) -> Result<Self, String> {
        Self::check_size(triggers)?;
        let (mut tokens, mut patterns) = (Vec::new(), Vec::new());
        let mut n_left = MAX_COMPILED_BYTES;
        for trigger in triggers {
            let (expression, text) = match trigger {
                Trigger::Token(token) => {
                    tokens.push(*token);
                    continue;
                }
                Trigger::Word(word) if word.is_empty() => {
                    return Err("grammar_triggers has an empty word; remove it".to_owned());
                }
                Trigger::Word(word) => (Hir::literal(word.as_bytes()), word),
                Trigger::Pattern(pattern) => (read(pattern)?, pattern),
                Trigger::Whole(pattern) => {
                    (Hir::concat(vec![Hir::look(Look::Start), read(pattern)?, Hir::look(Look::End)]), pattern)
                }
            };
            let nfa = compile(&expression, n_left)
                .map_err(|reason| format!("the pattern '{}' in grammar_triggers {reason}", excerpt(text)))?;
            n_left = n_left.saturating_sub(nfa.memory_usage());
            patterns.push(Arc::new(CompiledPattern::new(nfa)));
        }
        Ok(Self { tokens, patterns })
    }

    /// # Errors
    /// A message if there is no trigger or the limits are exceeded.
    pub fn check_size(triggers: &[Trigger]) -> Result<(), String> {
        let (n, n_bytes) = (triggers.len(), triggers.iter().map(n_bytes).sum::<usize>());
        if n == 0 {
            return Err("grammar_triggers is empty; a lazy grammar needs at least one trigger".to_owned());
        }
        if n > MAX_TRIGGERS || n_bytes > MAX_TRIGGER_BYTES {
            let limit = format!("at most {MAX_TRIGGERS} triggers of {MAX_TRIGGER_BYTES} bytes in total are allowed");
            return Err(format!("grammar_triggers has {n} triggers of {n_bytes} bytes in total; {limit}"));
        }
        Ok(())
    }

    pub(super) fn searches(&self) -> Vec<Search> {
        self.patterns.iter().cloned().map(Search::new).collect()
    }
}

fn n_bytes(trigger: &Trigger) -> usize {
    match trigger {
        Trigger::Token(_) => 0,
        Trigger::Word(text) | Trigger::Pattern(text) | Trigger::Whole(text) => text.len(),
    }
}

fn read(pattern: &str) -> Result<Hir, String> {
    let mut parser = regex_syntax::ParserBuilder::new().unicode(false).utf8(false).build();
    parser.parse(pattern).map_err(|error| {
        let (what, span) = match &error {
            regex_syntax::Error::Parse(error) => (error.kind().to_string(), Some(error.span())),
            regex_syntax::Error::Translate(error) => (error.kind().to_string(), Some(error.span())),
            other => (other.to_string(), None),
        };
        let position = span.map_or_else(String::new, |span| format!(" at byte {}", span.start.offset));
        format!("the pattern '{}' in grammar_triggers is invalid{position}: {what}", excerpt(pattern))
    })
}

fn compile(expression: &Hir, n_bytes: usize) -> Result<NFA, String> {
    let config = NFA::config().utf8(false).which_captures(WhichCaptures::All).nfa_size_limit(Some(n_bytes));
    let nfa = NFA::compiler().configure(config).build_from_hir(expression);
    let nfa = nfa.map_err(|_| format!("is too large: all compiled patterns may take {MAX_COMPILED_BYTES} bytes"))?;
    if nfa.look_set_any().contains_word_unicode() {
        return Err("uses Unicode word boundaries, which are not supported; use \\b without the u flag".to_owned());
    }
    Ok(nfa)
}
