//! Tests the cache against a shadow memory that stores only tokens: after any operations, both hold the same.

use std::collections::BTreeMap;

mod blocks;
mod costs;
mod host_eviction;
mod integrity;
mod pins;
mod properties;

use super::*;

fn memory(forks: ForkRule) -> MemoryKind {
    let n_window = if forks == ForkRule::InWindow { 16 } else { 0 };
    MemoryKind {
        forks,
        idle_cost: IdleCost::Scores,
        can_be_saved: true,
        bytes_per_token: 4,
        bytes_per_state: 0,
        tokens_per_run: 2,
        n_window,
    }
}

/// The expected contents of the model's memory.
#[derive(Default)]
struct Shadow {
    sequences: BTreeMap<KvSeqId, Vec<Token>>,
    /// Cells of their tokens: the lowest cells that were free.
    cells: BTreeMap<KvSeqId, Vec<u32>>,
    /// First position from which a sequence holds what a sliding window sees; 0 for sequences without an entry.
    whole_from: BTreeMap<KvSeqId, u32>,
    n_window: u32,
}

impl Shadow {
    fn follow(&mut self, cache: &mut KvCache) {
        let memory = cache.kind;
        for op in cache.take_ops() {
            match op {
                CacheOp::Fork { from, to, n_tokens } => {
                    let shared = self.sequences[&from][..n_tokens as usize].to_vec();
                    assert!(self.sequences.get(&to).is_none_or(Vec::is_empty), "{to:?} is empty before");
                    assert!(memory.holds_window(self.whole_from(from), n_tokens), "its window is complete");
                    self.sequences.insert(to, shared);
                    self.cells.insert(to, self.cells[&from][..n_tokens as usize].to_vec());
                    self.whole_from.insert(to, self.whole_from(from));
                }
                CacheOp::Truncate(id, n_kept) | CacheOp::TruncateIfPossible(id, n_kept) => self.truncate(id, n_kept),
                CacheOp::Drop(id) => {
                    self.sequences.insert(id, Vec::new());
                    self.cells.remove(&id);
                    self.whole_from.remove(&id);
                }
            }
        }
    }

    fn whole_from(&self, id: KvSeqId) -> u32 {
        self.whole_from.get(&id).copied().unwrap_or(0)
    }

    fn truncate(&mut self, id: KvSeqId, n_kept: u32) {
        self.sequences.get_mut(&id).expect("it holds tokens").truncate(n_kept as usize);
        self.cells.entry(id).or_default().truncate(n_kept as usize);
    }

    fn lowest_free(&self, n: u32) -> Vec<u32> {
        let used: BTreeSet<u32> = self.cells.values().flatten().copied().collect();
        (0..).filter(|cell| !used.contains(cell)).take(n as usize).collect()
    }

    fn append(&mut self, id: KvSeqId, tokens: &[Token]) {
        self.sequences.get_mut(&id).expect("it was placed").extend(tokens);
        let cells = self.lowest_free(length(tokens));
        self.cells.entry(id).or_default().extend(cells);
    }

    fn relocate(&mut self, Relocation { ids, range }: &Relocation) {
        let range_of_tokens = range.start as usize..range.end as usize;
        let moved: BTreeSet<u32> = self.cells[&ids[0]][range_of_tokens.clone()].iter().copied().collect();
        for (id, cells) in &self.cells {
            let n_moved = cells.iter().filter(|cell| moved.contains(cell)).count();
            assert_eq!(n_moved, if ids.contains(id) { moved.len() } else { 0 }, "all cells of {ids:?} move, and no others");
        }
        // The cells are free while new ones are taken.
        for id in ids {
            self.cells.get_mut(id).expect("it holds cells")[range_of_tokens.clone()].fill(u32::MAX);
        }
        let taken = self.lowest_free(length_of(moved.len()));
        for id in ids {
            self.cells.get_mut(id).expect("it holds cells")[range_of_tokens.clone()].copy_from_slice(&taken);
        }
    }

    /// Moves the window to the end of the sequence, which reuses the cells before it.
    fn move_on(&mut self, id: KvSeqId) {
        let n = length(&self.sequences[&id]);
        self.whole_from.insert(id, (n + 1).saturating_sub(self.n_window).max(self.whole_from(id)));
    }

    /// Returns the start of the window, followed by the whole text up to the end of `range`, so that a reload can check it.
    fn save(&self, id: KvSeqId, range: Range<u32>) -> SavedState {
        let last_window = range.end.saturating_sub(self.n_window);
        let whole_from = self.whole_from(id).max(last_window).clamp(range.start, range.end);
        let text = &self.sequences[&id][..range.end as usize];
        let words = std::iter::once(Token::try_from(whole_from).expect("small")).chain(text.iter().copied());
        SavedState { bytes: words.flat_map(Token::to_le_bytes).collect(), whole_from }
    }

    fn reload(&mut self, id: KvSeqId, reload: &Reload) {
        let mut text: Vec<Token> = read(&reload.bytes);
        let whole_from = u32::try_from(text.remove(0)).expect("a position");
        let held = self.sequences.get_mut(&id).expect("it was placed");
        assert_eq!(text[..held.len()], held[..], "an entry is reloaded after the text that it was saved of");
        held.extend(&text[reload.kept.start as usize..reload.kept.end as usize]);
        let taken = reload.range.clone().zip(self.lowest_free(length_of(reload.range.len())));
        let kept: Vec<u32> = taken.filter(|(position, _)| reload.kept.contains(position)).map(|(_, cell)| cell).collect();
        self.cells.entry(id).or_default().extend(kept);
        if whole_from > reload.kept.start {
            self.whole_from.insert(id, whole_from.min(reload.kept.end));
        }
    }
}

fn read(bytes: &[u8]) -> Vec<Token> {
    bytes.chunks(4).map(|bytes| Token::from_le_bytes(bytes.try_into().expect("four bytes"))).collect()
}

/// A cache and the memory that follows it.
struct Bench {
    cache: KvCache,
    shadow: Shadow,
    forks: ForkRule,
    /// Adapters of the texts that are written and matched.
    adapters: AdapterSchedule,
}

impl Bench {
    fn new(n_cells: u32, n_ids: u32, forks: ForkRule, max_host_bytes: Option<u64>) -> Self {
        Self::of(memory(forks), n_cells, n_ids, max_host_bytes)
    }

    fn of(memory: MemoryKind, n_cells: u32, n_ids: u32, max_host_bytes: Option<u64>) -> Self {
        let cache = KvCache::new(n_cells, n_ids, memory, max_host_bytes);
        let shadow = Shadow { n_window: memory.n_window, ..Shadow::default() };
        Self { cache, shadow, forks: memory.forks, adapters: AdapterSchedule::default() }
    }

    fn find(&self, tokens: &[Token], at_least: u32) -> PrefixMatch {
        let n = length(tokens);
        let query = PrefixQuery { adapters: &self.adapters, tokens, at_least, at_most: n, takes_logits: false };
        let can_fork = |id, n_held, n| match self.forks {
            ForkRule::Anywhere => n <= n_held,
            ForkRule::InWindow => n <= n_held && self.cache.kind.holds_window(self.shadow.whole_from(id), n),
            ForkRule::AtEnd => n == n_held,
        };
        let matched = self.cache.find(&query, can_fork).unwrap_or_default();
        assert!(matched.source.is_none_or(|id| !self.cache.is_private(id)), "a private path is never matched");
        matched
    }

    fn evict(&mut self, max_units: u64) -> bool {
        self.remove_tail(max_units, EvictionReason::MemoryPressure, true)
    }

    /// Removes a part of an idle path; returns `false` if none was removed.
    fn remove_tail(&mut self, max_units: u64, reason: EvictionReason, can_save: bool) -> bool {
        let Some(removal) = self.cache.next_removal(max_units, reason) else { return false };
        self.shadow.follow(&mut self.cache);
        let range = removal.saves.clone().filter(|_| can_save);
        let saved = range.map(|range| self.shadow.save(removal.id, range));
        let was_removed = self.cache.remove_tail(&removal, saved, reason);
        self.shadow.follow(&mut self.cache);
        was_removed
    }

    /// Places `tokens` on their longest cached prefix, and reloads and computes the rest. Returns `None` if there are too few
    /// cells or ids.
    fn write(&mut self, tokens: &[Token]) -> Option<KvSeqId> {
        self.cache.touch(&self.adapters, tokens);
        while self.cache.n_free_ids() == 0 {
            if !self.evict(u64::MAX) {
                return None;
            }
        }
        let matched = self.find(tokens, 1);
        let id = self.cache.place(&self.adapters, Some(&matched)).expect("an id is free");
        self.shadow.follow(&mut self.cache);
        assert_eq!(self.shadow.sequences.entry(id).or_default(), &tokens[..matched.n_device as usize], "the forked tokens");
        for reload in &matched.reloads {
            let n = (reload.range.end - reload.range.start) as usize;
            if !self.free_cells(n) {
                self.cache.unpin(id);
                return None;
            }
            self.shadow.reload(id, reload);
            let kept = reload.kept.start as usize..reload.kept.end as usize;
            self.cache.record_reload(id, &tokens[kept], &reload.range);
            self.shadow.follow(&mut self.cache);
        }
        assert_eq!(
            self.shadow.sequences[&id],
            &tokens[..matched.n_tokens() as usize],
            "the reloaded tokens are those of the text"
        );
        let whole_from = self.shadow.whole_from(id);
        assert!(self.cache.kind.holds_window(whole_from, matched.n_tokens()), "its window is complete from {whole_from} on");
        let rest = &tokens[matched.n_tokens() as usize..];
        let fits = self.free_cells(rest.len());
        let n = if fits { rest.len() } else { rest.len().min(self.cache.n_free()) };
        self.grow(id, &rest[..n]);
        Some(id)
    }

    fn place_private(&mut self) -> KvSeqId {
        let id = self.cache.place_private(&self.adapters).expect("an id is free");
        self.shadow.follow(&mut self.cache);
        self.shadow.sequences.entry(id).or_default();
        id
    }

    fn free_cells(&mut self, n: usize) -> bool {
        while self.cache.n_free() < n {
            if !self.evict(8) {
                return false;
            }
        }
        true
    }

    fn grow(&mut self, id: KvSeqId, tokens: &[Token]) {
        self.cache.extend([(id, tokens)]);
        self.shadow.follow(&mut self.cache);
        self.shadow.append(id, tokens);
    }

    fn end(&mut self, id: KvSeqId) {
        self.cache.unpin(id);
        self.shadow.follow(&mut self.cache);
    }

    fn check(&self) {
        self.cache.check_integrity();
        for (id, _) in self.cache.paths() {
            assert_eq!(
                self.cache.tokens_of(id),
                self.shadow.sequences[&id],
                "the memory and the cache hold the same tokens for {id:?}"
            );
            let cells: Vec<u32> = self.cache.cell_runs.cells_from(id, 0).map(|cell| cell.0).collect();
            assert_eq!(&cells, self.shadow.cells.get(&id).unwrap_or(&Vec::new()), "the cells of {id:?}");
            let backwards = self.cache.cell_runs.cells_reversed(id, 0..self.cache.n_held(id)).map(|cell| cell.0);
            assert!(backwards.eq(cells.iter().rev().copied()), "the same cells in reverse");
        }
    }
}

fn bench() -> Bench {
    Bench::new(100, 8, ForkRule::Anywhere, Some(1 << 20))
}

fn text(seed: u64, n: usize) -> Vec<Token> {
    let mut random = Random(seed);
    (0..n).map(|_| Token::try_from(random.below(1000)).expect("small")).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[test]
fn paths_share_the_cells_of_a_common_prefix() {
    let mut bench = bench();
    bench.write(&[1, 2, 3, 4]).unwrap();
    bench.write(&[1, 2, 3, 5, 6]).unwrap();
    assert_eq!((bench.cache.n_used(), bench.cache.n_evictable()), (6, 0));
    bench.check();
}

#[test]
fn tokens_of_a_running_sequence_are_shared_up_to_its_last_token() {
    let mut bench = bench();
    let running = bench.write(&text(1, 20)).unwrap();
    bench.grow(running, &[7, 8]);
    let longer = [text(1, 20), vec![7, 9]].concat();
    assert_eq!(bench.find(&longer, 16).n_device, 21);
    bench.write(&longer).unwrap();
    bench.grow(running, &[10]);
    assert_eq!(bench.cache.n_used(), 24);
    bench.check();
}

#[test]
fn a_private_path_shares_no_cells_and_is_dropped_when_it_ends() {
    let mut bench = bench();
    let shared = bench.write(&text(1, 40)).unwrap();
    let private = bench.place_private();
    bench.grow(private, &text(1, 60));
    assert_eq!(bench.find(&text(1, 60), 1).n_tokens(), 40, "the shared path is matched, not the private one");
    assert_eq!(bench.cache.n_used(), 100);
    bench.check();
    bench.end(private);
    bench.check();
    assert_eq!((bench.cache.n_used(), bench.cache.n_ids_used()), (40, 1));
    let private = bench.place_private();
    bench.grow(private, &text(2, 60));
    let reservation = bench.cache.reserve(private, None);
    bench.shadow.follow(&mut bench.cache);
    bench.check();
    assert_eq!((bench.cache.n_used(), bench.find(&text(2, 60), 1).n_tokens()), (40, 0));
    bench.cache.release(reservation);
    bench.end(shared);
    bench.check();
}

#[test]
fn cells_of_a_private_path_are_not_relocated() {
    let mut bench = Bench::new(2000, 8, ForkRule::Anywhere, Some(0));
    let low = bench.write(&text(1, 1500)).unwrap();
    let private = bench.place_private();
    bench.grow(private, &text(2, 40));
    bench.end(low);
    while bench.evict(u64::MAX) {}
    assert_eq!((bench.cache.n_used(), bench.cache.n_cells_reached()), (40, 1540));
    assert_eq!(bench.cache.next_relocation(24), None);
}

#[test]
fn a_path_that_another_contains_frees_its_id() {
    let mut bench = bench();
    let short = bench.write(&text(1, 20)).unwrap();
    bench.end(short);
    assert_eq!(bench.cache.n_ids_used(), 1);
    let long = bench.write(&text(1, 30)).unwrap();
    assert_eq!(bench.cache.n_ids_used(), 1, "the longer path contains the shorter one");
    let again = bench.write(&text(1, 25)).unwrap();
    bench.end(again);
    assert_eq!(bench.cache.n_ids_used(), 1);
    bench.end(long);
    assert_eq!((bench.cache.n_ids_used(), bench.cache.n_used()), (1, 30));
    bench.check();
}

#[test]
fn branches_with_equal_tokens_become_one_path_when_they_end() {
    let mut bench = bench();
    let ids: Vec<_> = (0..3).map(|_| bench.write(&text(1, 20)).unwrap()).collect();
    for &id in &ids {
        bench.grow(id, &[1, 2, 3]);
    }
    assert_eq!(bench.cache.n_used(), 29);
    for id in ids {
        bench.end(id);
    }
    assert_eq!((bench.cache.n_used(), bench.cache.n_ids_used()), (23, 1));
    bench.check();
}

#[test]
fn the_least_recently_used_leaf_is_offloaded_first_and_reloaded() {
    let mut bench = bench();
    let trunk = text(1, 20);
    for seed in [2, 3] {
        let id = bench.write(&[trunk.clone(), text(seed, 10)].concat()).unwrap();
        bench.end(id);
    }
    assert!(bench.evict(u64::MAX));
    assert_eq!(bench.cache.n_used(), 30, "the older branch was removed, the trunk and the younger one stay");
    let older = [trunk.clone(), text(2, 10)].concat();
    let found = bench.find(&older, 16);
    assert_eq!((found.n_device, found.n_tokens()), (20, 30));
    bench.write(&older).unwrap();
    assert_eq!(bench.cache.counts().n_reloaded, 10);
    bench.check();
}

#[test]
fn a_saved_path_is_removed_without_another_save() {
    let mut bench = bench();
    let id = bench.write(&text(1, 20)).unwrap();
    bench.end(id);
    bench.evict(u64::MAX);
    let id = bench.write(&text(1, 20)).unwrap();
    bench.end(id);
    assert_eq!(bench.cache.next_removal(u64::MAX, EvictionReason::MemoryPressure).unwrap().saves, None);
    bench.evict(u64::MAX);
    assert_eq!((bench.cache.counts().n_offloaded, bench.cache.n_used()), (20, 0));
    bench.check();
}

#[test]
fn a_long_leaf_is_offloaded_in_parts_within_the_cost_limit() {
    let mut bench = bench();
    let id = bench.write(&text(1, 90)).unwrap();
    bench.end(id);
    // The cells are adjacent: the run costs two tokens more.
    assert_eq!(bench.cache.next_removal(42, EvictionReason::MemoryPressure).unwrap().saves, Some(50..90));
    assert_eq!(bench.cache.next_removal(1, EvictionReason::MemoryPressure).unwrap().saves, Some(74..90), "16 tokens at least");
    bench.evict(42);
    assert_eq!(bench.cache.n_used(), 50);
    let found = bench.find(&text(1, 90), 16);
    assert_eq!((found.n_device, found.n_tokens()), (50, 90));
    bench.check();
}

#[test]
fn scattered_cells_cost_more_to_save() {
    let mut bench = bench();
    let [a, b] = [1, 2].map(|seed| bench.write(&text(seed, 1)).unwrap());
    for token in 0..30 {
        bench.cache.extend([(a, &[token][..]), (b, &[token])]);
        for id in [a, b] {
            bench.shadow.sequences.get_mut(&id).unwrap().push(token);
        }
    }
    bench.end(a);
    bench.end(b);
    let removal = bench.cache.next_removal(60, EvictionReason::MemoryPressure).unwrap();
    assert_eq!((removal.saves, removal.n_units), (Some(11..31), 60));
}

#[test]
fn a_request_that_ends_inside_a_host_cache_entry_keeps_only_its_part() {
    let mut bench = bench();
    let id = bench.write(&text(1, 60)).unwrap();
    bench.end(id);
    bench.evict(u64::MAX);
    let shorter = [&text(1, 60)[..40], &[5000, 5001]].concat();
    bench.write(&shorter).unwrap();
    assert_eq!((bench.cache.n_used(), bench.cache.counts().n_reloaded), (42, 40));
    bench.check();
}

#[test]
fn a_full_host_cache_drops_the_least_recently_used_entry() {
    // The host cache holds two entries.
    let mut bench = Bench::new(100, 8, ForkRule::Anywhere, Some(2 * (31 * 4 + 512)));
    for seed in 1..=3 {
        let id = bench.write(&text(seed, 30)).unwrap();
        bench.end(id);
        bench.evict(u64::MAX);
        bench.check();
    }
    let known: Vec<u32> = (1..=3).map(|seed| bench.find(&text(seed, 30), 16).n_tokens()).collect();
    assert_eq!(known, [0, 30, 30]);
    assert_eq!(bench.cache.counts().n_evicted, 30);
}

#[test]
fn without_a_host_cache_removed_tokens_are_lost() {
    let mut bench = Bench::new(100, 8, ForkRule::Anywhere, Some(0));
    let id = bench.write(&text(1, 30)).unwrap();
    bench.end(id);
    assert_eq!(bench.cache.next_removal(u64::MAX, EvictionReason::MemoryPressure).unwrap().saves, None);
    bench.evict(u64::MAX);
    assert_eq!((bench.cache.n_used(), bench.find(&text(1, 30), 1).n_tokens()), (0, 0));
    bench.check();
}

#[test]
fn a_pinned_prefix_outlives_unpinned_ones() {
    let mut bench = Bench::new(100, 8, ForkRule::Anywhere, Some(2 * (31 * 4 + 512)));
    let id = bench.write(&text(1, 30)).unwrap();
    let pinned = bench.cache.pin(id).unwrap();
    bench.shadow.follow(&mut bench.cache);
    for seed in 2..9 {
        let id = bench.write(&text(seed, 30)).unwrap();
        bench.end(id);
        while bench.evict(u64::MAX) {}
        bench.check();
    }
    assert_eq!(bench.find(&text(1, 30), 16).n_tokens(), 30);
    assert_eq!(bench.cache.pinned(), std::slice::from_ref(&pinned));
    assert!(bench.cache.unpin_prefix(pinned.id) && !bench.cache.unpin_prefix(pinned.id));
    for seed in 2..5 {
        let id = bench.write(&text(seed, 30)).unwrap();
        bench.end(id);
        while bench.evict(u64::MAX) {}
    }
    assert_eq!(bench.find(&text(1, 30), 16).n_tokens(), 0, "an unpinned prefix is evicted like others");
    bench.check();
}

#[test]
fn without_a_host_cache_a_pinned_prefix_stays_in_the_device_cache() {
    let mut bench = Bench::new(100, 8, ForkRule::Anywhere, Some(0));
    let id = bench.write(&text(1, 30)).unwrap();
    let pinned = bench.cache.pin(id).unwrap();
    assert!(bench.cache.is_idle() && !bench.evict(u64::MAX));
    let id = bench.write(&text(2, 30)).unwrap();
    let refused = bench.cache.pin(id);
    assert!(matches!(refused, Err(crate::error::Error::PinsFull { n_bytes: 120, n_pinned_bytes: 120, limit: 200 })));
    bench.cache.unpin_prefix(pinned.id);
    bench.check();
    assert_eq!(bench.cache.n_evictable(), 60);
}

#[test]
fn erasing_a_text_removes_the_part_that_no_other_path_holds() {
    let mut bench = bench();
    let (trunk, a, b) = (text(1, 20), text(2, 10), text(3, 10));
    for tail in [&a, &b] {
        let id = bench.write(&[trunk.clone(), tail.clone()].concat()).unwrap();
        bench.end(id);
    }
    bench.evict(u64::MAX);
    bench.cache.erase(&bench.adapters, &[trunk.clone(), a.clone()].concat(), 0);
    bench.shadow.follow(&mut bench.cache);
    bench.check();
    assert_eq!(bench.find(&[trunk.clone(), a].concat(), 16).n_tokens(), 20);
    bench.cache.erase(&bench.adapters, &[trunk.clone(), b].concat(), 0);
    bench.shadow.follow(&mut bench.cache);
    bench.check();
    assert_eq!((bench.find(&trunk, 16).n_tokens(), bench.cache.n_used(), bench.cache.host_cache_size().2), (0, 0, 0));
}

#[test]
fn high_cells_are_relocated_for_all_their_holders() {
    // The number of steps after compaction is minimal, although it would not start for so little.
    for (n_low, n_trunk, max_reached) in [(1500, 40, 256), (1300, 340, 512)] {
        let mut bench = Bench::new(2000, 8, ForkRule::Anywhere, Some(0));
        let low = bench.write(&text(1, n_low)).unwrap();
        let trunk = text(2, n_trunk);
        let high = [3, 4].map(|seed| bench.write(&[trunk.clone(), text(seed, 30)].concat()).unwrap());
        bench.end(low);
        while bench.evict(u64::MAX) {}
        let n_used = n_trunk + 2 * 30;
        assert_eq!((bench.cache.n_used(), bench.cache.n_cells_reached()), (n_used, n_low + n_used));
        let mut n_moves = 0;
        while let Some(relocation) = bench.cache.next_relocation(24) {
            assert!(relocation.range.len() <= 24 && !relocation.ids.is_empty());
            bench.cache.record_relocation(&relocation);
            bench.shadow.relocate(&relocation);
            bench.check();
            n_moves += 1;
        }
        assert!(bench.cache.n_cells_reached() <= max_reached, "{} after {n_moves} moves", bench.cache.n_cells_reached());
        for id in high {
            bench.end(id);
        }
        bench.check();
    }
}

#[test]
fn an_entry_is_useless_if_its_window_reaches_into_cells_that_another_path_lost() {
    let mut bench = Bench::new(200, 8, ForkRule::InWindow, Some(1 << 20));
    let [trunk, short, long] = [text(1, 70), text(2, 5), text(3, 50)];
    let [short, long] = [short, long].map(|branch| [&trunk[..], &branch].concat());
    for path in [&short, &long] {
        let id = bench.write(path).expect("cells and ids are free");
        bench.end(id);
    }
    // The short branch is saved while the device cache still has the window at the end of the trunk; the trunk is saved after
    // it was lost.
    assert!(bench.evict(u64::MAX));
    for (id, _) in bench.cache.paths() {
        bench.shadow.move_on(id);
    }
    while bench.evict(u64::MAX) {}
    bench.check();
    assert_eq!(bench.cache.n_used(), 0);
    assert_eq!(bench.find(&short, 1).n_tokens(), 0);
    assert_eq!(bench.find(&trunk, 1).n_tokens(), 0);
    assert_eq!(bench.find(&long, 1).n_tokens(), 120);
}

#[test]
fn a_saved_window_is_matched_after_the_window_in_the_device_cache_has_moved_on() {
    let mut bench = Bench::new(200, 8, ForkRule::InWindow, Some(1 << 20));
    let trunk = text(1, 70);
    let id = bench.write(&trunk).expect("cells and ids are free");
    bench.end(id);
    while bench.evict(u64::MAX) {}
    let id = bench.write(&[&trunk[..], &text(2, 50)].concat()).expect("cells and ids are free");
    let tokens = [&trunk[..], &text(3, 9)].concat();
    let query = PrefixQuery { adapters: &bench.adapters, tokens: &tokens, at_least: 1, at_most: 79, takes_logits: false };
    for (first_fork, source) in [(70, Some(id)), (71, None)] {
        let matched = bench.cache.find(&query, |_, _, n| n >= first_fork).expect("the prefix is in both tiers");
        assert_eq!((matched.source, matched.n_tokens()), (source, 70));
    }
}

#[test]
fn a_state_matches_only_at_its_checkpoint_or_end() {
    let mut bench = Bench::new(100, 8, ForkRule::AtEnd, Some(1 << 20));
    let id = bench.write(&text(1, 20)).unwrap();
    let bytes = bench.shadow.save(id, 0..20).bytes;
    assert!(bench.cache.add_checkpoint(id, 20, bytes, Some([1.0, 2.0].into())));
    bench.grow(id, &[7, 8, 9]);
    assert_eq!(bench.find(&[text(1, 20), vec![7]].concat(), 16).n_tokens(), 20);
    assert_eq!(bench.find(&[text(1, 20), vec![7, 8, 9, 1]].concat(), 16).n_device, 23);
    assert_eq!(bench.find(&text(1, 19), 16).n_tokens(), 0);
    let prompt = text(1, 20);
    let exact = PrefixQuery { adapters: &bench.adapters, tokens: &prompt, at_least: 16, at_most: 19, takes_logits: true };
    let found = bench.cache.find(&exact, |_, n_held, n| n == n_held).unwrap();
    assert_eq!((found.n_tokens(), found.logits.as_deref()), (20, Some(&[1.0, 2.0][..])));
    bench.end(id);
    bench.evict(u64::MAX);
    assert_eq!(bench.find(&[text(1, 20), vec![7, 8, 9, 1]].concat(), 16).n_tokens(), 23, "its end was saved at its removal");
    bench.check();
}

#[test]
fn an_early_removal_stops_when_the_host_cache_is_full() {
    // Bytes of 40 tokens and their overhead.
    let mut bench = Bench::new(200, 8, ForkRule::Anywhere, Some(40 * 4 + 512));
    let id = bench.write(&text(1, 100)).unwrap();
    bench.end(id);
    let early = bench.cache.next_removal(42, EvictionReason::Early).unwrap();
    assert_eq!(early.saves, Some(60..100));
    bench.shadow.follow(&mut bench.cache);
    let saved = SavedState { bytes: vec![0; 160].into(), whole_from: 60 };
    assert!(bench.cache.remove_tail(&early, Some(saved), EvictionReason::Early));
    assert_eq!(bench.cache.next_removal(42, EvictionReason::Early), None, "saving the rest would drop its continuation");
    bench.shadow.follow(&mut bench.cache);
    bench.check();
    assert_eq!(bench.find(&text(1, 100), 16).n_tokens(), 100);
    let refused = bench.cache.next_removal(42, EvictionReason::MemoryPressure).unwrap();
    assert!(refused.saves.is_some(), "under pressure, the rest has priority over its continuation, which depends on it");
}

#[test]
fn an_entry_that_was_split_several_times_is_reloaded_once() {
    let mut bench = Bench::new(400, 20, ForkRule::Anywhere, Some(1 << 20));
    let id = bench.write(&text(1, 120)).unwrap();
    bench.end(id);
    bench.evict(u64::MAX);
    for n in [20, 40, 60, 80] {
        let id = bench.write(&[&text(1, 120)[..n], &[5000 + Token::try_from(n).unwrap(), 1, 2]].concat()).unwrap();
        bench.end(id);
    }
    while bench.evict(u64::MAX) {}
    bench.check();
    assert_eq!(bench.find(&text(1, 120), 16).reloads.len(), 1);
}

#[test]
fn a_pinned_prefix_does_not_keep_its_continuation() {
    let mut bench = Bench::new(200, 8, ForkRule::Anywhere, Some(1 << 20));
    let id = bench.write(&text(1, 100)).unwrap();
    bench.end(id);
    bench.evict(u64::MAX);
    let id = bench.write(&text(1, 20)).unwrap();
    bench.cache.pin(id).unwrap();
    bench.shadow.follow(&mut bench.cache);
    while bench.evict(u64::MAX) {}
    bench.cache.erase(&bench.adapters, &text(1, 100), 0);
    bench.check();
    let (n_bytes, _, n_entries) = bench.cache.host_cache_size();
    assert!(n_entries == 1 && n_bytes < 700, "{n_bytes} bytes in {n_entries} entries");
    assert_eq!(bench.find(&text(1, 20), 16).n_tokens(), 20);
}

#[test]
fn a_pinned_prefix_whose_cells_were_lost_is_computed_again() {
    let mut bench = Bench::new(200, 8, ForkRule::Anywhere, Some(0));
    let id = bench.write(&text(1, 30)).unwrap();
    let pinned = bench.cache.pin(id).unwrap();
    bench.cache.invalidate(&[id]);
    bench.shadow.follow(&mut bench.cache);
    bench.check();
    assert_eq!((bench.cache.n_used(), bench.find(&text(1, 30), 16).n_tokens()), (0, 0));
    assert!(bench.cache.unpin_prefix(pinned.id));
    bench.check();
}

#[test]
fn a_window_that_ends_inside_a_longer_path_is_dropped_when_ids_run_out() {
    let mut bench = Bench::new(400, 4, ForkRule::InWindow, Some(0));
    let long = bench.write(&text(1, 100)).unwrap();
    for n in 40..60 {
        let id = bench.write(&text(1, n)).expect("an id can always be had");
        bench.end(id);
    }
    bench.end(long);
    bench.check();
}

#[test]
fn roots_of_unused_adapter_sets_are_removed() {
    let mut bench = bench();
    let with = |scale: u16| AdapterSet::with_adapters([(0, f32::from(scale))]);
    let lasting = bench.write(&text(1, 30)).unwrap();
    bench.adapters = AdapterSchedule::changing(AdapterSet::default(), 20, with(1));
    bench.write(&text(1, 30)).unwrap();
    let n_nodes = bench.cache.tree.nodes().count();
    for scale in 2..200 {
        bench.adapters = with(scale).into();
        let id = bench.write(&[1, 2, 3]).unwrap();
        bench.cache.discard(id);
        bench.shadow.follow(&mut bench.cache);
        bench.check();
        assert_eq!(bench.cache.tree.nodes().count(), n_nodes);
    }
    bench.end(lasting);
    bench.check();
}
