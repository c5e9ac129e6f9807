//! Attention and products for many rows at once: what a decode of many sequences spends its time on.
//!
//! llama.cpp's CPU code is made for one row or for hundreds. Here 2 to some hundred rows share what they read: a tile of cells
//! meets all rows that see it, a panel of weights all rows of the batch. Everything is a function on slices; llama.cpp is not
//! named, and a benchmark or a test calls what a decode calls.
//!
//! - [`attention`]: softmax(QKᵀ)V over cells of a unified pool, where every row sees a set of its own.
//! - [`products`]: quantised weights times rows of activations.
//! - [`Level`]: the instruction set, chosen at run time.
//! - [`Team`]: the threads that compute one operation together.
//!
//! # What a row's result depends on
//!
//! On its own numbers alone: not on the other rows of the batch, not on how many threads there are, not on which of them does
//! what. Sums are made in an order that only the row decides: attention in blocks of its own positions, products along the
//! weights' row. So a row computed alone and the same row among hundreds are equal bit by bit.

pub mod attention;
mod half;
mod level;
pub mod products;
mod shared;
mod team;

pub use level::Level;
pub use shared::Shared;
pub use team::{SoloTeam, Team, ThreadTeam};
