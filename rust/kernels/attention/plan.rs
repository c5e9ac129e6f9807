//! Analysis of which rows see which cells: made once per decode, and used for every layer.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::groups::Groups;
use super::kernels::AttentionTable;
use super::streams::Streams;
use super::units::{Sizes, Units};
use super::{Level, Mask, MaskOrder, Shape};

/// Positions of a block. Within a block a row's softmax is exact; blocks are folded one after another. Must never change: a
/// row's result depends on the block boundaries.
pub(super) const SLOTS: usize = 256;

/// Assignment of rows to the cells that they process together, divided into units of work.
///
/// One thread makes the plan, then a team uses it for a sequence of [`attend`](super::attend) calls. A plan can be made again,
/// and then reuses its memory: one bit per row and cell of the largest mask, 8 bytes per sequence and cell that it sees, 4 per
/// visible cell (once for all rows that see it at the same position), and 32 per row and 256 cells.
#[derive(Debug)]
pub struct Plan {
    key: Option<PlanKey>,
    streams: Streams,
    pub(super) groups: Groups,
    pub(super) units: Units,
    /// Number of tickets drawn. In each call each thread draws tickets until it draws one without a unit, so a call takes
    /// exactly as many tickets as there are units and threads, and the next call needs no reset and no barrier.
    tickets: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
struct PlanKey {
    level: Level,
    shape: Shape,
    n_threads: usize,
    is_masked: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self::new()
    }
}

impl Plan {
    /// Creates an empty plan, which must be made before use.
    #[must_use]
    pub fn new() -> Self {
        Self {
            key: None,
            streams: Streams::default(),
            groups: Groups::default(),
            units: Units::default(),
            tickets: AtomicUsize::new(0),
        }
    }

    /// Makes the plan for a mask, a shape and `n_threads` threads.
    ///
    /// With `order`, a row's result depends only on its own cells and their positions, provided that the visible positions are
    /// distinct. Without it, consecutive rows are processed together if one sees all that the other sees or if they differ like
    /// the rows of a sliding window; blocks then count visible cells.
    ///
    /// # Panics
    /// If sizes are inconsistent, or if there is no kernel for `level` (see [`covers`](super::covers)).
    pub fn make(&mut self, level: Level, n_threads: usize, shape: &Shape, mask: Option<&Mask>, order: Option<&MaskOrder>) {
        let Shape { n_rows, n_heads, n_kv_heads, n_cells, key_size, value_size } = *shape;
        assert!(level.is_available(), "the processor does not support {level}");
        assert!(n_threads >= 1, "n_threads must be at least 1");
        assert!(n_rows >= 1 && n_cells >= 1, "n_rows ({n_rows}) and n_cells ({n_cells}) must be at least 1");
        assert!(
            n_kv_heads >= 1 && n_heads.is_multiple_of(n_kv_heads) && n_heads >= 1,
            "n_heads ({n_heads}) must be a multiple of n_kv_heads ({n_kv_heads})"
        );
        assert!(key_size.is_multiple_of(8) && key_size >= 8, "key_size ({key_size}) must be a multiple of 8");
        assert!(value_size >= 8, "value_size ({value_size}) must be at least 8");
        let kernels = AttentionTable::of(level, value_size).expect("a level with kernels for values of this size");
        assert!(
            u32::try_from(n_rows).is_ok() && u32::try_from(n_cells).is_ok(),
            "n_rows ({n_rows}) and n_cells ({n_cells}) must fit 32 bits"
        );
        assert!(mask.is_none_or(|mask| mask.holds(n_rows, n_cells)), "the mask ends before its last row");
        if let Some(order) = order {
            assert!(order.sequence_of_row.len() >= n_rows, "sequence_of_row is shorter than n_rows");
            assert!(
                order.position_of_cell.is_none_or(|positions| positions.len() >= n_cells),
                "position_of_cell is shorter than n_cells"
            );
        }
        // If anything below panics, the plan stays unusable.
        self.key = None;
        self.streams.rebuild(mask, (n_rows, n_cells), order, kernels.read_mask);
        let n_position_blocks = self.streams.list.iter().map(|stream| stream.position_blocks.len()).max().unwrap_or(0);
        let sizes = Sizes::new(shape, n_threads);
        self.groups.rebuild(&self.streams, sizes.rows_per_group(n_position_blocks));
        self.units.rebuild(&sizes, &self.groups);
        self.key = Some(PlanKey { level, shape: *shape, n_threads, is_masked: mask.is_some() });
        self.tickets = AtomicUsize::new(0);
    }

    fn key(&self) -> &PlanKey {
        self.key.as_ref().expect("the plan was made")
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.key().shape
    }

    pub(super) fn level(&self) -> Level {
        self.key().level
    }

    pub(super) fn n_threads(&self) -> usize {
        self.key().n_threads
    }

    pub(super) fn is_masked(&self) -> bool {
        self.key().is_masked
    }

    pub(super) fn is_biased(&self) -> bool {
        self.streams.is_biased
    }

    /// Returns the rows in the order of the groups.
    pub(super) fn rows(&self) -> &[u32] {
        &self.groups.rows
    }

    /// Takes the next unit of work; `None` when all are taken. Each thread of a call must call it until it returns `None`.
    pub(super) fn next_unit(&self) -> Option<usize> {
        let n_units = self.units.list.len();
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed) % (n_units + self.n_threads());
        (ticket < n_units).then_some(ticket)
    }
}
