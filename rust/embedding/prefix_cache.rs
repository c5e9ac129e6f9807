//! Computes common prefixes of texts once, within a batch and across batches, for causal models whose embedding is the output
//! of the last token. Pure: the model's memory is a parameter.
//!
//! The bookkeeping is the completions' [`KvCache`] without a host cache.

use crate::cache::{
    AdapterSchedule, AdapterSet, CacheOp, EvictionReason, KvCache, KvSeqId, MIN_SHARED, MemoryKind, PrefixMatch, PrefixQuery,
};
use crate::embedding::shared_prefixes::{CachedPrefix, branch_points, common_prefix_lengths};
use crate::embedding::{EmbedderShape, EncodedBatch, MAX_SEQUENCES};
use crate::request::Token;

pub const MAX_KEPT: usize = 32;

const MAX_COMPUTED_PREFIXES: usize = 32;

// llama.cpp builds its graphs for a multiple of the sequence ids.
const _: () = assert!((MAX_KEPT + MAX_COMPUTED_PREFIXES + MAX_SEQUENCES as usize).is_power_of_two());

pub trait ForkableMemory {
    /// Returns true if a sequence can continue after the first `n_tokens` of the `n_held` tokens of `from`.
    fn can_fork(&self, from: KvSeqId, n_held: u32, n_tokens: u32) -> bool;

    /// Makes `to`, which is empty, hold the first `n_tokens` tokens of `from`.
    fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32);

    /// Removes all but the first `n_kept` tokens of `id`. `n_kept` is 0 unless the memory can be cut anywhere.
    fn truncate(&mut self, id: KvSeqId, n_kept: u32);

    /// Computes at least one token for each sequence, after the tokens that it holds.
    fn compute(&mut self, rows: &[(KvSeqId, &[Token])]) -> Result<(), String>;

    /// The embedding of the tokens of `id`, whose last tokens were computed last.
    fn embedding(&self, id: KvSeqId) -> Vec<f32>;
}

#[derive(Debug)]
pub struct PrefixCache {
    cache: KvCache,
    shape: EmbedderShape,
    kind: MemoryKind,
}

impl PrefixCache {
    pub fn new(shape: EmbedderShape, kind: MemoryKind) -> Self {
        let number = |n: usize| u32::try_from(n).expect("a shape is made of 32-bit numbers");
        let cache = KvCache::new(number(Self::n_cells(&shape)), number(Self::n_ids(&shape)), kind, Some(0));
        Self { cache, shape, kind }
    }

    /// Number of sequence ids that are needed: one for each text of a batch and for each prefix.
    pub fn n_ids(shape: &EmbedderShape) -> usize {
        shape.n_sequences + MAX_COMPUTED_PREFIXES + MAX_KEPT
    }

    /// Number of cells that are needed: the tokens of a batch and, for the kept prefixes, of the longest text.
    pub fn n_cells(shape: &EmbedderShape) -> usize {
        shape.n_batch + shape.n_longest
    }

    pub fn clear(&mut self) {
        *self = Self::new(self.shape, self.kind);
    }

    pub fn take_id(&mut self, memory: &mut impl ForkableMemory, adapter_set: &AdapterSet) -> KvSeqId {
        let id = self.cache.place_private(&adapter_set.clone().into()).expect("fewer ids are kept than there are");
        self.flush(memory);
        id
    }

    pub fn release_id(&mut self, memory: &mut impl ForkableMemory, id: KvSeqId) {
        self.cache.discard(id);
        self.flush(memory);
    }

    /// Computes embeddings with these adapters. After an error, the caller must clear the memory and call [`PrefixCache::clear`].
    pub fn encode(
        &mut self,
        memory: &mut impl ForkableMemory,
        adapter_set: &AdapterSet,
        texts: &[Vec<Token>],
    ) -> Result<EncodedBatch, String> {
        let adapters = AdapterSchedule::from(adapter_set.clone());
        let common = common_prefix_lengths(texts);
        let cached_before = self.cached_prefixes(memory, &adapters, texts);
        let (mut cached_prefixes, mut n_computed, mut prefixes) = (cached_before.clone(), 0, Vec::new());
        loop {
            let mut points = branch_points(&common, &cached_prefixes);
            points.truncate(MAX_COMPUTED_PREFIXES - prefixes.len());
            if points.is_empty() {
                break;
            }
            let new_prefixes: Vec<&[Token]> = points.iter().map(|point| &texts[point.text][..point.n_tokens]).collect();
            let ids = self.place(memory, &adapters, &new_prefixes);
            n_computed += self.compute(memory, &ids, &new_prefixes)?;
            prefixes.extend(ids);
            cached_prefixes = self.cached_prefixes(memory, &adapters, texts);
        }
        let texts: Vec<&[Token]> = texts.iter().map(Vec::as_slice).collect();
        let ids = self.place(memory, &adapters, &texts);
        n_computed += self.compute(memory, &ids, &texts)?;
        let embeddings = ids.iter().map(|&id| memory.embedding(id)).collect();
        for (text, id) in ids.into_iter().enumerate() {
            // The first of the texts that continue one prefix keeps it. The rest of a text is kept only if no other text of the
            // batch shows how long the common prefix is.
            let shares_prefix = |other: usize| common[text][other] > 0 && common[text][other] >= cached_before[text].n_cached;
            if (0..text).any(shares_prefix) { self.cache.discard(id) } else { self.cache.unpin(id) }
        }
        for id in prefixes {
            self.cache.unpin(id);
        }
        self.evict_excess(memory);
        Ok(EncodedBatch { embeddings, n_computed })
    }

    fn cached_prefixes(
        &self,
        memory: &impl ForkableMemory,
        adapters: &AdapterSchedule,
        texts: &[Vec<Token>],
    ) -> Vec<CachedPrefix> {
        let prefixes = texts.iter().map(|text| &text[..text.len() - 1]);
        let cached_prefix = |prefix| CachedPrefix {
            n_cached: self.find(memory, adapters, prefix).n_tokens() as usize,
            n_computed: self.cache.n_computed_prefix(adapters, prefix) as usize,
        };
        prefixes.map(cached_prefix).collect()
    }

    fn find(&self, memory: &impl ForkableMemory, adapters: &AdapterSchedule, tokens: &[Token]) -> PrefixMatch {
        let query = PrefixQuery { adapters, tokens, at_least: MIN_SHARED, at_most: u32::MAX, takes_logits: false };
        self.cache.find(&query, |id, n_held, n_tokens| memory.can_fork(id, n_held, n_tokens)).unwrap_or_default()
    }

    /// Places a sequence for each of `texts` on its longest cached prefix without the last token.
    fn place(&mut self, memory: &mut impl ForkableMemory, adapters: &AdapterSchedule, texts: &[&[Token]]) -> Vec<KvSeqId> {
        let place = |tokens: &&[Token]| {
            let matched = self.find(memory, adapters, &tokens[..tokens.len() - 1]);
            let id = self.cache.place(adapters, Some(&matched)).expect("there is an id for each text and each prefix");
            self.flush(memory);
            id
        };
        texts.iter().map(place).collect()
    }

    fn compute(&mut self, memory: &mut impl ForkableMemory, ids: &[KvSeqId], texts: &[&[Token]]) -> Result<usize, String> {
        let rows = ids.iter().zip(texts).map(|(&id, &tokens)| (id, &tokens[self.cache.n_held(id) as usize..]));
        let rows: Vec<(KvSeqId, &[Token])> = rows.collect();
        self.cache.extend(rows.iter().copied());
        memory.compute(&rows)?;
        Ok(rows.iter().map(|(_, tokens)| tokens.len()).sum())
    }

    fn evict_excess(&mut self, memory: &mut impl ForkableMemory) {
        while self.cache.n_used() > self.shape.n_longest || self.cache.n_ids_used() > MAX_KEPT {
            let removal = self
                .cache
                .next_removal(u64::MAX, EvictionReason::MemoryPressure)
                .expect("all paths are idle between two batches");
            self.cache.remove_tail(&removal, None, EvictionReason::MemoryPressure);
        }
        self.flush(memory);
    }

    fn flush(&mut self, memory: &mut impl ForkableMemory) {
        for op in self.cache.take_ops() {
            match op {
                CacheOp::Fork { from, to, n_tokens } => memory.fork(from, to, n_tokens),
                CacheOp::Truncate(id, n_kept) | CacheOp::TruncateIfPossible(id, n_kept) => memory.truncate(id, n_kept),
                CacheOp::Drop(id) => memory.truncate(id, 0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::Pooling;

    const N_LONGEST: usize = 300;

    fn shape() -> EmbedderShape {
        EmbedderShape {
            pooling: Pooling::Last,
            takes_media: true,
            width: 2,
            n_vocab: 1000,
            n_longest: N_LONGEST,
            n_trained: N_LONGEST,
            n_batch: 512,
            n_sequences: 16,
        }
    }

    /// A memory that stores tokens. With a sliding window, each decode moves the windows of all sequences to their ends.
    struct Fake {
        kind: MemoryKind,
        sequences: BTreeMap<KvSeqId, Vec<Token>>,
        whole_from: BTreeMap<KvSeqId, u32>,
        n_computed: usize,
        is_failing: bool,
    }

    impl Fake {
        fn new(n_window: u32) -> Self {
            let kind = MemoryKind::for_embeddings(n_window);
            Self { kind, sequences: BTreeMap::new(), whole_from: BTreeMap::new(), n_computed: 0, is_failing: false }
        }
    }

    impl ForkableMemory for Fake {
        fn can_fork(&self, from: KvSeqId, n_held: u32, n_tokens: u32) -> bool {
            let whole_from = self.whole_from.get(&from).copied().unwrap_or(0);
            n_tokens <= n_held && self.kind.holds_window(whole_from, n_tokens)
        }

        fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32) {
            let n_held = u32::try_from(self.sequences[&from].len()).expect("it is short");
            assert!(self.can_fork(from, n_held, n_tokens), "{n_tokens} of {n_held} tokens");
            let tokens = self.sequences[&from][..n_tokens as usize].to_vec();
            assert!(self.sequences.insert(to, tokens).is_none(), "{to:?} was empty");
            self.whole_from.insert(to, self.whole_from.get(&from).copied().unwrap_or(0));
        }

        fn truncate(&mut self, id: KvSeqId, n_kept: u32) {
            assert!(n_kept == 0 || self.kind.n_window == 0, "a window cannot be cut");
            if n_kept == 0 {
                self.sequences.remove(&id);
                self.whole_from.remove(&id);
            } else if let Some(tokens) = self.sequences.get_mut(&id) {
                tokens.truncate(n_kept as usize);
            }
        }

        fn compute(&mut self, rows: &[(KvSeqId, &[Token])]) -> Result<(), String> {
            if self.is_failing {
                return Err("no memory".to_owned());
            }
            for (id, tokens) in rows {
                assert!(!tokens.is_empty(), "a row for each text");
                self.sequences.entry(*id).or_default().extend_from_slice(tokens);
                self.n_computed += tokens.len();
            }
            for (id, tokens) in self.sequences.iter().filter(|_| self.kind.n_window > 0) {
                let n_tokens = u32::try_from(tokens.len()).expect("it is short");
                self.whole_from.insert(*id, self.kind.window_from(n_tokens));
            }
            Ok(())
        }

        fn embedding(&self, id: KvSeqId) -> Vec<f32> {
            vector_of(&self.sequences[&id])
        }
    }

    /// The length, and a hash that is unique among the texts of a test.
    #[expect(clippy::cast_precision_loss, reason = "24 bits are enough to tell texts apart")]
    fn vector_of(text: &[Token]) -> Vec<f32> {
        let hash = text.iter().fold(7_u32, |hash, token| hash.wrapping_mul(31).wrapping_add(token.unsigned_abs()));
        vec![text.len() as f32, (hash >> 8) as f32]
    }

    /// Encodes the texts, checks their embeddings and the limits of the cache, and returns the number of computed tokens.
    fn encode(prefixes: &mut PrefixCache, memory: &mut Fake, adapter_set: &AdapterSet, texts: &[Vec<Token>]) -> usize {
        let before = memory.n_computed;
        let encoded = prefixes.encode(memory, adapter_set, texts).expect("nothing fails");
        let expected: Vec<Vec<f32>> = texts.iter().map(|text| vector_of(text)).collect();
        assert_eq!(encoded.embeddings, expected);
        assert_eq!(encoded.n_computed, memory.n_computed - before);
        prefixes.cache.check_integrity();
        assert!(prefixes.cache.is_idle());
        assert!(prefixes.cache.n_used() <= N_LONGEST && prefixes.cache.n_ids_used() <= MAX_KEPT);
        assert_eq!(memory.sequences.len(), prefixes.cache.n_ids_used(), "no other sequence holds tokens");
        encoded.n_computed
    }

    fn computed(prefixes: &mut PrefixCache, memory: &mut Fake, batches: &[&[Vec<Token>]]) -> Vec<usize> {
        batches.iter().map(|texts| encode(prefixes, memory, &AdapterSet::default(), texts)).collect()
    }

    fn empty_cache(memory: &Fake) -> PrefixCache {
        PrefixCache::new(shape(), memory.kind)
    }

    /// A text that starts with forty times the token `prefix`.
    fn text(prefix: Token, rest: &[Token]) -> Vec<Token> {
        [vec![prefix; 40], rest.to_vec()].concat()
    }

    #[test]
    fn alternating_prefixes_are_computed_once_each() {
        let mut memory = Fake::new(0);
        let mut prefixes = empty_cache(&memory);
        let batches: Vec<[Vec<Token>; 1]> = (0..24).map(|i| [text(100 + i % 4, &[i, i + 1])]).collect();
        let batches: Vec<&[Vec<Token>]> = batches.iter().map(<[_; 1]>::as_slice).collect();
        let expected: Vec<usize> = (0..24).map(|i| if i < 4 { 42 } else { 2 }).collect();
        assert_eq!(computed(&mut prefixes, &mut memory, &batches), expected);
    }

    #[test]
    fn a_common_prefix_is_computed_once_and_kept_without_its_continuations() {
        let mut memory = Fake::new(0);
        let mut prefixes = empty_cache(&memory);
        let query = |query: Token, document: Token| [text(1, &[]), vec![query; 30], vec![document; 5]].concat();
        let first = [query(2, 5), query(3, 5), query(2, 6), query(3, 6)];
        let second = [query(2, 7), query(3, 7), query(2, 8)];
        assert_eq!(computed(&mut prefixes, &mut memory, &[&first, &second]), [40 + 2 * 30 + 4 * 5, 3 * 5]);
        // Both queries are still held, each by the first text that continued it.
        assert_eq!(computed(&mut prefixes, &mut memory, &[&[query(3, 9)], &[query(2, 9)]]), [5, 5]);
    }

    #[test]
    fn the_least_recently_used_prefix_is_evicted_and_the_limits_hold() {
        let mut memory = Fake::new(0);
        let mut prefixes = empty_cache(&memory);
        // Seven texts of 42 tokens fit.
        let batches: Vec<[Vec<Token>; 1]> = (0..8).map(|i| [text(100 + i, &[1, 2])]).collect();
        let batches: Vec<&[Vec<Token>]> = batches.iter().map(<[_; 1]>::as_slice).collect();
        assert_eq!(computed(&mut prefixes, &mut memory, &batches), [42; 8]);
        let again = [[text(107, &[3])], [text(102, &[3])], [text(100, &[3])]];
        let again: Vec<&[Vec<Token>]> = again.iter().map(<[_; 1]>::as_slice).collect();
        assert_eq!(computed(&mut prefixes, &mut memory, &again), [1, 1, 41]);
        // Of short texts, the limit of prefixes applies.
        let short: Vec<Vec<Token>> = (0..40).map(|i| vec![300 + i; 3]).collect();
        for text in &short {
            computed(&mut prefixes, &mut memory, &[std::slice::from_ref(text)]);
        }
        assert_eq!(prefixes.cache.n_ids_used(), MAX_KEPT);
    }

    #[test]
    fn a_window_that_has_moved_on_is_computed_once_more_for_all_continuations() {
        let mut memory = Fake::new(16);
        let mut prefixes = empty_cache(&memory);
        let batches: Vec<[Vec<Token>; 1]> = (0..12).map(|i| [text(100 + i % 2, &[i, i + 1, i + 2])]).collect();
        let batches: Vec<&[Vec<Token>]> = batches.iter().map(<[_; 1]>::as_slice).collect();
        // The first text shows no common prefix, the second one does; then the prefix is kept separately.
        let expected: Vec<usize> = (0..12).map(|i| if i < 4 { 43 } else { 3 }).collect();
        assert_eq!(computed(&mut prefixes, &mut memory, &batches), expected);
        let together = [text(200, &[1]), text(200, &[2]), text(200, &[3])];
        assert_eq!(computed(&mut prefixes, &mut memory, &[&together, &[text(200, &[4, 5])]]), [43, 2]);
    }

    #[test]
    fn texts_share_prefixes_only_with_equal_adapters() {
        let mut memory = Fake::new(0);
        let mut prefixes = empty_cache(&memory);
        let adapters = [AdapterSet::default(), AdapterSet::with_adapters([(0, 1.0)])];
        let n_computed: Vec<usize> = (0..3)
            .flat_map(|i| adapters.iter().map(move |adapter_set| (i, adapter_set)))
            .map(|(i, adapter_set)| encode(&mut prefixes, &mut memory, adapter_set, &[text(100, &[i])]))
            .collect();
        assert_eq!(n_computed, [41, 41, 1, 1, 1, 1]);
    }

    #[test]
    fn a_private_id_does_not_evict_kept_prefixes() {
        let mut memory = Fake::new(0);
        let mut prefixes = empty_cache(&memory);
        assert_eq!(computed(&mut prefixes, &mut memory, &[&[text(100, &[1])]]), [41]);
        let id = prefixes.take_id(&mut memory, &AdapterSet::default());
        memory.compute(&[(id, &[5; 200])]).expect("nothing fails");
        prefixes.release_id(&mut memory, id);
        assert_eq!(computed(&mut prefixes, &mut memory, &[&[text(100, &[2])]]), [1]);
    }

    #[test]
    fn after_a_failure_everything_is_computed_again() {
        let mut memory = Fake::new(0);
        let mut prefixes = empty_cache(&memory);
        assert_eq!(computed(&mut prefixes, &mut memory, &[&[text(100, &[1])]]), [41]);
        memory.is_failing = true;
        assert!(prefixes.encode(&mut memory, &AdapterSet::default(), &[text(100, &[2])]).is_err());
        prefixes.clear();
        (memory.is_failing, memory.sequences) = (false, BTreeMap::new());
        assert_eq!(computed(&mut prefixes, &mut memory, &[&[text(100, &[2])]]), [41]);
    }

    #[test]
    fn random_batches_get_correct_embeddings_within_the_limits() {
        for n_window in [0, 16] {
            let mut memory = Fake::new(n_window);
            let mut prefixes = empty_cache(&memory);
            let mut state = 1_u32;
            let mut draw = |n: u32| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) % n
            };
            let (mut n_tokens, mut n_computed) = (0, 0);
            for _ in 0..400 {
                let texts = (0..=draw(15)).map(|_| {
                    let stretch = |draw: &mut dyn FnMut(u32) -> u32| vec![draw(3).cast_signed(); 1 + draw(9) as usize];
                    (0..=draw(4)).flat_map(|_| stretch(&mut draw)).collect()
                });
                let texts: Vec<Vec<Token>> = texts.collect();
                n_tokens += texts.iter().map(Vec::len).sum::<usize>();
                n_computed += encode(&mut prefixes, &mut memory, &AdapterSet::default(), &texts);
            }
            assert!(n_computed < n_tokens, "some texts have common prefixes");
        }
    }
}
