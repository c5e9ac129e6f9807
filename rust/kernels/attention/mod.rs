//! Softmax(QKᵀ)V over the cells of a unified KV cache.
//!
//! An [`AttentionPlan`] analyses the mask once per decode, and [`attend`] computes one layer by it.
//!
//! - **Streams** are the rows of one sequence, with one list of cells ordered by position. Other cells are never read.
//! - **Blocks** are 256 positions of a stream. A row's softmax within a block is exact, and its values are summed in the order
//!   of positions. Blocks are folded one after another, as flash attention does (Dao et al., *`FlashAttention`*, 2022). So
//!   neither other rows, nor the location of cells, nor the division of work changes a bit of a row's result. It differs
//!   between instruction sets.
//! - **Groups** are streams that hold the same cells, as branches of one prompt do. Shared keys and values are multiplied with
//!   the queries of all streams, and of all query heads of a KV head, in one register-blocked product. Then each stream is
//!   processed separately (Ye et al., *`ChunkAttention`*, 2024; Juravsky et al., *Hydragen*, 2024).
//! - **Units** are pieces of work of about equal cost that idle threads claim (Dao et al., *Flash-Decoding*, 2023). Where a
//!   group's blocks are split over units, the thread that finishes last folds their results in order. No thread waits.
//!
//! A NaN in a hidden cell can reach a row only from a later row of the same sequence.

#![allow(
    clippy::inline_always,
    reason = "functions are compiled for an instruction set by inlining them into a function that enables it"
)]
#![allow(clippy::cast_ptr_alignment, reason = "cells are read by instructions that need no alignment")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod groups;
mod kernels;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plan;
mod portable;
mod prefetch;
mod problem;
mod simd;
mod streams;
mod task;
mod units;
mod worker;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use plan::AttentionPlan;
pub use problem::{Attention, AttentionOutput, AttentionShape, CacheCells, CellFormat, Mask, MaskOrder, Queries};

use super::{Level, SharedSlice, Team};
use kernels::AttentionTable;
use units::AttentionSizes;
use worker::AttentionWorker;

/// Alignment of parts of the scratch memory: a cache line.
const ALIGN: usize = 64;

/// Returns true if `level` has a kernel for keys and values of these formats and for this shape.
pub fn covers(level: Level, keys: CellFormat, values: CellFormat, shape: &AttentionShape) -> bool {
    let AttentionShape { n_rows, n_heads, n_kv_heads, n_cells, key_size, value_size } = *shape;
    [n_rows, n_heads, n_kv_heads, n_cells, key_size, value_size].into_iter().all(|n| n > 0)
        && [n_rows, n_cells].into_iter().all(|n| u32::try_from(n).is_ok())
        && AttentionTable::of(level, value_size).is_some()
        && n_heads.is_multiple_of(n_kv_heads)
        && key_size.is_multiple_of(keys.head_multiple())
        && value_size.is_multiple_of(values.head_multiple())
}

/// Returns the maximum scratch memory of [`attend`] in bytes, for any mask. It need not be initialised.
pub fn scratch_bytes(shape: &AttentionShape, n_threads: usize) -> usize {
    let sizes = AttentionSizes::new(shape, n_threads);
    ALIGN + n_threads * thread_bytes(&sizes) + 4 * sizes.max_partials()
}

fn thread_bytes(sizes: &AttentionSizes) -> usize {
    (4 * sizes.scratch_layout().total).next_multiple_of(ALIGN)
}

/// Computes attention by a plan that was made for its mask and shape. It returns when no work is left for this thread; the
/// results are complete when all threads have returned. The threads must synchronise between two calls with one plan.
pub fn attend(attention: &Attention, plan: &AttentionPlan, out: &AttentionOutput, scratch: &SharedSlice<u8>, team: &dyn Team) {
    attention.check(plan, out);
    let shape = &attention.shape;
    assert!(covers(plan.key().level, attention.keys.format, attention.values.format, shape), "no kernel supports {shape:?}");
    assert_eq!(plan.key().n_threads, team.size(), "the plan was made for another number of threads");
    assert!(team.index() < team.size(), "thread index {} is not below the team's size, {}", team.index(), team.size());
    assert!(
        scratch.len() >= scratch_bytes(shape, team.size()),
        "the scratch memory has {} bytes, fewer than scratch_bytes",
        scratch.len()
    );
    let kernels = AttentionTable::of(plan.key().level, shape.value_size).expect("a level that is covered");
    let sizes = AttentionSizes::new(shape, team.size());
    let first = scratch.as_mut_ptr().align_offset(ALIGN);
    let per_thread = thread_bytes(&sizes);
    let own = first + team.index() * per_thread;
    // SAFETY: each thread takes its own part.
    let memory = unsafe { scratch.part_mut(own..own + per_thread) }.as_mut_ptr().cast();
    let partials = first + team.size() * per_thread;
    AttentionWorker { kernels, attention, plan, out, area: sizes.scratch_layout(), sizes, memory, scratch, partials }.run();
}

#[cfg(test)]
mod tests;
