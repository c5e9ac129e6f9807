//! What the engine is doing: counters since its start, and one entry per slot.

use std::time::{Duration, Instant};

pub use crate::cache::{CachedNode, Tier};

/// A snapshot of the engine, as of its last step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// One entry per slot, in order.
    pub slots: Vec<SlotStats>,
    /// Requests of which some branch was never in a slot.
    pub n_waiting: usize,
    /// Tokens computed that nobody drew in that step: prompts, and what preempted sequences computed again.
    pub n_computed: u64,
    /// Prompt tokens that were found computed: in the pool, in the store, or because another request computed them meanwhile.
    pub n_cached: u64,
    /// Of these, tokens that came back from the store.
    pub n_restored: u64,
    /// Of these, tokens that another request was still computing when they were asked for.
    pub n_awaited: u64,
    /// Tokens drawn.
    pub n_predicted: u64,
    /// Tokens of prompts that were compared with what is cached or being computed, to find what can be shared.
    pub n_compared: u64,
    /// Steps of the worker: looks at what there is to do, with a decode or without.
    pub n_steps: u64,
    /// Decodes.
    pub n_decodes: u64,
    /// Sequences that were in slots, summed over all decodes.
    pub n_busy: u64,
    /// Sequences that gave up their slot for an older one.
    pub n_preempted: u64,
    /// What became of the branches of streams.
    pub branches: BranchStats,
    /// Decodes with other adapters than the one before.
    pub n_adapter_changes: u64,
    /// Cells of the pool that hold something.
    pub n_cells_used: usize,
    /// Cells of the pool.
    pub n_cells: usize,
    /// The highest used cell, plus one: what each decode looks through.
    pub n_cells_reached: usize,
    /// Cells that only idle prefixes hold.
    pub n_cells_idle: usize,
    /// Sequence ids that hold something.
    pub n_ids_used: usize,
    /// Sequence ids.
    pub n_ids: usize,
    /// Prefixes that are pinned.
    pub n_pinned: usize,
    /// Bytes that they take, each counted by itself.
    pub n_pinned_bytes: u64,
    /// The second tier.
    pub store: HostCacheStats,
    /// Where the worker's time went since its start.
    pub times: StepTimes,
}

/// The branches of all streams, since the start; prompts that are only computed are none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BranchStats {
    /// Those that were in a slot.
    pub n_started: u64,
    /// Those that were forked from others.
    pub n_forked: u64,
    /// Those that were cancelled on their own, while their streams went on.
    pub n_cancelled: u64,
    /// Tokens of their prompts that were computed for branches which are not the first of their stream, and for forks, by their
    /// ends.
    pub n_computed: u64,
    /// Tokens of their prompts that these found computed.
    pub n_shared: u64,
}

/// The store: saved pieces in host memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostCacheStats {
    /// Bytes of all pieces.
    pub n_bytes: u64,
    /// Most bytes; `None` is no limit.
    pub max_bytes: Option<u64>,
    /// Pieces.
    pub n_pieces: usize,
    /// Tokens copied into it since the start.
    pub n_saved: u64,
    /// Tokens copied back into the pool since the start.
    pub n_restored: u64,
    /// Tokens that were forgotten for want of room, in either tier, since the start.
    pub n_forgotten: u64,
    /// Cells that were moved to lower ones since the start.
    pub n_relocated: u64,
}

/// How many of the last steps are remembered.
pub const MAX_RECENT_STEPS: usize = 64;

/// What one of the last steps took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecentStep {
    /// When it began.
    pub started: Instant,
    /// From its beginning to its end.
    pub took: Duration,
    /// Rows that it computed.
    pub n_rows: u32,
    /// What it spent on each part, all of which add up to `took`. Sequences are placed before the decode and after it.
    pub times: StepTimes,
}

/// Time that the worker spent, by part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTimes {
    /// Taking commands, dropping cancelled requests; waiting for work is not counted.
    pub receive: Duration,
    /// Finding prefixes, admitting sequences and forking.
    pub place: Duration,
    /// Deciding which tokens are computed next, and making room for them.
    pub plan: Duration,
    /// Computing.
    pub decode: Duration,
    /// Choosing tokens.
    pub sample: Duration,
    /// Turning tokens into text.
    pub text: Duration,
    /// Handing events to their readers.
    pub emit: Duration,
    /// Copying cells out of the pool, or to lower cells.
    pub spill: Duration,
    /// Copying cells back into the pool.
    pub restore: Duration,
}

impl StepTimes {
    /// All parts together.
    #[must_use]
    pub fn sum(&self) -> Duration {
        let Self { receive, place, plan, decode, sample, text, emit, spill, restore } = *self;
        [receive, place, plan, decode, sample, text, emit, spill, restore].into_iter().sum()
    }

    /// What was spent since `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        let part = |of: fn(&Self) -> Duration| of(self).saturating_sub(of(before));
        Self {
            receive: part(|times| times.receive),
            place: part(|times| times.place),
            plan: part(|times| times.plan),
            decode: part(|times| times.decode),
            sample: part(|times| times.sample),
            text: part(|times| times.text),
            emit: part(|times| times.emit),
            spill: part(|times| times.spill),
            restore: part(|times| times.restore),
        }
    }
}

/// What one slot is doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlotStats {
    /// The sequence that runs in it; `None` where it is idle.
    pub running: Option<RunningStats>,
}

/// A running sequence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunningStats {
    /// Counts requests in order of submission, from 0.
    pub request_id: u64,
    /// Which branch of it; of a search, which beam.
    pub index: u32,
    /// The prompt's length in tokens.
    pub n_prompt: u32,
    /// Prompt tokens that this branch computed so far.
    pub n_computed: u32,
    /// Prompt tokens that it found computed.
    pub n_cached: u32,
    /// Tokens drawn.
    pub n_predicted: u32,
    /// Tokens that it may still draw; `None` is no limit, in a context that is shifted.
    pub n_remaining: Option<u32>,
}
