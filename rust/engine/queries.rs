//! Queries of callers, which the worker answers between two steps.
//!
//! While requests are running, each step spends a bounded amount of work on answers. The other queries wait, in order, for
//! later steps, so that neither queries nor streams starve.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::cache::{AdapterSchedule, CachedBlock, CachedNode, DigestCursor};
use crate::engine::cache_manager::CacheManager;
use crate::engine::publish::publish_metrics;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::engine::stats::StepTimes;
use crate::request::{PinnedPrefix, SlotContents, Token};

/// A query, with the channel for its answer.
pub(crate) enum Query {
    Cached(SyncSender<Vec<CachedNode>>),
    /// The most recently used nodes, up to this limit, and the number of all nodes.
    RecentlyUsed(usize, SyncSender<(Vec<CachedNode>, usize)>),
    /// A part of the cached blocks, hashed with this key, from this cursor on; and the cursor of the next part.
    Blocks(Arc<[u8]>, DigestCursor, SyncSender<(Vec<CachedBlock>, Option<DigestCursor>)>),
    Pinned(SyncSender<Vec<PinnedPrefix>>),
    Unpin(u64, SyncSender<bool>),
    SlotContents(u32, SyncSender<SlotContents>),
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

/// Pending queries, in order of arrival.
#[derive(Default)]
pub(super) struct QueryQueue {
    waiting: VecDeque<Query>,
    /// Units by which earlier answers exceeded the work of their steps.
    n_owed: usize,
}

impl QueryQueue {
    pub(super) fn push(&mut self, query: Query) {
        self.waiting.push_back(query);
    }

    pub(super) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the next query.
    pub(super) fn next(&mut self) -> Option<Query> {
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

/// Answers a query; returns the units of work. `times` are the times per stage, which are published with changed metrics.
pub(super) fn answer<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>, query: Query, times: StepTimes) -> usize {
    let n_done = match query {
        Query::Cached(answer) => {
            let nodes = cache.kv_mut().listing(|id| scheduler.slots().slot_of(id));
            let n_done = work_of_nodes(&nodes);
            reply(&answer, nodes);
            n_done
        }
        Query::RecentlyUsed(limit, answer) => {
            let (nodes, n_nodes) = cache.kv_mut().recently_used(limit, |id| scheduler.slots().slot_of(id));
            let n_done = work_of_nodes(&nodes);
            reply(&answer, (nodes, n_nodes));
            n_done
        }
        Query::Blocks(key, cursor, answer) => {
            reply(&answer, cache.kv_mut().blocks(&key, cursor));
            // Its work is bounded, to about the units of a step.
            WORK_PER_STEP
        }
        Query::Pinned(answer) => {
            let pinned = cache.kv_mut().pinned();
            let n_done = pinned.iter().map(|pinned| 1 + pinned.tokens.len() / TOKENS_PER_UNIT).sum();
            reply(&answer, pinned);
            n_done
        }
        Query::Unpin(id, answer) => {
            let is_unpinned = cache.kv_mut().unpin_prefix(id);
            publish_metrics(scheduler, cache, times);
            reply(&answer, is_unpinned);
            0
        }
        Query::SlotContents(slot, answer) => {
            let contents = slot_contents(scheduler, slot);
            let n_done = contents.tokens.len() / TOKENS_PER_UNIT;
            reply(&answer, contents);
            n_done
        }
        Query::EraseSlot(slot, answer) => {
            let contents = take_contents(scheduler, slot);
            let n_tokens = contents.as_ref().map(|(_, tokens, _)| length(tokens));
            if let Some((adapter_schedule, tokens, n_kept)) = contents {
                cache.kv_mut().erase(&adapter_schedule, &tokens, n_kept);
            }
            publish_metrics(scheduler, cache, times);
            reply(&answer, n_tokens);
            n_tokens.unwrap_or(0) as usize / TOKENS_PER_UNIT
        }
    };
    n_done.max(WORK_PER_ANSWER)
}

fn work_of_nodes(nodes: &[CachedNode]) -> usize {
    nodes.len() + nodes.iter().map(|node| node.tokens.len()).sum::<usize>() / TOKENS_PER_UNIT
}

/// Sends an answer; it is discarded if the caller has left.
fn reply<T>(channel: &SyncSender<T>, answer: T) {
    channel.send(answer).ok();
}

/// Returns the contents of `slot` and their adapters: of the sequence that runs there, or else of the last one.
fn slot_contents(scheduler: &Scheduler, slot: u32) -> SlotContents {
    let keeps_contents = |running: &&RunningSequence| scheduler.group(running.sequence.group_id).keeps_contents_of(slot);
    let (adapter_schedule, tokens) = match scheduler.slots().running_in(slot).filter(keeps_contents) {
        Some(running) => (&running.sequence.adapter_schedule, running.computed_tokens()),
        None => scheduler.slots().contents_of(slot),
    };
    let adapter_schedule = adapter_schedule.prefix(length(&tokens));
    SlotContents { tokens, adapters: adapter_schedule.adapters().collect(), invoked_at: adapter_schedule.change() }
}

/// Takes the contents of `slot`, see [`Slots::take_contents`](crate::engine::scheduler::slots::Slots::take_contents). `None` while a sequence
/// runs there: then the slot is reserved for another attempt.
fn take_contents(scheduler: &mut Scheduler, slot: u32) -> Option<(AdapterSchedule, Vec<Token>, u32)> {
    if scheduler.slots().running_in(slot).is_some() {
        scheduler.slots_mut().reserve_for_erasing(slot);
        return None;
    }
    Some(scheduler.slots_mut().take_contents(slot))
}

fn length(tokens: &[Token]) -> u32 {
    u32::try_from(tokens.len()).expect("a sequence fits its context")
}
