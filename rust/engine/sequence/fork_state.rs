//! What a branch goes on from that was forked from another, beside the tokens.

use std::sync::Arc;

use crate::engine::runner::Runner;
use crate::engine::sequence::text::Text;
use crate::engine::sequence::{Sequence, append_text, constraint};
use crate::request::{Constraint, Request, Token};
use crate::sampling::TokenStrings;

/// What holds the tokens of a branch, and its text, before it writes on.
pub(crate) enum ForkState {
    /// It goes on as the branch did that it was forked from.
    Alike { constraint: Option<Box<dyn Constraint>>, text: Text },
    /// It begins anew, but for the first bytes of a character.
    Anew(Vec<u8>),
}

impl ForkState {
    /// Where a branch is that has said nothing; it was asked for by `request`, and ends at any of `stops`.
    pub(crate) fn new(request: &Request, stops: Arc<[String]>, lexicon: &TokenStrings) -> Self {
        Self::Alike { constraint: constraint(request, lexicon), text: Text::new(stops, request.n_indent) }
    }

    /// Starts the text with `bytes`, the beginning of a character that the parent branch has drawn.
    pub(crate) fn hold(&mut self, bytes: &[u8]) {
        match self {
            Self::Alike { text, .. } => text.hold(bytes),
            Self::Anew(held) => held.extend_from_slice(bytes),
        }
    }

    /// Another one that is where this one is.
    pub(crate) fn copy(&self) -> Self {
        match self {
            Self::Alike { constraint, text } => {
                Self::Alike { constraint: constraint.as_deref().map(Constraint::copy), text: text.clone() }
            }
            Self::Anew(bytes) => Self::Anew(bytes.clone()),
        }
    }

    /// After `tokens` that a branch of `request` drew next.
    pub(crate) fn say(&mut self, tokens: impl Iterator<Item = Token>, request: &Request, runner: &impl Runner) {
        let Self::Alike { constraint, text } = self else { return };
        for token in tokens {
            // Its text went on after whatever it was that would have ended it.
            drop(text.push(|bytes| append_text(token, request, runner, bytes)));
            if let Some(constraint) = constraint
                && constraint.allows(token)
            {
                constraint.accept(token);
            }
        }
    }

    /// After `tokens` that somebody else has put there, which are no part of its text.
    ///
    /// # Errors
    /// The first token that it may not say.
    pub(crate) fn append(&mut self, tokens: &[Token], request: &Request) -> Result<(), Token> {
        if tokens.is_empty() {
            return Ok(());
        }
        match self {
            Self::Anew(bytes) => bytes.clear(),
            Self::Alike { constraint, text } => {
                text.begin_again(request.n_indent);
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

    /// What is held back, as it may be the start of one of `stops`, or of a character, after `tokens` of a branch of `request`, where
    /// `before` was held back before them.
    pub(crate) fn held_after(
        before: &[u8],
        stops: &Arc<[String]>,
        tokens: impl Iterator<Item = Token>,
        request: &Request,
        runner: &impl Runner,
    ) -> Vec<u8> {
        let mut text = Text::new(Arc::clone(stops), 0);
        text.hold(before);
        for token in tokens {
            drop(text.push(|bytes| append_text(token, request, runner, bytes)));
        }
        text.held().to_vec()
    }

    /// Bytes that it takes, about.
    pub(crate) fn n_bytes(&self) -> usize {
        let held = match self {
            Self::Alike { constraint, text } => text.held().len() + constraint.as_ref().map_or(0, |held| held.n_bytes()),
            Self::Anew(bytes) => bytes.len(),
        };
        size_of::<Self>() + held
    }

    /// Bytes of its text that nobody was shown.
    pub(crate) fn held(&self) -> Vec<u8> {
        match self {
            Self::Alike { text, .. } => text.held().to_vec(),
            Self::Anew(bytes) => bytes.clone(),
        }
    }
}

impl Sequence {
    /// Where it is.
    pub(crate) fn begun(&self) -> ForkState {
        ForkState::Alike { constraint: self.constraint.as_deref().map(Constraint::copy), text: self.text.clone() }
    }

    /// It was forked from a branch that was there.
    pub(crate) fn resume_from(&mut self, begun: &ForkState) {
        match begun.copy() {
            ForkState::Alike { constraint, text } => (self.constraint, self.text) = (constraint, text),
            ForkState::Anew(bytes) => self.text.hold(&bytes),
        }
    }
}
