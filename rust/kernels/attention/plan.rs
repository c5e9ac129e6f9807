//! Who sees what, found once per decode and used for every layer of it.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::groups::Groups;
use super::kernels::AttentionTable;
use super::streams::Streams;
use super::units::{Sizes, Units};
use super::{Level, Mask, MaskOrder, Shape};

/// How many positions make a block: within it a row's softmax is computed at once, and blocks are folded one after the other.
/// Never to change: a row's result depends on where blocks begin.
pub(super) const SLOTS: usize = 256;

/// Which rows walk over which cells together, and how that is cut into units of work.
///
/// It is made by one thread, used by a team for one [`attend`](super::attend) after the other, and can be made again: it keeps its
/// memory, which holds a bit per row and cell of the largest mask that it was made for, 8 bytes per sequence and cell that it
/// sees, 4 per cell that is seen (once for all rows that see it at the same position), and 32 per row and 256 cells.
#[derive(Debug)]
pub struct Plan {
    made_for: Option<PlanKey>,
    streams: Streams,
    pub(super) groups: Groups,
    pub(super) units: Units,
    /// How many tickets were drawn. Each thread of each call draws until it gets one that stands for no unit, so a call takes as
    /// many as there are units and threads, and the next call needs no reset and no barrier.
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
    /// A plan of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            made_for: None,
            streams: Streams::default(),
            groups: Groups::default(),
            units: Units::default(),
            tickets: AtomicUsize::new(0),
        }
    }

    /// Makes it for a mask and a shape, for `n_threads` threads. Panics, with words, if a size does not fit another, or where
    /// there is no kernel for `level` (see [`covers`](super::covers)).
    ///
    /// With `order` a row's result depends on its own cells and their positions alone, as long as the positions it sees are
    /// different ones. Without it rows that follow each other are walked together where one sees all that the other sees, and
    /// where they slide like a window; blocks are then counted along the cells that are seen.
    pub fn make(&mut self, level: Level, n_threads: usize, shape: &Shape, mask: Option<&Mask>, order: Option<&MaskOrder>) {
        let Shape { n_rows, n_heads, n_kv_heads, n_cells, key_size, value_size } = *shape;
        assert!(level.is_available(), "the processor lacks {level}");
        assert!(n_threads >= 1, "nobody computes");
        assert!(n_rows >= 1 && n_cells >= 1, "there is nothing to compute");
        assert!(n_kv_heads >= 1 && n_heads.is_multiple_of(n_kv_heads) && n_heads >= 1, "{n_heads} heads over {n_kv_heads}");
        assert!(key_size.is_multiple_of(8) && key_size >= 8, "keys of {key_size}");
        assert!(value_size >= 8, "values of {value_size}");
        let kernels = AttentionTable::of(level, value_size).expect("a level with kernels for values of this size");
        assert!(u32::try_from(n_rows).is_ok() && u32::try_from(n_cells).is_ok(), "rows and cells are counted in 32 bits");
        assert!(mask.is_none_or(|mask| mask.holds(n_rows, n_cells)), "the mask ends before its last row");
        if let Some(order) = order {
            assert!(order.sequence_of_row.len() >= n_rows, "there are rows without a sequence");
            assert!(
                order.position_of_cell.is_none_or(|positions| positions.len() >= n_cells),
                "there are cells without a position"
            );
        }
        // Should anything panic below, there is no plan.
        self.made_for = None;
        self.streams.find(mask, (n_rows, n_cells), order, kernels.look);
        let n_stretches = self.streams.list.iter().map(|stream| stream.stretches.len()).max().unwrap_or(0);
        let sizes = Sizes::new(shape, n_threads);
        self.groups.form(&self.streams, sizes.rows_per_group(n_stretches));
        self.units.cut(&sizes, &self.groups);
        self.made_for = Some(PlanKey { level, shape: *shape, n_threads, is_masked: mask.is_some() });
        self.tickets = AtomicUsize::new(0);
    }

    fn made_for(&self) -> &PlanKey {
        self.made_for.as_ref().expect("the plan was made")
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.made_for().shape
    }

    pub(super) fn level(&self) -> Level {
        self.made_for().level
    }

    pub(super) fn n_threads(&self) -> usize {
        self.made_for().n_threads
    }

    pub(super) fn is_masked(&self) -> bool {
        self.made_for().is_masked
    }

    pub(super) fn is_biased(&self) -> bool {
        self.streams.is_biased
    }

    /// The rows in the order in which groups hold them.
    pub(super) fn rows(&self) -> &[u32] {
        &self.groups.rows
    }

    /// The next unit that nobody has taken; each thread of a call asks until there is none.
    pub(super) fn next_unit(&self) -> Option<usize> {
        let n_units = self.units.list.len();
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed) % (n_units + self.n_threads());
        (ticket < n_units).then_some(ticket)
    }
}
