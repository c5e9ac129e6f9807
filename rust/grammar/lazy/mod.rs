//! Grammars that apply from a trigger on.
//!
//! The trigger rule is llama.cpp's: after each token, the whole text is searched, and the first match of a trigger determines
//! where the grammar starts to parse the text. The differences are:
//!
//! - The text is not searched again for each token: the search is incremental ([`search`]).
//! - A token that completes a trigger but does not fit the grammar, for example because it includes one space too many, is not
//!   sampled; llama.cpp ends the completion with an error. From the trigger on, every text therefore follows the grammar.
//! - At most [`MAX_REACH`] bytes before a token may be parsed by the grammar. A token that would make it start earlier is not
//!   sampled.

mod search;
#[cfg(test)]
mod tests;
mod triggers;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

pub use triggers::{MAX_TRIGGER_BYTES, MAX_TRIGGERS, Triggers};

use super::spellings::Spellings;
use crate::request::{Constraint, ConstraintSource, SharedConstraint, Spacing, Token};
use search::Search;

/// Maximum bytes before the triggering token that a grammar parses.
pub const MAX_REACH: usize = 65_536;

/// Number of likeliest tokens that a mask checks one by one. It masks all others.
const MAX_CHECKED: usize = 256;

const MAX_STARTS: usize = 4;

/// A grammar that waits for its triggers.
#[derive(Clone)]
pub struct LazyGrammar {
    source: SharedConstraint,
    triggers: Arc<Triggers>,
    spellings: Arc<Spellings>,
}

impl LazyGrammar {
    /// `spellings` belong to the vocabulary of `source`.
    pub fn new(source: SharedConstraint, triggers: Triggers, spellings: Arc<Spellings>) -> Self {
        Self { source, triggers: Arc::new(triggers), spellings }
    }
}

impl ConstraintSource for LazyGrammar {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(LazyBranch::Untriggered(UntriggeredBranch {
            grammar: self.clone(),
            searches: self.triggers.searches(),
            n_read: 0,
            recent_tokens: VecDeque::new(),
            last_search: None,
            starts: Vec::new(),
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

#[derive(Clone)]
enum LazyBranch {
    Untriggered(UntriggeredBranch),
    Triggered(Box<dyn Constraint>),
}

#[derive(Clone)]
struct UntriggeredBranch {
    grammar: LazyGrammar,
    searches: Vec<Search>,
    n_read: usize,
    recent_tokens: VecDeque<ReadToken>,
    /// The token that was searched last, without how many of its first bytes, and its effect.
    last_search: Option<((Token, usize), Effect)>,
    /// The last positions of the text at which a token would have started the grammar.
    starts: Vec<GrammarStart>,
}

/// A token or the rest of one.
#[derive(Debug, Clone, Copy)]
struct ReadToken {
    token: Token,
    n_skipped: usize,
    /// Its bytes are `[start, end)` of the text; at least one.
    start: usize,
    end: usize,
}

#[derive(Clone)]
enum Effect {
    /// No trigger matches. Holds the searches after the token, or `None` if all skip it.
    NoMatch(Option<Vec<Search>>),
    /// The grammar starts at this position of the text.
    Starts(usize),
}

#[derive(Clone)]
struct GrammarStart {
    at: usize,
    /// See [`UntriggeredBranch::constraint_from`].
    constraint: Option<Box<dyn Constraint>>,
}

impl UntriggeredBranch {
    fn search_token(&mut self, token: Token, n_skipped: usize) -> &Effect {
        if self.last_search.as_ref().is_none_or(|(searched, _)| *searched != (token, n_skipped)) {
            self.last_search = Some(((token, n_skipped), self.effect(token, n_skipped)));
        }
        &self.last_search.as_ref().expect("the token was searched").1
    }

    fn effect(&self, token: Token, n_skipped: usize) -> Effect {
        if self.grammar.spellings.is_end(token) {
            return Effect::NoMatch(Some(self.searches.clone()));
        }
        if n_skipped == 0 && self.grammar.triggers.tokens.contains(&token) {
            return Effect::Starts(self.n_read);
        }
        let bytes = bytes(&self.grammar.spellings, token, n_skipped);
        if self.searches.iter().all(|search| search.can_skip(bytes)) {
            return Effect::NoMatch(None);
        }
        let mut searches = self.searches.clone();
        match searches.iter_mut().find_map(|search| search.feed(bytes)) {
            Some(at) => Effect::Starts(at),
            None => Effect::NoMatch(Some(searches)),
        }
    }

    fn can_start(&mut self, at: usize, token: Token, n_skipped: usize) -> bool {
        let n_before = at.saturating_sub(self.n_read);
        let constraint = self.constraint_from(at.min(self.n_read)).as_mut();
        constraint.is_some_and(|constraint| constraint.allows_rest(token, n_skipped + n_before))
    }

    /// Returns the constraint that starts at `at`, after the text so far; `None` if the grammar does not allow the text.
    fn constraint_from(&mut self, at: usize) -> &mut Option<Box<dyn Constraint>> {
        let index = self.starts.iter().position(|start| start.at == at).unwrap_or_else(|| {
            if self.starts.len() == MAX_STARTS {
                self.starts.remove(0);
            }
            self.starts.push(GrammarStart { at, constraint: self.replay_from(at) });
            self.starts.len() - 1
        });
        &mut self.starts[index].constraint
    }

    fn replay_from(&self, at: usize) -> Option<Box<dyn Constraint>> {
        if self.n_read - at > MAX_REACH {
            return None;
        }
        let mut constraint = self.grammar.source.0.start();
        let first = self.recent_tokens.partition_point(|read| read.end <= at);
        for read in self.recent_tokens.range(first..) {
            let n_skipped = read.n_skipped + at.saturating_sub(read.start);
            if !constraint.try_accept_rest(read.token, n_skipped) {
                return None;
            }
        }
        Some(constraint)
    }

    /// Adds a token that matches no trigger to the text.
    fn push(&mut self, token: Token, n_skipped: usize, searches: Option<Vec<Search>>) {
        let spellings = Arc::clone(&self.grammar.spellings);
        let bytes = bytes(&spellings, token, n_skipped);
        for GrammarStart { constraint, .. } in &mut self.starts {
            constraint.take_if(|constraint| !constraint.try_accept_rest(token, n_skipped));
        }
        // A constraint that starts at the end of the text is recreated for each token.
        self.starts.retain(|start| start.at < self.n_read);
        match searches {
            Some(searches) => self.searches = searches,
            None => self.searches.iter_mut().for_each(|search| search.skip(bytes)),
        }
        if bytes.is_empty() {
            return;
        }
        let start = self.n_read;
        self.n_read += bytes.len();
        self.recent_tokens.push_back(ReadToken { token, n_skipped, start, end: self.n_read });
        while self.recent_tokens.front().is_some_and(|first| self.n_read - first.end >= MAX_REACH) {
            self.recent_tokens.pop_front();
        }
    }
}

fn bytes(spellings: &Spellings, token: Token, n_skipped: usize) -> &[u8] {
    spellings.spelling(token).get(n_skipped..).unwrap_or_default()
}

impl Constraint for LazyBranch {
    fn allows(&mut self, token: Token) -> bool {
        self.allows_rest(token, 0)
    }

    fn mask(&mut self, logits: &mut [f32]) {
        let untriggered = match self {
            Self::Untriggered(untriggered) => untriggered,
            Self::Triggered(constraint) => return constraint.mask(logits),
        };
        let mut likely: Vec<usize> = (0..logits.len()).filter(|&at| logits[at] > f32::NEG_INFINITY).collect();
        if MAX_CHECKED < likely.len() {
            likely.select_nth_unstable_by(MAX_CHECKED, |&a, &b| logits[b].total_cmp(&logits[a]));
            likely.drain(MAX_CHECKED..).for_each(|at| logits[at] = f32::NEG_INFINITY);
        }
        let mut n_new = 0;
        for at in likely {
            let token = Token::try_from(at).expect("token ids have 31 bits");
            let is_allowed = match *untriggered.search_token(token, 0) {
                Effect::NoMatch(_) => true,
                Effect::Starts(position) => {
                    let first = position.min(untriggered.n_read);
                    let is_cached = untriggered.starts.iter().any(|start| start.at == first);
                    n_new += usize::from(!is_cached);
                    (is_cached || n_new <= MAX_STARTS) && untriggered.can_start(position, token, 0)
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
        Box::new(self.clone())
    }

    fn allows_rest(&mut self, token: Token, n_skipped: usize) -> bool {
        match self {
            Self::Triggered(constraint) => constraint.allows_rest(token, n_skipped),
            Self::Untriggered(untriggered) => match *untriggered.search_token(token, n_skipped) {
                Effect::NoMatch(_) => true,
                Effect::Starts(at) => untriggered.can_start(at, token, n_skipped),
            },
        }
    }

    fn accept_rest(&mut self, token: Token, n_skipped: usize) {
        let untriggered = match self {
            Self::Untriggered(untriggered) => untriggered,
            Self::Triggered(constraint) => return constraint.accept_rest(token, n_skipped),
        };
        untriggered.search_token(token, n_skipped);
        let at = match untriggered.last_search.take().expect("the token was searched").1 {
            Effect::NoMatch(searches) => return untriggered.push(token, n_skipped, searches),
            Effect::Starts(at) => at,
        };
        let n_before = at.saturating_sub(untriggered.n_read);
        let constraint = untriggered.constraint_from(at.min(untriggered.n_read)).take();
        let mut constraint = constraint.expect("only allowed tokens are accepted");
        constraint.accept_rest(token, n_skipped + n_before);
        *self = Self::Triggered(constraint);
    }

    fn waits(&self) -> bool {
        matches!(self, Self::Untriggered(_))
    }

    fn forced_text(&mut self, spacing: &Spacing, max_bytes: usize) -> Vec<u8> {
        match self {
            Self::Triggered(constraint) => constraint.forced_text(spacing, max_bytes),
            Self::Untriggered(_) => Vec::new(),
        }
    }

    fn n_allowed(&mut self, tokens: &[Token]) -> usize {
        match self {
            Self::Triggered(constraint) => constraint.n_allowed(tokens),
            Self::Untriggered(_) => tokens.len(),
        }
    }

    fn n_bytes(&self) -> usize {
        match self {
            Self::Triggered(constraint) => constraint.n_bytes(),
            Self::Untriggered(untriggered) => {
                let constraints = untriggered.starts.iter().filter_map(|start| start.constraint.as_ref());
                size_of::<ReadToken>() * untriggered.recent_tokens.len()
                    + constraints.map(|constraint| constraint.n_bytes()).sum::<usize>()
            }
        }
    }
}
