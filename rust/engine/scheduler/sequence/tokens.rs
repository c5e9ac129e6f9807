//! The tokens of one sequence.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::numbers::to_u32;
use crate::request::Token;

/// A prompt, which is shared with the request so that starting a branch copies no tokens, and the sampled tokens. A clone copies
/// nothing; the sampled tokens are copied on the next write.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens {
    shared: Arc<[Token]>,
    own: Arc<Vec<Token>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct TokensView<'a> {
    pub(crate) shared: &'a Arc<[Token]>,
    pub(crate) own: &'a [Token],
}

impl Tokens {
    pub(crate) fn new(prompt: Arc<[Token]>) -> Self {
        Self { shared: prompt, own: Arc::default() }
    }

    pub(crate) fn of_prompt(&self) -> Self {
        Self::new(Arc::clone(&self.shared))
    }

    /// Returns the prompt; nothing after [`Tokens::remove`].
    pub(crate) fn prompt(&self) -> &Arc<[Token]> {
        &self.shared
    }

    pub(crate) fn view(&self) -> TokensView<'_> {
        TokensView { shared: &self.shared, own: &self.own }
    }

    pub(crate) fn len(&self) -> u32 {
        self.view().len()
    }

    pub(crate) fn n_own(&self) -> usize {
        self.own.len()
    }

    pub(crate) fn at(&self, position: u32) -> Token {
        self.view().at(position)
    }

    pub(crate) fn push(&mut self, token: Token) {
        Arc::make_mut(&mut self.own).push(token);
    }

    pub(crate) fn slices(&self, range: Range<u32>) -> [&[Token]; 2] {
        self.view().slices(range)
    }

    pub(crate) fn of(&self, range: Range<u32>) -> impl Iterator<Item = Token> {
        let [shared, own] = self.slices(range);
        shared.iter().chain(own).copied()
    }

    /// Returns the first `n` tokens followed by `more`, copied once; the prompt itself is shared.
    pub(crate) fn first_with(&self, n: u32, more: &[Token]) -> Arc<[Token]> {
        let [shared, own] = self.slices(0..n);
        if more.is_empty() && shared.len() == self.shared.len() && own.is_empty() {
            return Arc::clone(&self.shared);
        }
        shared.iter().chain(own).chain(more).copied().collect()
    }

    pub(crate) fn first(&self, n: u32) -> Vec<Token> {
        self.slices(0..n).concat()
    }

    pub(crate) fn common_prefix(&self, other: &[Token]) -> u32 {
        self.view().common_prefix(other)
    }

    pub(crate) fn n_common(&self, other: &Self) -> u32 {
        let n = self.common_prefix(&other.shared);
        if (n as usize) < other.shared.len() {
            return n;
        }
        let n_more = self.of(n..self.len()).zip(&*other.own).take_while(|(a, b)| a == *b).count();
        n + to_u32(n_more)
    }

    /// Removes the tokens of `range`. Afterwards no tokens are shared.
    pub(crate) fn remove(&mut self, range: Range<u32>) {
        let mut tokens = self.first(self.len());
        tokens.drain(range.start as usize..range.end as usize);
        (self.shared, self.own) = (Arc::from([]), Arc::new(tokens));
    }
}

impl<'a> TokensView<'a> {
    pub(crate) fn len(&self) -> u32 {
        to_u32(self.shared.len() + self.own.len())
    }

    pub(crate) fn at(&self, position: u32) -> Token {
        let position = position as usize;
        self.shared.get(position).copied().unwrap_or_else(|| self.own[position - self.shared.len()])
    }

    /// Returns the tokens of `range` as two slices: of the prompt, and after it.
    pub(crate) fn slices(&self, range: Range<u32>) -> [&'a [Token]; 2] {
        let (start, end, n_shared) = (range.start as usize, range.end as usize, self.shared.len());
        let shared = &self.shared[start.min(n_shared)..end.min(n_shared)];
        let own = &self.own[start.max(n_shared) - n_shared..end.max(n_shared) - n_shared];
        [shared, own]
    }

    /// Returns the length of the common prefix with a prompt. O(1) if it is the same allocation, as for branches of one request.
    pub(crate) fn common_prefix(&self, other: &[Token]) -> u32 {
        if self.shared.as_ptr_range() == other.as_ptr_range() {
            return to_u32(other.len());
        }
        let n_common = |a: &[Token], b: &[Token]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let mut n = n_common(self.shared, other);
        if n == self.shared.len() {
            n += n_common(self.own, &other[n..]);
        }
        to_u32(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> Tokens {
        let mut tokens = Tokens::new([1, 2, 3].into());
        tokens.push(4);
        tokens.push(5);
        tokens
    }

    #[test]
    fn prompt_and_sampled_tokens_are_indexed_as_one_text() {
        let tokens = tokens();
        assert_eq!((0..5).map(|position| tokens.at(position)).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        for (start, end) in (0..=5).flat_map(|end| (0..=end).map(move |start| (start, end))) {
            let whole: Vec<Token> = (1..=5).collect();
            assert_eq!(tokens.slices(start..end).concat(), whole[start as usize..end as usize]);
        }
        assert_eq!((tokens.len(), tokens.first(4)), (5, vec![1, 2, 3, 4]));
    }

    #[test]
    fn a_common_prefix_may_extend_beyond_the_prompt() {
        for (other, n) in [(&[1, 2, 3, 4, 5, 6][..], 5), (&[1, 2, 3, 4, 9], 4), (&[1, 2], 2), (&[1, 9, 3], 1), (&[], 0)] {
            assert_eq!(tokens().common_prefix(other), n, "{other:?}");
        }
    }

    #[test]
    fn the_common_prefix_of_two_sequences_is_independent_of_their_prompts() {
        let tokens = tokens();
        let sibling = |own: &[Token]| {
            let mut sibling = tokens.of_prompt();
            for &token in own {
                sibling.push(token);
            }
            sibling
        };
        let prompt = |prompt: &[Token]| Tokens::new(prompt.into());
        let cases = [
            (sibling(&[4, 6]), 4),
            (sibling(&[]), 3),
            (sibling(&[4, 5, 6]), 5),
            (prompt(&[1, 2, 3, 4, 5, 6]), 5),
            (prompt(&[1, 2, 9]), 2),
            (prompt(&[]), 0),
        ];
        for (other, n) in cases {
            assert_eq!((tokens.n_common(&other), other.n_common(&tokens)), (n, n), "{other:?}");
        }
    }

    #[test]
    fn a_prefix_that_equals_the_prompt_shares_its_allocation() {
        let tokens = tokens();
        assert!(Arc::ptr_eq(&tokens.first_with(3, &[]), tokens.prompt()));
        for (n, more) in [(0, &[][..]), (2, &[]), (2, &[9]), (3, &[9]), (5, &[]), (4, &[8, 9])] {
            assert_eq!(tokens.first_with(n, more).to_vec(), [&tokens.first(n)[..], more].concat());
        }
    }

    #[test]
    fn a_clone_is_unaffected_by_later_tokens() {
        let mut tokens = tokens();
        let clone = tokens.clone();
        assert!(std::ptr::eq(tokens.slices(3..5)[1], clone.slices(3..5)[1]), "nothing is copied before");
        tokens.push(6);
        assert_eq!((tokens.first(6), clone.first(clone.len())), (vec![1, 2, 3, 4, 5, 6], vec![1, 2, 3, 4, 5]));
    }

    #[test]
    fn removed_tokens_stay_in_the_shared_prompt() {
        let prompt: Arc<[Token]> = [1, 2, 3].into();
        let mut tokens = Tokens::new(Arc::clone(&prompt));
        tokens.push(4);
        tokens.remove(1..3);
        assert_eq!((tokens.first(2), &prompt[..]), (vec![1, 4], &[1, 2, 3][..]));
    }
}
