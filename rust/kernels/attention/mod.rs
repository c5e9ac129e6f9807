//! Softmax(QKᵀ)V over cells of a unified pool.
//!
//! Many rows ask at once: branches of one prompt, streams of their own, a prompt's chunk. Each sees a set of cells of its own, which
//! the mask tells. A [`Plan`] finds out once per decode who sees what, and [`attend`] computes one layer by it.
//!
//! - **Streams** are the rows of one sequence, with one list of cells ordered by position. What no row sees is never read.
//! - **Blocks** are 256 positions of a stream. A row's softmax within a block is exact: all scores, their maximum, the weights,
//!   their sum, then values summed cell by cell in the order of positions. Blocks are folded one after the other, as flash
//!   attention does (Dao et al., *`FlashAttention`*, 2022). So a row's result follows from its own numbers alone: neither other rows,
//!   nor where its cells lie, nor who computes what can change a bit of it. It differs between instruction sets.
//! - **Groups** are streams that hold the same cells, as branches of one prompt do. Where they do, keys and values meet the queries
//!   of all of them and of all heads over one head of a cell in one register-blocked product; where they part, each goes on by
//!   itself (Ye et al., *`ChunkAttention`*, 2024; Juravsky et al., *Hydragen*, 2024).
//! - **Units** of about equal cost are taken by the threads as they become free: groups, their heads, and ranges of their blocks
//!   (Dao et al., *Flash-Decoding*, 2023), whose results whoever ends last folds in order. No thread waits for another.
//!
//! A value that is no number, in a cell that a row does not see, can reach the row only from a later row of its own sequence.

#![allow(
    clippy::inline_always,
    reason = "a function is compiled for an instruction set by being inlined into one that enables it"
)]
#![allow(clippy::cast_ptr_alignment, reason = "cells are read by instructions that do not ask for alignment")]

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
mod walk;

pub use plan::Plan;
pub use problem::{Attention, AttentionOutput, Cells, Format, Mask, MaskOrder, Queries, Shape};

use super::{Level, Shared, Team};
use kernels::AttentionTable;
use units::Sizes;
use walk::Walk;

/// What scratch memory is cut at: a line of the cache.
const ALIGN: usize = 64;

/// Whether there is a kernel of `level` for keys and values of these formats and for this shape.
#[must_use]
pub fn covers(level: Level, keys: Format, values: Format, shape: &Shape) -> bool {
    let Shape { n_rows, n_heads, n_kv_heads, n_cells, key_size, value_size } = *shape;
    let are_some = [n_rows, n_heads, n_kv_heads, n_cells, key_size, value_size].into_iter().all(|n| n > 0);
    let are_counted = u32::try_from(n_rows).is_ok() && u32::try_from(n_cells).is_ok();
    are_some
        && are_counted
        && AttentionTable::of(level, value_size).is_some()
        && n_heads.is_multiple_of(n_kv_heads)
        && key_size.is_multiple_of(keys.unit())
        && value_size.is_multiple_of(values.unit())
}

/// How much memory [`attend`] works in at most, whatever the mask is. It need not be set to anything.
#[must_use]
pub fn scratch_bytes(shape: &Shape, n_threads: usize) -> usize {
    let sizes = Sizes::new(shape, n_threads);
    ALIGN + n_threads * thread_bytes(&sizes) + 4 * sizes.max_partials()
}

fn thread_bytes(sizes: &Sizes) -> usize {
    (4 * sizes.area().total).next_multiple_of(ALIGN)
}

/// Computes an attention by a plan that was made for its mask and shape. Every thread of the team calls it with the same arguments
/// but its own `team`; it returns when this thread has nothing left to do, and the results are there when all have returned.
///
/// Between two calls with one plan the team meets. Panics, with words, if a size does not fit another.
pub fn attend(attention: &Attention, plan: &Plan, out: &AttentionOutput, scratch: &Shared<u8>, team: &dyn Team) {
    attention.check(plan, out);
    let shape = &attention.shape;
    assert!(covers(plan.level(), attention.keys.format, attention.values.format, shape), "there is no kernel for {shape:?}");
    assert_eq!(plan.n_threads(), team.size(), "the plan was made for another team");
    assert!(team.index() < team.size(), "thread {} of {}", team.index(), team.size());
    assert!(scratch.len() >= scratch_bytes(shape, team.size()), "there is too little scratch memory");
    let kernels = AttentionTable::of(plan.level(), shape.value_size).expect("a level that is covered");
    let sizes = Sizes::new(shape, team.size());
    // SAFETY: an empty part overlaps none.
    let first = unsafe { scratch.part(0..0) }.as_ptr().align_offset(ALIGN);
    let per_thread = thread_bytes(&sizes);
    let own = first + team.index() * per_thread;
    // SAFETY: each thread takes a part of its own.
    let memory = unsafe { scratch.part_mut(own..own + per_thread) }.as_mut_ptr().cast();
    let partials = first + team.size() * per_thread;
    Walk { kernels, attention, plan, out, area: sizes.area(), sizes, memory, scratch, partials }.run();
}

#[cfg(test)]
mod tests;
