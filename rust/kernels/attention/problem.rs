//! What is to be computed: queries, cells, a mask, and where the results go.

use super::{Plan, Shared};

/// How the numbers of a cell are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// Blocks of 32 signed bytes behind their common factor in half precision: ggml's `block_q8_0`.
    Q8_0,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0];

    /// How many bytes `n` numbers take; `n` is a multiple of 32 where the format has blocks.
    #[must_use]
    pub const fn bytes(self, n: usize) -> usize {
        match self {
            Self::F32 => 4 * n,
            Self::F16 | Self::Bf16 => 2 * n,
            Self::Q8_0 => n / 32 * 34,
        }
    }

    /// What head sizes must be multiples of.
    pub(super) const fn unit(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 8,
            Self::Q8_0 => 32,
        }
    }
}

/// The keys or the values of all cells of a pool.
#[derive(Debug, Clone, Copy)]
pub struct Cells<'a> {
    /// All of them, from cell 0 on.
    pub bytes: &'a [u8],
    /// How a number is stored.
    pub format: Format,
    /// How many numbers a head has.
    pub head_size: usize,
    /// From a cell to the next, in bytes.
    pub cell_stride: usize,
    /// From a head of a cell to the next, in bytes.
    pub head_stride: usize,
}

impl Cells<'_> {
    /// Whether the bytes hold `n_cells` cells of `n_heads` heads.
    fn hold(&self, n_cells: usize, n_heads: usize) -> bool {
        let last = (n_cells - 1).saturating_mul(self.cell_stride).saturating_add((n_heads - 1).saturating_mul(self.head_stride));
        self.head_size.is_multiple_of(self.format.unit())
            && last.saturating_add(self.format.bytes(self.head_size)) <= self.bytes.len()
    }
}

/// The queries of all rows. Each is `head_size` numbers of the keys, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// All of them, from row 0 on.
    pub values: &'a [f32],
    /// From a row to the next, in numbers.
    pub row_stride: usize,
    /// From a head of a row to the next, in numbers.
    pub head_stride: usize,
}

/// What is added to scores, in half precision: negative infinity where a row does not see a cell.
#[derive(Debug, Clone, Copy)]
pub struct Mask<'a> {
    /// A number for each cell of each row.
    pub values: &'a [u16],
    /// From a row to the next, in numbers.
    pub row_stride: usize,
}

impl<'a> Mask<'a> {
    /// Negative infinity.
    pub const HIDDEN: u16 = 0xfc00;

    /// The numbers of one row.
    pub(super) fn row(&self, row: usize, n_cells: usize) -> &'a [u16] {
        &self.values[row * self.row_stride..][..n_cells]
    }

    /// Whether it has `n_cells` numbers for each of `n_rows` rows.
    pub(super) fn holds(&self, n_rows: usize, n_cells: usize) -> bool {
        (n_rows - 1).saturating_mul(self.row_stride).saturating_add(n_cells) <= self.values.len()
    }
}

/// The sizes of an attention. All are at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows of queries.
    pub n_rows: usize,
    /// Heads of a row.
    pub n_heads: usize,
    /// Heads of a cell; each meets `n_heads / n_kv_heads` heads of a row, and these are adjacent.
    pub n_kv_heads: usize,
    /// Cells that a mask's row tells about.
    pub n_cells: usize,
    /// Numbers of a head of a query or a key.
    pub key_size: usize,
    /// Numbers of a head of a value or a result.
    pub value_size: usize,
}

impl Shape {
    /// How many heads of a row meet one head of a cell.
    pub(super) fn heads_per_kv(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }
}

/// What is known beside the mask about who sees what.
#[derive(Debug, Clone, Copy)]
pub struct MaskOrder<'a> {
    /// Which sequence each row belongs to. Rows of one sequence have one list of cells, of which each may see a part.
    pub sequence_of_row: &'a [u32],
    /// Which position each cell holds, where that is known; what is said of cells that no row sees does not matter.
    pub position_of_cell: Option<&'a [u32]>,
}

/// One attention: `softmax(scale · QKᵀ + mask)V` for each row and head.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// Its sizes.
    pub shape: Shape,
    /// What the rows ask.
    pub queries: Queries<'a>,
    /// What the cells are found by.
    pub keys: Cells<'a>,
    /// What the cells hold.
    pub values: Cells<'a>,
    /// Which cells a row sees; without it, all.
    pub mask: Option<Mask<'a>>,
    /// For each head a score that takes weight and has no value.
    pub sinks: Option<&'a [f32]>,
    /// The factor of a score.
    pub scale: f32,
    /// `ALiBi`'s greatest bias: the mask is multiplied by a slope that each head has of its own. 0 for none.
    pub max_bias: f32,
    /// Scores become `softcap · tanh(score / softcap)`. 0 for none.
    pub softcap: f32,
}

impl Attention<'_> {
    /// Panics, with words, if a size does not fit another.
    pub(super) fn check(&self, plan: &Plan, out: &AttentionOutput) {
        let Shape { n_rows, n_heads, n_kv_heads, n_cells, key_size, value_size } = self.shape;
        assert_eq!(&self.shape, plan.shape(), "the plan was made for another shape");
        assert_eq!(self.keys.head_size, key_size, "keys are of another size");
        assert_eq!(self.values.head_size, value_size, "values are of another size");
        assert!(self.keys.hold(n_cells, n_kv_heads), "keys end before their last cell");
        assert!(self.values.hold(n_cells, n_kv_heads), "values end before their last cell");
        let last = (n_rows - 1).saturating_mul(self.queries.row_stride);
        let last = last.saturating_add((n_heads - 1).saturating_mul(self.queries.head_stride));
        assert!(last.saturating_add(key_size) <= self.queries.values.len(), "queries end before their last row");
        assert_eq!(self.mask.is_some(), plan.is_masked(), "the plan was made for another mask");
        assert!(self.mask.is_none_or(|mask| mask.holds(n_rows, n_cells)), "the mask ends before its last row");
        assert!(self.sinks.is_none_or(|sinks| sinks.len() >= n_heads), "there are fewer sinks than heads");
        let last = (n_rows - 1).saturating_mul(out.row_stride).saturating_add((n_heads - 1).saturating_mul(out.head_stride));
        assert!(last.saturating_add(value_size) <= out.values.len(), "results end before their last row");
        let heads_apart = out.head_stride >= value_size || n_heads == 1;
        let rows_apart = out.row_stride >= (n_heads - 1) * out.head_stride + value_size || n_rows == 1;
        assert!(heads_apart && rows_apart, "results overlap");
    }

    /// What the mask is multiplied by for a head.
    pub(super) fn slope(&self, head: usize) -> f32 {
        if self.max_bias <= 0.0 {
            return 1.0;
        }
        let n_heads = self.shape.n_heads;
        let n_even = 1 << n_heads.ilog2();
        #[expect(clippy::cast_precision_loss, reason = "heads are few")]
        let power = |bias: f32, times: usize| (-bias / n_even as f32).exp2().powf(times as f32);
        if head < n_even { power(self.max_bias, head + 1) } else { power(self.max_bias / 2.0, 2 * (head - n_even) + 1) }
    }
}

/// Where results go: for each row and head `value_size` numbers.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOutput<'a> {
    /// All of them, from row 0 on.
    pub values: &'a Shared<'a, f32>,
    /// From a row to the next, in numbers.
    pub row_stride: usize,
    /// From a head of a row to the next, in numbers.
    pub head_stride: usize,
}
