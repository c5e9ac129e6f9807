//! What callers ask between two steps, and what they are told.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::cache::{CachedNode, HeldBlock, Place};
use crate::engine::core::Core;
use crate::engine::publishing::show;
use crate::engine::runner::Runner;
use crate::engine::running::Running;
use crate::request::{Held, PinnedPrefix, Token};

/// A question, with the channel for its answer.
pub(crate) enum Question {
    Cached(SyncSender<Vec<CachedNode>>),
    /// Some of the blocks that are held, hashed with this key, from this place on; and from where on the others are.
    Blocks(Arc<[u8]>, Place, SyncSender<(Vec<HeldBlock>, Option<Place>)>),
    Pinned(SyncSender<Vec<PinnedPrefix>>),
    Unpin(u64, SyncSender<bool>),
    HeldBySlot(u32, SyncSender<Held>),
    EraseSlot(u32, SyncSender<Option<u32>>),
}

pub(super) fn answer<R: Runner>(core: &mut Core<R>, question: Question) {
    match question {
        Question::Cached(answer) => reply(&answer, core.memory.cache().listing(|id| core.slots.slot_of(id))),
        Question::Blocks(key, place, answer) => reply(&answer, core.memory.cache_mut().blocks(&key, place)),
        Question::Pinned(answer) => reply(&answer, core.memory.cache().pinned()),
        Question::Unpin(name, answer) => {
            let is_unpinned = core.memory.cache_mut().unpin_prefix(name);
            show(core);
            reply(&answer, is_unpinned);
        }
        Question::HeldBySlot(slot, answer) => reply(&answer, held_in(core, slot)),
        Question::EraseSlot(slot, answer) => {
            let n_tokens = erase_slot(core, slot);
            show(core);
            reply(&answer, n_tokens);
        }
    }
}

/// Whoever asked may have gone; then nobody needs the answer.
fn reply<T>(asker: &SyncSender<T>, answer: T) {
    asker.send(answer).ok();
}

/// What `slot` holds, and with which adapters: what the sequence that fills it has computed, else what the last one left.
fn held_in<R: Runner>(core: &Core<R>, slot: u32) -> Held {
    let fills = |running: &&Running| core.queue.job(running.sequence.request_id).fills(slot);
    let (variants, tokens) = match core.slots.running_in(slot).filter(fills) {
        Some(running) => (&running.sequence.variants, running.held()),
        None => core.slots.left_in(slot),
    };
    let variants = variants.of_first(length(&tokens));
    Held { tokens, adapters: variants.adapters().collect(), invoked_at: variants.change() }
}

/// Forgets what was left in `slot`, and says how many tokens that were; `None` where a sequence runs.
fn erase_slot<R: Runner>(core: &mut Core<R>, slot: u32) -> Option<u32> {
    if core.slots.running_in(slot).is_some() {
        core.slots.keep_for_erasing(slot);
        return None;
    }
    let (variants, tokens, n_kept) = core.slots.take_left(slot);
    core.memory.cache_mut().erase(&variants, &tokens, n_kept);
    Some(length(&tokens))
}

fn length(tokens: &[Token]) -> u32 {
    u32::try_from(tokens.len()).expect("a sequence fits its context")
}
