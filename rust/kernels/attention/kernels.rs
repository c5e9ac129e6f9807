//! The functions that the walk calls, compiled once per instruction set.

use super::prefetch::CellPrefetch;
use super::simd::{MAX_LANES, OnlineSoftmax, SoftmaxParams};
use super::streams::MaskReader;
use super::{Format, Level};

/// A register block of rows that meet some cells.
#[derive(Clone, Copy)]
pub(super) struct ScoreBlock<'a> {
    /// Rows of the block: at most `AttentionTable::max_rows`.
    pub(super) rows: usize,
    /// The first row's queries, transposed, and from an element to the next.
    pub(super) queries: (*const f32, usize),
    /// Keys, transposed, and from an element to the next; there are as many as whole vectors take.
    pub(super) keys: (*const f32, usize),
    pub(super) n_cells: usize,
    pub(super) size: usize,
    pub(super) ahead: CellPrefetch<'a>,
    /// The first row's scores, as whole vectors.
    pub(super) out: *mut f32,
}

/// A register block of rows that sum the values of some cells.
#[derive(Clone, Copy)]
pub(super) struct ValueBlock<'a> {
    /// Rows of the block: at most `AttentionTable::max_rows`.
    pub(super) rows: usize,
    /// The first row's weight of the first cell.
    pub(super) weights: *const f32,
    /// `F32` or `F16`.
    pub(super) format: Format,
    pub(super) cells: &'a [*const u8],
    pub(super) size: usize,
    pub(super) ahead: CellPrefetch<'a>,
    /// The first row's sums, which are added to.
    pub(super) out: *mut f32,
}

/// The functions of an instruction set. They may be called only where the processor has it, with pointers to what is said at
/// their arguments.
pub(super) struct AttentionTable {
    /// Lanes of a vector.
    pub(super) lanes: usize,
    /// Most rows of a register block.
    pub(super) max_rows: usize,
    pub(super) look: MaskReader,
    pub(super) transpose: unsafe fn(Format, &[*const u8; MAX_LANES], usize, *mut f32, usize),
    /// Unpacks the head of a cell.
    pub(super) unpack: unsafe fn(Format, *const u8, &mut [f32]),
    pub(super) scores: unsafe fn(ScoreBlock),
    pub(super) softmax: unsafe fn(*mut f32, SoftmaxParams) -> (f32, f32),
    pub(super) accumulate_values: unsafe fn(ValueBlock),
    pub(super) fold: unsafe fn((&mut OnlineSoftmax, *mut f32), (OnlineSoftmax, *const f32), usize),
    pub(super) finish: unsafe fn((OnlineSoftmax, *const f32), Option<f32>, *mut f32, usize),
}

impl AttentionTable {
    /// Those for a level and for heads of values of this size, if there are any. A head fills whole vectors: where it does not fill
    /// those of sixteen lanes, those of eight compute it, which every processor with sixteen has too.
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

/// Compiles the generic kernels for one instruction set: `$rows` are the numbers of rows for register blocks of one and two vectors,
/// `$four` those for four, `$eight` those for eight.
macro_rules! kernels {
    ($simd:ty, [$($attribute:meta)?], rows: $max:literal [$($rows:literal)*], four: $max_four:literal [$($four:literal)*],
     eight: $max_eight:literal [$($eight:literal)*]) => {
        /// The kernels of this instruction set.
        pub(super) static KERNELS: $crate::kernels::attention::kernels::AttentionTable = $crate::kernels::attention::kernels::AttentionTable {
            lanes: <$simd>::LANES,
            max_rows: $max,
            look,
            transpose,
            unpack,
            scores,
            softmax,
            accumulate_values,
            fold,
            finish,
        };

        // SAFETY of all below: callers vouch for the instruction set, and for their pointers as the generic kernels ask.

        $(#[$attribute])?
        unsafe fn transpose(format: Format, cells: &[*const u8; MAX_LANES], size: usize, to: *mut f32, stride: usize) {
            // SAFETY: as above. The format is made a constant, so that each has code of its own.
            unsafe {
                match format {
                    Format::F32 => <$simd>::transpose(Format::F32, cells, size, to, stride),
                    Format::F16 => <$simd>::transpose(Format::F16, cells, size, to, stride),
                    Format::Bf16 => <$simd>::transpose(Format::Bf16, cells, size, to, stride),
                    Format::Q8_0 => <$simd>::transpose(Format::Q8_0, cells, size, to, stride),
                }
            }
        }

        $(#[$attribute])?
        unsafe fn unpack(format: Format, cell: *const u8, to: &mut [f32]) {
            for at in (0..to.len()).step_by(<$simd>::LANES) {
                // SAFETY: as above.
                unsafe { <$simd>::store(to.as_mut_ptr().add(at), <$simd>::load_cell(format, cell, at)) };
            }
        }

        $(#[$attribute])?
        unsafe fn softmax(row: *mut f32, how: SoftmaxParams) -> (f32, f32) {
            // SAFETY: as above.
            unsafe { simd::softmax::<$simd>(row, how) }
        }

        $(#[$attribute])?
        unsafe fn fold(so_far: (&mut OnlineSoftmax, *mut f32), block: (OnlineSoftmax, *const f32), size: usize) {
            // SAFETY: as above.
            unsafe { simd::fold::<$simd>(so_far, block, size) }
        }

        $(#[$attribute])?
        unsafe fn finish(row: (OnlineSoftmax, *const f32), sink: Option<f32>, out: *mut f32, size: usize) {
            // SAFETY: as above.
            unsafe { simd::finish::<$simd>(row, sink, out, size) }
        }

        $(#[$attribute])?
        unsafe fn scores_of<const M: usize, const N: usize>(a: ScoreBlock, at: usize) {
            // SAFETY: as above.
            unsafe { simd::scores::<$simd, M, N>(a.queries, (a.keys.0.add(at), a.keys.1), a.size, a.ahead, a.out.add(at)) };
        }

        $(#[$attribute])?
        unsafe fn scores(mut a: ScoreBlock) {
            let mut at = 0;
            while at < a.n_cells {
                let n = (a.n_cells - at).div_ceil(<$simd>::LANES);
                // SAFETY: as above.
                let done = unsafe {
                    match (a.rows, n) {
                        $(($eight, 5..) => { scores_of::<$eight, 8>(a, at); 8 })*
                        $(($four, 3..) => { scores_of::<$four, 4>(a, at); 4 })*
                        $(($rows, 2..) => { scores_of::<$rows, 2>(a, at); 2 })*
                        $(($rows, 1) => { scores_of::<$rows, 1>(a, at); 1 })*
                        _ => unreachable!("a block of {} rows", a.rows),
                    }
                };
                a.ahead = CellPrefetch::NONE;
                at += done * <$simd>::LANES;
            }
        }

        $(#[$attribute])?
        unsafe fn weigh_of<const F16: bool, const M: usize, const N: usize>(a: ValueBlock, at: usize) {
            let format = if F16 { Format::F16 } else { Format::F32 };
            // SAFETY: as above.
            unsafe { simd::accumulate_values::<$simd, M, N>(a.weights, (format, a.cells), at, a.ahead, (a.out, a.size)) };
        }

        $(#[$attribute])?
        unsafe fn weigh_in<const F16: bool>(mut a: ValueBlock) {
            let mut at = 0;
            while at < a.size {
                let n = (a.size - at) / <$simd>::LANES;
                // SAFETY: as above.
                let done = unsafe {
                    match (a.rows, n) {
                        $(($eight, 8..) => { weigh_of::<F16, $eight, 8>(a, at); 8 })*
                        $(($four, 4..) => { weigh_of::<F16, $four, 4>(a, at); 4 })*
                        $(($rows, 2..) => { weigh_of::<F16, $rows, 2>(a, at); 2 })*
                        $(($rows, 1) => { weigh_of::<F16, $rows, 1>(a, at); 1 })*
                        _ => unreachable!("a block of {} rows", a.rows),
                    }
                };
                a.ahead = CellPrefetch::NONE;
                at += done * <$simd>::LANES;
            }
        }

        $(#[$attribute])?
        unsafe fn accumulate_values(a: ValueBlock) {
            // SAFETY: as above.
            unsafe {
                match a.format {
                    Format::F16 => weigh_in::<true>(a),
                    _ => weigh_in::<false>(a),
                }
            }
        }
    };
}
pub(super) use kernels;
