//! What prompts were told of their tokens, so that a later prompt that begins in the same way is told it again without computing it.
//! Pure: tokens in, log-probabilities out.
//!
//! It says the same whether or not the cells of those tokens are still cached: how likely a token is after others depends on them
//! and on the adapters alone.

use std::collections::HashMap;

use crate::engine::runner::Variants;
use crate::request::Token;

/// Most tokens of each generation, of which there are two; each takes some fifty bytes.
pub const MAX_RECALLED: usize = 1 << 18;

/// Most tokens of a prompt that are known at once: a reader that keeps up with its stream is never too far behind by that.
const MAX_AT_ONCE: usize = 1 << 15;

/// Most sets of adapters of each.
const MAX_VARIANTS: usize = 64;

/// The log-probability of a token after those before it, and the most likely token there with its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Told {
    pub(crate) logprob: f32,
    pub(crate) best: (Token, f32),
}

/// What was told of prompts. Where there is too much, what was asked for the longest time ago goes: all that was not used since the
/// younger generation began.
#[derive(Debug, Default)]
pub(crate) struct Recall {
    young: Texts,
    old: Texts,
    generation: u64,
}

/// A place in a text, from which on it is told more of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    generation: u64,
    node: u32,
    n_tokens: u32,
}

/// Texts that share what they begin with.
#[derive(Debug, Default)]
struct Texts {
    /// Where those begin that are computed in the same way.
    roots: Vec<(Variants, u32)>,
    /// What follows each place, by the next token.
    nodes: HashMap<(u32, Token), Node>,
    n_nodes: u32,
}

/// The place after a token.
#[derive(Debug)]
struct Node {
    id: u32,
    told: Option<Told>,
}

impl Recall {
    /// What is known of the tokens from `from` on, one after the other.
    pub(crate) fn known(&self, variants: &Variants, tokens: &[Token], from: u32) -> Vec<Told> {
        let [young, old] = [&self.young, &self.old].map(|texts| texts.known(variants, tokens, from).collect::<Vec<_>>());
        if old.len() > young.len() { old } else { young }
    }

    /// Of how many tokens from `from` on that is.
    pub(crate) fn n_known(&self, variants: &Variants, tokens: &[Token], from: u32) -> u32 {
        let n = [&self.young, &self.old].map(|texts| texts.known(variants, tokens, from).count());
        u32::try_from(n[0].max(n[1])).expect("a prompt has fewer than 2³² tokens")
    }

    /// Keeps what was told of the tokens of a text from `start` on. `place` is where it went on last, and where it does next.
    pub(crate) fn learn(&mut self, variants: &Variants, tokens: &[Token], start: u32, told: &[Told], place: &mut Option<Place>) {
        if told.is_empty() || tokens.len() > MAX_RECALLED {
            return;
        }
        if self.young.nodes.len() + tokens.len() > MAX_RECALLED || self.young.roots.len() == MAX_VARIANTS {
            self.old = std::mem::take(&mut self.young);
            self.generation += 1;
        }
        let known = place.filter(|place| (place.generation, place.n_tokens) == (self.generation, start));
        let mut node = if let Some(place) = known {
            place.node
        } else {
            let root = self.young.root_of(variants);
            tokens[..start as usize].iter().fold(root, |node, &token| self.young.after(node, token).id)
        };
        let end = start + u32::try_from(told.len()).expect("a prompt has fewer than 2³² tokens");
        for (&token, &told) in tokens[start as usize..].iter().zip(told) {
            let next = self.young.after(node, token);
            next.told = Some(told);
            node = next.id;
        }
        *place = Some(Place { generation: self.generation, node, n_tokens: end });
    }
}

impl Texts {
    fn known<'a>(&'a self, variants: &Variants, tokens: &'a [Token], from: u32) -> impl Iterator<Item = Told> + 'a {
        let mut node = self.roots.iter().find(|(of, _)| of == variants).map(|&(_, root)| root);
        let nodes = tokens.iter().map_while(move |&token| {
            let next = self.nodes.get(&(node?, token))?;
            node = Some(next.id);
            Some(next)
        });
        nodes.skip(from as usize).map_while(|node| node.told).take(MAX_AT_ONCE)
    }

    fn root_of(&mut self, variants: &Variants) -> u32 {
        if let Some(&(_, root)) = self.roots.iter().find(|(of, _)| of == variants) {
            return root;
        }
        self.roots.push((variants.clone(), self.n_nodes));
        self.n_nodes += 1;
        self.n_nodes - 1
    }

    fn after(&mut self, node: u32, token: Token) -> &mut Node {
        self.nodes.entry((node, token)).or_insert_with(|| {
            self.n_nodes += 1;
            Node { id: self.n_nodes - 1, told: None }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::runner::Variant;

    fn told(seed: u32) -> Told {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        Told { logprob: -(seed as f32), best: (3, -0.5) }
    }

    fn learn(recall: &mut Recall, tokens: &[Token], start: u32) {
        let all: Vec<Told> = (start..u32::try_from(tokens.len()).unwrap()).map(told).collect();
        recall.learn(&Variants::default(), tokens, start, &all, &mut None);
    }

    fn n_known(recall: &Recall, tokens: &[Token], from: u32) -> u32 {
        let known = recall.known(&Variants::default(), tokens, from);
        assert!((from..).zip(&known).all(|(at, known)| *known == told(at)), "each in its place");
        let n = recall.n_known(&Variants::default(), tokens, from);
        assert_eq!(n as usize, known.len());
        n
    }

    #[test]
    fn a_text_is_known_as_far_as_an_earlier_one_begins_with_it() {
        let mut recall = Recall::default();
        learn(&mut recall, &[5, 6, 7, 8], 1);
        assert_eq!(n_known(&recall, &[5, 6, 7, 9, 8], 1), 2);
        assert_eq!(n_known(&recall, &[5, 6, 7, 8, 9], 2), 2);
        assert_eq!(n_known(&recall, &[6, 7, 8], 1), 0);
        assert_eq!(n_known(&recall, &[5], 1), 0);
        let others = Variants::from(Variant::with_adapters([(0, 1.0)]));
        assert_eq!(recall.n_known(&others, &[5, 6, 7, 8], 1), 0);
    }

    #[test]
    fn what_was_not_told_is_not_known() {
        let mut recall = Recall::default();
        learn(&mut recall, &[5, 6, 7, 8], 3);
        assert_eq!(n_known(&recall, &[5, 6, 7, 8], 1), 0);
        assert_eq!(n_known(&recall, &[5, 6, 7, 8], 3), 1);
        learn(&mut recall, &[5, 6, 7, 9], 1);
        assert_eq!(n_known(&recall, &[5, 6, 7, 8], 1), 3, "the two join");
    }

    #[test]
    fn a_text_is_told_of_piece_by_piece() {
        let mut recall = Recall::default();
        let tokens = [5, 6, 7, 8];
        let mut place = None;
        for at in 1..4 {
            recall.learn(&Variants::default(), &tokens, at, &[told(at)], &mut place);
        }
        assert_eq!(n_known(&recall, &[5, 6, 7, 8], 1), 3);
    }

    #[test]
    fn what_nobody_asks_for_goes_when_there_is_too_much() {
        let mut recall = Recall::default();
        let long = |first: Token| -> Vec<Token> { std::iter::once(first).chain(0..99_999).collect() };
        learn(&mut recall, &[1, 2, 3], 1);
        let mut place = None;
        for first in 10..13 {
            assert_eq!(n_known(&recall, &[1, 2, 3], 1), 2, "it was used");
            learn(&mut recall, &long(first), 1);
            learn(&mut recall, &[1, 2, 3], 1);
            assert!(recall.young.nodes.len() <= MAX_RECALLED && recall.old.nodes.len() <= MAX_RECALLED);
        }
        assert_eq!(n_known(&recall, &long(10), 1), 1 << 15, "so many at once");
        for first in 13..15 {
            learn(&mut recall, &long(first), 1);
        }
        assert_eq!(n_known(&recall, &long(10), 1), 0);
        let too_long: Vec<Token> = (0..300_000).collect();
        recall.learn(&Variants::default(), &too_long, 1, &[told(1)], &mut place);
        assert_eq!(n_known(&recall, &too_long, 1), 0);
    }
}
