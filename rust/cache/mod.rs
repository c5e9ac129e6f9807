//! What is already computed: which sequence id holds which tokens, and how many cells that takes.
//!
//! Bookkeeping only. Changes that the model's memory must follow are queued as [`CacheOp`]s, which the worker carries out in
//! order before the next decode.

mod cells;

use crate::request::Token;
use cells::{CellId, Cells};

/// llama.cpp's number that owns cells, `0 ≤ id < n_seq_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u16);

/// Fewer tokens than this are not worth a place in somebody's cells: they are computed again.
pub const MIN_SHARED: u32 = 16;

/// What the model's memory must do to follow the bookkeeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOp {
    /// Give the cells of `[0, n_tokens)` of `from` to `to` as well.
    Fork {
        /// Holds the tokens.
        from: SequenceId,
        /// Holds nothing yet.
        to: SequenceId,
        /// How many.
        n_tokens: u32,
    },
    /// Forget everything that this id holds.
    Drop(SequenceId),
}

/// The longest usable prefix of a prompt that an id holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Who holds it.
    pub source: SequenceId,
    /// `[0, n_tokens)` of the prompt is computed.
    pub n_tokens: u32,
}

/// What one sequence id holds.
#[derive(Debug)]
struct Path {
    tokens: Vec<Token>,
    cells: Vec<CellId>,
    is_pinned: bool,
    last_used: u64,
}

/// The pool's bookkeeping: a path of tokens for each sequence id, cells shared between paths with a common prefix.
///
/// A path is pinned while a sequence runs on it and evictable afterwards; an id without a path is free.
#[derive(Debug)]
pub struct KvCache {
    paths: Vec<Option<Path>>,
    cells: Cells,
    ops: Vec<CacheOp>,
    now: u64,
}

impl KvCache {
    /// A pool of `n_cells` cells and `n_ids` sequence ids, all free.
    #[must_use]
    pub fn new(n_cells: u32, n_ids: u32) -> Self {
        Self { paths: (0..n_ids).map(|_| None).collect(), cells: Cells::new(n_cells), ops: Vec::new(), now: 0 }
    }

    /// Cells that nobody holds.
    #[must_use]
    pub fn n_free(&self) -> usize {
        self.cells.n_free()
    }

    /// Cells that only idle paths hold.
    #[must_use]
    pub fn n_evictable(&self) -> usize {
        self.cells.n_evictable()
    }

    /// Cells that are not free.
    #[must_use]
    pub fn n_used(&self) -> usize {
        self.cells.n_total() - self.cells.n_free()
    }

    /// Cells of `[0, n_tokens)` of `matched` that can be evicted now and could not once the match is placed.
    #[must_use]
    pub fn n_evictable_in(&self, matched: Match) -> usize {
        self.path(matched.source).cells[..matched.n_tokens as usize].iter().filter(|&&cell| !self.cells.is_pinned(cell)).count()
    }

    /// The longest prefix of `tokens`, `at_least` to `at_most` tokens long, that any id holds, idle or running.
    ///
    /// `can_fork(id, n_held, n_tokens)` says whether the model's memory allows that fork.
    pub fn longest_prefix(
        &self,
        tokens: &[Token],
        at_least: u32,
        at_most: u32,
        can_fork: impl Fn(SequenceId, u32, u32) -> bool,
    ) -> Option<Match> {
        let tokens = &tokens[..tokens.len().min(at_most as usize)];
        self.held()
            .filter_map(|(source, path)| {
                let n_tokens = common_prefix(&path.tokens, tokens);
                (n_tokens >= at_least && can_fork(source, length(&path.tokens), n_tokens)).then_some(Match { source, n_tokens })
            })
            .max_by_key(|matched| (matched.n_tokens, self.path(matched.source).last_used))
    }

    /// A pinned path that starts with what `matched` found, on an id that was free or, where none was, the least recently used
    /// idle one. `None` where every id is pinned, or none but the match's own could be had.
    pub fn place(&mut self, matched: Option<Match>) -> Option<SequenceId> {
        self.now += 1;
        if let Some(Match { source, .. }) = matched {
            self.path_mut(source).last_used = self.now;
        }
        let source = matched.map(|matched| matched.source);
        let id = self.free_id().or_else(|| {
            let id = self.least_recently_used().filter(|&id| Some(id) != source)?;
            self.drop_path(id);
            Some(id)
        })?;
        let mut path = Path { tokens: Vec::new(), cells: Vec::new(), is_pinned: true, last_used: self.now };
        if let Some(Match { source, n_tokens }) = matched {
            let shared = self.path(source);
            path.tokens.extend_from_slice(&shared.tokens[..n_tokens as usize]);
            path.cells.extend_from_slice(&shared.cells[..n_tokens as usize]);
            for &cell in &path.cells {
                self.cells.share(cell);
            }
            self.ops.push(CacheOp::Fork { from: source, to: id, n_tokens });
        }
        self.paths[usize::from(id.0)] = Some(path);
        Some(id)
    }

    /// Appends `tokens` to the pinned path of `id`, a free cell for each.
    ///
    /// # Panics
    /// If fewer cells are free: whoever plans makes room first.
    pub fn extend(&mut self, id: SequenceId, tokens: &[Token]) {
        let path = self.paths[usize::from(id.0)].as_mut().expect("only a placed id grows");
        for &token in tokens {
            path.cells.push(self.cells.take().expect("room was made before the plan"));
            path.tokens.push(token);
        }
    }

    /// Takes back the tokens of `[n_kept, …)` of the pinned path of `id`, whose decode has failed.
    ///
    /// # Panics
    /// If nothing was placed on `id`.
    pub fn truncate(&mut self, id: SequenceId, n_kept: u32) {
        let path = self.paths[usize::from(id.0)].as_mut().expect("only a placed id is taken back");
        path.tokens.truncate(n_kept as usize);
        for cell in path.cells.drain(n_kept as usize..) {
            self.cells.unpin(cell);
            self.cells.release(cell);
        }
    }

    /// The path of `id` is idle from now on: it stays until its cells or its id are needed.
    ///
    /// # Panics
    /// If nothing was placed on `id`.
    pub fn unpin(&mut self, id: SequenceId) {
        self.now += 1;
        let path = self.paths[usize::from(id.0)].as_mut().expect("only a placed id is released");
        debug_assert!(path.is_pinned, "a path is unpinned once");
        path.is_pinned = false;
        path.last_used = self.now;
        for &cell in &path.cells {
            self.cells.unpin(cell);
        }
    }

    /// The pinned path of `id` is forgotten.
    pub fn forget(&mut self, id: SequenceId) {
        self.unpin(id);
        self.drop_path(id);
    }

    /// Forgets the least recently used idle path; `false` where there is none.
    pub fn evict(&mut self) -> bool {
        self.least_recently_used().map(|id| self.drop_path(id)).is_some()
    }

    /// What the model's memory must do since the last call, in order.
    pub fn take_ops(&mut self) -> impl Iterator<Item = CacheOp> {
        self.ops.drain(..)
    }

    /// Whether every cell is free or can be evicted: nobody runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.n_free() + self.n_evictable() == self.cells.n_total()
    }

    /// Compares every count with one made anew.
    ///
    /// # Panics
    /// Where one differs.
    pub fn check_integrity(&self) {
        self.cells.check_integrity(self.held().map(|(_, path)| (&path.cells[..], path.is_pinned)));
        for (id, path) in self.held() {
            assert_eq!(path.tokens.len(), path.cells.len(), "a cell for each token of {id:?}");
        }
    }

    fn held(&self) -> impl Iterator<Item = (SequenceId, &Path)> {
        (0u16..).map(SequenceId).zip(&self.paths).filter_map(|(id, path)| Some((id, path.as_ref()?)))
    }

    fn path(&self, id: SequenceId) -> &Path {
        self.paths[usize::from(id.0)].as_ref().expect("a match names an id that holds something")
    }

    fn path_mut(&mut self, id: SequenceId) -> &mut Path {
        self.paths[usize::from(id.0)].as_mut().expect("a match names an id that holds something")
    }

    fn free_id(&self) -> Option<SequenceId> {
        (0u16..).map(SequenceId).zip(&self.paths).find_map(|(id, path)| path.is_none().then_some(id))
    }

    fn least_recently_used(&self) -> Option<SequenceId> {
        self.held().filter(|(_, path)| !path.is_pinned).min_by_key(|(_, path)| path.last_used).map(|(id, _)| id)
    }

    fn drop_path(&mut self, id: SequenceId) {
        let path = self.paths[usize::from(id.0)].take().expect("only a held path is dropped");
        debug_assert!(!path.is_pinned, "a pinned path is never dropped");
        for cell in path.cells {
            self.cells.release(cell);
        }
        self.ops.push(CacheOp::Drop(id));
    }
}

fn common_prefix(a: &[Token], b: &[Token]) -> u32 {
    let n = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    u32::try_from(n).expect("a context is shorter than 2³² tokens")
}

fn length(tokens: &[Token]) -> u32 {
    u32::try_from(tokens.len()).expect("a context is shorter than 2³² tokens")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anywhere(_: SequenceId, n_held: u32, n_tokens: u32) -> bool {
        n_tokens <= n_held
    }

    /// Places `tokens` over what is cached of them and appends the rest.
    fn write(cache: &mut KvCache, tokens: &[Token]) -> SequenceId {
        let matched = cache.longest_prefix(tokens, 1, u32::MAX, anywhere);
        let id = cache.place(matched).expect("an id can be had");
        cache.extend(id, &tokens[matched.map_or(0, |matched| matched.n_tokens as usize)..]);
        id
    }

    #[test]
    fn paths_with_a_common_prefix_share_its_cells() {
        let mut cache = KvCache::new(100, 4);
        write(&mut cache, &[1, 2, 3, 4]);
        write(&mut cache, &[1, 2, 3, 5, 6]);
        assert_eq!(cache.n_used(), 6);
        assert_eq!(cache.n_evictable(), 0);
    }

    #[test]
    fn a_cell_can_be_evicted_once_no_running_sequence_holds_it() {
        let mut cache = KvCache::new(100, 4);
        let [a, b] = [&[1, 2, 3, 4][..], &[1, 2, 3, 5, 6]].map(|tokens| write(&mut cache, tokens));
        cache.unpin(a);
        assert_eq!(cache.n_evictable(), 1);
        cache.unpin(b);
        assert_eq!(cache.n_evictable(), 6);
        assert!(cache.evict());
        assert_eq!(cache.n_used(), 5, "the least recently used path gives up what it holds alone");
    }

    #[test]
    fn the_longest_prefix_wins() {
        let mut cache = KvCache::new(100, 4);
        write(&mut cache, &[1, 2]);
        let longer = write(&mut cache, &[1, 2, 3, 4]);
        let found = cache.longest_prefix(&[1, 2, 3, 9], 1, 3, anywhere);
        assert_eq!(found, Some(Match { source: longer, n_tokens: 3 }));
        assert_eq!(cache.longest_prefix(&[1, 2, 3, 9], 4, 4, anywhere), None);
    }

    #[test]
    fn a_model_that_forks_only_at_the_end_shares_whole_paths() {
        let mut cache = KvCache::new(100, 4);
        let whole = write(&mut cache, &[1, 2, 3]);
        let at_end = |_, n_held, n_tokens| n_tokens == n_held;
        assert_eq!(cache.longest_prefix(&[1, 2, 3, 4], 1, 3, at_end), Some(Match { source: whole, n_tokens: 3 }));
        assert_eq!(cache.longest_prefix(&[1, 2, 4], 1, 2, at_end), None);
    }

    #[test]
    fn the_source_of_a_match_is_not_evicted_for_its_own_fork() {
        let mut cache = KvCache::new(100, 2);
        let ids = [&[1, 2, 3][..], &[7, 8, 9]].map(|tokens| write(&mut cache, tokens));
        for id in ids {
            cache.unpin(id);
        }
        let matched = cache.longest_prefix(&[1, 2, 5], 1, 2, anywhere);
        assert_eq!(cache.place(matched), Some(ids[1]), "the other one goes, though it was used later");
        cache.check_integrity();
    }

    #[test]
    fn every_id_pinned_is_no_place() {
        let mut cache = KvCache::new(100, 1);
        write(&mut cache, &[1]);
        assert_eq!(cache.place(None), None);
        assert!(!cache.evict());
    }

    #[test]
    fn the_model_is_told_of_forks_and_drops_in_order() {
        let mut cache = KvCache::new(100, 2);
        let a = write(&mut cache, &[1, 2, 3]);
        let b = write(&mut cache, &[1, 2, 4]);
        cache.unpin(a);
        cache.evict();
        let ops: Vec<_> = cache.take_ops().collect();
        assert_eq!(ops, [CacheOp::Fork { from: a, to: b, n_tokens: 2 }, CacheOp::Drop(a)]);
        assert_eq!(cache.take_ops().count(), 0);
    }

    #[test]
    fn random_use_keeps_every_count() {
        let mut state = 1_u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let mut cache = KvCache::new(64, 6);
        let mut pinned: Vec<(SequenceId, u32)> = Vec::new();
        for _ in 0..5_000 {
            match random(5) {
                0 | 1 => {
                    let tokens: Vec<Token> = (0..=random(12)).map(|_| Token::from(random(2) == 0)).collect();
                    let matched = cache.longest_prefix(&tokens, 1, u32::MAX, anywhere);
                    let n_matched = matched.map_or(0, |matched| matched.n_tokens);
                    if let Some(id) = cache.place(matched) {
                        let rest = &tokens[n_matched as usize..];
                        while cache.n_free() < rest.len() && cache.evict() {}
                        let n = rest.len().min(cache.n_free());
                        cache.extend(id, &rest[..n]);
                        pinned.push((id, n_matched + u32::try_from(n).unwrap()));
                    }
                }
                2 if !pinned.is_empty() => {
                    let at = usize::try_from(random(pinned.len() as u64)).unwrap();
                    cache.unpin(pinned.swap_remove(at).0);
                }
                3 if !pinned.is_empty() => {
                    let at = usize::try_from(random(pinned.len() as u64)).unwrap();
                    let (id, n_held) = &mut pinned[at];
                    *n_held = u32::try_from(random(u64::from(*n_held) + 1)).unwrap();
                    cache.truncate(*id, *n_held);
                }
                _ => drop(cache.evict()),
            }
            cache.check_integrity();
            assert_eq!(cache.n_free() + cache.n_used(), 64);
        }
    }
}
