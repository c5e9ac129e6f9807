//! Questions of callers, and the answers that the worker gives between two steps.
//!
//! While requests are running, each step spends a bounded amount of work on answers. The other questions wait, in order, for later
//! steps, so that neither questions nor streams starve.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::cache::{CachedBlock, CachedNode, DigestCursor};
use crate::engine::core::Core;
use crate::engine::publishing::show;
use crate::engine::runner::Runner;
use crate::engine::running_sequence::RunningSequence;
use crate::request::{PinnedPrefix, SlotContents, Token};

/// A question, with the channel for its answer.
pub(crate) enum Question {
    Cached(SyncSender<Vec<CachedNode>>),
    /// The most recently used nodes, up to this limit, and the number of all nodes.
    RecentlyUsed(usize, SyncSender<(Vec<CachedNode>, usize)>),
    /// Some of the blocks that are held, hashed with this key, from this place on; and from where on the others are.
    Blocks(Arc<[u8]>, DigestCursor, SyncSender<(Vec<CachedBlock>, Option<DigestCursor>)>),
    Pinned(SyncSender<Vec<PinnedPrefix>>),
    Unpin(u64, SyncSender<bool>),
    HeldBySlot(u32, SyncSender<SlotContents>),
    EraseSlot(u32, SyncSender<Option<u32>>),
}

/// Units of work per step for answers. A unit is a listed node, or [`TOKENS_PER_UNIT`] copied tokens.
pub(super) const WORK_PER_STEP: usize = 512;

/// Minimum units of an answer: its channel, and waking the caller.
pub(super) const WORK_PER_ANSWER: usize = 32;

/// Copied tokens per unit of work.
const TOKENS_PER_UNIT: usize = 256;

/// Maximum number of steps without answers after an answer that exceeded the work of its step.
pub(super) const MAX_STEPS_OWED: usize = 16;

/// Waiting questions, in order of arrival.
#[derive(Default)]
pub(super) struct Questions {
    waiting: VecDeque<Question>,
    /// Units by which earlier answers exceeded the work of their steps.
    n_owed: usize,
}

impl Questions {
    pub(super) fn push(&mut self, question: Question) {
        self.waiting.push_back(question);
    }

    pub(super) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the next question.
    pub(super) fn next(&mut self) -> Option<Question> {
        self.waiting.pop_front()
    }

    /// Starts a step: deducts the units that earlier answers owe, and returns the remaining units of the step.
    pub(super) fn begin_step(&mut self) -> usize {
        let n_left = WORK_PER_STEP.saturating_sub(self.n_owed);
        self.n_owed = self.n_owed.saturating_sub(WORK_PER_STEP);
        n_left
    }

    /// Accounts for an answer of `n_done` units in a step with `n_left` units; returns the remaining units.
    pub(super) fn spend(&mut self, n_left: usize, n_done: usize) -> usize {
        self.n_owed = (self.n_owed + n_done.saturating_sub(n_left)).min(MAX_STEPS_OWED * WORK_PER_STEP);
        n_left.saturating_sub(n_done)
    }
}

/// Answers questions until the units of this step are spent.
pub(super) fn answer_some<R: Runner>(core: &mut Core<R>, questions: &mut Questions) {
    let mut n_left = questions.begin_step();
    if questions.are_waiting() && n_left > 0 {
        core.outbox.ring();
    }
    while n_left > 0
        && let Some(question) = questions.next()
    {
        let n_done = answer(core, question);
        n_left = questions.spend(n_left, n_done);
    }
}

/// Answers a question; returns the units of work.
pub(super) fn answer<R: Runner>(core: &mut Core<R>, question: Question) -> usize {
    core.outbox.drop_unread_pins(core.memory.cache_mut());
    let n_done = match question {
        Question::Cached(answer) => {
            let nodes = core.memory.cache().listing(|id| core.slots.slot_of(id));
            let n_done = work_of_nodes(&nodes);
            reply(&answer, nodes);
            n_done
        }
        Question::RecentlyUsed(limit, answer) => {
            let (nodes, n_nodes) = core.memory.cache().recently_used(limit, |id| core.slots.slot_of(id));
            let n_done = work_of_nodes(&nodes);
            reply(&answer, (nodes, n_nodes));
            n_done
        }
        Question::Blocks(key, place, answer) => {
            reply(&answer, core.memory.cache_mut().blocks(&key, place));
            // Bounds its own work to about that of a step.
            WORK_PER_STEP
        }
        Question::Pinned(answer) => {
            let pinned = core.memory.cache().pinned();
            let n_done = pinned.iter().map(|pinned| 1 + pinned.tokens.len() / TOKENS_PER_UNIT).sum();
            reply(&answer, pinned);
            n_done
        }
        Question::Unpin(name, answer) => {
            let is_unpinned = core.memory.cache_mut().unpin_prefix(name);
            show(core);
            reply(&answer, is_unpinned);
            0
        }
        Question::HeldBySlot(slot, answer) => {
            let held = held_in(core, slot);
            let n_done = held.tokens.len() / TOKENS_PER_UNIT;
            reply(&answer, held);
            n_done
        }
        Question::EraseSlot(slot, answer) => {
            let n_tokens = erase_slot(core, slot);
            show(core);
            reply(&answer, n_tokens);
            n_tokens.unwrap_or(0) as usize / TOKENS_PER_UNIT
        }
    };
    n_done.max(WORK_PER_ANSWER)
}

fn work_of_nodes(nodes: &[CachedNode]) -> usize {
    nodes.len() + nodes.iter().map(|node| node.tokens.len()).sum::<usize>() / TOKENS_PER_UNIT
}

/// Whoever asked may have gone; then nobody needs the answer.
fn reply<T>(asker: &SyncSender<T>, answer: T) {
    asker.send(answer).ok();
}

/// What `slot` holds, and with which adapters: what the sequence that fills it has computed, else what the last one left.
fn held_in<R: Runner>(core: &Core<R>, slot: u32) -> SlotContents {
    let fills = |running: &&RunningSequence| core.queue.job(running.sequence.request_id).fills(slot);
    let (variants, tokens) = match core.slots.running_in(slot).filter(fills) {
        Some(running) => (&running.sequence.variants, running.held()),
        None => core.slots.left_in(slot),
    };
    let variants = variants.of_first(length(&tokens));
    SlotContents { tokens, adapters: variants.adapters().collect(), invoked_at: variants.change() }
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
