//! Thoughts: where they begin and end, what ends one that is too long, and what a constraint holds to beside them.
//!
//! The rules are those of llama.cpp's `common/reasoning-budget.cpp`, and of its grammars of chats with thoughts. What is ours:
//!
//! - What begins and ends a thought are texts, not tokens: one that ends inside of a token is found too.
//! - A constraint that waits for nothing begins after the thought, and what the token with its end holds besides is its first text.

mod markers;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::request::{Constraint, Reasoning, SharedConstraint, Token};
use crate::sampling::TokenStrings;
use markers::{Found, Markers};

/// Most tokens that complete a character once a budget is used up: as many as it has bytes left.
const MAX_COMPLETING: u32 = 3;

/// Of a row of logits, at most so many tokens that end a thought are asked whether a constraint may go on after them.
const MAX_TRIED: usize = 256;

/// Holds one branch to the budget of its thoughts, and to a constraint outside of them.
pub(crate) struct Thinking {
    thought: Arc<Reasoning>,
    lexicon: TokenStrings,
    source: Option<SharedConstraint>,
    starts: Markers,
    ends: Markers,
    place: ReasoningPhase,
    /// What is held to outside of thoughts, after what was said there.
    constraint: Option<Box<dyn Constraint>>,
    /// What was asked about last, where it ends a thought: what is held to after it.
    ended: Option<(Token, Box<dyn Constraint>)>,
}

/// Where in its text a branch is.
#[derive(Debug, Clone)]
enum ReasoningPhase {
    /// At its beginning, where a thought or a constraint begins: what was said may be the beginning of a thought.
    Opening {
        said: Vec<u8>,
        /// Whether the constraint allows it too.
        is_allowed: bool,
    },
    /// Outside of a thought; another one may begin.
    Outside,
    /// Inside of one.
    Inside(Inside),
    /// Outside, for good.
    Settled,
}

#[derive(Debug, Clone)]
struct Inside {
    ending: Ending,
    /// The last tokens, as many as may hold a text that ends a thought; none of the last ones has no bytes.
    last: VecDeque<Token>,
    /// The last bytes, to know whether a character is whole.
    bytes: Vec<u8>,
}

/// How a thought comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// By itself, or after so many tokens more.
    In(Option<u32>),
    /// The budget is used up, and a character is to be completed by at most so many tokens.
    Completing(u32),
    /// This one of the closing tokens comes next.
    Forcing(usize),
}

impl Thinking {
    /// Of a branch that has said nothing, held to `source` beside its thoughts.
    pub(crate) fn new(thought: Arc<Reasoning>, source: Option<SharedConstraint>, lexicon: TokenStrings) -> Self {
        let constraint = source.as_ref().map(|source| source.0.start());
        let (starts, ends) = (Markers::new(&thought.starts), Markers::new(&thought.ends));
        let mut thinking =
            Self { thought, lexicon, source, starts, ends, place: ReasoningPhase::Outside, constraint, ended: None };
        if thinking.thought.begins_inside {
            thinking.enter();
        } else if !thinking.is_free() {
            thinking.place = ReasoningPhase::Opening { said: Vec::new(), is_allowed: true };
        }
        thinking
    }

    /// Whether nothing is held to outside of thoughts so far, so that another one may begin.
    fn is_free(&self) -> bool {
        self.constraint.as_ref().is_none_or(|constraint| constraint.waits())
    }

    /// A thought begins.
    fn enter(&mut self) {
        self.ends.clear();
        let ending = match self.thought.budget {
            Some(0) => Ending::Forcing(0),
            budget => Ending::In(budget),
        };
        self.place = ReasoningPhase::Inside(Inside { ending, last: VecDeque::new(), bytes: Vec::new() });
    }

    /// A thought has ended.
    fn leave(&mut self) {
        self.starts.clear();
        self.place = if self.is_free() { ReasoningPhase::Outside } else { ReasoningPhase::Settled };
    }

    fn is_end(&self, token: Token) -> bool {
        self.lexicon.is_end(token)
    }

    /// Whether the branch may begin with a thought, of which `token` is the next part.
    fn may_open(&self, said: &[u8], token: Token) -> bool {
        let spelling = self.lexicon.spelling(token);
        !spelling.is_empty() && !self.is_end(token) && self.starts.may_begin(&[said, spelling].concat())
    }

    /// `constraint` after the thought that `token` ends with what was found in it; `None` where that may not follow.
    fn after(&self, constraint: &dyn Constraint, inside: &Inside, token: Token, found: Found) -> Option<Box<dyn Constraint>> {
        let mut after = constraint.copy();
        let mut read = |token: Token, n_skipped: usize| {
            let is_allowed = after.allows_rest(token, n_skipped);
            if is_allowed {
                after.accept_rest(token, n_skipped);
            }
            is_allowed
        };
        if !constraint.waits() {
            return read(token, found.end).then_some(after);
        }
        // What waits looks at the texts that end thoughts too.
        let Some(mut n_before) = found.n_bytes.checked_sub(found.end) else {
            return read(token, found.end - found.n_bytes).then_some(after);
        };
        let mut first = inside.last.len();
        while n_before > 0 && first > 0 {
            first -= 1;
            n_before = match n_before.checked_sub(self.lexicon.spelling(inside.last[first]).len()) {
                Some(left) => left,
                None => break,
            };
        }
        let mut n_skipped = match inside.last.get(first) {
            Some(&token) if n_before > 0 => self.lexicon.spelling(token).len() - n_before,
            _ => 0,
        };
        for &token in inside.last.range(first..).chain([&token]) {
            if !read(token, std::mem::take(&mut n_skipped)) {
                return None;
            }
        }
        Some(after)
    }

    /// Whether `token` may follow inside of a thought.
    fn allows_inside(&mut self, token: Token) -> bool {
        let ReasoningPhase::Inside(inside) = &self.place else { return true };
        if let Ending::Forcing(nth) = inside.ending {
            return self.thought.closing.get(nth) == Some(&token);
        }
        if self.is_end(token) {
            return self.constraint.as_mut().is_none_or(|constraint| constraint.allows(token));
        }
        let Some(found) = self.ends.find(self.lexicon.spelling(token)) else { return true };
        let Some(constraint) = &self.constraint else { return true };
        self.ended = self.after(&**constraint, inside, token, found).map(|after| (token, after));
        self.ended.is_some()
    }

    /// `token` was said inside of a thought.
    fn accept_inside(&mut self, token: Token) {
        let ReasoningPhase::Inside(inside) = &mut self.place else { return };
        let spelling = self.lexicon.spelling(token);
        if let Ending::Forcing(nth) = &mut inside.ending {
            *nth += 1;
            if *nth < self.thought.closing.len() {
                return;
            }
            // What waits is told of the text that ends a thought, as if it had come by itself.
            if self.is_free()
                && let Some(constraint) = &mut self.constraint
            {
                read_all(&mut **constraint, closing_of(&self.thought, &self.lexicon));
            }
            return self.leave();
        }
        if let Some(found) = self.ends.find(spelling) {
            let rest = spelling[found.end..].to_vec();
            let known = self.ended.take().filter(|(known, _)| *known == token).map(|(_, after)| after);
            if let (Some(constraint), ReasoningPhase::Inside(inside)) = (&self.constraint, &self.place) {
                let after = known.or_else(|| self.after(&**constraint, inside, token, found));
                self.constraint = Some(after.expect("only what is allowed is accepted"));
            }
            self.leave();
            return self.begin_in(&rest);
        }
        let ReasoningPhase::Inside(inside) = &mut self.place else { return };
        inside.take(token, spelling, &self.lexicon, self.thought.ends.iter().map(String::len).max().unwrap_or(0));
        self.ends.push(spelling);
    }

    /// These bytes were said outside of a thought: one may begin in them.
    fn begin_in(&mut self, bytes: &[u8]) {
        if !matches!(self.place, ReasoningPhase::Outside) {
            return;
        }
        let Some(found) = self.starts.find(bytes) else { return self.starts.push(bytes) };
        self.enter();
        let rest = &bytes[found.end..];
        if let ReasoningPhase::Inside(inside) = &mut self.place {
            inside.bytes.extend_from_slice(&rest[rest.len().saturating_sub(3)..]);
        }
        match self.ends.find(rest) {
            None => self.ends.push(rest),
            // A whole thought in one token.
            Some(_) => self.leave(),
        }
    }

    /// `token` was said at the beginning, where a thought or the constraint begins.
    fn open(&mut self, token: Token) {
        let ReasoningPhase::Opening { mut said, is_allowed } = std::mem::replace(&mut self.place, ReasoningPhase::Settled) else {
            return;
        };
        let is_allowed = is_allowed && self.constraint.as_mut().is_some_and(|constraint| constraint.allows(token));
        let may_open = self.may_open(&said, token);
        if is_allowed && let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        if !may_open {
            return;
        }
        said.extend_from_slice(self.lexicon.spelling(token));
        if self.starts.find(&said).is_none() {
            self.place = ReasoningPhase::Opening { said, is_allowed };
            return;
        }
        self.constraint = self.source.as_ref().map(|source| source.0.start());
        self.place = ReasoningPhase::Outside;
        self.begin_in(&said);
    }
}

impl Inside {
    /// A token was said that does not end the thought.
    fn take(&mut self, token: Token, spelling: &[u8], lexicon: &TokenStrings, n_longest: usize) {
        if !spelling.is_empty() {
            self.last.push_back(token);
            // As many as may hold all but the last byte of a text that ends a thought.
            let mut n_bytes: usize = self.last.iter().map(|&token| lexicon.spelling(token).len()).sum();
            while let Some(&first) = self.last.front()
                && n_bytes - lexicon.spelling(first).len() >= n_longest
            {
                n_bytes -= lexicon.spelling(first).len();
                self.last.pop_front();
            }
        }
        self.bytes.extend_from_slice(spelling);
        self.bytes.drain(..self.bytes.len().saturating_sub(3));
        self.ending = match self.ending {
            Ending::In(Some(n)) if n > 1 => Ending::In(Some(n - 1)),
            Ending::In(Some(_)) if self.is_whole() => Ending::Forcing(0),
            Ending::In(Some(_)) => Ending::Completing(MAX_COMPLETING),
            Ending::Completing(n) if n == 1 || self.is_whole() => Ending::Forcing(0),
            Ending::Completing(n) => Ending::Completing(n - 1),
            ending => ending,
        };
    }

    /// Whether the last character is whole, or none.
    fn is_whole(&self) -> bool {
        let is_begun = |n: usize| {
            let tail = &self.bytes[self.bytes.len() - n..];
            std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        };
        !(1..=self.bytes.len()).any(is_begun)
    }
}

/// The closing tokens that hold the text that ends the thought, each with how many of its first bytes are before that.
fn closing_of<'a>(thought: &'a Reasoning, lexicon: &'a TokenStrings) -> impl Iterator<Item = (Token, usize)> + 'a {
    let mut n_before: usize = thought.closing.iter().map(|&token| lexicon.spelling(token).len()).sum();
    n_before = n_before.saturating_sub(thought.ends[0].len());
    thought.closing.iter().filter_map(move |&token| {
        let n_bytes = lexicon.spelling(token).len();
        let n_skipped = n_before.min(n_bytes);
        n_before -= n_skipped;
        (n_skipped < n_bytes).then_some((token, n_skipped))
    })
}

/// Tells a constraint what it allows of this.
fn read_all(constraint: &mut dyn Constraint, tokens: impl Iterator<Item = (Token, usize)>) {
    for (token, n_skipped) in tokens {
        if constraint.allows_rest(token, n_skipped) {
            constraint.accept_rest(token, n_skipped);
        }
    }
}

impl Constraint for Thinking {
    fn allows(&mut self, token: Token) -> bool {
        match &self.place {
            ReasoningPhase::Inside(_) => self.allows_inside(token),
            ReasoningPhase::Opening { said, is_allowed } => {
                let (may_open, is_allowed) = (self.may_open(said, token), *is_allowed);
                may_open || is_allowed && self.constraint.as_mut().is_some_and(|constraint| constraint.allows(token))
            }
            ReasoningPhase::Outside | ReasoningPhase::Settled => {
                self.constraint.as_mut().is_none_or(|constraint| constraint.allows(token))
            }
        }
    }

    fn mask(&mut self, logits: &mut [f32]) {
        if let Some(forced) = self.forced() {
            let others = (0..).zip(logits).filter(|&(token, _)| token != forced);
            return others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
        match &self.place {
            ReasoningPhase::Outside | ReasoningPhase::Settled => {
                if let Some(constraint) = &mut self.constraint {
                    constraint.mask(logits);
                }
            }
            ReasoningPhase::Opening { said, is_allowed } => {
                let opening = (0..).zip(logits.iter()).filter(|&(token, _)| self.may_open(said, token));
                let opening: Vec<(usize, f32)> = opening.map(|(token, &logit)| (index(token), logit)).collect();
                match &mut self.constraint {
                    Some(constraint) if *is_allowed => constraint.mask(logits),
                    _ => logits.fill(f32::NEG_INFINITY),
                }
                for (at, logit) in opening {
                    logits[at] = logit;
                }
            }
            ReasoningPhase::Inside(_) => {
                let mut n_tried = 0;
                for (token, logit) in (0..).zip(logits) {
                    let ends = self.is_end(token) || self.ends.find(self.lexicon.spelling(token)).is_some();
                    n_tried += usize::from(ends);
                    if ends && (n_tried > MAX_TRIED || !self.allows_inside(token)) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    fn accept(&mut self, token: Token) {
        match &self.place {
            ReasoningPhase::Inside(_) => self.accept_inside(token),
            ReasoningPhase::Opening { .. } => self.open(token),
            ReasoningPhase::Settled | ReasoningPhase::Outside => {
                if let Some(constraint) = &mut self.constraint {
                    constraint.accept(token);
                }
                if !self.is_free() {
                    self.place = ReasoningPhase::Settled;
                }
                let bytes = self.lexicon.spelling(token).to_vec();
                self.begin_in(&bytes);
            }
        }
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(Self {
            thought: Arc::clone(&self.thought),
            lexicon: self.lexicon.clone(),
            source: self.source.clone(),
            starts: self.starts.clone(),
            ends: self.ends.clone(),
            place: self.place.clone(),
            constraint: self.constraint.as_ref().map(|constraint| constraint.copy()),
            ended: None,
        })
    }

    fn n_bytes(&self) -> usize {
        let ended = self.ended.as_ref().map(|(_, constraint)| constraint);
        self.constraint.iter().chain(ended).map(|constraint| constraint.n_bytes()).sum()
    }

    fn forced(&self) -> Option<Token> {
        match &self.place {
            ReasoningPhase::Inside(Inside { ending: Ending::Forcing(nth), .. }) => self.thought.closing.get(*nth).copied(),
            _ => None,
        }
    }

    fn waits(&self) -> bool {
        !matches!(self.place, ReasoningPhase::Settled) && self.is_free()
    }
}

fn index(token: Token) -> usize {
    usize::try_from(token).expect("token ids begin at 0")
}
