//! Random operations in any order, with a vocabulary of two words, a small device cache, few ids and a small host cache, lose
//! no cell, id or byte, and no pinned prefix.

use super::*;

/// Pinned prefixes are so short and so few that half of either tier holds them.
const LONGEST_PIN: u32 = 16;
const MAX_PINS: usize = 2;

struct Pinned {
    id: u64,
    adapters: AdapterSchedule,
    tokens: Vec<Token>,
}

/// The state of a run, and the generator of its next operation.
struct RandomUse {
    random: Random,
    bench: Bench,
    n_cells: usize,
    n_checks: u32,
    running: Vec<KvSeqId>,
    private: Option<KvSeqId>,
    reserved: Vec<Reservation>,
    pins: Vec<Pinned>,
    n_relocations: usize,
}

impl RandomUse {
    fn new(n_cells: u32, forks: ForkRule, max_host_bytes: Option<u64>) -> Self {
        // Shorter than a pinned prefix.
        let n_window = if forks == ForkRule::InWindow { 6 } else { 0 };
        let bench = Bench::of(MemoryKind { n_window, ..memory(forks) }, n_cells, 6, max_host_bytes);
        let (running, reserved, pins) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            random: Random(11),
            bench,
            n_cells: n_cells as usize,
            n_checks: 0,
            running,
            reserved,
            pins,
            private: None,
            n_relocations: 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.random.below(n as u64)).expect("small")
    }

    fn words(&mut self, n: usize) -> Vec<Token> {
        (0..=self.below(n)).map(|_| Token::from(self.below(8) == 0)).collect()
    }

    /// Returns a text; every other time one that may fill half of the device cache.
    fn text(&mut self) -> Vec<Token> {
        let n = if self.below(2) == 0 { self.n_cells / 2 } else { 30 };
        self.words(n)
    }

    fn draw_adapters(&mut self) {
        let adapted = AdapterSet::with_adapters([(0, 0.5)]);
        self.bench.adapters = match self.below(8) {
            0 | 1 => adapted.into(),
            // Most shared prefixes are shorter than that.
            2 | 3 => AdapterSchedule::changing(AdapterSet::default(), u32::try_from(self.below(20)).expect("small"), adapted),
            _ => AdapterSchedule::default(),
        };
    }

    fn any_running(&mut self) -> Option<usize> {
        (!self.running.is_empty()).then(|| self.below(self.running.len()))
    }

    fn any_path(&mut self) -> Option<KvSeqId> {
        let held: Vec<KvSeqId> = self.bench.cache.paths().map(|(id, _)| id).collect();
        (!held.is_empty()).then(|| held[self.below(held.len())])
    }

    fn step(&mut self) {
        self.draw_adapters();
        match self.below(21) {
            20 => self.step_private_path(),
            0..=2 if self.running.len() < 4 => {
                let text = self.text();
                self.running.extend(self.bench.write(&text));
            }
            3..=13 => self.step_sequence(),
            14 => {
                let tokens = self.words(30);
                let n_kept = self.below(tokens.len() + 1);
                self.bench.cache.erase(&self.bench.adapters, &tokens, u32::try_from(n_kept).expect("small"));
            }
            15 => {
                let tokens = self.words(30);
                if let Some(id) = self.any_path() {
                    self.bench.cache.count_hit(id, &tokens);
                }
            }
            16 => {
                let limit = 1 + self.below(40) as u64;
                let can_save = self.below(4) > 0;
                self.bench.remove_tail(limit, EvictionReason::Early, can_save);
            }
            17 => self.move_cells(),
            _ => {
                let limit = 1 + self.below(40) as u64;
                let can_save = self.below(8) > 0;
                self.bench.remove_tail(limit, EvictionReason::MemoryPressure, can_save);
            }
        }
        self.bench.shadow.follow(&mut self.bench.cache);
    }

    /// Places or ends a private path.
    fn step_private_path(&mut self) {
        match self.private.take() {
            None if self.bench.cache.n_free_ids() > 0 => {
                let id = self.bench.place_private();
                self.private = Some(id);
                let tokens = self.words(12);
                if self.bench.free_cells(tokens.len()) {
                    self.bench.grow(id, &tokens);
                }
            }
            None => {}
            Some(id) => match self.below(3) {
                0 => self.bench.end(id),
                1 => self.bench.cache.discard_failed(id),
                _ => {
                    let reservation = self.bench.cache.reserve(id, None);
                    self.bench.cache.release(reservation);
                }
            },
        }
    }

    fn step_sequence(&mut self) {
        match (self.below(9), self.any_running()) {
            (0..=1, Some(index)) => {
                let tokens = self.words(6);
                if self.bench.free_cells(tokens.len()) {
                    self.bench.grow(self.running[index], &tokens);
                }
            }
            (2, Some(index)) => self.bench.end(self.running.swap_remove(index)),
            (3, Some(index)) => {
                let n_pins = self.pins.len();
                self.bench.cache.discard_failed(self.running.swap_remove(index));
                self.unpin_lost();
                assert!(
                    self.bench.forks != ForkRule::Anywhere || self.pins.len() == n_pins,
                    "memory that can be truncated keeps its pins"
                );
            }
            (4, Some(index)) => {
                let id = self.running[index];
                let cache = &mut self.bench.cache;
                let shared = cache.tree.node(cache.path(id).tip).end();
                let n_own = u64::from(cache.n_held(id) - shared);
                let n_kept = shared + u32::try_from(self.random.below(n_own + 1)).expect("small");
                // A sequence cannot be cut beyond its window.
                if cache.kind.holds_window(self.bench.shadow.whole_from(id), n_kept) {
                    cache.truncate(id, n_kept);
                    self.bench.shadow.truncate(id, n_kept);
                }
            }
            (5, Some(index)) if self.reserved.len() < 3 => {
                let id = self.running.swap_remove(index);
                let n_kept = self.below(self.bench.cache.n_held(id) as usize + 1);
                self.reserved.push(self.bench.cache.reserve(id, Some(u32::try_from(n_kept).expect("small"))));
            }
            (5..=6, _) if !self.reserved.is_empty() => {
                let index = self.below(self.reserved.len());
                self.bench.cache.release(self.reserved.swap_remove(index));
            }
            (7, Some(index)) if self.bench.cache.n_held(self.running[index]) <= LONGEST_PIN => {
                let id = self.running.swap_remove(index);
                self.pin(id);
            }
            (8, Some(index)) => self.store_end(self.running[index]),
            _ => {}
        }
    }

    fn pin(&mut self, id: KvSeqId) {
        let adapters = self.bench.cache.path(id).adapters.clone();
        if self.pins.len() == MAX_PINS {
            let index = self.below(MAX_PINS);
            assert!(self.bench.cache.unpin_prefix(self.pins.swap_remove(index).id));
        }
        let n_tokens = self.bench.cache.n_held(id);
        match self.bench.cache.pin(id) {
            Ok(pinned) if n_tokens > 0 => self.pins.push(Pinned { id: pinned.id, adapters, tokens: pinned.tokens }),
            Ok(pinned) => assert!(self.bench.cache.unpin_prefix(pinned.id)),
            Err(error) => panic!("{error}"),
        }
    }

    /// Saves a checkpoint or window of a running sequence.
    fn store_end(&mut self, id: KvSeqId) {
        let n = self.bench.cache.n_held(id);
        match self.bench.forks {
            ForkRule::AtEnd if n > 0 => {
                let SavedState { bytes, .. } = self.bench.shadow.save(id, 0..n);
                self.bench.cache.add_checkpoint(id, n, bytes, Some([0.5].into()));
            }
            ForkRule::InWindow => self.save_window(id, n),
            _ => {}
        }
    }

    fn save_window(&mut self, id: KvSeqId, n: u32) {
        let mut n_kept = 0;
        while let Some(range) = self.bench.cache.next_window_part(id, n).filter(|range| range.start >= n_kept) {
            n_kept = range.end;
            let saved = self.bench.shadow.save(id, range.clone());
            if !self.bench.cache.add_window(id, &range, saved) {
                return;
            }
        }
    }

    /// Relocates or invalidates cells, or moves a window.
    fn move_cells(&mut self) {
        if self.below(4) == 0 {
            while self.bench.evict(u64::MAX) {}
        }
        while let Some(relocation) = self.bench.cache.next_relocation(40) {
            if self.below(8) == 0 {
                self.running.retain(|id| !relocation.ids.contains(id));
                self.bench.cache.invalidate(&relocation.ids);
                self.bench.shadow.follow(&mut self.bench.cache);
                self.unpin_lost();
            } else {
                self.bench.cache.record_relocation(&relocation);
                self.bench.shadow.relocate(&relocation);
            }
            self.n_relocations += 1;
        }
        if let Some(id) = self.any_path()
            && self.bench.forks == ForkRule::InWindow
        {
            self.bench.shadow.move_on(id);
        }
    }

    /// Unpins the prefixes that were lost with the cells of a sequence.
    fn unpin_lost(&mut self) {
        self.bench.shadow.follow(&mut self.bench.cache);
        let pins = std::mem::take(&mut self.pins);
        for pinned in pins {
            if self.is_found(&pinned) {
                self.pins.push(pinned);
            } else {
                assert!(self.bench.cache.unpin_prefix(pinned.id));
            }
        }
    }

    fn is_found(&mut self, pinned: &Pinned) -> bool {
        self.bench.adapters.clone_from(&pinned.adapters);
        self.bench.find(&pinned.tokens, 1).n_tokens() == length(&pinned.tokens)
    }

    fn check(&mut self) {
        self.bench.check();
        // Listing the whole tree takes longer than most operations.
        self.n_checks += 1;
        if self.n_checks.is_multiple_of(64) {
            check_listings(&self.bench.cache);
        }
        assert_eq!(self.bench.cache.n_free() + self.bench.cache.n_used(), self.n_cells);
        let pins = std::mem::take(&mut self.pins);
        for pinned in &pins {
            assert!(self.is_found(pinned), "{:?} is pinned", pinned.tokens);
        }
        self.pins = pins;
        let mut n_reserved: BTreeMap<NodeId, u32> = BTreeMap::new();
        for node in self.reserved.iter().flat_map(|reservation| self.bench.cache.tree.upwards(reservation.0)) {
            *n_reserved.entry(node).or_default() += 1;
        }
        for (id, node) in self.bench.cache.tree.nodes() {
            assert_eq!(node.n_reserved, n_reserved.get(&id).copied().unwrap_or(0), "preempted sequences at {id:?}");
        }
    }

    fn end(mut self) {
        for id in self.running.into_iter().chain(self.private) {
            self.bench.end(id);
        }
        for reservation in self.reserved {
            self.bench.cache.release(reservation);
        }
        for pinned in self.pins {
            self.bench.cache.unpin_prefix(pinned.id);
        }
        self.bench.shadow.follow(&mut self.bench.cache);
        while self.bench.evict(u64::MAX) {}
        self.bench.check();
        assert_eq!((self.bench.cache.n_used(), self.bench.cache.n_ids_used()), (0, 0), "all paths can be removed at the end");
    }
}

/// Runs random operations; returns the number of relocations.
fn run_operations(n_cells: u32, forks: ForkRule, max_host_bytes: Option<u64>, n_operations: u32) -> usize {
    let mut run = RandomUse::new(n_cells, forks, max_host_bytes);
    for _ in 0..n_operations {
        run.step();
        run.check();
    }
    let n_relocations = run.n_relocations;
    run.end();
    n_relocations
}

#[test]
fn random_operations_lose_no_cell_id_or_byte() {
    run_operations(64, ForkRule::Anywhere, Some(6000), 100_000);
}

#[test]
fn random_operations_lose_nothing_without_a_host_cache() {
    run_operations(64, ForkRule::Anywhere, Some(0), 20_000);
}

#[test]
fn random_operations_lose_nothing_with_an_unlimited_host_cache() {
    run_operations(64, ForkRule::Anywhere, None, 3_000);
}

#[test]
fn random_operations_lose_nothing_with_relocations() {
    let n_relocations = run_operations(600, ForkRule::Anywhere, Some(20_000), 20_000);
    assert!(n_relocations > 50, "only {n_relocations} moves");
}

#[test]
fn random_operations_lose_nothing_of_sliding_windows() {
    run_operations(64, ForkRule::InWindow, Some(6000), 100_000);
}

#[test]
fn random_operations_lose_nothing_of_recurrent_states() {
    run_operations(64, ForkRule::AtEnd, Some(9000), 100_000);
}

/// The listed nodes in a canonical order, without parent indices and slots.
fn nodes_of(nodes: &[CachedNode]) -> Vec<(u32, &[Token], u64, u64)> {
    let mut all: Vec<_> = nodes.iter().map(|node| (node.start, &node.tokens[..], node.last_used, node.n_host_bytes)).collect();
    all.sort_unstable();
    all
}

/// Asserts that both listings have the same nodes, and that the most recently used ones come first.
fn check_listings(cache: &KvCache) {
    let slot_of = |id: KvSeqId| cache.is_pinned(id).then_some(u32::from(id.0));
    let all = cache.list_nodes(slot_of);
    let (recent, n_nodes) = cache.list_recently_used(usize::MAX, slot_of);
    assert_eq!((n_nodes, nodes_of(&recent)), (all.len(), nodes_of(&all)));
    assert_eq!(all.iter().map(|node| node.n_host_bytes).sum::<u64>(), cache.host_cache_size().0, "each entry counts once");
    let mut used: Vec<u64> = recent.iter().map(|node| node.last_used).collect();
    for (index, node) in recent.iter().enumerate().rev() {
        if let Some(parent) = node.parent {
            assert!(parent < index, "a parent comes before its children");
            let end = recent[parent].start + length(&recent[parent].tokens);
            assert_eq!(node.start, end, "a node starts at the end of its parent");
            used[parent] = used[parent].max(used[index]);
        } else {
            assert_eq!(node.start, 0, "only a node below a root has no parent");
        }
    }
    assert!(used.is_sorted_by(|a, b| a >= b), "{used:?}");
    for limit in [0, 1, recent.len() / 2] {
        assert_eq!(cache.list_recently_used(limit, slot_of), (recent[..limit.min(recent.len())].to_vec(), n_nodes));
    }
}
