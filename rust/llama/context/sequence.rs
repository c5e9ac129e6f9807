//! The tokens that a sequence id holds.

use crate::llama::context::positions::Positions;

#[derive(Debug, Clone, Default)]
pub(crate) struct KvSequence {
    pub(crate) len: u32,
    /// First position from which the sliding-window cache has no hole: reloaded states contain only the end of their window, and
    /// llama.cpp does not report holes. 0 without a window.
    pub(crate) whole_from: u32,
    pub(crate) positions: Positions,
}

impl KvSequence {
    pub(crate) fn truncate(&mut self, len: u32) {
        self.len = len;
        self.positions.truncate(len);
        self.whole_from = self.whole_from.min(len);
    }
}
