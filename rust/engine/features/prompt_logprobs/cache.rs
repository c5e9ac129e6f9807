//! Logprobs of prompts, so that a later prompt with the same beginning reports them without computing it, even if its cells
//! were evicted: they depend only on the tokens before and on the adapters.

use std::collections::HashMap;

use crate::engine::numbers::to_u32;
use crate::engine::runner::AdapterSchedule;
use crate::request::Token;

/// Maximum tokens of each of the two generations; each token takes about fifty bytes.
pub const MAX_CACHED_TOKENS: usize = 1 << 18;

/// Maximum prompt tokens reported together, so that a consumer that keeps up never exceeds the limits of its stream.
const MAX_RETURNED: usize = 1 << 15;

/// Maximum adapter schedules of each generation.
const MAX_SCHEDULES: usize = 64;

/// The logprob of a token, and the most likely token at its position with its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CachedLogprob {
    pub(crate) logprob: f32,
    pub(crate) best: (Token, f32),
}

/// When the young generation is full, it becomes the old one, and everything not used since it began is evicted.
#[derive(Debug, Default)]
pub(crate) struct PromptLogprobCache {
    young: TokenTree,
    old: TokenTree,
    generation: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LogprobPosition {
    generation: u64,
    node: u32,
    n_tokens: u32,
}

#[derive(Debug, Default)]
struct TokenTree {
    roots: Vec<(AdapterSchedule, u32)>,
    nodes: HashMap<(u32, Token), TokenNode>,
    n_nodes: u32,
}

#[derive(Debug)]
struct TokenNode {
    id: u32,
    score: Option<CachedLogprob>,
}

impl PromptLogprobCache {
    pub(crate) fn get(&self, adapter_schedule: &AdapterSchedule, tokens: &[Token], from: u32) -> Vec<CachedLogprob> {
        let [young, old] = [&self.young, &self.old].map(|tree| tree.get(adapter_schedule, tokens, from).collect::<Vec<_>>());
        if old.len() > young.len() { old } else { young }
    }

    pub(crate) fn n_cached(&self, adapter_schedule: &AdapterSchedule, tokens: &[Token], from: u32) -> u32 {
        let n = [&self.young, &self.old].map(|tree| tree.get(adapter_schedule, tokens, from).count());
        to_u32(n[0].max(n[1]))
    }

    /// `position` is the end of the previous addition, and is updated.
    pub(crate) fn insert(
        &mut self,
        adapter_schedule: &AdapterSchedule,
        tokens: &[Token],
        start: u32,
        scores: &[CachedLogprob],
        position: &mut Option<LogprobPosition>,
    ) {
        if scores.is_empty() || tokens.len() > MAX_CACHED_TOKENS {
            return;
        }
        if self.young.nodes.len() + tokens.len() > MAX_CACHED_TOKENS || self.young.roots.len() == MAX_SCHEDULES {
            self.old = std::mem::take(&mut self.young);
            self.generation += 1;
        }
        let known = position.filter(|position| (position.generation, position.n_tokens) == (self.generation, start));
        let mut node = if let Some(position) = known {
            position.node
        } else {
            let root = self.young.root_of(adapter_schedule);
            tokens[..start as usize].iter().fold(root, |node, &token| self.young.after(node, token).id)
        };
        let end = start + to_u32(scores.len());
        for (&token, &score) in tokens[start as usize..].iter().zip(scores) {
            let next = self.young.after(node, token);
            next.score = Some(score);
            node = next.id;
        }
        *position = Some(LogprobPosition { generation: self.generation, node, n_tokens: end });
    }
}

impl TokenTree {
    fn get<'a>(
        &'a self,
        adapter_schedule: &AdapterSchedule,
        tokens: &'a [Token],
        from: u32,
    ) -> impl Iterator<Item = CachedLogprob> + 'a {
        let mut node = self.roots.iter().find(|(of, _)| of == adapter_schedule).map(|&(_, root)| root);
        let nodes = tokens.iter().map_while(move |&token| {
            let next = self.nodes.get(&(node?, token))?;
            node = Some(next.id);
            Some(next)
        });
        nodes.skip(from as usize).map_while(|node| node.score).take(MAX_RETURNED)
    }

    fn root_of(&mut self, adapter_schedule: &AdapterSchedule) -> u32 {
        if let Some(&(_, root)) = self.roots.iter().find(|(of, _)| of == adapter_schedule) {
            return root;
        }
        self.roots.push((adapter_schedule.clone(), self.n_nodes));
        self.n_nodes += 1;
        self.n_nodes - 1
    }

    fn after(&mut self, node: u32, token: Token) -> &mut TokenNode {
        self.nodes.entry((node, token)).or_insert_with(|| {
            self.n_nodes += 1;
            TokenNode { id: self.n_nodes - 1, score: None }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::runner::AdapterSet;

    fn cached_logprob(seed: u32) -> CachedLogprob {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        CachedLogprob { logprob: -(seed as f32), best: (3, -0.5) }
    }

    fn insert(cache: &mut PromptLogprobCache, tokens: &[Token], start: u32) {
        let all: Vec<CachedLogprob> = (start..u32::try_from(tokens.len()).unwrap()).map(cached_logprob).collect();
        cache.insert(&AdapterSchedule::default(), tokens, start, &all, &mut None);
    }

    fn n_cached(cache: &PromptLogprobCache, tokens: &[Token], from: u32) -> u32 {
        let known = cache.get(&AdapterSchedule::default(), tokens, from);
        assert!((from..).zip(&known).all(|(position, known)| *known == cached_logprob(position)), "each in its place");
        let n = cache.n_cached(&AdapterSchedule::default(), tokens, from);
        assert_eq!(n as usize, known.len());
        n
    }

    #[test]
    fn a_text_is_cached_up_to_its_common_prefix_with_earlier_ones() {
        let mut cache = PromptLogprobCache::default();
        insert(&mut cache, &[5, 6, 7, 8], 1);
        assert_eq!(n_cached(&cache, &[5, 6, 7, 9, 8], 1), 2);
        assert_eq!(n_cached(&cache, &[5, 6, 7, 8, 9], 2), 2);
        assert_eq!(n_cached(&cache, &[6, 7, 8], 1), 0);
        assert_eq!(n_cached(&cache, &[5], 1), 0);
        let others = AdapterSchedule::from(AdapterSet::with_adapters([(0, 1.0)]));
        assert_eq!(cache.n_cached(&others, &[5, 6, 7, 8], 1), 0);
    }

    #[test]
    fn tokens_without_logprobs_are_not_cached() {
        let mut cache = PromptLogprobCache::default();
        insert(&mut cache, &[5, 6, 7, 8], 3);
        assert_eq!(n_cached(&cache, &[5, 6, 7, 8], 1), 0);
        assert_eq!(n_cached(&cache, &[5, 6, 7, 8], 3), 1);
        insert(&mut cache, &[5, 6, 7, 9], 1);
        assert_eq!(n_cached(&cache, &[5, 6, 7, 8], 1), 3, "the two join");
    }

    #[test]
    fn a_text_can_be_added_in_parts() {
        let mut cache = PromptLogprobCache::default();
        let tokens = [5, 6, 7, 8];
        let mut position = None;
        for start in 1..4 {
            cache.insert(&AdapterSchedule::default(), &tokens, start, &[cached_logprob(start)], &mut position);
        }
        assert_eq!(n_cached(&cache, &[5, 6, 7, 8], 1), 3);
    }

    #[test]
    fn unused_texts_are_evicted_when_the_cache_is_full() {
        let mut cache = PromptLogprobCache::default();
        let long = |first: Token| -> Vec<Token> { std::iter::once(first).chain(0..99_999).collect() };
        insert(&mut cache, &[1, 2, 3], 1);
        let mut position = None;
        for first in 10..13 {
            assert_eq!(n_cached(&cache, &[1, 2, 3], 1), 2, "it was used");
            insert(&mut cache, &long(first), 1);
            insert(&mut cache, &[1, 2, 3], 1);
            assert!(cache.young.nodes.len() <= MAX_CACHED_TOKENS && cache.old.nodes.len() <= MAX_CACHED_TOKENS);
        }
        assert_eq!(n_cached(&cache, &long(10), 1), 1 << 15, "so many at once");
        for first in 13..15 {
            insert(&mut cache, &long(first), 1);
        }
        assert_eq!(n_cached(&cache, &long(10), 1), 0);
        let too_long: Vec<Token> = (0..300_000).collect();
        cache.insert(&AdapterSchedule::default(), &too_long, 1, &[cached_logprob(1)], &mut position);
        assert_eq!(n_cached(&cache, &too_long, 1), 0);
    }
}
