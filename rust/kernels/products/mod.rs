//! Quantised or floating-point weights times rows of activations.
//!
//! [`multiply`] corresponds to ggml's `MUL_MAT`, [`multiply_by_expert`] to `MUL_MAT_ID`: weights of any [`WeightFormat`] in their
//! on-disk layout, times one to several hundred rows of activations.
//!
//! 1. The threads quantise the activations to bytes, exactly as llama.cpp does on x86 for that format, and arrange them as
//!    *tiles*: up to eight rows whose sums stay in registers. Then they synchronise, once.
//! 2. They claim chunks: a few *panels* of 16 or 32 rows of weights, and as many tiles as fit in the L2 cache.
//! 3. The next 512 weights per row of a panel are unpacked into a common layout, rows side by side, and multiplied with one
//!    tile after another: each dword of activations is broadcast and multiplied with one dword of each row.
//!
//! The bottleneck is memory bandwidth for one row, unpacking for a few, and byte products for many. A burst of prefetches stalls
//! the processor and halves the speed of one row, so they are spread over the computation.
//!
//! Integer products are exact, and float sums grow along a row of weights in one order, whatever the number of rows and threads
//! and the instruction set: results are equal bit by bit. A format is an unpacker ([`unpack`]), an instruction set a set of
//! primitives ([`lanes`]).

#![expect(
    clippy::inline_always,
    reason = "primitives are compiled for an instruction set by inlining them into a function that enables it"
)]
#![allow(
    clippy::cast_ptr_alignment,
    reason = "scratch memory is laid out with aligned elements, and everything else is read unaligned"
)]

mod accumulate;
mod form;
mod format;
mod kernels;
mod lanes;
mod multiply;
mod operands;
mod plain;
mod plan;
mod prefetch;
mod quantise;
#[cfg(test)]
mod tests;
mod unpack;

pub use format::WeightFormat;
pub use multiply::{covers, multiply, multiply_by_expert, scratch_bytes, scratch_bytes_by_expert};
pub use operands::{ExpertChoices, Experts, ProductOutput, Rows, Weights};
