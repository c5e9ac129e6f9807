//! Grammars that are followed from a trigger on.
//!
//! Which text begins one is llama.cpp's rule: after each token all that was said is searched, and with the first trigger that is
//! found in it, the grammar reads the text from where the trigger says. What is ours:
//!
//! - The text is not searched anew with each token: a search goes on where it was ([`search`]).
//! - What the grammar does not allow to begin with is not said: a token that would complete a trigger and does not fit, say since it
//!   holds a space too many behind it, is not drawn, where llama.cpp ends the completion with an error. So from the trigger on every
//!   text follows the grammar.
//! - At most [`MAX_REACH`] bytes before a token may be the grammar's. A token that would have it begin further back is not drawn.

mod search;
#[cfg(test)]
mod tests;
mod triggers;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

pub use triggers::{MAX_TRIGGER_BYTES, MAX_TRIGGERS, Triggers};

use super::spellings::Spellings;
use crate::request::{Constraint, ConstraintSource, SharedConstraint, Token};
use search::Search;

/// Most bytes that a grammar reads of what was said before the token that begins it.
pub const MAX_REACH: usize = 65_536;

/// Of a row of logits, at most so many are looked at one by one where the likeliest would begin the grammar and does not fit.
const MAX_TRIED: usize = 256;

/// Most places at which a grammar may begin that are remembered.
const MAX_BEGINNINGS: usize = 4;

/// A grammar that waits for its triggers.
pub struct LazyGrammar {
    source: SharedConstraint,
    triggers: Arc<Triggers>,
    spellings: Arc<Spellings>,
}

impl LazyGrammar {
    /// `source`, from the first of `triggers` on. `spellings` are those of its vocabulary.
    #[must_use]
    pub fn new(source: SharedConstraint, triggers: Triggers, spellings: Arc<Spellings>) -> Self {
        Self { source, triggers: Arc::new(triggers), spellings }
    }
}

impl ConstraintSource for LazyGrammar {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(LazyBranch::Waits(UntriggeredBranch {
            source: self.source.clone(),
            triggers: Arc::clone(&self.triggers),
            spellings: Arc::clone(&self.spellings),
            searches: self.triggers.searches(),
            n_said: 0,
            said: VecDeque::new(),
            looked: None,
            beginnings: Vec::new(),
        }))
    }

    fn n_bytes(&self) -> usize {
        self.source.0.n_bytes()
    }
}

impl fmt::Debug for LazyGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lazy").field("triggers", &self.triggers).finish_non_exhaustive()
    }
}

/// One branch, before its trigger and after it.
enum LazyBranch {
    Waits(UntriggeredBranch),
    Follows(Box<dyn Constraint>),
}

/// A branch that has met no trigger.
struct UntriggeredBranch {
    source: SharedConstraint,
    triggers: Arc<Triggers>,
    spellings: Arc<Spellings>,
    searches: Vec<Search>,
    /// Bytes that were said.
    n_said: usize,
    /// The tokens that said the last [`MAX_REACH`] of them.
    said: VecDeque<ReadToken>,
    /// What was asked about last.
    looked: Option<SearchedText>,
    /// The last places at which a token would have begun the grammar, if that had allowed it.
    beginnings: Vec<GrammarStart>,
}

/// A token, or its end.
#[derive(Debug, Clone, Copy)]
struct ReadToken {
    token: Token,
    n_skipped: usize,
    /// Its bytes are `[start, end)` of the text; at least one.
    start: usize,
    end: usize,
}

#[derive(Clone)]
struct SearchedText {
    token: Token,
    n_skipped: usize,
    effect: Effect,
}

/// What a token does.
#[derive(Clone)]
enum Effect {
    /// Nothing begins; the searches after it, unless all pass over it.
    Nothing(Option<Vec<Search>>),
    /// The grammar begins at this place of the text.
    Begins(usize),
}

struct GrammarStart {
    at: usize,
    /// After all that was said; `None` where the grammar does not allow it.
    constraint: Option<Box<dyn Constraint>>,
}

impl UntriggeredBranch {
    /// What `token` does, without its first bytes.
    fn look(&mut self, token: Token, n_skipped: usize) -> &Effect {
        if self.looked.as_ref().is_none_or(|looked| (looked.token, looked.n_skipped) != (token, n_skipped)) {
            let effect = self.effect(token, n_skipped);
            self.looked = Some(SearchedText { token, n_skipped, effect });
        }
        &self.looked.as_ref().expect("it was looked at").effect
    }

    fn effect(&self, token: Token, n_skipped: usize) -> Effect {
        if self.spellings.is_end(token) {
            return Effect::Nothing(Some(self.searches.clone()));
        }
        if n_skipped == 0 && self.triggers.tokens.contains(&token) {
            return Effect::Begins(self.n_said);
        }
        let bytes = bytes(&self.spellings, token, n_skipped);
        if self.searches.iter().all(|search| search.passes(bytes)) {
            return Effect::Nothing(None);
        }
        let mut searches = self.searches.clone();
        match searches.iter_mut().find_map(|search| search.feed(bytes)) {
            Some(at) => Effect::Begins(at),
            None => Effect::Nothing(Some(searches)),
        }
    }

    /// Whether the grammar may begin at `at` of the text and go on with the rest of this token.
    fn may_begin(&mut self, at: usize, token: Token, n_skipped: usize) -> bool {
        if let Some(n_before) = at.checked_sub(self.n_said) {
            return self.beginning(self.n_said).is_some_and(|begun| begun.allows_rest(token, n_skipped + n_before));
        }
        self.beginning(at).is_some_and(|begun| begun.allows_rest(token, n_skipped))
    }

    /// The grammar, begun at `at` and told all that was said from there on.
    fn beginning(&mut self, at: usize) -> Option<&mut (dyn Constraint + 'static)> {
        let known = self.beginnings.iter().position(|beginning| beginning.at == at).unwrap_or_else(|| {
            if self.beginnings.len() == MAX_BEGINNINGS {
                self.beginnings.remove(0);
            }
            self.beginnings.push(GrammarStart { at, constraint: self.begun(at) });
            self.beginnings.len() - 1
        });
        self.beginnings[known].constraint.as_deref_mut()
    }

    fn begun(&self, at: usize) -> Option<Box<dyn Constraint>> {
        if self.n_said - at > MAX_REACH {
            return None;
        }
        let mut constraint = self.source.0.start();
        let first = self.said.partition_point(|said| said.end <= at);
        for said in self.said.range(first..) {
            let n_skipped = said.n_skipped + at.saturating_sub(said.start);
            if !constraint.allows_rest(said.token, n_skipped) {
                return None;
            }
            constraint.accept_rest(said.token, n_skipped);
        }
        Some(constraint)
    }

    /// A token that begins nothing was said.
    fn push(&mut self, token: Token, n_skipped: usize, searches: Option<Vec<Search>>) {
        let spellings = Arc::clone(&self.spellings);
        let bytes = bytes(&spellings, token, n_skipped);
        for GrammarStart { constraint, .. } in &mut self.beginnings {
            let is_allowed = constraint.as_mut().is_some_and(|constraint| constraint.allows_rest(token, n_skipped));
            match constraint {
                Some(constraint) if is_allowed => constraint.accept_rest(token, n_skipped),
                _ => *constraint = None,
            }
        }
        // What is begun at the end of the text is begun anew with each token.
        self.beginnings.retain(|beginning| beginning.at < self.n_said);
        match searches {
            Some(searches) => self.searches = searches,
            None => self.searches.iter_mut().for_each(|search| search.pass(bytes)),
        }
        if bytes.is_empty() {
            return;
        }
        let start = self.n_said;
        self.n_said += bytes.len();
        self.said.push_back(ReadToken { token, n_skipped, start, end: self.n_said });
        while self.said.front().is_some_and(|first| self.n_said - first.end >= MAX_REACH) {
            self.said.pop_front();
        }
    }

    fn copy(&self) -> Self {
        let copied = |beginning: &GrammarStart| GrammarStart {
            at: beginning.at,
            constraint: beginning.constraint.as_ref().map(|constraint| constraint.copy()),
        };
        Self {
            source: self.source.clone(),
            triggers: Arc::clone(&self.triggers),
            spellings: Arc::clone(&self.spellings),
            searches: self.searches.clone(),
            n_said: self.n_said,
            said: self.said.clone(),
            looked: self.looked.clone(),
            beginnings: self.beginnings.iter().map(copied).collect(),
        }
    }
}

/// The bytes of a token without its first ones.
fn bytes(spellings: &Spellings, token: Token, n_skipped: usize) -> &[u8] {
    spellings.spelling(token).get(n_skipped..).unwrap_or_default()
}

impl Constraint for LazyBranch {
    fn allows(&mut self, token: Token) -> bool {
        self.allows_rest(token, 0)
    }

    fn mask(&mut self, logits: &mut [f32]) {
        let waiting = match self {
            Self::Waits(waiting) => waiting,
            Self::Follows(constraint) => return constraint.mask(logits),
        };
        let mut likely: Vec<usize> = (0..logits.len()).filter(|&at| logits[at] > f32::NEG_INFINITY).collect();
        let n_tried = likely.len().min(MAX_TRIED);
        if n_tried < likely.len() {
            likely.select_nth_unstable_by(n_tried, |&a, &b| logits[b].total_cmp(&logits[a]));
        }
        let (likely, others) = likely.split_at(n_tried);
        for &at in others {
            logits[at] = f32::NEG_INFINITY;
        }
        let mut n_new = 0;
        for &at in likely {
            let token = Token::try_from(at).expect("token ids have 31 bits");
            let is_allowed = match *waiting.look(token, 0) {
                Effect::Nothing(_) => true,
                Effect::Begins(place) => {
                    let begins_at = place.min(waiting.n_said);
                    let is_known = waiting.beginnings.iter().any(|beginning| beginning.at == begins_at);
                    n_new += usize::from(!is_known);
                    (is_known || n_new <= MAX_BEGINNINGS) && waiting.may_begin(place, token, 0)
                }
            };
            if !is_allowed {
                logits[at] = f32::NEG_INFINITY;
            }
        }
    }

    fn accept(&mut self, token: Token) {
        self.accept_rest(token, 0);
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(match self {
            Self::Waits(waiting) => Self::Waits(waiting.copy()),
            Self::Follows(constraint) => Self::Follows(constraint.copy()),
        })
    }

    fn allows_rest(&mut self, token: Token, n_skipped: usize) -> bool {
        match self {
            Self::Follows(constraint) => constraint.allows_rest(token, n_skipped),
            Self::Waits(waiting) => match *waiting.look(token, n_skipped) {
                Effect::Nothing(_) => true,
                Effect::Begins(at) => waiting.may_begin(at, token, n_skipped),
            },
        }
    }

    fn accept_rest(&mut self, token: Token, n_skipped: usize) {
        let waiting = match self {
            Self::Waits(waiting) => waiting,
            Self::Follows(constraint) => return constraint.accept_rest(token, n_skipped),
        };
        waiting.look(token, n_skipped);
        let at = match waiting.looked.take().expect("it was looked at").effect {
            Effect::Nothing(searches) => return waiting.push(token, n_skipped, searches),
            Effect::Begins(at) => at,
        };
        let n_before = at.saturating_sub(waiting.n_said);
        let at = at.min(waiting.n_said);
        waiting.beginning(at);
        let begun = waiting.beginnings.iter().position(|beginning| beginning.at == at).expect("it was begun");
        let begun = waiting.beginnings.swap_remove(begun).constraint;
        let mut constraint = begun.expect("only what is allowed is accepted");
        constraint.accept_rest(token, n_skipped + n_before);
        *self = Self::Follows(constraint);
    }

    fn waits(&self) -> bool {
        matches!(self, Self::Waits(_))
    }

    fn n_bytes(&self) -> usize {
        match self {
            Self::Follows(constraint) => constraint.n_bytes(),
            Self::Waits(waiting) => {
                let begun = waiting.beginnings.iter().filter_map(|beginning| beginning.constraint.as_ref());
                size_of::<ReadToken>() * waiting.said.len() + begun.map(|constraint| constraint.n_bytes()).sum::<usize>()
            }
        }
    }
}
