//! The parse state of one branch: checks and accepts tokens.

use std::sync::Arc;

use super::matcher::{Matcher, StateId};
use super::named_tokens::NamedTokens;
use super::spellings::{SpellingEntry, Spellings};
use super::utf8::PartialChar;
use crate::request::{Constraint, Spacing, Token};

#[derive(Debug, Clone)]
pub(super) struct GrammarBranch {
    pub(super) spellings: Arc<Spellings>,
    pub(super) matcher: Matcher,
    pub(super) state: StateId,
    pub(super) partial: PartialChar,
}

impl GrammarBranch {
    fn may_end(&self) -> bool {
        self.partial.is_none() && self.matcher.may_end(self.state)
    }

    fn step_bytes(&mut self, spelling: &[u8]) -> Option<(StateId, PartialChar)> {
        // Like llama.cpp, tokens that are spelt empty or begin with NUL are never text.
        if matches!(spelling, [] | [0, ..]) {
            return None;
        }
        let (mut state, mut partial) = (self.state, self.partial);
        for &byte in spelling {
            (state, partial) = self.matcher.step_byte(state, partial, byte)?;
        }
        self.matcher.may_complete(state, partial).then_some((state, partial))
    }

    /// Like in llama.cpp, a token without text is never accepted.
    fn accepts_by_id(&self, named: &NamedTokens, token: Token) -> bool {
        named.contains(token) && !matches!(self.spellings.spelling(token), [] | [0, ..])
    }

    /// Returns the state after `token` without its first `n_skipped` bytes; `None` if the grammar does not allow it.
    fn step_rest(&mut self, token: Token, n_skipped: usize) -> Option<(StateId, PartialChar)> {
        self.state = self.matcher.begin_token(self.state);
        let unchanged = (self.state, self.partial);
        let spellings = Arc::clone(&self.spellings);
        if n_skipped > 0 {
            let rest = spellings.spelling(token).get(n_skipped..).unwrap_or_default();
            return if rest.is_empty() { Some(unchanged) } else { self.step_bytes(rest) };
        }
        if spellings.is_end(token) {
            return self.may_end().then_some(unchanged);
        }
        let named = self.matcher.named_tokens(self.state);
        let by_text = self.step_bytes(spellings.spelling(token));
        if !self.accepts_by_id(&named, token) {
            return by_text;
        }
        let by_id = self.matcher.step_token(self.state, token);
        let (by_text, partial) = by_text.unwrap_or_default();
        Some((self.matcher.union(by_text, by_id), partial))
    }

    /// Returns what `look` finds from this state on, which stays; the default if the grammar is exhausted.
    fn look_ahead<T: Default>(&mut self, look: impl FnOnce(&mut Self) -> T) -> T {
        self.state = self.matcher.begin_token(self.state);
        if self.matcher.is_exhausted() {
            return T::default();
        }
        let (state, partial) = (self.state, self.partial);
        let found = look(self);
        (self.state, self.partial) = (self.matcher.end_look_ahead(state), partial);
        found
    }

    /// Advances past `bytes` if the grammar allows them. Returns true if it does.
    fn try_read(&mut self, bytes: &[u8]) -> bool {
        let after = self.step_bytes(bytes).filter(|(_, partial)| partial.is_none());
        (self.state, self.partial) = after.unwrap_or((self.state, self.partial));
        after.is_some()
    }

    fn warn_if_exhausted(&self) {
        if self.matcher.is_exhausted() {
            tracing::warn!("a completion ends early: its grammar is too ambiguous, with too many ways to parse the text");
        }
    }
}

impl Constraint for GrammarBranch {
    fn allows(&mut self, token: Token) -> bool {
        self.allows_rest(token, 0)
    }

    fn mask(&mut self, logits: &mut [f32]) {
        self.state = self.matcher.begin_token(self.state);
        let spellings = Arc::clone(&self.spellings);
        let named = self.matcher.named_tokens(self.state);
        let mut allowed = vec![false; logits.len()];
        let mut allow = |token: Token| {
            if let Some(allowed) = usize::try_from(token).ok().and_then(|token| allowed.get_mut(token)) {
                *allowed = true;
            }
        };
        // States after each byte of the spelling, up to the first byte that is refused.
        let mut path = vec![(self.state, self.partial)];
        for &SpellingEntry { token, n_common } in &spellings.order {
            if !named.is_empty() && self.accepts_by_id(&named, token) {
                allow(token);
            }
            let n_common = n_common as usize;
            if path.len() <= n_common {
                // This spelling shares the refused byte with the preceding one.
                continue;
            }
            path.truncate(n_common + 1);
            let spelling = spellings.spelling(token);
            for &byte in &spelling[n_common..] {
                let &(state, partial) = path.last().expect("the path starts with the current state");
                let Some(next) = self.matcher.step_byte(state, partial, byte) else { break };
                path.push(next);
            }
            let &(state, partial) = path.last().expect("the path starts with the current state");
            if path.len() > spelling.len() && self.matcher.may_complete(state, partial) {
                allow(token);
            }
        }
        if self.may_end() {
            spellings.end_tokens().iter().copied().for_each(&mut allow);
        }
        if self.matcher.is_exhausted() {
            allowed.fill(false);
        }
        self.warn_if_exhausted();
        for (logit, _) in logits.iter_mut().zip(&allowed).filter(|&(_, &is_allowed)| !is_allowed) {
            *logit = f32::NEG_INFINITY;
        }
    }

    fn accept(&mut self, token: Token) {
        self.accept_rest(token, 0);
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }

    fn allows_rest(&mut self, token: Token, n_skipped: usize) -> bool {
        self.step_rest(token, n_skipped).is_some()
    }

    fn accept_rest(&mut self, token: Token, n_skipped: usize) {
        (self.state, self.partial) = self.step_rest(token, n_skipped).unwrap_or_default();
        self.warn_if_exhausted();
    }

    fn forced_text(&mut self, spacing: &Spacing, max_bytes: usize) -> Vec<u8> {
        self.look_ahead(|branch| {
            let mut text = Vec::new();
            while text.len() < max_bytes && branch.partial.is_none() && branch.matcher.may_look_ahead() {
                let Some(forced) = branch.matcher.forced_char(branch.state) else { break };
                let Some(character) = char::from_u32(forced.code) else { break };
                let space = if forced.may_be_spaced { spacing.after(&text) } else { &[] };
                let mut utf8 = [0; 4];
                let character = character.encode_utf8(&mut utf8).as_bytes();
                let n_before = text.len();
                text.extend_from_slice(space);
                text.extend_from_slice(character);
                if !branch.try_read(&text[n_before..]) {
                    text.truncate(n_before);
                    break;
                }
            }
            text
        })
    }

    fn n_allowed(&mut self, tokens: &[Token]) -> usize {
        self.look_ahead(|branch| {
            let accepts = |&&token: &&Token| {
                let after = branch.matcher.may_look_ahead().then(|| branch.step_rest(token, 0)).flatten();
                (branch.state, branch.partial) = after.unwrap_or((branch.state, branch.partial));
                after.is_some()
            };
            tokens.iter().take_while(accepts).count()
        })
    }

    fn n_bytes(&self) -> usize {
        self.matcher.n_bytes()
    }
}
