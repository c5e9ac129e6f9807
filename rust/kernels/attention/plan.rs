//! Analysis of which rows see which cells: made once per decode, and used for every layer.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::groups::Groups;
use super::kernels::AttentionTable;
use super::streams::RowStreams;
use super::units::{AttentionSizes, WorkUnits};
use super::{AttentionShape, CellFormat, Level, Mask, MaskOrder, covers};

/// Positions of a block. Must never change: a row's result depends on the block boundaries.
pub(super) const SLOTS: usize = 256;

/// Assignment of rows to the cells that they process together, divided into units of work.
/// One thread makes it, then a team uses it for a sequence of [`attend`](super::attend) calls. A plan that is made again reuses
/// its memory: one bit per row and cell of the largest mask, 8 bytes per sequence and cell that it sees, 4 per visible cell
/// (once for all rows that see it at the same position), and 32 per row and 256 cells.
#[derive(Debug, Default)]
pub struct AttentionPlan {
    key: Option<PlanKey>,
    pub(super) streams: RowStreams,
    pub(super) groups: Groups,
    pub(super) units: WorkUnits,
    /// Number of tickets drawn. Each thread of a call draws until it gets one without a unit, so a call takes as many tickets
    /// as there are units and threads, and the next call needs no reset and no barrier.
    tickets: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PlanKey {
    pub(super) level: Level,
    pub(super) shape: AttentionShape,
    pub(super) n_threads: usize,
    pub(super) is_masked: bool,
}

impl AttentionPlan {
    /// With `order`, a row's result depends only on its own cells and their positions, provided that the visible positions are
    /// distinct. Without it, consecutive rows are processed together if one sees all that the other sees or if they differ like
    /// the rows of a sliding window; blocks then count visible cells.
    pub fn make(
        &mut self,
        level: Level,
        n_threads: usize,
        shape: &AttentionShape,
        mask: Option<&Mask>,
        order: Option<&MaskOrder>,
    ) {
        let AttentionShape { n_rows, n_cells, value_size, .. } = *shape;
        assert!(level.is_available(), "the processor does not support {level}");
        assert!(n_threads >= 1, "n_threads must be at least 1");
        // F32 has the weakest condition of all formats.
        assert!(covers(level, CellFormat::F32, CellFormat::F32, shape), "no kernel of {level} supports {shape:?}");
        let read_mask = AttentionTable::of(level, value_size).expect("it is covered").read_mask;
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
        self.streams.rebuild(mask, (n_rows, n_cells), order, read_mask);
        let n_position_blocks = self.streams.list.iter().map(|stream| stream.position_blocks.len()).max().unwrap_or(0);
        let sizes = AttentionSizes::new(shape, n_threads);
        self.groups.rebuild(&self.streams, sizes.rows_per_group(n_position_blocks));
        self.units.rebuild(&sizes, &self.groups);
        self.key = Some(PlanKey { level, shape: *shape, n_threads, is_masked: mask.is_some() });
        self.tickets = AtomicUsize::new(0);
    }

    pub(super) fn key(&self) -> &PlanKey {
        self.key.as_ref().expect("the plan was made")
    }

    /// Claims a unit of work; `None` when all are taken. Each thread of a call must call it until it returns `None`.
    pub(super) fn next_unit(&self) -> Option<usize> {
        let n_units = self.units.list.len();
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed) % (n_units + self.key().n_threads);
        (ticket < n_units).then_some(ticket)
    }
}
