//! Hashes of the cached prefixes' blocks, for a router that distributes requests to several engines.
//!
//! A text is divided into blocks of [`BLOCK`] tokens. The hash of a block covers its tokens and the preceding hash, so it
//! identifies the text up to its end. It is keyed (`BLAKE2b`, RFC 7693) by a secret that the engines and the router share, and by
//! the adapter set of the block's last token. Nodes store their hashes, of which each call computes a bounded number.

use blake2b_simd::Params;

use crate::cache::prefix_tree::{Node, NodeId, PrefixTree, length};
use crate::cache::{AdapterSet, KvCache, KvSeqId, Tier, visit_counter};
use crate::request::Token;

pub const BLOCK: u32 = 64;

/// Maximum blocks that one call hashes: about 0.2 ms.
const MAX_HASHED: usize = 256;

const MAX_VISITED: usize = 4_096;

const MAX_BLOCKS: usize = 16_384;

pub const MAX_KEY_BYTES: usize = blake2b_simd::KEYBYTES;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedBlock {
    /// Identifies the text up to the end of the block.
    pub hash: u64,
    /// Number of preceding blocks in its text.
    pub index: u32,
    /// [`Tier::Device`] if a path holds the block, otherwise [`Tier::Host`].
    pub tier: Tier,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrefixDigest {
    pub device: Vec<u64>,
    /// Blocks in the host cache alone, sorted.
    pub host: Vec<u64>,
}

impl PrefixDigest {
    /// Selects at most `n_max` of these blocks. If there are more, every second block of each text is kept, or every fourth,
    /// and so on. If that would keep none because all texts are short, arbitrary blocks are kept.
    pub fn new(blocks: Vec<CachedBlock>, n_max: usize) -> Self {
        let mut all = blocks;
        // A block that both tiers list counts as in the device cache.
        all.sort_unstable_by_key(|block| (block.hash, block.tier == Tier::Host));
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
        let hashes =
            |is_host| all.iter().filter(move |block| (block.tier == Tier::Host) == is_host).map(|block| block.hash).collect();
        Self { device: hashes(false), host: hashes(true) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigestCursor {
    /// Index of the next node of the tree.
    Node(usize),
    Path(usize),
}

impl Default for DigestCursor {
    fn default() -> Self {
        Self::Node(0)
    }
}

/// The first computed hashes of the blocks that end in a run of tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct BlockHashes {
    /// Epoch of the key that they were computed with.
    epoch: u32,
    hashes: Vec<u64>,
}

impl BlockHashes {
    pub(super) fn cut_front(&mut self, start: u32, n: u32) -> Self {
        let n_blocks = n_blocks_between(start, start + n).min(self.hashes.len());
        let rest = self.hashes.split_off(n_blocks);
        Self { epoch: self.epoch, hashes: std::mem::replace(&mut self.hashes, rest) }
    }

    /// Prepends the hashes of the run before, which are complete if this run has any.
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

    fn with_epoch(&self, epoch: u32) -> &[u64] {
        if self.epoch == epoch { &self.hashes } else { &[] }
    }

    fn push(&mut self, epoch: u32, hash: u64) {
        if self.epoch != epoch {
            *self = Self { epoch, hashes: Vec::new() };
        }
        self.hashes.push(hash);
    }

    /// Computes the missing hashes of a run that starts at `start`, after the block with the hash and the further tokens
    /// `preceding`. Returns `false` if they are more than `n_left`.
    fn complete(
        &mut self,
        epoch: u32,
        start: u32,
        tokens: &[Token],
        preceding: (u64, Vec<Token>),
        n_left: &mut usize,
        salt_at: impl Fn(u32) -> [u8; 32],
    ) -> bool {
        let (mut hash, mut block) = preceding;
        let n_known = self.with_epoch(epoch).len();
        let mut end = (start / BLOCK + super::length_of(n_known)) * BLOCK;
        let mut rest = tokens;
        if let Some(&last) = self.with_epoch(epoch).last() {
            (hash, rest) = (last, &tokens[(end - start) as usize..]);
            block.clear();
        }
        for _ in n_known..n_blocks_between(start, start + length(tokens)) {
            if *n_left == 0 {
                return false;
            }
            *n_left -= 1;
            visit_counter::count_visited(1);
            let head;
            (head, rest) = rest.split_at(BLOCK as usize - block.len());
            block.extend_from_slice(head);
            end += BLOCK;
            hash = hash_after(hash, &block, &salt_at(end - 1));
            self.push(epoch, hash);
            block.clear();
        }
        true
    }
}

#[derive(Debug, Default)]
pub(super) struct HashKey {
    key: Vec<u8>,
    epoch: u32,
}

/// Number of blocks with `start < end of block ≤ end`.
fn n_blocks_between(start: u32, end: u32) -> usize {
    (end / BLOCK - start / BLOCK) as usize
}

fn salt_of(key: &[u8], adapter_set: &AdapterSet) -> [u8; 32] {
    let mut adapters = Vec::new();
    for (adapter, scale) in adapter_set.adapters() {
        adapters.extend(adapter.to_le_bytes());
        adapters.extend(scale.to_le_bytes());
    }
    let hash = Params::new().hash_length(32).key(key).hash(&adapters);
    hash.as_bytes().try_into().expect("the hash has the requested length")
}

fn hash_after(before: u64, block: &[Token], salt: &[u8]) -> u64 {
    let mut bytes = [0; 8 + 4 * BLOCK as usize];
    bytes[..8].copy_from_slice(&before.to_le_bytes());
    for (chunk, token) in bytes[8..].chunks_exact_mut(4).zip(block) {
        chunk.copy_from_slice(&token.to_le_bytes());
    }
    let hash = Params::new().hash_length(8).key(salt).hash(&bytes);
    u64::from_le_bytes(hash.as_bytes().try_into().expect("the hash has the requested length"))
}

/// The hashes of the complete blocks of a text, in order.
#[cfg(test)]
pub(super) fn block_hashes(key: &[u8], adapter_set: &AdapterSet, tokens: &[Token]) -> Vec<u64> {
    let salt = salt_of(key, adapter_set);
    let hashes = tokens.chunks_exact(BLOCK as usize).scan(0, |before, block| {
        *before = hash_after(*before, block, &salt);
        Some(*before)
    });
    hashes.collect()
}

#[cfg(test)]
pub(super) fn hash_of(key: &[u8], before: u64, block: &[Token], adapter_set: &AdapterSet) -> u64 {
    hash_after(before, block, &salt_of(key, adapter_set))
}

impl KvCache {
    /// Returns some of the cached blocks from `cursor` on, and the cursor of the next call; `None` after the last.
    ///
    /// The tree may change between two calls: blocks that moved may be missed or returned twice. For a memory that is a state,
    /// only the last block before each position at which a sequence can begin is returned.
    pub(crate) fn hash_blocks(&mut self, key: &[u8], cursor: DigestCursor) -> (Vec<CachedBlock>, Option<DigestCursor>) {
        if self.key.key != key {
            self.key = HashKey { key: key.to_vec(), epoch: self.key.epoch + 1 };
        }
        let mut blocks = Vec::new();
        let mut n_left = MAX_HASHED;
        let mut n_visited = 0;
        let mut is_full = |blocks: &[CachedBlock]| {
            n_visited += 1;
            n_visited > MAX_VISITED || blocks.len() >= MAX_BLOCKS
        };
        let mut first_path = 0;
        match cursor {
            DigestCursor::Node(first) => {
                for index in first..self.tree.n_indices() {
                    if is_full(&blocks) || !self.push_node_blocks(index, &mut n_left, &mut blocks) {
                        return (blocks, Some(DigestCursor::Node(index)));
                    }
                }
            }
            DigestCursor::Path(first) => first_path = first,
        }
        for index in first_path..self.paths.len() {
            if is_full(&blocks) || !self.push_tail_blocks(index, &mut n_left, &mut blocks) {
                return (blocks, Some(DigestCursor::Path(index)));
            }
        }
        (blocks, None)
    }

    /// Returns `false` if the limit of hashes is reached.
    fn push_node_blocks(&mut self, index: usize, n_left: &mut usize, blocks: &mut Vec<CachedBlock>) -> bool {
        visit_counter::count_visited(1);
        let Some(id) = self.tree.at_index(index) else { return true };
        let node = self.tree.node(id);
        let tier = match (node.is_on_device(), node.host_entry.is_some()) {
            (true, _) => Tier::Device,
            (false, true) => Tier::Host,
            (false, false) => return true,
        };
        if !hash_path(&mut self.tree, id, &self.key, n_left) {
            return false;
        }
        let node = self.tree.node(id);
        let all = (node.start / BLOCK..).zip(node.blocks.with_epoch(self.key.epoch).iter().copied());
        let all = all.map(|(index, hash)| CachedBlock { hash, index, tier });
        if self.kind.is_a_state() {
            let can_begin = node.host_entry.is_some() || !node.tips.is_empty();
            blocks.extend(all.last().filter(|_| can_begin));
        } else {
            blocks.extend(all);
        }
        true
    }

    fn push_tail_blocks(&mut self, index: usize, n_left: &mut usize, blocks: &mut Vec<CachedBlock>) -> bool {
        visit_counter::count_visited(1);
        let id = KvSeqId(u16::try_from(index).expect("llama.cpp has at most 256 sequence ids"));
        let is_listed = |path: &super::Path| !path.tail.is_empty() && !path.is_private;
        if self.kind.is_a_state() || !self.paths[index].as_ref().is_some_and(is_listed) {
            return true;
        }
        let tip = self.path(id).tip;
        if !hash_path(&mut self.tree, tip, &self.key, n_left) {
            return false;
        }
        let (tree, key) = (&self.tree, &self.key);
        let path = self.paths[index].as_mut().expect("the path was checked above");
        let (start, preceding) = (tree.node(tip).end(), hash_before(tree, tip, key.epoch));
        let salt_at = |position| salt_of(&key.key, path.adapters.at(position));
        if !path.blocks.complete(key.epoch, start, &path.tail, preceding, n_left, salt_at) {
            return false;
        }
        let hashes = path.blocks.with_epoch(key.epoch).iter().copied();
        blocks.extend((start / BLOCK..).zip(hashes).map(|(index, hash)| CachedBlock { hash, index, tier: Tier::Device }));
        true
    }
}

/// Returns `false` if the missing hashes of `id` and its ancestors are more than `n_left`.
fn hash_path(tree: &mut PrefixTree, id: NodeId, key: &HashKey, n_left: &mut usize) -> bool {
    // A node has hashes only if all blocks above it have: the walk can stop at the first node with a hash.
    let mut missing = Vec::new();
    for id in tree.upwards(id) {
        let node = tree.node(id);
        let (n_known, n_blocks) = (node.blocks.with_epoch(key.epoch).len(), n_blocks_between(node.start, node.end()));
        if n_known < n_blocks {
            missing.push(id);
        }
        if n_known > 0 {
            break;
        }
    }
    missing.into_iter().rev().all(|id| hash_node(tree, id, key, n_left))
}

/// The ancestors' hashes must be complete.
fn hash_node(tree: &mut PrefixTree, id: NodeId, key: &HashKey, n_left: &mut usize) -> bool {
    let preceding = match tree.node(id) {
        Node { parent: Some(parent), blocks, .. } if blocks.with_epoch(key.epoch).is_empty() => {
            hash_before(tree, *parent, key.epoch)
        }
        _ => (0, Vec::new()),
    };
    let node = tree.node_mut(id);
    let salt = salt_of(&key.key, &node.adapters);
    node.blocks.complete(key.epoch, node.start, &node.tokens, preceding, n_left, |_| salt)
}

/// The hash of the last complete block that ends in `id` or an ancestor, and the tokens after that block.
fn hash_before(tree: &PrefixTree, id: NodeId, epoch: u32) -> (u64, Vec<Token>) {
    let n_rest = (tree.node(id).end() % BLOCK) as usize;
    let mut rest = Vec::with_capacity(BLOCK as usize);
    let mut hash = 0;
    for id in tree.upwards(id) {
        let node = tree.node(id);
        let n = (n_rest - rest.len()).min(node.tokens.len());
        rest.extend(node.tokens[node.tokens.len() - n..].iter().rev());
        if let Some(&last) = node.blocks.with_epoch(epoch).last() {
            hash = last;
            break;
        }
    }
    rest.reverse();
    (hash, rest)
}
