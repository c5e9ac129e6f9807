//! The cache against a memory that only remembers tokens: what it says is held is held, whatever happens in which order.

use std::collections::BTreeMap;

mod blocks;
mod costs;
mod pins;
mod properties;
mod room;

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

/// What a model's memory would hold.
#[derive(Default)]
struct Shadow {
    sequences: BTreeMap<KvSeqId, Vec<Token>>,
    /// Where their tokens are: the lowest cells that were free.
    cells: BTreeMap<KvSeqId, Vec<u32>>,
    /// From which token on each of them has what a sliding window sees; all, where it is not named.
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
                    assert!(self.sequences.get(&to).is_none_or(Vec::is_empty), "{to:?} holds nothing before");
                    assert!(memory.holds_window(self.whole_from(from), n_tokens), "its window is there");
                    self.sequences.insert(to, shared);
                    self.cells.insert(to, self.cells[&from][..n_tokens as usize].to_vec());
                    self.whole_from.insert(to, self.whole_from(from));
                }
                CacheOp::Truncate(id, n_kept) => self.truncate(id, n_kept),
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
        let which = range.start as usize..range.end as usize;
        let moved: BTreeSet<u32> = self.cells[&ids[0]][which.clone()].iter().copied().collect();
        for (id, cells) in &self.cells {
            let n_moved = cells.iter().filter(|cell| moved.contains(cell)).count();
            assert_eq!(n_moved, if ids.contains(id) { moved.len() } else { 0 }, "all of them move with {ids:?}, and no others");
        }
        // Nobody has them while they are taken anew.
        for id in ids {
            self.cells.get_mut(id).expect("it holds cells")[which.clone()].fill(u32::MAX);
        }
        let taken = self.lowest_free(length_of(moved.len()));
        for id in ids {
            self.cells.get_mut(id).expect("it holds cells")[which.clone()].copy_from_slice(&taken);
        }
    }

    /// The cells of a window are used again that its end no longer sees.
    fn move_on(&mut self, id: KvSeqId) {
        let n = length(&self.sequences[&id]);
        self.whole_from.insert(id, (n + 1).saturating_sub(self.n_window).max(self.whole_from(id)));
    }

    /// A piece is all of the text up to its end, so that it can be checked where it is restored, after where its window begins.
    fn save(&self, id: KvSeqId, range: Range<u32>) -> SavedState {
        let last_window = range.end.saturating_sub(self.n_window);
        let whole_from = self.whole_from(id).max(last_window).clamp(range.start, range.end);
        let text = &self.sequences[&id][..range.end as usize];
        let words = std::iter::once(Token::try_from(whole_from).expect("small")).chain(text.iter().copied());
        SavedState { bytes: words.flat_map(Token::to_le_bytes).collect(), whole_from }
    }

    fn restore(&mut self, id: KvSeqId, restore: &Reload) {
        let mut text: Vec<Token> = read(&restore.bytes);
        let whole_from = u32::try_from(text.remove(0)).expect("a place");
        let held = self.sequences.get_mut(&id).expect("it was placed");
        assert_eq!(text[..held.len()], held[..], "a piece is restored after the text that it was saved of");
        held.extend(&text[restore.kept.start as usize..restore.kept.end as usize]);
        let taken = restore.piece.clone().zip(self.lowest_free(length_of(restore.piece.len())));
        let kept: Vec<u32> = taken.filter(|(position, _)| restore.kept.contains(position)).map(|(_, cell)| cell).collect();
        self.cells.entry(id).or_default().extend(kept);
        if whole_from > restore.kept.start {
            self.whole_from.insert(id, whole_from.min(restore.kept.end));
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
    /// How what is written and looked for is computed.
    variants: AdapterSchedule,
}

impl Bench {
    fn new(n_cells: u32, n_ids: u32, forks: ForkRule, max_store_bytes: Option<u64>) -> Self {
        Self::of(memory(forks), n_cells, n_ids, max_store_bytes)
    }

    fn of(memory: MemoryKind, n_cells: u32, n_ids: u32, max_store_bytes: Option<u64>) -> Self {
        let cache = KvCache::new(n_cells, n_ids, memory, max_store_bytes);
        let shadow = Shadow { n_window: memory.n_window, ..Shadow::default() };
        Self { cache, shadow, forks: memory.forks, variants: AdapterSchedule::default() }
    }

    fn find(&self, tokens: &[Token], at_least: u32) -> PrefixMatch {
        let n = length(tokens);
        let wanted = PrefixQuery { variants: &self.variants, tokens, at_least, at_most: n, takes_logits: false };
        let can_fork = |id, n_held, n| match self.forks {
            ForkRule::Anywhere => n <= n_held,
            ForkRule::InWindow => n <= n_held && self.cache.kind.holds_window(self.shadow.whole_from(id), n),
            ForkRule::AtEnd => n == n_held,
        };
        let matched = self.cache.find(&wanted, can_fork).unwrap_or_default();
        assert!(matched.source.is_none_or(|id| !self.cache.is_private(id)), "what is private is not found");
        matched
    }

    fn evict(&mut self, max_units: u64) -> bool {
        self.remove_tail(max_units, EvictionReason::Pressed, true)
    }

    /// `false` where nothing leaves.
    fn remove_tail(&mut self, max_units: u64, why: EvictionReason, can_save: bool) -> bool {
        let Some(departure) = self.cache.next_removal(max_units, why) else { return false };
        self.shadow.follow(&mut self.cache);
        let range = departure.saves.clone().filter(|_| can_save);
        let saved = range.map(|range| self.shadow.save(departure.id, range));
        let has_left = self.cache.remove_tail(&departure, saved, why);
        self.shadow.follow(&mut self.cache);
        has_left
    }

    /// Places `tokens` over what is known of them, restores and computes the rest. `None` where there is no room.
    fn write(&mut self, tokens: &[Token]) -> Option<KvSeqId> {
        self.cache.touch(&self.variants, tokens);
        while !self.cache.has_free_id() {
            if !self.evict(u64::MAX) {
                return None;
            }
        }
        let matched = self.find(tokens, 1);
        let id = self.cache.place(&self.variants, Some(&matched)).expect("an id is free");
        self.shadow.follow(&mut self.cache);
        assert_eq!(self.shadow.sequences.entry(id).or_default(), &tokens[..matched.n_pool as usize], "what is forked");
        for restore in &matched.restores {
            let n = (restore.piece.end - restore.piece.start) as usize;
            if !self.free_cells(n) {
                self.cache.unpin(id);
                return None;
            }
            self.shadow.restore(id, restore);
            let kept = restore.kept.start as usize..restore.kept.end as usize;
            self.cache.restored(id, &tokens[kept], &restore.piece);
            self.shadow.follow(&mut self.cache);
        }
        assert_eq!(self.shadow.sequences[&id], &tokens[..matched.n_tokens() as usize], "what is restored is of the text");
        let whole_from = self.shadow.whole_from(id);
        assert!(self.cache.kind.holds_window(whole_from, matched.n_tokens()), "its window is whole from {whole_from} on");
        let rest = &tokens[matched.n_tokens() as usize..];
        let has_room = self.free_cells(rest.len());
        let n = if has_room { rest.len() } else { rest.len().min(self.cache.n_free()) };
        self.grow(id, &rest[..n]);
        Some(id)
    }

    fn place_private(&mut self) -> KvSeqId {
        let id = self.cache.place_private(&self.variants).expect("an id is free");
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
            assert_eq!(self.cache.tokens_of(id), self.shadow.sequences[&id], "the memory holds what the cache says of {id:?}");
            let cells: Vec<u32> = self.cache.strands.cells_from(id, 0).map(|cell| cell.0).collect();
            assert_eq!(&cells, self.shadow.cells.get(&id).unwrap_or(&Vec::new()), "the cells of {id:?}");
            let backwards = self.cache.strands.cells_reversed(id, 0..self.cache.n_held(id)).map(|cell| cell.0);
            assert!(backwards.eq(cells.iter().rev().copied()), "the same the other way round");
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
fn paths_with_a_common_prefix_share_its_cells() {
    let mut bench = bench();
    bench.write(&[1, 2, 3, 4]).unwrap();
    bench.write(&[1, 2, 3, 5, 6]).unwrap();
    assert_eq!((bench.cache.n_used(), bench.cache.n_evictable()), (6, 0));
    bench.check();
}

#[test]
fn what_a_running_sequence_computed_is_shared_up_to_its_last_token() {
    let mut bench = bench();
    let running = bench.write(&text(1, 20)).unwrap();
    bench.grow(running, &[7, 8]);
    let longer = [text(1, 20), vec![7, 9]].concat();
    assert_eq!(bench.find(&longer, 16).n_pool, 21);
    bench.write(&longer).unwrap();
    bench.grow(running, &[10]);
    assert_eq!(bench.cache.n_used(), 24);
    bench.check();
}

#[test]
fn a_private_path_shares_nothing_and_leaves_nothing() {
    let mut bench = bench();
    let shared = bench.write(&text(1, 40)).unwrap();
    let private = bench.place_private();
    bench.grow(private, &text(1, 60));
    assert_eq!(bench.find(&text(1, 60), 1).n_tokens(), 40, "what the other one holds");
    assert_eq!(bench.cache.n_used(), 100);
    bench.check();
    bench.end(private);
    bench.check();
    assert_eq!((bench.cache.n_used(), bench.cache.n_ids_used()), (40, 1));
    let private = bench.place_private();
    bench.grow(private, &text(2, 60));
    let reservation = bench.cache.reserve(private);
    bench.shadow.follow(&mut bench.cache);
    bench.check();
    assert_eq!((bench.cache.n_used(), bench.find(&text(2, 60), 1).n_tokens()), (40, 0));
    bench.cache.release(reservation);
    bench.end(shared);
    bench.check();
}

#[test]
fn the_cells_of_a_private_path_stay_where_they_are() {
    let mut bench = Bench::new(2000, 8, ForkRule::Anywhere, Some(0));
    let low = bench.write(&text(1, 1500)).unwrap();
    let private = bench.place_private();
    bench.grow(private, &text(2, 40));
    bench.end(low);
    while bench.evict(u64::MAX) {}
    assert_eq!((bench.cache.n_used(), bench.cache.n_reached()), (40, 1540));
    assert_eq!(bench.cache.next_relocation(24), None);
}

#[test]
fn a_path_that_another_contains_gives_its_id_back() {
    let mut bench = bench();
    let short = bench.write(&text(1, 20)).unwrap();
    bench.end(short);
    assert_eq!(bench.cache.n_ids_used(), 1);
    let long = bench.write(&text(1, 30)).unwrap();
    assert_eq!(bench.cache.n_ids_used(), 1, "the longer one holds all of it");
    let again = bench.write(&text(1, 25)).unwrap();
    bench.end(again);
    assert_eq!(bench.cache.n_ids_used(), 1);
    bench.end(long);
    assert_eq!((bench.cache.n_ids_used(), bench.cache.n_used()), (1, 30));
    bench.check();
}

#[test]
fn branches_that_wrote_the_same_text_are_one_path_when_they_end() {
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
fn the_least_recently_used_leaf_leaves_first_and_comes_back() {
    let mut bench = bench();
    let trunk = text(1, 20);
    for seed in [2, 3] {
        let id = bench.write(&[trunk.clone(), text(seed, 10)].concat()).unwrap();
        bench.end(id);
    }
    assert!(bench.evict(u64::MAX));
    assert_eq!(bench.cache.n_used(), 30, "the older branch left, the trunk and the younger one stay");
    let older = [trunk.clone(), text(2, 10)].concat();
    let found = bench.find(&older, 16);
    assert_eq!((found.n_pool, found.n_tokens()), (20, 30));
    bench.write(&older).unwrap();
    assert_eq!(bench.cache.counts().n_restored, 10);
    bench.check();
}

#[test]
fn what_was_saved_once_leaves_without_a_save() {
    let mut bench = bench();
    let id = bench.write(&text(1, 20)).unwrap();
    bench.end(id);
    bench.evict(u64::MAX);
    let id = bench.write(&text(1, 20)).unwrap();
    bench.end(id);
    assert_eq!(bench.cache.next_removal(u64::MAX, EvictionReason::Pressed).unwrap().saves, None);
    bench.evict(u64::MAX);
    assert_eq!((bench.cache.counts().n_saved, bench.cache.n_used()), (20, 0));
    bench.check();
}

#[test]
fn a_long_leaf_leaves_in_pieces_that_cost_what_may_be_spent() {
    let mut bench = bench();
    let id = bench.write(&text(1, 90)).unwrap();
    bench.end(id);
    // Adjacent cells: one run costs two tokens more.
    assert_eq!(bench.cache.next_removal(42, EvictionReason::Pressed).unwrap().saves, Some(50..90));
    assert_eq!(bench.cache.next_removal(1, EvictionReason::Pressed).unwrap().saves, Some(74..90), "16 tokens at least");
    bench.evict(42);
    assert_eq!(bench.cache.n_used(), 50);
    let found = bench.find(&text(1, 90), 16);
    assert_eq!((found.n_pool, found.n_tokens()), (50, 90));
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
    let departure = bench.cache.next_removal(60, EvictionReason::Pressed).unwrap();
    assert_eq!((departure.saves, departure.n_units), (Some(11..31), 60));
}

#[test]
fn a_request_that_ends_inside_a_stored_piece_keeps_what_it_needs_of_it() {
    let mut bench = bench();
    let id = bench.write(&text(1, 60)).unwrap();
    bench.end(id);
    bench.evict(u64::MAX);
    let shorter = [&text(1, 60)[..40], &[5000, 5001]].concat();
    bench.write(&shorter).unwrap();
    assert_eq!((bench.cache.n_used(), bench.cache.counts().n_restored), (42, 40));
    bench.check();
}

#[test]
fn a_full_store_drops_what_was_used_longest_ago() {
    // Room for two pieces.
    let mut bench = Bench::new(100, 8, ForkRule::Anywhere, Some(2 * (31 * 4 + 512)));
    for seed in 1..=3 {
        let id = bench.write(&text(seed, 30)).unwrap();
        bench.end(id);
        bench.evict(u64::MAX);
        bench.check();
    }
    let known: Vec<u32> = (1..=3).map(|seed| bench.find(&text(seed, 30), 16).n_tokens()).collect();
    assert_eq!(known, [0, 30, 30]);
    assert_eq!(bench.cache.counts().n_forgotten, 30);
}

#[test]
fn without_a_store_what_leaves_is_forgotten() {
    let mut bench = Bench::new(100, 8, ForkRule::Anywhere, Some(0));
    let id = bench.write(&text(1, 30)).unwrap();
    bench.end(id);
    assert_eq!(bench.cache.next_removal(u64::MAX, EvictionReason::Pressed).unwrap().saves, None);
    bench.evict(u64::MAX);
    assert_eq!((bench.cache.n_used(), bench.find(&text(1, 30), 1).n_tokens()), (0, 0));
    bench.check();
}

#[test]
fn a_pinned_prefix_outlives_everything_that_is_not() {
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
    assert_eq!(bench.find(&text(1, 30), 16).n_tokens(), 0, "now it goes as others do");
    bench.check();
}

#[test]
fn without_a_store_a_pinned_prefix_stays_in_the_pool() {
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
fn an_erased_text_is_forgotten_as_far_as_nobody_else_holds_it() {
    let mut bench = bench();
    let (trunk, a, b) = (text(1, 20), text(2, 10), text(3, 10));
    for tail in [&a, &b] {
        let id = bench.write(&[trunk.clone(), tail.clone()].concat()).unwrap();
        bench.end(id);
    }
    bench.evict(u64::MAX);
    bench.cache.erase(&bench.variants, &[trunk.clone(), a.clone()].concat(), 0);
    bench.shadow.follow(&mut bench.cache);
    bench.check();
    assert_eq!(bench.find(&[trunk.clone(), a].concat(), 16).n_tokens(), 20);
    bench.cache.erase(&bench.variants, &[trunk.clone(), b].concat(), 0);
    bench.shadow.follow(&mut bench.cache);
    bench.check();
    assert_eq!((bench.find(&trunk, 16).n_tokens(), bench.cache.n_used(), bench.cache.host_cache_size().2), (0, 0, 0));
}

#[test]
fn cells_that_lie_high_are_moved_down_for_all_who_share_them() {
    // However many are used, they end in as few steps of llama.cpp's as can be, though for so little it would not have begun.
    for (n_low, n_trunk, n_most) in [(1500, 40, 256), (1300, 340, 512)] {
        let mut bench = Bench::new(2000, 8, ForkRule::Anywhere, Some(0));
        let low = bench.write(&text(1, n_low)).unwrap();
        let trunk = text(2, n_trunk);
        let high = [3, 4].map(|seed| bench.write(&[trunk.clone(), text(seed, 30)].concat()).unwrap());
        bench.end(low);
        while bench.evict(u64::MAX) {}
        let n_used = n_trunk + 2 * 30;
        assert_eq!((bench.cache.n_used(), bench.cache.n_reached()), (n_used, n_low + n_used));
        let mut n_moves = 0;
        while let Some(relocation) = bench.cache.next_relocation(24) {
            assert!(relocation.range.len() <= 24 && !relocation.ids.is_empty());
            bench.cache.relocated(&relocation);
            bench.shadow.relocate(&relocation);
            bench.check();
            n_moves += 1;
        }
        assert!(bench.cache.n_reached() <= n_most, "{} after {n_moves} moves", bench.cache.n_reached());
        for id in high {
            bench.end(id);
        }
        bench.check();
    }
}

#[test]
fn a_saved_piece_is_no_use_where_its_window_reaches_into_what_another_path_lost() {
    let mut bench = Bench::new(200, 8, ForkRule::InWindow, Some(1 << 20));
    let [trunk, short, long] = [text(1, 70), text(2, 5), text(3, 50)];
    let [short, long] = [short, long].map(|branch| [&trunk[..], &branch].concat());
    for path in [&short, &long] {
        let id = bench.write(path).expect("there is room");
        bench.end(id);
    }
    // The short branch is saved while the end of the trunk is there, the trunk when it no longer is.
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
fn a_saved_window_is_found_where_the_one_in_the_pool_has_moved_on() {
    let mut bench = Bench::new(200, 8, ForkRule::InWindow, Some(1 << 20));
    let trunk = text(1, 70);
    let id = bench.write(&trunk).expect("there is room");
    bench.end(id);
    while bench.evict(u64::MAX) {}
    let id = bench.write(&[&trunk[..], &text(2, 50)].concat()).expect("there is room");
    let tokens = [&trunk[..], &text(3, 9)].concat();
    let wanted = PrefixQuery { variants: &bench.variants, tokens: &tokens, at_least: 1, at_most: 79, takes_logits: false };
    for (first_fork, source) in [(70, Some(id)), (71, None)] {
        let matched = bench.cache.find(&wanted, |_, _, n| n >= first_fork).expect("it is in both tiers");
        assert_eq!((matched.source, matched.n_tokens()), (source, 70));
    }
}

#[test]
fn a_state_is_found_only_where_it_was_kept() {
    let mut bench = Bench::new(100, 8, ForkRule::AtEnd, Some(1 << 20));
    let id = bench.write(&text(1, 20)).unwrap();
    let bytes = bench.shadow.save(id, 0..20).bytes;
    assert!(bench.cache.add_checkpoint(id, 20, bytes, Some([1.0, 2.0].into())));
    bench.grow(id, &[7, 8, 9]);
    assert_eq!(bench.find(&[text(1, 20), vec![7]].concat(), 16).n_tokens(), 20);
    assert_eq!(bench.find(&[text(1, 20), vec![7, 8, 9, 1]].concat(), 16).n_pool, 23);
    assert_eq!(bench.find(&text(1, 19), 16).n_tokens(), 0);
    let prompt = text(1, 20);
    let exact = PrefixQuery { variants: &bench.variants, tokens: &prompt, at_least: 16, at_most: 19, takes_logits: true };
    let found = bench.cache.find(&exact, |_, n_held, n| n == n_held).unwrap();
    assert_eq!((found.n_tokens(), found.logits.as_deref()), (20, Some(&[1.0, 2.0][..])));
    bench.end(id);
    bench.evict(u64::MAX);
    assert_eq!(bench.find(&[text(1, 20), vec![7, 8, 9, 1]].concat(), 16).n_tokens(), 23, "its end was kept as it left");
    bench.check();
}

#[test]
fn a_store_smaller_than_a_path_keeps_its_beginning_and_what_leaves_early_stays() {
    // Room for 40 tokens and their overhead.
    let mut bench = Bench::new(200, 8, ForkRule::Anywhere, Some(40 * 4 + 512));
    let id = bench.write(&text(1, 100)).unwrap();
    bench.end(id);
    let early = bench.cache.next_removal(42, EvictionReason::Early).unwrap();
    assert_eq!(early.saves, Some(60..100));
    bench.shadow.follow(&mut bench.cache);
    let saved = SavedState { bytes: vec![0; 160].into(), whole_from: 60 };
    assert!(bench.cache.remove_tail(&early, Some(saved), EvictionReason::Early));
    assert_eq!(bench.cache.next_removal(42, EvictionReason::Early), None, "the rest would push out what follows it");
    bench.shadow.follow(&mut bench.cache);
    bench.check();
    assert_eq!(bench.find(&text(1, 100), 16).n_tokens(), 100);
    let refused = bench.cache.next_removal(42, EvictionReason::Pressed).unwrap();
    assert!(refused.saves.is_some(), "but where its cells are needed, it goes before what would be of no use without it");
}

#[test]
fn a_piece_that_was_cut_often_is_restored_once() {
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
    assert_eq!(bench.find(&text(1, 120), 16).restores.len(), 1);
}

#[test]
fn a_pinned_beginning_does_not_keep_what_went_on_after_it() {
    let mut bench = Bench::new(200, 8, ForkRule::Anywhere, Some(1 << 20));
    let id = bench.write(&text(1, 100)).unwrap();
    bench.end(id);
    bench.evict(u64::MAX);
    let id = bench.write(&text(1, 20)).unwrap();
    bench.cache.pin(id).unwrap();
    bench.shadow.follow(&mut bench.cache);
    while bench.evict(u64::MAX) {}
    bench.cache.erase(&bench.variants, &text(1, 100), 0);
    bench.check();
    let (n_bytes, _, n_pieces) = bench.cache.host_cache_size();
    assert!(n_pieces == 1 && n_bytes < 700, "{n_bytes} bytes in {n_pieces} pieces");
    assert_eq!(bench.find(&text(1, 20), 16).n_tokens(), 20);
}

#[test]
fn lost_cells_leave_a_pinned_prefix_to_be_computed_again() {
    let mut bench = Bench::new(200, 8, ForkRule::Anywhere, Some(0));
    let id = bench.write(&text(1, 30)).unwrap();
    let pinned = bench.cache.pin(id).unwrap();
    bench.cache.lose(&[id]);
    bench.shadow.follow(&mut bench.cache);
    bench.check();
    assert_eq!((bench.cache.n_used(), bench.find(&text(1, 30), 16).n_tokens()), (0, 0));
    assert!(bench.cache.unpin_prefix(pinned.id));
    bench.check();
}

#[test]
fn a_window_that_ends_inside_a_longer_path_gives_its_id_where_ids_are_needed() {
    let mut bench = Bench::new(400, 4, ForkRule::InWindow, Some(0));
    let long = bench.write(&text(1, 100)).unwrap();
    for n in 40..60 {
        let id = bench.write(&text(1, n)).expect("an id can always be had");
        bench.end(id);
    }
    bench.end(long);
    bench.check();
}
