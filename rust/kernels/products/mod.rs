//! Weights times rows of activations.
//!
//! [`multiply`] is `MUL_MAT`, [`multiply_by_expert`] is `MUL_MAT_ID`: weights of any [`Format`] as they lie in a file, one to many
//! hundred rows of activations. Every thread of a [`Team`](super::Team) calls the same function with the same arguments.
//!
//! 1. The threads make the activations into bytes together, exactly as llama.cpp does on x86 for that format, and lay them out as
//!    *tiles*: up to eight rows whose sums stay in registers. Then they wait for each other, once.
//! 2. Chunks are taken from a counter: a few *panels* of 16 or 32 rows of weights, and as many tiles as stay in the second cache.
//! 3. A panel's next 512 weights per row are unpacked into one form for all formats, rows side by side, while the panel
//!    after it is asked for from memory. What was unpacked meets one tile after another: each dword of activations is broadcast
//!    and multiplied with one of each row.
//!
//! On the way in memory is the limit for one row, unpacking for a few, and the products of bytes for many. What comes next is asked
//! for in small portions all the time: a burst of requests stalls the processor, and costs half the speed of one row.
//!
//! A product of integers is exact, and the floats' sums grow along a row of weights in one order, whatever the number of rows,
//! threads, or the instruction set: results are equal bit by bit. A format is an unpacker ([`unpack`]), an instruction set a set
//! of primitives ([`lanes`]).

#![expect(
    clippy::inline_always,
    reason = "primitives of an instruction set are compiled within functions that enable it, or not at all"
)]
#![allow(
    clippy::cast_ptr_alignment,
    reason = "scratch memory is laid out so that each number is aligned, and the rest is read unaligned"
)]
#![allow(clippy::wildcard_imports, reason = "instructions are many, and their names are long enough")]

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

pub use format::Format;
pub use multiply::{covers, multiply, multiply_by_expert, scratch_bytes, scratch_bytes_by_expert};
pub use operands::{ExpertChoices, Experts, ProductOutput, Rows, Weights};
