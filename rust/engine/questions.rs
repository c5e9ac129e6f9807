//! What callers ask between two steps, and what they are told.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::cache::{CachedNode, common_prefix};
use crate::engine::runner::Runner;
use crate::engine::sequence::Running;
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

/// How long a slot that is free stays so for somebody who found it busy and wants it erased.
const ERASE_WAIT: Duration = Duration::from_millis(200);

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
                let running = self.running.iter().find(|running| running.slot == slot);
                let tokens = running.map_or(&self.left[slot as usize].tokens[..], Running::held);
                tell(&answer, tokens.to_vec());
            }
            Question::EraseSlot(slot, answer) => {
                let n_tokens = self.erase_slot(slot);
                self.show();
                tell(&answer, n_tokens);
            }
        }
    }

    /// Forgets what was left in `slot`, and says how many tokens that were; `None` where a sequence runs.
    fn erase_slot(&mut self, slot: u32) -> Option<u32> {
        if self.running.iter().any(|running| running.slot == slot) {
            self.left[slot as usize].erase_by = Some(Instant::now() + ERASE_WAIT);
            return None;
        }
        let left = std::mem::take(&mut self.left[slot as usize]);
        // What other slots hold stays.
        let others = self.left.iter().filter(|other| other.variant == left.variant);
        let n_kept = others.map(|other| common_prefix(&other.tokens, &left.tokens)).max().unwrap_or(0);
        self.cache.erase(&left.variant, &left.tokens, n_kept);
        Some(u32::try_from(left.tokens.len()).expect("a sequence fits its context"))
    }
}

/// Whoever asked may have gone; then nobody needs the answer.
fn tell<T>(asker: &SyncSender<T>, answer: T) {
    asker.send(answer).ok();
}
