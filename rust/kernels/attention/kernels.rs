//! The functions that `worker` calls, compiled once per instruction set.

use super::prefetch::CellPrefetch;
use super::simd::{MAX_LANES, OnlineSoftmax, SoftmaxParams};
use super::streams::MaskReader;
use super::{CellFormat, Level};

/// A register block of score products: some rows times some cells.
#[derive(Clone, Copy)]
pub(super) struct ScoreBlock<'a> {
    /// Number of rows, at most `AttentionTable::max_rows`.
    pub(super) rows: usize,
    /// The first row's queries, transposed, and the stride between elements.
    pub(super) queries: (*const f32, usize),
    /// The same of the keys, padded to whole vectors.
    pub(super) keys: (*const f32, usize),
    pub(super) n_cells: usize,
    pub(super) size: usize,
    pub(super) prefetch: CellPrefetch<'a>,
    /// The first row's scores; whole vectors are written.
    pub(super) out: *mut f32,
}

/// A register block of value sums: some rows over some cells.
#[derive(Clone, Copy)]
pub(super) struct ValueBlock<'a> {
    pub(super) rows: usize,
    /// The first row's weight of the first cell.
    pub(super) weights: *const f32,
    /// `F32` or `F16`.
    pub(super) format: CellFormat,
    pub(super) cells: &'a [*const u8],
    pub(super) size: usize,
    pub(super) prefetch: CellPrefetch<'a>,
    /// The first row's sums, which are accumulated.
    pub(super) out: *mut f32,
}

/// Callable only where the processor supports the instruction set, with pointers as the generic kernels require.
pub(super) struct AttentionTable {
    pub(super) lanes: usize,
    pub(super) max_rows: usize,
    pub(super) read_mask: MaskReader,
    pub(super) transpose: unsafe fn(CellFormat, &[*const u8; MAX_LANES], usize, *mut f32, usize),
    pub(super) unpack: unsafe fn(CellFormat, *const u8, &mut [f32]),
    pub(super) scores: unsafe fn(ScoreBlock),
    pub(super) softmax: unsafe fn(*mut f32, SoftmaxParams) -> (f32, f32),
    pub(super) accumulate_values: unsafe fn(ValueBlock),
    pub(super) fold: unsafe fn((&mut OnlineSoftmax, *mut f32), (OnlineSoftmax, *const f32), usize),
    pub(super) finish: unsafe fn((OnlineSoftmax, *const f32), Option<f32>, *mut f32, usize),
}

impl AttentionTable {
    /// Returns the functions for a level and a value head size. A head must fill whole vectors: a size that does not fill
    /// 16 lanes uses the 8-lane functions, which every processor with 16 lanes supports too.
    pub(super) fn of(level: Level, value_size: usize) -> Option<&'static Self> {
        let tables: &[&Self] = match level {
            Level::Portable => &[&super::portable::KERNELS],
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::AvxVnni => &[&super::avx2::KERNELS],
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => &[&super::avx512::KERNELS, &super::avx2::KERNELS],
            #[cfg(target_arch = "aarch64")]
            Level::Neon | Level::NeonDot => &[&super::neon::KERNELS],
            _ => &[],
        };
        tables.iter().copied().find(|table| value_size.is_multiple_of(table.lanes))
    }
}

/// Compiles the generic kernels for one instruction set. `$rows` lists the row counts of register blocks of one and two vectors,
/// up to `$max`; `$four` and `$eight` the counts of four and eight vectors.
macro_rules! kernels {
    ($simd:ty, $attribute:tt, rows: $max:literal [$($rows:literal)*], four: [$($four:literal)*], eight: [$($eight:literal)*]) => {
        pub(super) static KERNELS: AttentionTable = AttentionTable {
            lanes: <$simd>::LANES,
            max_rows: $max,
            read_mask,
            transpose,
            unpack,
            scores,
            softmax,
            accumulate_values,
            fold,
            finish,
        };

        compiled! {
            $attribute
            // The format is a constant in each call, so that each format is compiled separately.
            transpose(format: CellFormat, cells: &[*const u8; MAX_LANES], size: usize, to: *mut f32, stride: usize) = match format {
                CellFormat::F32 => <$simd>::transpose(CellFormat::F32, cells, size, to, stride),
                CellFormat::F16 => <$simd>::transpose(CellFormat::F16, cells, size, to, stride),
                CellFormat::Bf16 => <$simd>::transpose(CellFormat::Bf16, cells, size, to, stride),
                CellFormat::Q8_0 => <$simd>::transpose(CellFormat::Q8_0, cells, size, to, stride),
            };
            unpack(format: CellFormat, cell: *const u8, to: &mut [f32]) = for at in (0..to.len()).step_by(<$simd>::LANES) {
                <$simd>::store(to.as_mut_ptr().add(at), <$simd>::load_cell(format, cell, at));
            };
            softmax(row: *mut f32, params: SoftmaxParams) -> (f32, f32) = simd::softmax::<$simd>(row, params);
            fold(total: (&mut OnlineSoftmax, *mut f32), block: (OnlineSoftmax, *const f32), size: usize) =
                simd::fold::<$simd>(total, block, size);
            finish(row: (OnlineSoftmax, *const f32), sink: Option<f32>, out: *mut f32, size: usize) =
                simd::finish::<$simd>(row, sink, out, size);
            scores_of<const M: usize, const N: usize>(a: ScoreBlock, at: usize) =
                simd::scores::<$simd, M, N>(a.queries, (a.keys.0.add(at), a.keys.1), a.size, a.prefetch, a.out.add(at));
            scores(mut a: ScoreBlock) = {
                let mut at = 0;
                while at < a.n_cells {
                    let n = (a.n_cells - at).div_ceil(<$simd>::LANES);
                    let done = match (a.rows, n) {
                        $(($eight, 5..) => { scores_of::<$eight, 8>(a, at); 8 })*
                        $(($four, 3..) => { scores_of::<$four, 4>(a, at); 4 })*
                        $(($rows, 2..) => { scores_of::<$rows, 2>(a, at); 2 })*
                        $(($rows, 1) => { scores_of::<$rows, 1>(a, at); 1 })*
                        _ => unreachable!("a block of {} rows", a.rows),
                    };
                    a.prefetch = CellPrefetch::NONE;
                    at += done * <$simd>::LANES;
                }
            };
            accumulate_values_of<const F16: bool, const M: usize, const N: usize>(block: ValueBlock, at: usize) =
                simd::accumulate_values::<$simd, M, N>(&block, if F16 { CellFormat::F16 } else { CellFormat::F32 }, at);
            accumulate_values_in<const F16: bool>(mut a: ValueBlock) = {
                let mut at = 0;
                while at < a.size {
                    let n = (a.size - at) / <$simd>::LANES;
                    let done = match (a.rows, n) {
                        $(($eight, 8..) => { accumulate_values_of::<F16, $eight, 8>(a, at); 8 })*
                        $(($four, 4..) => { accumulate_values_of::<F16, $four, 4>(a, at); 4 })*
                        $(($rows, 2..) => { accumulate_values_of::<F16, $rows, 2>(a, at); 2 })*
                        $(($rows, 1) => { accumulate_values_of::<F16, $rows, 1>(a, at); 1 })*
                        _ => unreachable!("a block of {} rows", a.rows),
                    };
                    a.prefetch = CellPrefetch::NONE;
                    at += done * <$simd>::LANES;
                }
            };
            accumulate_values(a: ValueBlock) = match a.format {
                CellFormat::F16 => accumulate_values_in::<true>(a),
                _ => accumulate_values_in::<false>(a),
            };
        }
    };
}
pub(super) use kernels;
