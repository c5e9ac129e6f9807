//! What is already computed: which sequence id holds which tokens, and how many cells that takes.
//!
//! Bookkeeping only. Changes that the model's memory must follow are queued as [`CacheOp`]s, which the worker carries out in
//! order before the next decode.

mod cells;

use crate::engine::runner::SequenceId;
use crate::request::Token;
use cells::{CellId, Cells};

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
    pub fn truncate(&mut self, id: SequenceId, n_kept: u32) {
        let path = self.paths[usize::from(id.0)].as_mut().expect("only a placed id is taken back");
        path.tokens.truncate(n_kept as usize);
        for cell in path.cells.drain(n_kept as usize..) {
            self.cells.unpin(cell);
            self.cells.release(cell);
        }
    }

    /// The path of `id` is idle from now on: it stays until its cells or its id are needed.
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

    /// Compares every count with one made anew.
    ///
    /// # Panics
    /// Where one differs, or two paths that share a cell differ in a token before it.
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
