//! Tokens that a grammar names by their ids.

use super::rules::Element;
use crate::request::Token;

/// The tokens that a state asks for by their ids.
#[derive(Debug)]
pub(super) struct NamedTokens {
    /// These, in order.
    tokens: Vec<Token>,
    /// Also all but the first of these, all but the second, and so on: none is in it twice.
    all_but: Vec<Token>,
}

impl NamedTokens {
    /// Those that one of `elements` asks for.
    pub(super) fn new(elements: impl Iterator<Item = Element>) -> Self {
        let (mut tokens, mut all_but) = (Vec::new(), Vec::new());
        for element in elements {
            match element {
                Element::Token(token) => tokens.push(token),
                Element::NotToken(token) => all_but.push(token),
                Element::End | Element::Rule(_) | Element::Class(_) => {}
            }
        }
        for list in [&mut tokens, &mut all_but] {
            list.sort_unstable();
            list.dedup();
        }
        Self { tokens, all_but }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.all_but.is_empty()
    }

    pub(super) fn contains(&self, token: Token) -> bool {
        self.all_but.iter().any(|&other| other != token) || self.tokens.binary_search(&token).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_element_excludes_another_may_name() {
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
