//! What callers ask between two steps, and what they are told.

use std::sync::mpsc::SyncSender;

use crate::cache::CachedNode;
use crate::engine::runner::Runner;
use crate::engine::worker::Worker;
use crate::request::{PinnedPrefix, Token};

/// A question, with the channel for its answer.
pub(crate) enum Question {
    Cached(SyncSender<Vec<CachedNode>>),
    Pinned(SyncSender<Vec<PinnedPrefix>>),
    Unpin(u64, SyncSender<bool>),
    SlotTokens(u32, SyncSender<Vec<Token>>),
    EraseSlot(u32, SyncSender<Option<u32>>),
}

impl<R: Runner> Worker<R> {
    pub(super) fn answer(&mut self, question: Question) {
        match question {
            Question::Cached(answer) => {
                let slot_of = |id| self.running.iter().find(|running| running.id == id).map(|running| running.slot);
                tell(&answer, self.cache.listing(slot_of));
            }
            Question::Pinned(answer) => tell(&answer, self.cache.pinned()),
            Question::Unpin(name, answer) => {
                let is_unpinned = self.cache.unpin_prefix(name);
                self.show();
                tell(&answer, is_unpinned);
            }
            Question::SlotTokens(slot, answer) => {
                tell(&answer, self.tokens_in(slot).to_vec());
            }
            Question::EraseSlot(slot, answer) => {
                let n_tokens = self.erase_slot(slot);
                self.show();
                tell(&answer, n_tokens);
            }
        }
    }
}

/// Whoever asked may have gone; then nobody needs the answer.
fn tell<T>(asker: &SyncSender<T>, answer: T) {
    asker.send(answer).ok();
}
