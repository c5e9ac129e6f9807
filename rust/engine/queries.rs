//! Queries of callers, which the worker answers between two steps.
//!
//! While requests are running, each step spends a bounded amount of work on answers. The other queries wait, in order, for
//! later steps, so that neither queries nor streams starve.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::cache::{CachedBlock, CachedNode, DigestCursor};
use crate::engine::cache_manager::CacheManager;
use crate::engine::metrics::Metrics;
use crate::engine::numbers::to_u32;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::slots::ErasedContents;
use crate::request::{PinnedPrefix, SlotContents, Token};

pub(crate) enum Query {
    Cached(SyncSender<Vec<CachedNode>>),
    /// The most recently used nodes, up to a limit, and the number of all nodes.
    RecentlyUsed(usize, SyncSender<(Vec<CachedNode>, usize)>),
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

const TOKENS_PER_UNIT: usize = 256;

/// Maximum number of steps without answers after an answer that exceeded the work of its step.
pub(super) const MAX_EXCESS_STEPS: usize = 16;

#[derive(Default)]
pub(super) struct QueryQueue {
    waiting: VecDeque<Query>,
    /// Units by which earlier answers exceeded the work of their steps.
    n_excess: usize,
}

/// A query that is answered now, with the contents of the slot that it erases.
pub(super) struct DueQuery {
    query: Query,
    erased: Option<ErasedContents>,
}

impl QueryQueue {
    pub(super) fn push(&mut self, query: Query) {
        self.waiting.push_back(query);
    }

    pub(super) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn next(&mut self, scheduler: &mut Scheduler) -> Option<DueQuery> {
        let query = self.waiting.pop_front()?;
        let erased = if let Query::EraseSlot(slot, _) = query { scheduler.take_contents(slot) } else { None };
        Some(DueQuery { query, erased })
    }

    /// Starts a step: deducts the excess of earlier answers, and returns the remaining units of the step.
    pub(super) fn take_budget(&mut self) -> usize {
        let n_left = WORK_PER_STEP.saturating_sub(self.n_excess);
        self.n_excess = self.n_excess.saturating_sub(WORK_PER_STEP);
        n_left
    }

    /// Accounts for an answer of `n_done` units in a step with `n_left` units; returns the remaining units.
    pub(super) fn spend(&mut self, n_left: usize, n_done: usize) -> usize {
        self.n_excess = (self.n_excess + n_done.saturating_sub(n_left)).min(MAX_EXCESS_STEPS * WORK_PER_STEP);
        n_left.saturating_sub(n_done)
    }
}

/// Answers a query; returns the units of work. Metrics show a change before its answer.
pub(super) fn answer<R: Runner>(
    DueQuery { query, erased }: DueQuery,
    scheduler: &Scheduler,
    cache: &mut CacheManager<R>,
    metrics: &Metrics,
) -> usize {
    let n_done = match query {
        Query::Cached(channel) => {
            let nodes = cache.kv().list_nodes(|id| scheduler.slots().slot_of(id));
            reply(&channel, work_of_nodes(&nodes), nodes)
        }
        Query::RecentlyUsed(limit, channel) => {
            let (nodes, n_nodes) = cache.kv().list_recently_used(limit, |id| scheduler.slots().slot_of(id));
            reply(&channel, work_of_nodes(&nodes), (nodes, n_nodes))
        }
        // Its work is bounded, to about the units of a step.
        Query::Blocks(key, cursor, channel) => reply(&channel, WORK_PER_STEP, cache.hash_blocks(&key, cursor)),
        Query::Pinned(channel) => {
            let pinned = cache.kv().pinned();
            reply(&channel, pinned.iter().map(|pinned| 1 + work_of(&pinned.tokens)).sum(), pinned)
        }
        Query::Unpin(id, channel) => {
            let is_unpinned = cache.unpin(id);
            metrics.publish(scheduler, cache);
            reply(&channel, 0, is_unpinned)
        }
        Query::SlotContents(slot, channel) => {
            let contents = scheduler.contents_of(slot);
            reply(&channel, work_of(&contents.tokens), contents)
        }
        Query::EraseSlot(_, channel) => {
            if let Some(ErasedContents { adapter_schedule, tokens, n_shared }) = &erased {
                cache.erase(adapter_schedule, tokens, *n_shared);
            }
            metrics.publish(scheduler, cache);
            let n_tokens = erased.map(|erased| erased.tokens.len());
            reply(&channel, n_tokens.unwrap_or(0) / TOKENS_PER_UNIT, n_tokens.map(to_u32))
        }
    };
    n_done.max(WORK_PER_ANSWER)
}

fn work_of(tokens: &[Token]) -> usize {
    tokens.len() / TOKENS_PER_UNIT
}

fn work_of_nodes(nodes: &[CachedNode]) -> usize {
    nodes.len() + nodes.iter().map(|node| node.tokens.len()).sum::<usize>() / TOKENS_PER_UNIT
}

fn reply<T>(channel: &SyncSender<T>, n_done: usize, answer: T) -> usize {
    channel.send(answer).ok();
    n_done
}
