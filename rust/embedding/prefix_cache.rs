//! What texts begin with in common is computed once, in a batch and over batches, where a model is causal and a text's vector is that
//! of its last token. Pure: what the model's memory does is said to it.
//!
//! The books are the cache's that completions have, with no store beside the cells: the tree of beginnings, who holds them, which
//! were used last, and where a memory with a sliding window can be gone on from.

use crate::cache::{
    AdapterSchedule, AdapterSet, CacheOp, EvictionReason, KvCache, KvSeqId, MIN_SHARED, MemoryKind, PrefixMatch, PrefixQuery,
};
use crate::embedding::shared_prefixes::{CachedPrefix, branch_points, group_by_prefix};
use crate::embedding::{EmbedderShape, EncodedBatch, MAX_SEQUENCES};
use crate::request::Token;

/// Beginnings of texts that are kept for later batches.
pub const MAX_KEPT: usize = 32;

/// Beginnings that one batch computes by themselves.
const MAX_COMPUTED: usize = 32;

// llama.cpp makes its graphs for a multiple of the ids.
const _: () = assert!((MAX_KEPT + MAX_COMPUTED + MAX_SEQUENCES as usize).is_power_of_two());

/// A memory of sequences that can be forked.
pub trait ForkableMemory {
    /// Whether a sequence can go on after the first `n_tokens` of the `n_held` tokens that `from` holds.
    fn can_fork(&self, from: KvSeqId, n_held: u32, n_tokens: u32) -> bool;

    /// Gives the first `n_tokens` tokens of `from` to `to` as well, which holds nothing.
    fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32);

    /// Forgets all but the first `n_kept` tokens of `id`: all of them, or where the memory can be cut anywhere.
    fn truncate(&mut self, id: KvSeqId, n_kept: u32);

    /// Computes tokens, at least one each, after what the sequences hold.
    ///
    /// # Errors
    /// What the backend answered, in words.
    fn compute(&mut self, rows: &[(KvSeqId, &[Token])]) -> Result<(), String>;

    /// The vector of what `id` holds, all of which but some beginning was computed last.
    fn vector(&self, id: KvSeqId) -> Vec<f32>;
}

/// Which sequence holds what.
#[derive(Debug)]
pub struct PrefixCache {
    cache: KvCache,
    shape: EmbedderShape,
    kind: MemoryKind,
}

impl PrefixCache {
    /// The books of a memory of this kind that holds nothing.
    #[must_use]
    pub fn new(shape: EmbedderShape, kind: MemoryKind) -> Self {
        Self { cache: Self::books(&shape, kind), shape, kind }
    }

    fn books(shape: &EmbedderShape, kind: MemoryKind) -> KvCache {
        let number = |n: usize| u32::try_from(n).expect("a shape is made of 32-bit numbers");
        KvCache::new(number(Self::n_cells(shape)), number(Self::n_ids(shape)), kind, Some(0))
    }

    /// Ids that it needs: one for each text of a batch, and for each beginning.
    #[must_use]
    pub fn n_ids(shape: &EmbedderShape) -> usize {
        shape.n_sequences + MAX_COMPUTED + MAX_KEPT
    }

    /// Cells that it needs: those of a batch, and as many as the longest text has, for what is kept.
    #[must_use]
    pub fn n_cells(shape: &EmbedderShape) -> usize {
        shape.n_batch + shape.n_longest
    }

    /// Everything was forgotten.
    pub fn clear(&mut self) {
        self.cache = Self::books(&self.shape, self.kind);
    }

    /// An id that holds nothing, of which nothing is kept.
    pub fn take_id(&mut self, memory: &mut impl ForkableMemory, variant: &AdapterSet) -> KvSeqId {
        let id = self.cache.place_private(&AdapterSchedule::from(variant.clone())).expect("fewer ids are kept than there are");
        self.flush(memory);
        id
    }

    /// Gives back what [`PrefixCache::take_id`] took, with all that it holds.
    pub fn release_id(&mut self, memory: &mut impl ForkableMemory, id: KvSeqId) {
        self.cache.give_up(id);
        self.flush(memory);
    }

    /// Computes the vectors of texts, as [`Encoder::encode`](crate::embedding::Encoder::encode) has them, with the adapters of
    /// `variant`.
    ///
    /// # Errors
    /// What the backend answered; then it must forget everything, and [`PrefixCache::clear`] be called.
    pub fn encode(
        &mut self,
        memory: &mut impl ForkableMemory,
        variant: &AdapterSet,
        texts: &[Vec<Token>],
    ) -> Result<EncodedBatch, String> {
        let variants = AdapterSchedule::from(variant.clone());
        let alike = group_by_prefix(texts);
        let kept = self.reaches(memory, &variants, texts);
        let (mut reaches, mut n_computed, mut beginnings) = (kept.clone(), 0, Vec::new());
        loop {
            let mut stops = branch_points(&alike, &reaches);
            stops.truncate(MAX_COMPUTED - beginnings.len());
            if stops.is_empty() {
                break;
            }
            let wanted: Vec<&[Token]> = stops.iter().map(|stop| &texts[stop.text][..stop.n_tokens]).collect();
            let ids = self.place(memory, &variants, &wanted);
            n_computed += self.compute(memory, &ids, &wanted)?;
            beginnings.extend(ids);
            reaches = self.reaches(memory, &variants, texts);
        }
        let wanted: Vec<&[Token]> = texts.iter().map(Vec::as_slice).collect();
        let ids = self.place(memory, &variants, &wanted);
        n_computed += self.compute(memory, &ids, &wanted)?;
        let vectors = ids.iter().map(|&id| memory.vector(id)).collect();
        for (text, id) in ids.into_iter().enumerate() {
            // One of those that went on from the same beginning goes on holding it. What follows it is kept where no other text of
            // the batch tells how much of it is a beginning.
            let is_like_earlier = |other: usize| alike[text][other] > 0 && alike[text][other] >= kept[text].n_found;
            if (0..text).any(is_like_earlier) { self.cache.give_up(id) } else { self.cache.unpin(id) }
        }
        for id in beginnings {
            self.cache.unpin(id);
        }
        self.let_go(memory);
        Ok(EncodedBatch { vectors, n_computed })
    }

    /// What is there of each text but its last token.
    fn reaches(&self, memory: &impl ForkableMemory, variants: &AdapterSchedule, texts: &[Vec<Token>]) -> Vec<CachedPrefix> {
        let reach = |text: &Vec<Token>| {
            let beginning = &text[..text.len() - 1];
            let n_found = self.find(memory, variants, beginning).n_tokens() as usize;
            CachedPrefix { n_found, n_known: self.cache.n_there(variants, beginning) as usize }
        };
        texts.iter().map(reach).collect()
    }

    /// The longest prefix that can be gone on from.
    fn find(&self, memory: &impl ForkableMemory, variants: &AdapterSchedule, tokens: &[Token]) -> PrefixMatch {
        let wanted = PrefixQuery { variants, tokens, at_least: MIN_SHARED, at_most: u32::MAX, takes_logits: false };
        self.cache.find(&wanted, |id, n_held, n_tokens| memory.can_fork(id, n_held, n_tokens)).unwrap_or_default()
    }

    /// An id for each of `wanted`, which holds what is there of it but the last token.
    fn place(&mut self, memory: &mut impl ForkableMemory, variants: &AdapterSchedule, wanted: &[&[Token]]) -> Vec<KvSeqId> {
        let place = |tokens: &&[Token]| {
            let matched = self.find(memory, variants, &tokens[..tokens.len() - 1]);
            let id = self.cache.place(variants, Some(&matched)).expect("there is an id for each text and each beginning");
            self.flush(memory);
            id
        };
        wanted.iter().map(place).collect()
    }

    /// Computes what `ids` lack of `wanted`, and says how many tokens that were.
    fn compute(&mut self, memory: &mut impl ForkableMemory, ids: &[KvSeqId], wanted: &[&[Token]]) -> Result<usize, String> {
        let rows = ids.iter().zip(wanted).map(|(&id, &tokens)| (id, &tokens[self.cache.n_held(id) as usize..]));
        let rows: Vec<(KvSeqId, &[Token])> = rows.collect();
        self.cache.extend(rows.iter().copied());
        memory.compute(&rows)?;
        Ok(rows.iter().map(|(_, tokens)| tokens.len()).sum())
    }

    /// Forgets what was used least recently, as far as more is kept than may be.
    fn let_go(&mut self, memory: &mut impl ForkableMemory) {
        while self.cache.n_used() > self.shape.n_longest || self.cache.n_ids_used() > MAX_KEPT {
            let departure = self.cache.next_removal(u64::MAX, EvictionReason::Pressed).expect("nothing runs between two batches");
            self.cache.remove_tail(&departure, None, EvictionReason::Pressed);
        }
        self.flush(memory);
    }

    fn flush(&mut self, memory: &mut impl ForkableMemory) {
        for op in self.cache.take_ops() {
            match op {
                CacheOp::Fork { from, to, n_tokens } => memory.fork(from, to, n_tokens),
                CacheOp::Truncate(id, n_kept) => memory.truncate(id, n_kept),
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

    /// A memory that remembers tokens; with a window, each decode ends what is before it of all that is held.
    struct Fake {
        kind: MemoryKind,
        held: BTreeMap<KvSeqId, Vec<Token>>,
        whole_from: BTreeMap<KvSeqId, u32>,
        n_computed: usize,
        fails: bool,
    }

    impl Fake {
        fn new(n_window: u32) -> Self {
            let kind = MemoryKind::of_vectors(n_window);
            Self { kind, held: BTreeMap::new(), whole_from: BTreeMap::new(), n_computed: 0, fails: false }
        }
    }

    impl ForkableMemory for Fake {
        fn can_fork(&self, from: KvSeqId, n_held: u32, n_tokens: u32) -> bool {
            let whole_from = self.whole_from.get(&from).copied().unwrap_or(0);
            n_tokens <= n_held && self.kind.holds_window(whole_from, n_tokens)
        }

        fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32) {
            let n_held = u32::try_from(self.held[&from].len()).expect("it is short");
            assert!(self.can_fork(from, n_held, n_tokens), "{n_tokens} of {n_held} tokens");
            let tokens = self.held[&from][..n_tokens as usize].to_vec();
            assert!(self.held.insert(to, tokens).is_none(), "{to:?} held nothing");
            self.whole_from.insert(to, self.whole_from.get(&from).copied().unwrap_or(0));
        }

        fn truncate(&mut self, id: KvSeqId, n_kept: u32) {
            assert!(n_kept == 0 || self.kind.n_window == 0, "a window cannot be cut");
            if n_kept == 0 {
                self.held.remove(&id);
                self.whole_from.remove(&id);
            } else if let Some(tokens) = self.held.get_mut(&id) {
                tokens.truncate(n_kept as usize);
            }
        }

        fn compute(&mut self, rows: &[(KvSeqId, &[Token])]) -> Result<(), String> {
            if self.fails {
                return Err("no memory".to_owned());
            }
            for (id, tokens) in rows {
                assert!(!tokens.is_empty(), "a row for each text");
                self.held.entry(*id).or_default().extend_from_slice(tokens);
                self.n_computed += tokens.len();
            }
            for (id, tokens) in self.held.iter().filter(|_| self.kind.n_window > 0) {
                let n_tokens = u32::try_from(tokens.len()).expect("it is short");
                self.whole_from.insert(*id, self.kind.window_from(n_tokens));
            }
            Ok(())
        }

        fn vector(&self, id: KvSeqId) -> Vec<f32> {
            vector_of(&self.held[&id])
        }
    }

    /// Its length, and a number that no other text of a test has.
    #[expect(clippy::cast_precision_loss, reason = "24 bits are enough to tell texts apart")]
    fn vector_of(text: &[Token]) -> Vec<f32> {
        let hash = text.iter().fold(7_u32, |hash, token| hash.wrapping_mul(31).wrapping_add(token.unsigned_abs()));
        vec![text.len() as f32, (hash >> 8) as f32]
    }

    /// Encodes the texts, sees that their vectors are right and little is kept, and says how many tokens were computed.
    fn encode(beginnings: &mut PrefixCache, memory: &mut Fake, variant: &AdapterSet, texts: &[Vec<Token>]) -> usize {
        let before = memory.n_computed;
        let encoded = beginnings.encode(memory, variant, texts).expect("nothing fails");
        let expected: Vec<Vec<f32>> = texts.iter().map(|text| vector_of(text)).collect();
        assert_eq!(encoded.vectors, expected);
        assert_eq!(encoded.n_computed, memory.n_computed - before);
        beginnings.cache.check_integrity();
        assert!(beginnings.cache.is_idle());
        assert!(beginnings.cache.n_used() <= N_LONGEST && beginnings.cache.n_ids_used() <= MAX_KEPT);
        assert_eq!(memory.held.len(), beginnings.cache.n_ids_used(), "nothing else is held");
        encoded.n_computed
    }

    fn computed(beginnings: &mut PrefixCache, memory: &mut Fake, batches: &[&[Vec<Token>]]) -> Vec<usize> {
        batches.iter().map(|texts| encode(beginnings, memory, &AdapterSet::default(), texts)).collect()
    }

    fn begun(memory: &Fake) -> PrefixCache {
        PrefixCache::new(shape(), memory.kind)
    }

    /// A text that begins with forty tokens of this beginning.
    fn text(beginning: Token, rest: &[Token]) -> Vec<Token> {
        [vec![beginning; 40], rest.to_vec()].concat()
    }

    #[test]
    fn beginnings_by_turns_are_computed_once_each() {
        let mut memory = Fake::new(0);
        let mut beginnings = begun(&memory);
        let batches: Vec<[Vec<Token>; 1]> = (0..24).map(|i| [text(100 + i % 4, &[i, i + 1])]).collect();
        let batches: Vec<&[Vec<Token>]> = batches.iter().map(<[_; 1]>::as_slice).collect();
        let expected: Vec<usize> = (0..24).map(|i| if i < 4 { 42 } else { 2 }).collect();
        assert_eq!(computed(&mut beginnings, &mut memory, &batches), expected);
    }

    #[test]
    fn what_a_batch_has_in_common_is_computed_once_and_kept_without_what_follows_it() {
        let mut memory = Fake::new(0);
        let mut beginnings = begun(&memory);
        let query = |query: Token, document: Token| [text(1, &[]), vec![query; 30], vec![document; 5]].concat();
        let first = [query(2, 5), query(3, 5), query(2, 6), query(3, 6)];
        let second = [query(2, 7), query(3, 7), query(2, 8)];
        assert_eq!(computed(&mut beginnings, &mut memory, &[&first, &second]), [40 + 2 * 30 + 4 * 5, 3 * 5]);
        // Both queries are held still, each by the first text that went on from it.
        assert_eq!(computed(&mut beginnings, &mut memory, &[&[query(3, 9)], &[query(2, 9)]]), [5, 5]);
    }

    #[test]
    fn the_least_recently_used_goes_first_and_no_more_is_kept_than_may_be() {
        let mut memory = Fake::new(0);
        let mut beginnings = begun(&memory);
        // Of 42 tokens each, seven fit.
        let batches: Vec<[Vec<Token>; 1]> = (0..8).map(|i| [text(100 + i, &[1, 2])]).collect();
        let batches: Vec<&[Vec<Token>]> = batches.iter().map(<[_; 1]>::as_slice).collect();
        assert_eq!(computed(&mut beginnings, &mut memory, &batches), [42; 8]);
        let again = [[text(107, &[3])], [text(102, &[3])], [text(100, &[3])]];
        let again: Vec<&[Vec<Token>]> = again.iter().map(<[_; 1]>::as_slice).collect();
        assert_eq!(computed(&mut beginnings, &mut memory, &again), [1, 1, 41]);
        // Of short ones as many as may be.
        let short: Vec<Vec<Token>> = (0..40).map(|i| vec![300 + i; 3]).collect();
        for text in &short {
            computed(&mut beginnings, &mut memory, &[std::slice::from_ref(text)]);
        }
        assert_eq!(beginnings.cache.n_ids_used(), MAX_KEPT);
    }

    #[test]
    fn a_window_that_has_moved_on_is_computed_once_more_for_all_that_follow() {
        let mut memory = Fake::new(16);
        let mut beginnings = begun(&memory);
        let batches: Vec<[Vec<Token>; 1]> = (0..12).map(|i| [text(100 + i % 2, &[i, i + 1, i + 2])]).collect();
        let batches: Vec<&[Vec<Token>]> = batches.iter().map(<[_; 1]>::as_slice).collect();
        // A first text shows no beginning, the second one does, and then it is kept for itself.
        let expected: Vec<usize> = (0..12).map(|i| if i < 4 { 43 } else { 3 }).collect();
        assert_eq!(computed(&mut beginnings, &mut memory, &batches), expected);
        let together = [text(200, &[1]), text(200, &[2]), text(200, &[3])];
        assert_eq!(computed(&mut beginnings, &mut memory, &[&together, &[text(200, &[4, 5])]]), [43, 2]);
    }

    #[test]
    fn adapters_share_nothing_with_others_and_find_their_own_again() {
        let mut memory = Fake::new(0);
        let mut beginnings = begun(&memory);
        let variants = [AdapterSet::default(), AdapterSet::with_adapters([(0, 1.0)])];
        let n_computed: Vec<usize> = (0..3)
            .flat_map(|i| variants.iter().map(move |variant| (i, variant)))
            .map(|(i, variant)| encode(&mut beginnings, &mut memory, variant, &[text(100, &[i])]))
            .collect();
        assert_eq!(n_computed, [41, 41, 1, 1, 1, 1]);
    }

    #[test]
    fn what_is_taken_alone_leaves_what_is_kept() {
        let mut memory = Fake::new(0);
        let mut beginnings = begun(&memory);
        assert_eq!(computed(&mut beginnings, &mut memory, &[&[text(100, &[1])]]), [41]);
        let id = beginnings.take_id(&mut memory, &AdapterSet::default());
        memory.compute(&[(id, &[5; 200])]).expect("nothing fails");
        beginnings.release_id(&mut memory, id);
        assert_eq!(computed(&mut beginnings, &mut memory, &[&[text(100, &[2])]]), [1]);
    }

    #[test]
    fn after_a_failure_everything_is_computed_anew() {
        let mut memory = Fake::new(0);
        let mut beginnings = begun(&memory);
        assert_eq!(computed(&mut beginnings, &mut memory, &[&[text(100, &[1])]]), [41]);
        memory.fails = true;
        assert!(beginnings.encode(&mut memory, &AdapterSet::default(), &[text(100, &[2])]).is_err());
        beginnings.clear();
        (memory.fails, memory.held) = (false, BTreeMap::new());
        assert_eq!(computed(&mut beginnings, &mut memory, &[&[text(100, &[2])]]), [41]);
    }

    #[test]
    fn whatever_comes_vectors_are_right_and_little_is_kept() {
        for n_window in [0, 16] {
            let mut memory = Fake::new(n_window);
            let mut beginnings = begun(&memory);
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
                n_computed += encode(&mut beginnings, &mut memory, &AdapterSet::default(), &texts);
            }
            assert!(n_computed < n_tokens, "some begin alike");
        }
    }
}
