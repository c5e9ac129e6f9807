//! The last tokens of a text whose beginning many texts share.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::request::Token;

/// The last tokens of a text, as many as a penalty looks at.
///
/// What the text begins with is shared: a clone copies only what followed on it, so that a branch of a long prompt costs as little
/// as one of a short prompt.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    /// Tokens that count, the last ones; at least 1.
    n_most: usize,
    shared: Arc<[Token]>,
    /// `[0, n_gone)` of what is shared counts no longer.
    n_gone: usize,
    own: VecDeque<Token>,
}

impl Window {
    /// An empty one that will hold `n_most` tokens, at least 1.
    pub(crate) fn new(n_most: usize) -> Self {
        assert!(n_most > 0, "a window holds at least one token");
        Self { n_most, shared: Arc::default(), n_gone: 0, own: VecDeque::new() }
    }

    /// Begins with `text`, of which only the last tokens count.
    pub(crate) fn begin(&mut self, text: Arc<[Token]>) {
        assert!(self.is_empty(), "a text has one beginning");
        self.n_gone = text.len().saturating_sub(self.n_most);
        self.shared = text;
    }

    /// Adds a token; returns the one that counts no longer.
    pub(crate) fn push(&mut self, token: Token) -> Option<Token> {
        let is_full = self.len() == self.n_most;
        self.own.push_back(token);
        if !is_full {
            return None;
        }
        let Some(&oldest) = self.shared.get(self.n_gone) else { return self.own.pop_front() };
        self.n_gone += 1;
        if self.n_gone == self.shared.len() {
            (self.shared, self.n_gone) = (Arc::default(), 0);
        }
        Some(oldest)
    }

    pub(crate) fn len(&self) -> usize {
        self.shared.len() - self.n_gone + self.own.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token that `n` others follow; there must be one.
    pub(crate) fn nth_last(&self, n: usize) -> Token {
        match self.own.len().checked_sub(n + 1) {
            Some(at) => self.own[at],
            None => self.shared[self.shared.len() + self.own.len() - n - 1],
        }
    }

    /// The tokens in their order, in pieces.
    pub(crate) fn pieces(&self) -> [&[Token]; 3] {
        let (own, rest) = self.own.as_slices();
        [&self.shared[self.n_gone..], own, rest]
    }

    /// How many tokens a clone would copy.
    pub(crate) fn n_own(&self) -> usize {
        self.own.len()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A window that has room for all of `text`.
    pub(crate) fn holding(text: &[Token]) -> Window {
        let mut window = Window::new(text.len().max(1));
        window.begin(text.into());
        window
    }

    #[test]
    fn it_holds_the_last_tokens_wherever_they_lie() {
        let said: Vec<Token> = (0..40).collect();
        for n_prompt in [0, 1, 5, 7, 8, 30] {
            let mut window = Window::new(7);
            window.begin(said[..n_prompt].into());
            for n in n_prompt..said.len() {
                let expected = &said[n.saturating_sub(7)..n];
                assert_eq!((window.pieces().concat(), window.len()), (expected.to_vec(), expected.len()));
                let from_end = (0..window.len()).rev().map(|behind| window.nth_last(behind));
                assert_eq!(from_end.collect::<Vec<_>>(), expected);
                assert_eq!(window.push(said[n]), n.checked_sub(7).map(|oldest| said[oldest]));
            }
        }
    }

    #[test]
    fn a_clone_shares_the_beginning_until_it_has_left_the_window() {
        let text: Arc<[Token]> = (0..100).collect();
        let mut window = Window::new(10);
        window.begin(Arc::clone(&text));
        let branches = vec![window.clone(); 20];
        assert_eq!((Arc::strong_count(&text), branches.iter().map(Window::n_own).sum::<usize>()), (22, 0));
        for token in 0..10 {
            window.push(token);
        }
        assert_eq!(Arc::strong_count(&text), 21);
    }
}
