//! Loads on servers: what clients send and see, and who answers.

pub(crate) mod engine;
pub(crate) mod http;
pub(crate) mod load;
pub(crate) mod priorities;
pub(crate) mod slots;

use load::Load;

/// Cells that an engine keeps free for each sequence beyond its tokens, so that it never has to make room.
const SPARE_CELLS: usize = 64;

/// The pool of Weft for a load: as large as if nothing were shared.
fn n_cells(load: &Load) -> usize {
    (load.n_tokens() + load.n_slots() * SPARE_CELLS).next_multiple_of(256)
}
