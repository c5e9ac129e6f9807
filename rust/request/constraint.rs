//! Constraints on the tokens of a branch, such as a grammar.

use std::fmt;
use std::sync::Arc;

use crate::request::{Spacing, Token};

/// Restricts the tokens of one branch. Called on any sampling thread, but never concurrently.
pub trait Constraint: Send {
    /// Returns true if `token` may come next. An end token may come where the constrained text may end.
    fn allows(&mut self, token: Token) -> bool;

    /// Sets the logits of all tokens that may not come next to −∞.
    fn mask(&mut self, logits: &mut [f32]);

    /// Advances past `token`, which [`Constraint::allows`] has just allowed.
    fn accept(&mut self, token: Token);

    fn copy(&self) -> Box<dyn Constraint>;

    /// Returns true if `token` may come next without its first `n_skipped` bytes; a constraint on ids allows whole tokens only.
    fn allows_rest(&mut self, token: Token, n_skipped: usize) -> bool {
        n_skipped == 0 && self.allows(token)
    }

    /// Advances past the rest of a token, which [`Constraint::allows_rest`] has just allowed.
    fn accept_rest(&mut self, token: Token, _n_skipped: usize) {
        self.accept(token);
    }

    /// Advances past the rest of a token if it is allowed. Returns true if it is.
    fn try_accept_rest(&mut self, token: Token, n_skipped: usize) -> bool {
        let is_allowed = self.allows_rest(token, n_skipped);
        if is_allowed {
            self.accept_rest(token, n_skipped);
        }
        is_allowed
    }

    /// Returns the only token that may come next, regardless of the logits. [`Constraint::accept`] is called for it too.
    fn forced(&self) -> Option<Token> {
        None
    }

    /// Returns the text that must come next, at most `max_bytes` and a character more; empty if there are several. The constraint
    /// does not advance. Where white space is optional, the text has that of `spacing`, which has read the text so far.
    fn forced_text(&mut self, _spacing: &Spacing, _max_bytes: usize) -> Vec<u8> {
        Vec::new()
    }

    /// Returns how many of `tokens` may come next, in order, without advancing; an upper bound where counting is expensive.
    fn n_allowed(&mut self, tokens: &[Token]) -> usize {
        tokens.len()
    }

    /// Returns true if the constraint is still waiting for its trigger and restricts nothing yet.
    fn waits(&self) -> bool {
        false
    }

    /// Returns its approximate size in bytes; 0 if negligible.
    fn n_bytes(&self) -> usize {
        0
    }
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.copy()
    }
}

pub trait ConstraintSource: fmt::Debug + Send + Sync {
    /// Returns a constraint in its initial state, for one branch.
    fn start(&self) -> Box<dyn Constraint>;

    fn n_bytes(&self) -> usize {
        0
    }
}

/// A [`ConstraintSource`] that requests share. Compared by identity.
#[derive(Debug, Clone)]
pub struct SharedConstraint(pub Arc<dyn ConstraintSource>);

impl PartialEq for SharedConstraint {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
