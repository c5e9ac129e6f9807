//! Which prefixes are held, as hashes of blocks: what a router is told that sends requests to several engines.
//!
//! A text is cut into blocks of [`BLOCK`] tokens from its beginning on. The hash of a block is one of its tokens and of the hash of
//! the block before it, so that it names the whole text up to its end. It is keyed (`BLAKE2b`, RFC 7693): by a secret of those who tell
//! each other, and by the variant that the block's last token is computed with.
//!
//! A node remembers the hashes of its blocks, also where it is split or joined. They are made when somebody asks, a bounded number in
//! each answer: who asks for all of them asks several times, and texts that nobody asks about cost nothing.

use blake2b_simd::Params;

use crate::cache::prefix_tree::{NodeId, PrefixTree};
use crate::cache::{AdapterSet, KvCache, KvSeqId, Tier, visit_counter};
use crate::request::Token;

/// Tokens of a block.
pub const BLOCK: u32 = 64;

/// Blocks that are hashed for one answer: some 0.2 ms.
const MAX_HASHED: usize = 256;

/// Nodes and paths that are looked at for one answer.
const MAX_LOOKED_AT: usize = 4_096;

/// From so many hashes on an answer is complete.
const MAX_TOLD: usize = 16_384;

/// Longest key, in bytes.
pub const MAX_KEY_BYTES: usize = blake2b_simd::KEYBYTES;

/// A block that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedBlock {
    /// Names the text up to its end.
    pub hash: u64,
    /// Blocks before it in its text.
    pub index: u32,
    /// [`Tier::Pool`] or [`Tier::Store`]: where it can be had from sooner.
    pub tier: Tier,
}

/// The blocks that can be had, by their hashes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrefixDigest {
    /// Those in the pool, in the order of their numbers.
    pub pool: Vec<u64>,
    /// Those only in the store, likewise.
    pub stored: Vec<u64>,
}

impl PrefixDigest {
    /// At most `n_max` of these blocks: where there are more, every second of each text, or every fourth, and so on. Where that would
    /// leave none, since all texts are short, as many of them as there may be, whichever they are.
    #[must_use]
    pub fn new(blocks: Vec<CachedBlock>, n_max: usize) -> Self {
        let mut all = blocks;
        // One that is in the pool in one text, and in the store in what it was before it moved, is in the pool.
        all.sort_unstable_by_key(|block| (block.hash, block.tier == Tier::Store));
        all.dedup_by_key(|block| block.hash);
        let mut every: u32 = 1;
        while all.len() > n_max {
            every = every.saturating_mul(2);
            if !all.iter().any(|block| (block.index + 1).is_multiple_of(every)) {
                all.truncate(n_max);
                break;
            }
            all.retain(|block| (block.index + 1).is_multiple_of(every));
        }
        let of = |stored| all.iter().filter(move |block| (block.tier == Tier::Store) == stored).map(|block| block.hash).collect();
        Self { pool: of(false), stored: of(true) }
    }
}

/// From where on the next answer tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigestCursor {
    /// This node of the tree, and those after it.
    Node(usize),
    /// What sequences run on that is not in the tree yet: this id, and those after it.
    Path(usize),
}

impl Default for DigestCursor {
    fn default() -> Self {
        Self::Node(0)
    }
}

/// The hashes of the first blocks that end in a stretch of tokens, as far as they are known.
#[derive(Debug, Clone, Default)]
pub(super) struct BlockHashes {
    /// Of the key that they were made with.
    epoch: u32,
    hashes: Vec<u64>,
}

impl BlockHashes {
    /// Takes out those that end in the first `n` of the tokens after `start`.
    pub(super) fn cut_front(&mut self, start: u32, n: u32) -> Self {
        let n_blocks = n_ending(start, start + n).min(self.hashes.len());
        let rest = self.hashes.split_off(n_blocks);
        Self { epoch: self.epoch, hashes: std::mem::replace(&mut self.hashes, rest) }
    }

    /// Puts those of the stretch before in front, of which none is missing where there are any of this one.
    pub(super) fn join(&mut self, mut before: Self) {
        if before.hashes.is_empty() {
            return;
        }
        if before.epoch == self.epoch {
            before.hashes.append(&mut self.hashes);
        }
        *self = before;
    }

    pub(super) fn clear(&mut self) {
        self.hashes.clear();
    }

    /// Those that were made with the key of `epoch`.
    fn of(&self, epoch: u32) -> &[u64] {
        if self.epoch == epoch { &self.hashes } else { &[] }
    }

    fn push(&mut self, epoch: u32, hash: u64) {
        if self.epoch != epoch {
            *self = Self { epoch, hashes: Vec::new() };
        }
        self.hashes.push(hash);
    }
}

/// The key that hashes were asked for with last.
#[derive(Debug, Default)]
pub(super) struct HashKey {
    key: Vec<u8>,
    epoch: u32,
}

/// How many blocks end after `start` and not after `end`.
fn n_ending(start: u32, end: u32) -> usize {
    (end / BLOCK - start / BLOCK) as usize
}

/// The key of texts of this variant.
///
/// # Panics
/// For a key longer than [`MAX_KEY_BYTES`].
fn salt_of(key: &[u8], variant: &AdapterSet) -> [u8; 32] {
    let mut adapters = Vec::new();
    for (adapter, scale) in variant.adapters() {
        adapters.extend(adapter.to_le_bytes());
        adapters.extend(scale.to_le_bytes());
    }
    let hash = Params::new().hash_length(32).key(key).hash(&adapters);
    hash.as_bytes().try_into().expect("it has so many bytes")
}

/// The hash of a block after the one with the hash `before`, or 0.
fn hash_after(before: u64, block: &[Token], salt: &[u8]) -> u64 {
    let mut bytes = [0; 8 + 4 * BLOCK as usize];
    bytes[..8].copy_from_slice(&before.to_le_bytes());
    for (at, token) in bytes[8..].chunks_exact_mut(4).zip(block) {
        at.copy_from_slice(&token.to_le_bytes());
    }
    let hash = Params::new().hash_length(8).key(salt).hash(&bytes);
    u64::from_le_bytes(hash.as_bytes().try_into().expect("it has so many bytes"))
}

/// The hashes of the whole blocks of a text, in their order. `key` has at most [`MAX_KEY_BYTES`] bytes.
#[must_use]
pub fn block_hashes(key: &[u8], variant: &AdapterSet, tokens: &[Token]) -> Vec<u64> {
    let salt = salt_of(key, variant);
    let hashes = tokens.chunks_exact(BLOCK as usize).scan(0, |before, block| {
        *before = hash_after(*before, block, &salt);
        Some(*before)
    });
    hashes.collect()
}

/// As a block of this variant is hashed.
#[cfg(test)]
pub(super) fn hash_of(key: &[u8], before: u64, block: &[Token], variant: &AdapterSet) -> u64 {
    hash_after(before, block, &salt_of(key, variant))
}

impl KvCache {
    /// Some of the blocks that can be had, from `place` on, hashed with `key`, and from where on the others are; `None` after the last.
    ///
    /// The tree may change between two answers: a block that moved to an earlier place is then not told of, and one that moved to a
    /// later one twice. Of a memory that is a state only the last block before each place where one can begin is told.
    ///
    /// # Panics
    /// For a key longer than [`MAX_KEY_BYTES`].
    pub fn blocks(&mut self, key: &[u8], place: DigestCursor) -> (Vec<CachedBlock>, Option<DigestCursor>) {
        if self.key.key != key {
            self.key = HashKey { key: key.to_vec(), epoch: self.key.epoch + 1 };
        }
        let mut held = Vec::new();
        let mut n_left = MAX_HASHED;
        let mut n_looked_at = 0;
        let mut is_over = |held: &[CachedBlock]| {
            n_looked_at += 1;
            n_looked_at > MAX_LOOKED_AT || held.len() >= MAX_TOLD
        };
        let mut first_path = 0;
        match place {
            DigestCursor::Node(first) => {
                for index in first..self.tree.n_places() {
                    if is_over(&held) || !self.tell_of_node(index, &mut n_left, &mut held) {
                        return (held, Some(DigestCursor::Node(index)));
                    }
                }
            }
            DigestCursor::Path(first) => first_path = first,
        }
        for index in first_path..self.paths.len() {
            if is_over(&held) || !self.tell_of_tail(index, &mut n_left, &mut held) {
                return (held, Some(DigestCursor::Path(index)));
            }
        }
        (held, None)
    }

    /// Adds the blocks that end in the node of this place, where there is one that can be had. `false` where no more can be hashed.
    fn tell_of_node(&mut self, index: usize, n_left: &mut usize, held: &mut Vec<CachedBlock>) -> bool {
        visit_counter::count_visited(1);
        let Some(id) = self.tree.at_place(index) else { return true };
        let node = self.tree.node(id);
        let tier = match (node.is_in_pool(), node.stored.is_some()) {
            (true, _) => Tier::Pool,
            (false, true) => Tier::Store,
            (false, false) => return true,
        };
        if !hash_path(&mut self.tree, id, &self.key, n_left) {
            return false;
        }
        let node = self.tree.node(id);
        let all = (node.start / BLOCK..).zip(node.blocks.of(self.key.epoch).iter().copied());
        let all = all.map(|(index, hash)| CachedBlock { hash, index, tier });
        if self.kind.is_a_state() {
            let can_begin = node.stored.is_some() || !node.tips.is_empty();
            held.extend(all.last().filter(|_| can_begin));
        } else {
            held.extend(all);
        }
        true
    }

    /// As [`KvCache::tell_of_node`], of what a sequence has computed and not shared yet.
    fn tell_of_tail(&mut self, index: usize, n_left: &mut usize, held: &mut Vec<CachedBlock>) -> bool {
        visit_counter::count_visited(1);
        let id = KvSeqId(u16::try_from(index).expect("llama.cpp tells 256 apart"));
        let is_told = |path: &super::Path| !path.tail.is_empty() && !path.is_private;
        if self.kind.is_a_state() || !self.paths[index].as_ref().is_some_and(is_told) {
            return true;
        }
        let tip = self.path(id).tip;
        if !hash_path(&mut self.tree, tip, &self.key, n_left) {
            return false;
        }
        let (tree, key) = (&self.tree, &self.key);
        let path = self.paths[index].as_mut().expect("it was looked at");
        let start = tree.node(tip).end();
        let n_blocks = n_ending(start, start + super::length(&path.tail));
        let (mut before, mut pending) = before(tree, tip, key.epoch);
        let n_known = path.blocks.of(key.epoch).len();
        let mut rest = &path.tail[..];
        if n_known > 0 {
            before = path.blocks.of(key.epoch)[n_known - 1];
            rest = &rest[n_known * BLOCK as usize - pending.len()..];
            pending.clear();
        }
        let mut end = (start / BLOCK + super::length_of(n_known)) * BLOCK;
        for _ in n_known..n_blocks {
            if *n_left == 0 {
                return false;
            }
            *n_left -= 1;
            visit_counter::count_visited(1);
            let of_rest;
            (of_rest, rest) = rest.split_at(BLOCK as usize - pending.len());
            pending.extend_from_slice(of_rest);
            end += BLOCK;
            before = hash_after(before, &pending, &salt_of(&key.key, path.variants.at(end - 1)));
            path.blocks.push(key.epoch, before);
            pending.clear();
        }
        let hashes = path.blocks.of(key.epoch).iter().copied();
        held.extend((start / BLOCK..).zip(hashes).map(|(index, hash)| CachedBlock { hash, index, tier: Tier::Pool }));
        true
    }
}

/// Hashes the blocks of `id` and of what is above it, as far as they are not known. `false` where more than `n_left` are missing.
fn hash_path(tree: &mut PrefixTree, id: NodeId, key: &HashKey, n_left: &mut usize) -> bool {
    // A node has hashes once all above it has: whoever stands below a block that is known needs to look no further.
    let mut missing = Vec::new();
    for at in tree.upwards(id) {
        let node = tree.node(at);
        let (n_known, n_blocks) = (node.blocks.of(key.epoch).len(), n_ending(node.start, node.end()));
        if n_known < n_blocks {
            missing.push(at);
        }
        if n_known > 0 {
            break;
        }
    }
    missing.into_iter().rev().all(|at| hash_node(tree, at, key, n_left))
}

/// Hashes the blocks that end in `id`, where all above are known.
fn hash_node(tree: &mut PrefixTree, id: NodeId, key: &HashKey, n_left: &mut usize) -> bool {
    let node = tree.node(id);
    let (start, end) = (node.start, node.end());
    let salt = salt_of(&key.key, tree.variant(node.variant));
    let n_known = node.blocks.of(key.epoch).len();
    let (mut hash, mut block) = match node.blocks.of(key.epoch).last() {
        Some(&last) => (last, Vec::new()),
        None => node.parent.map_or((0, Vec::new()), |parent| before(tree, parent, key.epoch)),
    };
    let first = if n_known > 0 { (start / BLOCK + super::length_of(n_known)) * BLOCK - start } else { 0 };
    let mut at = first as usize;
    for _ in n_known..n_ending(start, end) {
        if *n_left == 0 {
            return false;
        }
        *n_left -= 1;
        visit_counter::count_visited(1);
        let node = tree.node_mut(id);
        let next = at + BLOCK as usize - block.len();
        block.extend_from_slice(&node.tokens[at..next]);
        hash = hash_after(hash, &block, &salt);
        node.blocks.push(key.epoch, hash);
        block.clear();
        at = next;
    }
    true
}

/// The hash of the last whole block that ends in `id` or above it, all of which are known, and the tokens after that.
fn before(tree: &PrefixTree, id: NodeId, epoch: u32) -> (u64, Vec<Token>) {
    let n_over = (tree.node(id).end() % BLOCK) as usize;
    let mut over = Vec::with_capacity(BLOCK as usize);
    let mut hash = 0;
    for at in tree.upwards(id) {
        let node = tree.node(at);
        let n = (n_over - over.len()).min(node.tokens.len());
        over.extend(node.tokens[node.tokens.len() - n..].iter().rev());
        if let Some(&last) = node.blocks.of(epoch).last() {
            hash = last;
            break;
        }
    }
    over.reverse();
    (hash, over)
}
