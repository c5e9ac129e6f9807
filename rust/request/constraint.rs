//! What holds the tokens of a completion to a grammar.

use std::fmt;
use std::sync::Arc;

use crate::request::Token;

/// Holds one branch to what it may say. Called on whichever thread samples, by one at a time.
pub trait Constraint: Send {
    /// Whether `token` may come next; an end token may where the text may end.
    fn allows(&mut self, token: Token) -> bool;

    /// Sets the logits of all tokens that may not come next to −∞.
    fn mask(&mut self, logits: &mut [f32]);

    /// Tells it which token came: one that it has just allowed.
    fn accept(&mut self, token: Token);

    /// Another one that is where this one is.
    fn copy(&self) -> Box<dyn Constraint>;

    /// Whether `token` may come next without the first `n_skipped` bytes of its spelling. Where nothing is left of it, it may.
    ///
    /// One that reads tokens and no text allows whole ones only.
    fn allows_rest(&mut self, token: Token, n_skipped: usize) -> bool {
        n_skipped == 0 && self.allows(token)
    }

    /// Tells it what came: something that [`Constraint::allows_rest`] has just allowed.
    fn accept_rest(&mut self, token: Token, _n_skipped: usize) {
        self.accept(token);
    }

    /// The token that comes next, whatever the model makes of it; [`Constraint::accept`] is told of it too.
    fn forced(&self) -> Option<Token> {
        None
    }

    /// Whether it holds to nothing yet, since it waits for a text that begins what it holds to.
    fn waits(&self) -> bool {
        false
    }

    /// Bytes that it takes, about; 0 where they are next to none.
    fn n_bytes(&self) -> usize {
        0
    }
}

/// What the branches of a request are held to.
pub trait ConstraintSource: fmt::Debug + Send + Sync {
    /// The constraint of one branch, which has said nothing.
    fn start(&self) -> Box<dyn Constraint>;

    /// As [`Constraint::n_bytes`].
    fn n_bytes(&self) -> usize {
        0
    }
}

/// A [`ConstraintSource`] that requests share. It is equal to itself alone.
#[derive(Debug, Clone)]
pub struct SharedConstraint(pub Arc<dyn ConstraintSource>);

impl PartialEq for SharedConstraint {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
