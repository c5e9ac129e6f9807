//! Block hashes list exactly the cached blocks, whatever changes in the tree.

use std::collections::BTreeSet;

use super::*;
use crate::cache::blocks::{BLOCK, CachedBlock, DigestCursor, PrefixDigest, block_hashes};
use crate::sampling::draw::rng::Mt19937;

const KEY: &[u8] = b"a key";

fn cache() -> KvCache {
    KvCache::new(20_000, 32, memory(ForkRule::Anywhere), None)
}

fn write(cache: &mut KvCache, adapters: &AdapterSchedule, tokens: &[Token]) -> KvSeqId {
    let query = PrefixQuery { adapters, tokens, at_least: 1, at_most: length(tokens), takes_logits: false };
    let matched = cache.find(&query, |_, n_held, n| n <= n_held).unwrap_or_default();
    let id = cache.place(adapters, Some(&matched)).expect("an id is free");
    cache.extend([(id, &tokens[matched.n_device as usize..])]);
    id
}

fn evict(cache: &mut KvCache) {
    while let Some(removal) = cache.next_removal(u64::MAX, EvictionReason::MemoryPressure) {
        let saved = removal.saves.clone().map(|range| SavedState { bytes: vec![0; range.len()].into(), whole_from: range.start });
        cache.take_ops().count();
        cache.remove_tail(&removal, saved, EvictionReason::MemoryPressure);
    }
}

/// All blocks that are returned, and the number of calls.
fn all_blocks(cache: &mut KvCache, key: &[u8]) -> (Vec<CachedBlock>, usize) {
    let (mut all, mut next, mut n_calls) = (Vec::new(), Some(DigestCursor::default()), 0);
    while let Some(cursor) = next {
        let some;
        (some, next) = cache.hash_blocks(key, cursor);
        all.extend(some);
        n_calls += 1;
    }
    (all, n_calls)
}

fn hashes(blocks: &[CachedBlock]) -> BTreeSet<u64> {
    blocks.iter().map(|block| block.hash).collect()
}

fn text(seed: u32, n: usize) -> Vec<Token> {
    let mut random = Mt19937::new(seed);
    (0..n).map(|_| Token::try_from(random.next_u32() % 1_000).expect("small")).collect()
}

#[test]
fn block_hashes_are_stable_across_machines_and_versions() {
    let tokens: Vec<Token> = (0..150).collect();
    let expected = [0xf406_1464_1030_ab05, 0x6a65_c5c1_8f14_1c0d];
    assert_eq!(block_hashes(KEY, &AdapterSet::default(), &tokens), expected);
    let adapted = AdapterSet::with_adapters([(3, 0.5), (1, 2.0)]);
    assert_eq!(block_hashes(KEY, &adapted, &tokens), [0xe7cb_cffa_bbd7_81b6, 0x5185_2d46_ded6_7793]);
}

#[test]
fn running_and_offloaded_blocks_are_listed() {
    let mut cache = cache();
    let base = AdapterSchedule::default();
    let text = text(1, 1_000);
    let all = block_hashes(KEY, &AdapterSet::default(), &text);
    let id = write(&mut cache, &base, &text[..300]);
    assert_eq!(hashes(&all_blocks(&mut cache, KEY).0), all[..4].iter().copied().collect(), "300 tokens are 4 blocks and a part");
    cache.extend([(id, &text[300..330])]);
    assert_eq!(hashes(&all_blocks(&mut cache, KEY).0), all[..5].iter().copied().collect());
    cache.unpin(id);
    let (blocks, _) = all_blocks(&mut cache, KEY);
    assert_eq!((hashes(&blocks), blocks[4].tier), (all[..5].iter().copied().collect(), Tier::Device));
    evict(&mut cache);
    let (blocks, _) = all_blocks(&mut cache, KEY);
    assert_eq!(hashes(&blocks), all[..5].iter().copied().collect());
    assert!(blocks.iter().all(|block| block.tier == Tier::Host));
    assert_eq!(blocks.iter().map(|block| block.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

#[test]
fn blocks_of_a_private_path_are_not_listed() {
    let mut cache = cache();
    let id = cache.place_private(&AdapterSchedule::default()).expect("an id is free");
    cache.extend([(id, &text(1, 300)[..])]);
    assert_eq!(all_blocks(&mut cache, KEY), (Vec::new(), 1));
}

#[test]
fn a_call_hashes_a_bounded_number_of_blocks_and_the_next_one_continues() {
    let mut cache = cache();
    let text = text(1, 19_968);
    let id = write(&mut cache, &AdapterSchedule::default(), &text);
    let n_blocks = text.len() / BLOCK as usize;
    for key in [KEY, b"another"] {
        let (n_visited, (some, next)) = visit_counter::count_visits(|| cache.hash_blocks(key, DigestCursor::default()));
        assert!(n_visited < 300 && some.is_empty() && next.is_some(), "{n_visited} visits");
        let (all, _) = all_blocks(&mut cache, key);
        assert_eq!(hashes(&all), block_hashes(key, &AdapterSet::default(), &text).into_iter().collect());
        let (n_visited, (some, next)) = visit_counter::count_visits(|| cache.hash_blocks(key, DigestCursor::default()));
        assert!(n_visited < 64 && next.is_none(), "nothing is hashed again: {n_visited} visits");
        assert_eq!(some.len(), n_blocks);
    }
    cache.unpin(id);
    assert_eq!(all_blocks(&mut cache, KEY).0.len(), n_blocks, "a node is hashed again after a tail");
}

#[test]
fn a_digest_that_is_too_long_keeps_every_second_block() {
    let blocks = |tier| (0..100).map(move |index| CachedBlock { hash: 1_000 - u64::from(index), index, tier });
    let both: Vec<CachedBlock> = blocks(Tier::Host).chain(blocks(Tier::Device)).collect();
    let digest = PrefixDigest::new(both.clone(), 100);
    assert_eq!((digest.device.len(), digest.host.len()), (100, 0), "blocks in both tiers count as in the device cache");
    assert!(digest.device.is_sorted());
    let digest = PrefixDigest::new(both, 30);
    assert_eq!(digest.device, (0..25).map(|n| 1_000 - (99 - 4 * n)).collect::<Vec<u64>>(), "every fourth");
    assert_eq!(PrefixDigest::new(blocks(Tier::Host).collect(), 0), PrefixDigest::default());
    let of_short_texts = (0..20).map(|hash| CachedBlock { hash, index: 0, tier: Tier::Device }).collect();
    assert_eq!(PrefixDigest::new(of_short_texts, 8).device.len(), 8);
}

/// Splits, joins, offloads, evictions, branches with other adapters: the blocks always match the listing.
#[test]
fn listed_blocks_match_the_listing_of_the_tree() {
    let mut random = Mt19937::new(7);
    let mut draw = move |n: u32| random.next_u32() % n;
    let mut cache = KvCache::new(6_000, 24, memory(ForkRule::Anywhere), Some(8_000));
    let adapted = AdapterSet::with_adapters([(1, 0.5)]);
    let schedules = [
        AdapterSchedule::default(),
        adapted.clone().into(),
        AdapterSchedule::changing(AdapterSet::default(), 100, adapted.clone()),
    ];
    let mut running: Vec<(KvSeqId, Vec<Token>, usize, usize)> = Vec::new();
    for round in 0..600_usize {
        match draw(4) {
            0 if !running.is_empty() => {
                let (id, ..) = running.swap_remove(draw(u32::try_from(running.len()).unwrap()) as usize);
                cache.unpin(id);
            }
            1 => {
                let removal = cache.next_removal(300, EvictionReason::MemoryPressure);
                if let Some(removal) = removal {
                    let saved = removal
                        .saves
                        .clone()
                        .filter(|_| draw(4) > 0)
                        .map(|range| SavedState { bytes: vec![0; range.len()].into(), whole_from: range.start });
                    cache.take_ops().count();
                    cache.remove_tail(&removal, saved, EvictionReason::MemoryPressure);
                }
            }
            _ if running.len() < 8 && cache.n_free_ids() > 0 => {
                // Texts start with one of three beginnings and continue in one of many ways, so that they diverge late.
                let (kind, seed) = (draw(3) as usize, draw(3));
                let mut tokens = text(seed, 50 + draw(400) as usize);
                tokens.extend(text(100 + draw(50), draw(300) as usize));
                let n_cells = tokens.len();
                if cache.n_free() < n_cells {
                    continue;
                }
                let id = write(&mut cache, &schedules[kind], &tokens);
                running.push((id, tokens, kind, round));
            }
            _ => {}
        }
        cache.take_ops().count();
        if round % 7 != 0 {
            continue;
        }
        let (blocks, _) = all_blocks(&mut cache, if round % 70 < 35 { KEY } else { b"another" });
        let key: &[u8] = if round % 70 < 35 { KEY } else { b"another" };
        let mut expected = BTreeMap::new();
        let listing = cache.list_nodes(|_| Some(0));
        for (index, node) in listing.iter().enumerate() {
            if node.tier == Tier::Uncached {
                continue;
            }
            let mut path = vec![index];
            while let Some(parent) = listing[path[path.len() - 1]].parent {
                path.push(parent);
            }
            let (mut tokens, mut adapter_sets) = (Vec::new(), Vec::new());
            for &index in path.iter().rev() {
                tokens.extend_from_slice(&listing[index].tokens);
                adapter_sets.resize(tokens.len(), AdapterSet::with_adapters(listing[index].adapters.iter().copied()));
            }
            let mut before = 0;
            for (index, block) in (0..).zip(tokens.chunks_exact(BLOCK as usize)) {
                let end = (index + 1) * BLOCK;
                before = super::super::blocks::hash_of(key, before, block, &adapter_sets[end as usize - 1]);
                if end > node.start {
                    let tier = if node.tier == Tier::Host { Tier::Host } else { Tier::Device };
                    expected.insert(before, (index, tier));
                }
            }
        }
        let all_blocks: BTreeMap<u64, (u32, Tier)> = blocks.iter().map(|block| (block.hash, (block.index, block.tier))).collect();
        assert_eq!(all_blocks, expected, "in round {round}");
    }
    for (id, ..) in running {
        cache.unpin(id);
    }
    cache.check_integrity();
}
