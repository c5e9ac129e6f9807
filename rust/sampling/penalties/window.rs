//! The last tokens of a text.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::request::Token;

/// A window whose first part, the prompt, is shared: the cost of a branch does not grow with the prompt.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    max_len: usize,
    shared: Arc<[Token]>,
    /// `[0, n_expired)` of the shared tokens have left the window.
    n_expired: usize,
    added: VecDeque<Token>,
}

impl Window {
    pub(crate) fn new(max_len: usize) -> Self {
        assert!(max_len > 0, "a window holds at least one token");
        Self { max_len, shared: Arc::default(), n_expired: 0, added: VecDeque::new() }
    }

    pub(crate) fn begin(&mut self, text: Arc<[Token]>) {
        assert!(self.is_empty(), "the window must be empty");
        self.n_expired = text.len().saturating_sub(self.max_len);
        self.shared = text;
    }

    /// Returns the token that leaves the window.
    pub(crate) fn push(&mut self, token: Token) -> Option<Token> {
        let is_full = self.len() == self.max_len;
        self.added.push_back(token);
        if !is_full {
            return None;
        }
        let Some(&oldest) = self.shared.get(self.n_expired) else { return self.added.pop_front() };
        self.n_expired += 1;
        if self.n_expired == self.shared.len() {
            (self.shared, self.n_expired) = (Arc::default(), 0);
        }
        Some(oldest)
    }

    pub(crate) fn len(&self) -> usize {
        self.shared.len() - self.n_expired + self.added.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn nth_last(&self, n: usize) -> Token {
        match self.added.len().checked_sub(n + 1) {
            Some(index) => self.added[index],
            None => self.shared[self.shared.len() + self.added.len() - n - 1],
        }
    }

    pub(crate) fn slices(&self) -> [&[Token]; 3] {
        let (added, rest) = self.added.as_slices();
        [&self.shared[self.n_expired..], added, rest]
    }

    pub(crate) fn n_copied(&self) -> usize {
        self.added.len()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn holding(text: &[Token]) -> Window {
        let mut window = Window::new(text.len().max(1));
        window.begin(text.into());
        window
    }

    #[test]
    fn it_holds_the_last_tokens_wherever_they_are_stored() {
        let text: Vec<Token> = (0..40).collect();
        for n_prompt in [0, 1, 5, 7, 8, 30] {
            let mut window = Window::new(7);
            window.begin(text[..n_prompt].into());
            for n in n_prompt..text.len() {
                let expected = &text[n.saturating_sub(7)..n];
                assert_eq!((window.slices().concat(), window.len()), (expected.to_vec(), expected.len()));
                let from_end = (0..window.len()).rev().map(|behind| window.nth_last(behind));
                assert_eq!(from_end.collect::<Vec<_>>(), expected);
                assert_eq!(window.push(text[n]), n.checked_sub(7).map(|oldest| text[oldest]));
            }
        }
    }

    #[test]
    fn a_clone_shares_the_initial_text_until_it_has_left_the_window() {
        let text: Arc<[Token]> = (0..100).collect();
        let mut window = Window::new(10);
        window.begin(Arc::clone(&text));
        let branches = vec![window.clone(); 20];
        assert_eq!((Arc::strong_count(&text), branches.iter().map(Window::n_copied).sum::<usize>()), (22, 0));
        for token in 0..10 {
            window.push(token);
        }
        assert_eq!(Arc::strong_count(&text), 21);
    }
}
