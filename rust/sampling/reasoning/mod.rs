//! Reasoning: its markers, its token budget, and the constraint on the text outside of it.
//!
//! As llama.cpp's `common/reasoning-budget.cpp` and its grammars for chats with reasoning, except that markers are texts: one
//! that ends inside of a token is recognised too, and the rest of that token is the first constrained text.

mod markers;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::request::{Constraint, Reasoning, SharedConstraint, Spacing, Token};
use crate::sampling::TokenStrings;
use crate::sampling::row::position;
use markers::{MarkerMatch, Markers};

/// As many tokens as a character may lack bytes after the budget is used up.
const MAX_COMPLETING: u32 = 3;

/// Tokens of a row that would end the reasoning and are checked against the constraint; the others are masked.
const MAX_TRIED: usize = 256;

#[derive(Clone)]
pub(crate) struct ReasoningConstraint {
    reasoning: Arc<Reasoning>,
    token_strings: TokenStrings,
    source: Option<SharedConstraint>,
    starts: Markers,
    ends: Markers,
    phase: ReasoningPhase,
    /// After the text so far.
    constraint: Option<Box<dyn Constraint>>,
    /// The last checked token that ends the reasoning, with the constraint after it.
    checked_end: Option<(Token, Box<dyn Constraint>)>,
}

#[derive(Debug, Clone)]
enum ReasoningPhase {
    /// The text so far may be part of a start marker.
    Opening {
        text: Vec<u8>,
        /// True if the constraint allows the text so far too.
        is_allowed: bool,
    },
    Outside,
    OpenReasoning(OpenReasoning),
    /// Reasoning may not start again.
    Settled,
}

#[derive(Debug, Clone)]
struct OpenReasoning {
    ending: EndProgress,
    /// As many as may contain an end marker.
    recent_tokens: VecDeque<Token>,
    /// To detect an incomplete character.
    recent_bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndProgress {
    /// By an end marker, or after this many more tokens.
    In(Option<u32>),
    /// The budget is used up; at most this many tokens may complete a character.
    Completing(u32),
    /// The closing token at this index is forced next.
    Forcing(usize),
}

impl ReasoningConstraint {
    pub(crate) fn new(reasoning: Arc<Reasoning>, source: Option<SharedConstraint>, token_strings: TokenStrings) -> Self {
        let constraint = source.as_ref().map(|source| source.0.start());
        let (starts, ends) = (Markers::new(&reasoning.starts), Markers::new(&reasoning.ends));
        let mut thinking = Self {
            reasoning,
            token_strings,
            source,
            starts,
            ends,
            phase: ReasoningPhase::Outside,
            constraint,
            checked_end: None,
        };
        if thinking.reasoning.begins_inside {
            thinking.enter();
        } else if !thinking.is_unconstrained() {
            thinking.phase = ReasoningPhase::Opening { text: Vec::new(), is_allowed: true };
        }
        thinking
    }

    fn is_unconstrained(&self) -> bool {
        self.constraint.as_ref().is_none_or(|constraint| constraint.waits())
    }

    fn is_allowed_outside(&mut self, token: Token) -> bool {
        self.constraint.as_mut().is_none_or(|constraint| constraint.allows(token))
    }

    fn enter(&mut self) {
        self.ends.clear();
        let ending = match self.reasoning.budget {
            Some(0) => EndProgress::Forcing(0),
            budget => EndProgress::In(budget),
        };
        self.phase =
            ReasoningPhase::OpenReasoning(OpenReasoning { ending, recent_tokens: VecDeque::new(), recent_bytes: Vec::new() });
    }

    fn leave(&mut self) {
        self.starts.clear();
        self.phase = if self.is_unconstrained() { ReasoningPhase::Outside } else { ReasoningPhase::Settled };
    }

    fn is_end(&self, token: Token) -> bool {
        self.token_strings.is_end(token)
    }

    fn may_continue_marker(&self, text: &[u8], token: Token) -> bool {
        let spelling = self.token_strings.spelling(token);
        !spelling.is_empty() && !self.is_end(token) && self.starts.may_begin(&[text, spelling].concat())
    }

    /// Returns `constraint` after reasoning that `token` ends with `found`; `None` if that is not allowed.
    fn after(
        &self,
        constraint: &dyn Constraint,
        inside: &OpenReasoning,
        token: Token,
        found: MarkerMatch,
    ) -> Option<Box<dyn Constraint>> {
        let mut after = constraint.copy();
        if !constraint.waits() {
            return after.try_accept_rest(token, found.end).then_some(after);
        }
        // A constraint that waits for a trigger also reads the end markers.
        let n_recent: usize = inside.recent_tokens.iter().map(|&token| self.token_strings.spelling(token).len()).sum();
        let n_before = (n_recent + found.end).saturating_sub(found.n_bytes);
        let mut rest = skip_bytes(inside.recent_tokens.iter().chain([&token]), n_before, &self.token_strings);
        rest.all(|(token, n_skipped)| after.try_accept_rest(token, n_skipped)).then_some(after)
    }

    fn allows_inside(&mut self, token: Token) -> bool {
        let ReasoningPhase::OpenReasoning(inside) = &self.phase else { return true };
        if let EndProgress::Forcing(nth) = inside.ending {
            return self.reasoning.closing.get(nth) == Some(&token);
        }
        if self.is_end(token) {
            return self.is_allowed_outside(token);
        }
        let Some(found) = self.ends.find(self.token_strings.spelling(token)) else { return true };
        let Some(constraint) = &self.constraint else { return true };
        self.checked_end = self.after(&**constraint, inside, token, found).map(|after| (token, after));
        self.checked_end.is_some()
    }

    fn accept_inside(&mut self, token: Token) {
        let ReasoningPhase::OpenReasoning(inside) = &mut self.phase else { return };
        let spelling = self.token_strings.spelling(token);
        if let EndProgress::Forcing(nth) = &mut inside.ending {
            *nth += 1;
            if *nth < self.reasoning.closing.len() {
                return;
            }
            // A waiting constraint reads a forced end marker too, like a generated one.
            if self.is_unconstrained()
                && let Some(constraint) = &mut self.constraint
            {
                let Reasoning { closing, ends, .. } = &*self.reasoning;
                let n_bytes: usize = closing.iter().map(|&token| self.token_strings.spelling(token).len()).sum();
                let n_before = n_bytes.saturating_sub(ends[0].len());
                for (token, n_skipped) in skip_bytes(closing.iter(), n_before, &self.token_strings) {
                    constraint.try_accept_rest(token, n_skipped);
                }
            }
            return self.leave();
        }
        if let Some(found) = self.ends.find(spelling) {
            let rest = spelling[found.end..].to_vec();
            let checked = self.checked_end.take().filter(|(checked, _)| *checked == token).map(|(_, after)| after);
            if let (Some(constraint), ReasoningPhase::OpenReasoning(inside)) = (&self.constraint, &self.phase) {
                let after = checked.or_else(|| self.after(&**constraint, inside, token, found));
                self.constraint = Some(after.expect("callers accept only allowed tokens"));
            }
            self.leave();
            return self.accept_outside(&rest);
        }
        let ReasoningPhase::OpenReasoning(inside) = &mut self.phase else { return };
        inside.accept(token, spelling, &self.token_strings, self.ends.n_longest);
        self.ends.push(spelling);
    }

    fn accept_outside(&mut self, bytes: &[u8]) {
        if !matches!(self.phase, ReasoningPhase::Outside) {
            return;
        }
        let Some(found) = self.starts.find(bytes) else { return self.starts.push(bytes) };
        self.enter();
        let rest = &bytes[found.end..];
        if let ReasoningPhase::OpenReasoning(inside) = &mut self.phase {
            inside.recent_bytes.extend_from_slice(&rest[rest.len().saturating_sub(3)..]);
        }
        match self.ends.find(rest) {
            None => self.ends.push(rest),
            // Reasoning that starts and ends within one token.
            Some(_) => self.leave(),
        }
    }

    fn accept_opening(&mut self, token: Token) {
        let ReasoningPhase::Opening { mut text, is_allowed } = std::mem::replace(&mut self.phase, ReasoningPhase::Settled) else {
            return;
        };
        let is_allowed = is_allowed && self.is_allowed_outside(token);
        let may_continue_marker = self.may_continue_marker(&text, token);
        if is_allowed && let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        if !may_continue_marker {
            return;
        }
        text.extend_from_slice(self.token_strings.spelling(token));
        if self.starts.find(&text).is_none() {
            self.phase = ReasoningPhase::Opening { text, is_allowed };
            return;
        }
        self.constraint = self.source.as_ref().map(|source| source.0.start());
        self.phase = ReasoningPhase::Outside;
        self.accept_outside(&text);
    }
}

impl OpenReasoning {
    fn accept(&mut self, token: Token, spelling: &[u8], token_strings: &TokenStrings, n_longest: usize) {
        if !spelling.is_empty() {
            self.recent_tokens.push_back(token);
            // As many as may contain all but the last byte of an end marker.
            let mut n_bytes: usize = self.recent_tokens.iter().map(|&token| token_strings.spelling(token).len()).sum();
            while let Some(&first) = self.recent_tokens.front()
                && n_bytes - token_strings.spelling(first).len() >= n_longest
            {
                n_bytes -= token_strings.spelling(first).len();
                self.recent_tokens.pop_front();
            }
        }
        self.recent_bytes.extend_from_slice(spelling);
        self.recent_bytes.drain(..self.recent_bytes.len().saturating_sub(3));
        self.ending = match self.ending {
            EndProgress::In(Some(n)) if n > 1 => EndProgress::In(Some(n - 1)),
            EndProgress::In(Some(_)) if self.is_character_complete() => EndProgress::Forcing(0),
            EndProgress::In(Some(_)) => EndProgress::Completing(MAX_COMPLETING),
            EndProgress::Completing(n) if n == 1 || self.is_character_complete() => EndProgress::Forcing(0),
            EndProgress::Completing(n) => EndProgress::Completing(n - 1),
            ending => ending,
        };
    }

    fn is_character_complete(&self) -> bool {
        let is_incomplete = |n: usize| {
            let tail = &self.recent_bytes[self.recent_bytes.len() - n..];
            std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        };
        !(1..=self.recent_bytes.len()).any(is_incomplete)
    }
}

/// Skips the first `n_before` bytes of a text: the other tokens, each with the number of its skipped bytes.
fn skip_bytes<'a>(
    tokens: impl Iterator<Item = &'a Token>,
    mut n_before: usize,
    token_strings: &TokenStrings,
) -> impl Iterator<Item = (Token, usize)> {
    tokens.filter_map(move |&token| {
        let n_bytes = token_strings.spelling(token).len();
        let n_skipped = n_before.min(n_bytes);
        n_before -= n_skipped;
        (n_skipped < n_bytes).then_some((token, n_skipped))
    })
}

impl Constraint for ReasoningConstraint {
    fn allows(&mut self, token: Token) -> bool {
        match &self.phase {
            ReasoningPhase::OpenReasoning(_) => self.allows_inside(token),
            ReasoningPhase::Opening { text, is_allowed } => {
                let (may_continue_marker, is_allowed) = (self.may_continue_marker(text, token), *is_allowed);
                may_continue_marker || is_allowed && self.is_allowed_outside(token)
            }
            ReasoningPhase::Outside | ReasoningPhase::Settled => self.is_allowed_outside(token),
        }
    }

    fn mask(&mut self, logits: &mut [f32]) {
        if let Some(forced) = self.forced() {
            let others = (0..).zip(logits).filter(|&(token, _)| token != forced);
            return others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
        match &self.phase {
            ReasoningPhase::Outside | ReasoningPhase::Settled => {
                if let Some(constraint) = &mut self.constraint {
                    constraint.mask(logits);
                }
            }
            ReasoningPhase::Opening { text, is_allowed } => {
                let opening = (0..).zip(logits.iter()).filter(|&(token, _)| self.may_continue_marker(text, token));
                let opening: Vec<(usize, f32)> = opening.map(|(token, &logit)| (position(token), logit)).collect();
                match &mut self.constraint {
                    Some(constraint) if *is_allowed => constraint.mask(logits),
                    _ => logits.fill(f32::NEG_INFINITY),
                }
                for (index, logit) in opening {
                    logits[index] = logit;
                }
            }
            ReasoningPhase::OpenReasoning(_) => {
                let mut n_tried = 0;
                for (token, logit) in (0..).zip(logits) {
                    let ends = self.is_end(token) || self.ends.find(self.token_strings.spelling(token)).is_some();
                    n_tried += usize::from(ends);
                    if ends && (n_tried > MAX_TRIED || !self.allows_inside(token)) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    fn accept(&mut self, token: Token) {
        match &self.phase {
            ReasoningPhase::OpenReasoning(_) => self.accept_inside(token),
            ReasoningPhase::Opening { .. } => self.accept_opening(token),
            ReasoningPhase::Settled | ReasoningPhase::Outside => {
                if let Some(constraint) = &mut self.constraint {
                    constraint.accept(token);
                }
                if !self.is_unconstrained() {
                    self.phase = ReasoningPhase::Settled;
                }
                let bytes = self.token_strings.spelling(token).to_vec();
                self.accept_outside(&bytes);
            }
        }
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }

    fn n_bytes(&self) -> usize {
        let checked_end = self.checked_end.as_ref().map(|(_, constraint)| constraint);
        self.constraint.iter().chain(checked_end).map(|constraint| constraint.n_bytes()).sum()
    }

    fn forced(&self) -> Option<Token> {
        match &self.phase {
            ReasoningPhase::OpenReasoning(OpenReasoning { ending: EndProgress::Forcing(nth), .. }) => {
                self.reasoning.closing.get(*nth).copied()
            }
            _ => None,
        }
    }

    fn forced_text(&mut self, spacing: &Spacing, max_bytes: usize) -> Vec<u8> {
        match (&self.phase, &mut self.constraint) {
            (ReasoningPhase::Settled, Some(constraint)) => constraint.forced_text(spacing, max_bytes),
            _ => Vec::new(),
        }
    }

    fn n_allowed(&mut self, tokens: &[Token]) -> usize {
        if let Some(forced) = self.forced() {
            return usize::from(tokens.first() == Some(&forced));
        }
        match (&self.phase, &mut self.constraint) {
            (ReasoningPhase::Settled, Some(constraint)) => constraint.n_allowed(tokens),
            _ => tokens.len(),
        }
    }

    fn waits(&self) -> bool {
        !matches!(self.phase, ReasoningPhase::Settled) && self.is_unconstrained()
    }
}
