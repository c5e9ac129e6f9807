//! Compiled grammars of a model's vocabulary, cached by their text.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

use crate::error::{Error, Result};
use crate::grammar::{Grammar, LazyGrammar, ParseError, Spellings, TokenLookup, Triggers, to_gbnf};
use crate::llama::model::Model;
use crate::lock::lock;
use crate::request::{ConstraintSource, SharedConstraint, Token, Trigger, is_in_vocabulary};

pub const MAX_GRAMMARS: usize = 64;

const MAX_CACHED_BYTES: usize = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GrammarSource {
    Gbnf,
    JsonSchema,
}

#[derive(Default)]
pub(crate) struct Grammars {
    spellings: OnceLock<Arc<Spellings>>,
    cached: Mutex<VecDeque<CachedGrammar>>,
}

struct CachedGrammar {
    source: GrammarSource,
    text: Box<str>,
    grammar: Arc<Grammar>,
}

impl CachedGrammar {
    fn n_bytes(&self) -> usize {
        self.text.len() + self.grammar.n_bytes()
    }
}

impl Model {
    /// Returns the grammar of this GBNF text with the root rule `root`, see [`crate::grammar`]. Recent grammars are cached.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] with line and column.
    pub fn grammar(&self, text: &str) -> Result<SharedConstraint> {
        self.grammars.get_or_compile(GrammarSource::Gbnf, text, || {
            let grammar = Grammar::new(text, self, self.spellings());
            grammar.map_err(|error| refusal("grammar", format!("invalid grammar: {error}")))
        })
    }

    /// Returns the grammar of the JSON that matches this schema; unsupported keywords are rejected.
    pub(crate) fn json_schema(&self, text: &str) -> Result<SharedConstraint> {
        self.grammars.get_or_compile(GrammarSource::JsonSchema, text, || {
            Grammar::new(&schema_grammar(text)?, self, self.spellings()).map_err(|ParseError { message, .. }| {
                refusal("json_schema", format!("the JSON schema cannot be converted to a grammar: {message}"))
            })
        })
    }

    /// Delays a grammar until a trigger. As in llama-server, a word that is a single, `preserved` token is matched as that.
    pub(crate) fn lazy_grammar(
        &self,
        constraint: SharedConstraint,
        triggers: &[Trigger],
        preserved: &[Token],
    ) -> Result<SharedConstraint> {
        let refuse = |message: String| refusal("grammar_triggers", message);
        Triggers::check_size(triggers).map_err(refuse)?;
        let as_token = |trigger: &Trigger| match trigger {
            Trigger::Word(word) => match self.find_token(word) {
                Some(token) if preserved.contains(&token) => Ok(Trigger::Token(token)),
                Some(_) => Err(refuse(format!("the word '{word}' in grammar_triggers is a token; add it to preserved_tokens"))),
                None => Ok(trigger.clone()),
            },
            Trigger::Token(token) if !is_in_vocabulary(*token, self.n_vocab()) => {
                Err(refuse(format!("token {token} in grammar_triggers is not in the vocabulary ({} tokens)", self.n_vocab())))
            }
            other => Ok(other.clone()),
        };
        let triggers = triggers.iter().map(as_token).collect::<Result<Vec<_>>>()?;
        let triggers = Triggers::new(&triggers).map_err(refuse)?;
        Ok(SharedConstraint(Arc::new(LazyGrammar::new(constraint, triggers, self.spellings()))))
    }

    fn spellings(&self) -> Arc<Spellings> {
        Arc::clone(self.grammars.spellings.get_or_init(|| {
            let n_vocab = Token::try_from(self.n_vocab()).expect("token ids have 31 bits");
            let spellings = (0..n_vocab).map(|token| self.piece(token).unwrap_or_default());
            Arc::new(Spellings::new(spellings, self.end_tokens()))
        }))
    }
}

impl Grammars {
    fn get_or_compile(
        &self,
        source: GrammarSource,
        text: &str,
        compile: impl FnOnce() -> Result<Grammar>,
    ) -> Result<SharedConstraint> {
        let mut cached = lock(&self.cached);
        if let Some(found) = cached.iter().position(|entry| entry.source == source && *entry.text == *text)
            && let Some(found) = cached.remove(found)
        {
            let grammar = Arc::clone(&found.grammar);
            cached.push_front(found);
            return Ok(SharedConstraint(grammar));
        }
        // Compiling is slow: it runs without the lock, so that other texts need not wait.
        drop(cached);
        let grammar = Arc::new(compile()?);
        let mut cached = lock(&self.cached);
        cached.push_front(CachedGrammar { source, text: text.into(), grammar: Arc::clone(&grammar) });
        cached.truncate(MAX_GRAMMARS);
        while cached.len() > 1 && cached.iter().map(CachedGrammar::n_bytes).sum::<usize>() > MAX_CACHED_BYTES {
            cached.pop_back();
        }
        Ok(SharedConstraint(grammar))
    }
}

fn refusal(param: &'static str, message: String) -> Error {
    Error::InvalidRequest { param, message }
}

impl TokenLookup for Model {
    fn find_token(&self, text: &str) -> Option<Token> {
        match self.tokenize(text.as_bytes(), false, true).as_deref() {
            Ok([token]) => Some(*token),
            _ => None,
        }
    }

    fn n_vocab(&self) -> usize {
        self.n_vocab()
    }
}

/// Returns the GBNF of the JSON that matches a schema, for any model. Its size is limited when it is compiled.
///
/// # Errors
/// [`Error::InvalidRequest`] with line and column.
pub fn schema_grammar(schema: &str) -> Result<String> {
    to_gbnf(schema).map_err(|error| refusal("json_schema", format!("the JSON schema is refused in {error}")))
}
