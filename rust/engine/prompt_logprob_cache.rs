//! What prompts were told of their tokens, so that a later prompt that begins in the same way is told it again without computing it.
//! Pure: tokens in, log-probabilities out.
//!
//! It says the same whether or not the cells of those tokens are still cached: how likely a token is after others depends on them
//! and on the adapters alone.

use std::collections::HashMap;

use crate::engine::runner::AdapterSchedule;
use crate::request::Token;

/// Most tokens of each generation, of which there are two; each takes some fifty bytes.
pub const MAX_RECALLED: usize = 1 << 18;

/// Most tokens of a prompt that are known at once: a reader that keeps up with its stream is never too far behind by that.
const MAX_AT_ONCE: usize = 1 << 15;

/// Most sets of adapters of each.
const MAX_VARIANTS: usize = 64;

/// The log-probability of a token after those before it, and the most likely token there with its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ScoredToken {
    pub(crate) logprob: f32,
    pub(crate) best: (Token, f32),
}

/// What was told of prompts. Where there is too much, what was asked for the longest time ago goes: all that was not used since the
/// younger generation began.
#[derive(Debug, Default)]
pub(crate) struct PromptLogprobCache {
    young: TextTree,
    old: TextTree,
    generation: u64,
}

/// A place in a text, from which on it is told more of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogprobPosition {
    generation: u64,
    node: u32,
    n_tokens: u32,
}

/// Texts that share what they begin with.
#[derive(Debug, Default)]
struct TextTree {
    /// Where those begin that are computed in the same way.
    roots: Vec<(AdapterSchedule, u32)>,
    /// What follows each place, by the next token.
    nodes: HashMap<(u32, Token), Node>,
    n_nodes: u32,
}

/// The place after a token.
#[derive(Debug)]
struct Node {
    id: u32,
    told: Option<ScoredToken>,
}

impl PromptLogprobCache {
    /// What is known of the tokens from `from` on, one after the other.
    pub(crate) fn known(&self, variants: &AdapterSchedule, tokens: &[Token], from: u32) -> Vec<ScoredToken> {
        let [young, old] = [&self.young, &self.old].map(|texts| texts.known(variants, tokens, from).collect::<Vec<_>>());
        if old.len() > young.len() { old } else { young }
    }

    /// Of how many tokens from `from` on that is.
    pub(crate) fn n_known(&self, variants: &AdapterSchedule, tokens: &[Token], from: u32) -> u32 {
        let n = [&self.young, &self.old].map(|texts| texts.known(variants, tokens, from).count());
        u32::try_from(n[0].max(n[1])).expect("a prompt has fewer than 2³² tokens")
    }

    /// Keeps what was told of the tokens of a text from `start` on. `place` is where it went on last, and where it does next.
    pub(crate) fn learn(
        &mut self,
        variants: &AdapterSchedule,
        tokens: &[Token],
        start: u32,
        told: &[ScoredToken],
        place: &mut Option<LogprobPosition>,
    ) {
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
        *place = Some(LogprobPosition { generation: self.generation, node, n_tokens: end });
    }
}

impl TextTree {
    fn known<'a>(&'a self, variants: &AdapterSchedule, tokens: &'a [Token], from: u32) -> impl Iterator<Item = ScoredToken> + 'a {
        let mut node = self.roots.iter().find(|(of, _)| of == variants).map(|&(_, root)| root);
        let nodes = tokens.iter().map_while(move |&token| {
            let next = self.nodes.get(&(node?, token))?;
            node = Some(next.id);
            Some(next)
        });
        nodes.skip(from as usize).map_while(|node| node.told).take(MAX_AT_ONCE)
    }

    fn root_of(&mut self, variants: &AdapterSchedule) -> u32 {
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
    use crate::engine::runner::AdapterSet;

    fn told(seed: u32) -> ScoredToken {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        ScoredToken { logprob: -(seed as f32), best: (3, -0.5) }
    }

    fn learn(recall: &mut PromptLogprobCache, tokens: &[Token], start: u32) {
        let all: Vec<ScoredToken> = (start..u32::try_from(tokens.len()).unwrap()).map(told).collect();
        recall.learn(&AdapterSchedule::default(), tokens, start, &all, &mut None);
    }

    fn n_known(recall: &PromptLogprobCache, tokens: &[Token], from: u32) -> u32 {
        let known = recall.known(&AdapterSchedule::default(), tokens, from);
        assert!((from..).zip(&known).all(|(at, known)| *known == told(at)), "each in its place");
        let n = recall.n_known(&AdapterSchedule::default(), tokens, from);
        assert_eq!(n as usize, known.len());
        n
    }

    #[test]
    fn a_text_is_known_as_far_as_an_earlier_one_begins_with_it() {
        let mut recall = PromptLogprobCache::default();
        learn(&mut recall, &[5, 6, 7, 8], 1);
        assert_eq!(n_known(&recall, &[5, 6, 7, 9, 8], 1), 2);
        assert_eq!(n_known(&recall, &[5, 6, 7, 8, 9], 2), 2);
        assert_eq!(n_known(&recall, &[6, 7, 8], 1), 0);
        assert_eq!(n_known(&recall, &[5], 1), 0);
        let others = AdapterSchedule::from(AdapterSet::with_adapters([(0, 1.0)]));
        assert_eq!(recall.n_known(&others, &[5, 6, 7, 8], 1), 0);
    }

    #[test]
    fn what_was_not_told_is_not_known() {
        let mut recall = PromptLogprobCache::default();
        learn(&mut recall, &[5, 6, 7, 8], 3);
        assert_eq!(n_known(&recall, &[5, 6, 7, 8], 1), 0);
        assert_eq!(n_known(&recall, &[5, 6, 7, 8], 3), 1);
        learn(&mut recall, &[5, 6, 7, 9], 1);
        assert_eq!(n_known(&recall, &[5, 6, 7, 8], 1), 3, "the two join");
    }

    #[test]
    fn a_text_is_told_of_piece_by_piece() {
        let mut recall = PromptLogprobCache::default();
        let tokens = [5, 6, 7, 8];
        let mut place = None;
        for at in 1..4 {
            recall.learn(&AdapterSchedule::default(), &tokens, at, &[told(at)], &mut place);
        }
        assert_eq!(n_known(&recall, &[5, 6, 7, 8], 1), 3);
    }

    #[test]
    fn what_nobody_asks_for_goes_when_there_is_too_much() {
        let mut recall = PromptLogprobCache::default();
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
        recall.learn(&AdapterSchedule::default(), &too_long, 1, &[told(1)], &mut place);
        assert_eq!(n_known(&recall, &too_long, 1), 0);
    }
}
