//! Loads on servers: requests of clients, the timing that they observe, and the servers.

pub(crate) mod engine;
pub(crate) mod http;
pub(crate) mod load;
pub(crate) mod priorities;
pub(crate) mod slots;

use load::Load;

/// Headroom of an engine per sequence, in cells, so that it never has to evict.
const SPARE_CELLS: usize = 64;

/// Returns the size of Weft's cache for a load: sufficient without sharing.
fn n_cells(load: &Load) -> usize {
    (load.n_tokens() + load.n_slots() * SPARE_CELLS).next_multiple_of(256)
}
