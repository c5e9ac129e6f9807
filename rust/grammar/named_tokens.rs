//! Tokens that a grammar accepts by their ids.

use super::rules::Element;
use crate::request::Token;

#[derive(Debug)]
pub(super) struct NamedTokens {
    tokens: Vec<Token>,
    /// Excluded tokens, sorted: each one accepts every other token, so that two of them accept all tokens.
    excluded: Vec<Token>,
}

impl NamedTokens {
    pub(super) fn new(elements: impl Iterator<Item = Element>) -> Self {
        let (mut tokens, mut excluded) = (Vec::new(), Vec::new());
        for element in elements {
            match element {
                Element::Token(token) => tokens.push(token),
                Element::NotToken(token) => excluded.push(token),
                Element::End | Element::Rule(_) | Element::Class(_) => {}
            }
        }
        for list in [&mut tokens, &mut excluded] {
            list.sort_unstable();
            list.dedup();
        }
        Self { tokens, excluded }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.excluded.is_empty()
    }

    pub(super) fn contains(&self, token: Token) -> bool {
        self.excluded.iter().any(|&other| other != token) || self.tokens.binary_search(&token).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_may_accept_a_token_that_another_excludes() {
        let tokens = |elements: &[Element]| {
            let named = NamedTokens::new(elements.iter().copied());
            (0..4).filter(|&token| named.contains(token)).collect::<Vec<Token>>()
        };
        assert_eq!(tokens(&[Element::Token(2), Element::Class(0), Element::Token(0), Element::Token(2)]), [0, 2]);
        assert_eq!(tokens(&[Element::NotToken(1), Element::NotToken(1)]), [0, 2, 3]);
        assert_eq!(tokens(&[Element::NotToken(1), Element::Token(1)]), [0, 1, 2, 3]);
        assert_eq!(tokens(&[Element::NotToken(1), Element::NotToken(3)]), [0, 1, 2, 3]);
        assert!(NamedTokens::new([Element::Class(0)].into_iter()).is_empty());
    }
}
