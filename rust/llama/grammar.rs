//! Grammars of a model's vocabulary, each text read once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crate::error::{Error, Result};
use crate::grammar::{Grammar, LazyGrammar, ParseError, Spellings, TokenLookup, Triggers, to_gbnf};
use crate::llama::model::Model;
use crate::request::{SharedConstraint, Token, Trigger};

/// Most grammars that are kept for later requests.
pub const MAX_GRAMMARS: usize = 64;

/// Most bytes that they take together, about.
const MAX_KEPT_BYTES: usize = 64 << 20;

/// What a request calls a text that becomes a grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GrammarSource {
    Gbnf,
    JsonSchema,
}

/// The grammars that were used last, and what all of them need of the vocabulary.
#[derive(Default)]
pub(super) struct Grammars {
    spellings: OnceLock<Arc<Spellings>>,
    /// Used most recently first.
    kept: Mutex<VecDeque<CachedGrammar>>,
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

impl Grammars {
    pub(super) fn of_text(&self, model: &Model, text: &str) -> Result<SharedConstraint> {
        self.find_or(GrammarSource::Gbnf, text, || {
            let grammar = Grammar::new(text, model, self.spellings(model));
            grammar.map_err(|flaw| refusal("grammar", format!("the grammar is wrong in {flaw}")))
        })
    }

    pub(super) fn of_schema(&self, model: &Model, text: &str) -> Result<SharedConstraint> {
        self.find_or(GrammarSource::JsonSchema, text, || {
            Grammar::new(&schema_grammar(text)?, model, self.spellings(model)).map_err(|ParseError { message, .. }| {
                refusal("json_schema", format!("the JSON schema asks for what no grammar can hold a text to: {message}"))
            })
        })
    }

    pub(super) fn lazy(
        &self,
        model: &Model,
        constraint: SharedConstraint,
        triggers: &[Trigger],
        preserved: &[Token],
    ) -> Result<SharedConstraint> {
        let refuse = |message: String| refusal("grammar_triggers", message);
        Triggers::check_size(triggers).map_err(refuse)?;
        let as_token = |trigger: &Trigger| match trigger {
            Trigger::Word(word) => match model.spelt(word) {
                Some(token) if preserved.contains(&token) => Ok(Trigger::Token(token)),
                Some(_) => {
                    Err(refuse(format!("grammar_triggers has the word '{word}', a token; name it in preserved_tokens too")))
                }
                None => Ok(trigger.clone()),
            },
            Trigger::Token(token) if usize::try_from(*token).map_or(true, |id| id >= model.n_vocab()) => {
                Err(refuse(format!("grammar_triggers has the token {token}, which the vocabulary has not")))
            }
            other => Ok(other.clone()),
        };
        let triggers = triggers.iter().map(as_token).collect::<Result<Vec<_>>>()?;
        let triggers = Triggers::new(&triggers).map_err(refuse)?;
        Ok(SharedConstraint(Arc::new(LazyGrammar::new(constraint, triggers, self.spellings(model)))))
    }

    fn find_or(&self, source: GrammarSource, text: &str, read: impl FnOnce() -> Result<Grammar>) -> Result<SharedConstraint> {
        let mut kept = self.lock();
        if let Some(found) = kept.iter().position(|kept| kept.source == source && *kept.text == *text)
            && let Some(found) = kept.remove(found)
        {
            let grammar = Arc::clone(&found.grammar);
            kept.push_front(found);
            return Ok(SharedConstraint(grammar));
        }
        // Reading takes its time, and what reads another text need not wait for it.
        drop(kept);
        let grammar = Arc::new(read()?);
        let mut kept = self.lock();
        kept.push_front(CachedGrammar { source, text: text.into(), grammar: Arc::clone(&grammar) });
        kept.truncate(MAX_GRAMMARS);
        while kept.len() > 1 && kept.iter().map(CachedGrammar::n_bytes).sum::<usize>() > MAX_KEPT_BYTES {
            kept.pop_back();
        }
        Ok(SharedConstraint(grammar))
    }

    fn spellings(&self, model: &Model) -> Arc<Spellings> {
        Arc::clone(self.spellings.get_or_init(|| {
            let n_vocab = Token::try_from(model.n_vocab()).expect("token ids have 31 bits");
            let spellings = (0..n_vocab).map(|token| model.piece(token).unwrap_or_default());
            Arc::new(Spellings::new(spellings, model.end_tokens()))
        }))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<CachedGrammar>> {
        self.kept.lock().expect("nothing that holds the list can panic")
    }
}

fn refusal(param: &'static str, message: String) -> Error {
    Error::InvalidRequest { param, message }
}

impl TokenLookup for Model {
    fn spelt(&self, text: &str) -> Option<Token> {
        // What cannot be tokenized for its length is no single token.
        match self.tokenize(text.as_bytes(), false, true).as_deref() {
            Ok([token]) => Some(*token),
            _ => None,
        }
    }

    fn n_vocab(&self) -> usize {
        self.n_vocab()
    }
}

/// The grammar in GBNF of the JSON that fits a schema, whatever the model; its size is bounded where it is read.
///
/// # Errors
/// [`Error::InvalidRequest`] says what is wrong with the schema, or what of it no text can be held to, in which line and column.
pub fn schema_grammar(schema: &str) -> Result<String> {
    to_gbnf(schema).map_err(|flaw| refusal("json_schema", format!("the JSON schema is refused in {flaw}")))
}
