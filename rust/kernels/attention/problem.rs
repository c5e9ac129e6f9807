//! The operands of an attention: queries, cells, a mask, and the output. Strides are in elements, but strides of cells in bytes.

#![allow(missing_docs, reason = "names suffice where there is no comment")]

use super::{AttentionPlan, SharedSlice};

/// Storage format of a cell's elements, named as in ggml.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CellFormat {
    F32,
    F16,
    Bf16,
    /// Blocks of a scale in half precision and 32 signed bytes.
    Q8_0,
}

impl CellFormat {
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0];

    /// Returns the bytes of `n` elements; `n` must be a multiple of 32 for block formats.
    pub const fn bytes(self, n: usize) -> usize {
        match self {
            Self::F32 => 4 * n,
            Self::F16 | Self::Bf16 => 2 * n,
            Self::Q8_0 => n / 32 * 34,
        }
    }

    pub(super) const fn head_multiple(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 8,
            Self::Q8_0 => 32,
        }
    }
}

/// The keys or the values of all cells.
#[derive(Debug, Clone, Copy)]
pub struct CacheCells<'a> {
    pub bytes: &'a [u8],
    pub format: CellFormat,
    /// Elements of a head.
    pub head_size: usize,
    /// In bytes, as `head_stride`.
    pub cell_stride: usize,
    pub head_stride: usize,
}

impl CacheCells<'_> {
    fn holds(&self, n_cells: usize, n_heads: usize) -> bool {
        let n_bytes = self.format.bytes(self.head_size);
        self.head_size.is_multiple_of(self.format.head_multiple())
            && end_of([(n_cells, self.cell_stride), (n_heads, self.head_stride)], n_bytes) <= self.bytes.len()
    }
}

/// Returns the end of the last of some runs of `len`, given the number and the stride in each of two dimensions.
fn end_of(dimensions: [(usize, usize); 2], len: usize) -> usize {
    dimensions.into_iter().fold(len, |end, (n, stride)| end.saturating_add((n - 1).saturating_mul(stride)))
}

/// The queries of all rows. Each query is one contiguous head of the key size.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    pub values: &'a [f32],
    pub row_stride: usize,
    pub head_stride: usize,
}

/// Values added to scores, in half precision: negative infinity where a row does not see a cell.
#[derive(Debug, Clone, Copy)]
pub struct Mask<'a> {
    pub values: &'a [u16],
    pub row_stride: usize,
}

impl<'a> Mask<'a> {
    /// Negative infinity.
    pub const HIDDEN: u16 = 0xfc00;

    pub(super) fn row(&self, row: usize, n_cells: usize) -> &'a [u16] {
        &self.values[row * self.row_stride..][..n_cells]
    }

    pub(super) fn holds(&self, n_rows: usize, n_cells: usize) -> bool {
        end_of([(n_rows, self.row_stride), (1, 0)], n_cells) <= self.values.len()
    }
}

/// Sizes of an attention. All are at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    pub n_rows: usize,
    pub n_heads: usize,
    /// KV heads of a cell; each serves `n_heads / n_kv_heads` adjacent query heads.
    pub n_kv_heads: usize,
    pub n_cells: usize,
    pub key_size: usize,
    pub value_size: usize,
}

impl AttentionShape {
    pub(super) fn heads_per_kv(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }
}

/// Knowledge about the mask's structure.
#[derive(Debug, Clone, Copy)]
pub struct MaskOrder<'a> {
    /// Sequence of each row. Rows of one sequence share one list of cells, of which each may see a part.
    pub sequence_of_row: &'a [u32],
    /// Position of each cell, if known; ignored for cells that no row sees.
    pub position_of_cell: Option<&'a [u32]>,
}

/// One attention: `softmax(scale · QKᵀ + mask)V` for each row and head.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    pub shape: AttentionShape,
    pub queries: Queries<'a>,
    pub keys: CacheCells<'a>,
    pub values: CacheCells<'a>,
    /// `None` if every row sees every cell.
    pub mask: Option<Mask<'a>>,
    /// Attention sinks: per query head a score that takes weight but has no value.
    pub sinks: Option<&'a [f32]>,
    pub scale: f32,
    /// `ALiBi`'s maximum bias: the mask is multiplied by a slope per head. 0 disables it.
    pub max_bias: f32,
    /// Scores become `softcap · tanh(score / softcap)`. 0 disables it.
    pub softcap: f32,
}

impl Attention<'_> {
    pub(super) fn check(&self, plan: &AttentionPlan, out: &AttentionOutput) {
        let AttentionShape { n_rows, n_heads, n_kv_heads, n_cells, key_size, value_size } = self.shape;
        assert_eq!(&self.shape, &plan.key().shape, "the plan was made for another shape");
        assert_eq!(self.keys.head_size, key_size, "the head size of the keys is not key_size");
        assert_eq!(self.values.head_size, value_size, "the head size of the values is not value_size");
        assert!(self.keys.holds(n_cells, n_kv_heads), "keys end before their last cell");
        assert!(self.values.holds(n_cells, n_kv_heads), "values end before their last cell");
        let queries_end = end_of([(n_rows, self.queries.row_stride), (n_heads, self.queries.head_stride)], key_size);
        assert!(queries_end <= self.queries.values.len(), "queries end before their last row");
        assert_eq!(self.mask.is_some(), plan.key().is_masked, "the plan was made for another mask");
        assert!(self.mask.is_none_or(|mask| mask.holds(n_rows, n_cells)), "the mask ends before its last row");
        assert!(self.sinks.is_none_or(|sinks| sinks.len() >= n_heads), "there are fewer sinks than heads");
        let results_end = end_of([(n_rows, out.row_stride), (n_heads, out.head_stride)], value_size);
        assert!(results_end <= out.values.len(), "results end before their last row");
        let heads_are_disjoint = out.head_stride >= value_size || n_heads == 1;
        let rows_are_disjoint = out.row_stride >= (n_heads - 1) * out.head_stride + value_size || n_rows == 1;
        assert!(heads_are_disjoint && rows_are_disjoint, "results overlap");
    }

    /// Returns the `ALiBi` slope of a head.
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

/// Destination of results: `value_size` elements per row and head.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOutput<'a> {
    pub values: &'a SharedSlice<'a, f32>,
    pub row_stride: usize,
    pub head_stride: usize,
}
