//! State that a forked branch continues from, besides the tokens.

use std::sync::Arc;

use crate::engine::runner::Runner;
use crate::engine::scheduler::sequence::text::Text;
use crate::engine::scheduler::sequence::{Sequence, start_constraint};
use crate::request::{Constraint, Request, Token};
use crate::sampling::TokenStrings;

#[derive(Clone)]
pub(crate) enum ForkState {
    Continue {
        constraint: Option<Box<dyn Constraint>>,
        text: Text,
    },
    /// The fork starts a new text, except for the first bytes of a character.
    Restart(Vec<u8>),
}

impl ForkState {
    pub(crate) fn new(request: &Request, stops: Arc<[String]>, token_strings: &TokenStrings) -> Self {
        Self::Continue { constraint: start_constraint(request, token_strings), text: Text::new(stops, request.n_indent) }
    }

    pub(crate) fn add_pending(&mut self, bytes: &[u8]) {
        match self {
            Self::Continue { text, .. } => text.pending.extend_from_slice(bytes),
            Self::Restart(start) => start.extend_from_slice(bytes),
        }
    }

    pub(crate) fn accept(&mut self, tokens: impl Iterator<Item = Token>, request: &Request, runner: &impl Runner) {
        let Self::Continue { constraint, text } = self else { return };
        for token in tokens {
            // The parent continued after any end of its text.
            drop(text.push_token(token, request, runner));
            if let Some(constraint) = constraint
                && constraint.allows(token)
            {
                constraint.accept(token);
            }
        }
    }

    /// Returns the first appended token that the constraint rejects; appended text is not published.
    pub(crate) fn append(&mut self, tokens: &[Token], request: &Request) -> Result<(), Token> {
        if tokens.is_empty() {
            return Ok(());
        }
        match self {
            Self::Restart(bytes) => bytes.clear(),
            Self::Continue { constraint, text } => {
                text.restart(request.n_indent);
                for &token in tokens {
                    let Some(constraint) = constraint else { break };
                    if !constraint.allows(token) {
                        return Err(token);
                    }
                    constraint.accept(token);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn pending_after(
        before: &[u8],
        stops: &Arc<[String]>,
        tokens: impl Iterator<Item = Token>,
        request: &Request,
        runner: &impl Runner,
    ) -> Vec<u8> {
        let mut state = Self::Continue { constraint: None, text: Text::new(Arc::clone(stops), 0) };
        state.add_pending(before);
        state.accept(tokens, request, runner);
        state.pending()
    }

    pub(crate) fn n_bytes(&self) -> usize {
        let constraint_bytes = match self {
            Self::Continue { constraint: Some(constraint), .. } => constraint.n_bytes(),
            Self::Continue { constraint: None, .. } | Self::Restart(_) => 0,
        };
        size_of::<Self>() + self.pending().len() + constraint_bytes
    }

    pub(crate) fn pending(&self) -> Vec<u8> {
        match self {
            Self::Continue { text, .. } => text.pending.clone(),
            Self::Restart(bytes) => bytes.clone(),
        }
    }
}

impl Sequence {
    pub(crate) fn fork_state(&self) -> ForkState {
        ForkState::Continue { constraint: self.constraint.clone(), text: self.text.clone() }
    }

    pub(crate) fn resume_from(&mut self, fork_state: &ForkState) {
        match fork_state.clone() {
            ForkState::Continue { constraint, text } => (self.constraint, self.text) = (constraint, text),
            ForkState::Restart(bytes) => self.text.pending.extend(bytes),
        }
    }
}
