//! Metrics of the engine: counters since its start, and the state of each slot.

use std::time::{Duration, Instant};

pub use crate::cache::{CachedNode, Tier};
use crate::engine::histograms::RequestHistograms;

/// Metrics as of the last step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    pub slots: Vec<SlotStats>,
    /// Requests with a branch that was never in a slot.
    pub n_waiting: usize,
    /// Tokens computed without being sampled in that step: prompts, and tokens of preempted sequences that are computed again.
    pub n_computed: u64,
    /// Prompt tokens that were not computed: found in the device cache or the host cache, or computed by another request.
    pub n_cached: u64,
    /// Of `n_cached`, tokens reloaded from the host cache.
    pub n_reloaded: u64,
    /// Of `n_cached`, tokens that another request was still computing when they were matched.
    pub n_awaited: u64,
    pub n_predicted: u64,
    /// Prompt tokens that were compared with cached or pending prefixes.
    pub n_compared: u64,
    /// Steps of the worker, with or without a decode.
    pub n_steps: u64,
    pub n_decodes: u64,
    /// Sequences in slots, summed over all decodes.
    pub n_busy: u64,
    pub n_preempted: u64,
    pub branches: BranchStats,
    pub speculation: SpeculationStats,
    pub histograms: RequestHistograms,
    /// Decodes with other adapters than the previous one.
    pub n_adapter_changes: u64,
    pub n_cells_used: usize,
    pub n_cells: usize,
    /// Highest used cell plus one: the range that each decode scans.
    pub n_cells_reached: usize,
    /// Cells that only idle prefixes use.
    pub n_cells_idle: usize,
    pub n_ids_used: usize,
    pub n_ids: usize,
    pub n_pinned: usize,
    /// Size of the pinned prefixes, each counted separately.
    pub n_pinned_bytes: u64,
    pub host_cache: HostCacheStats,
    /// Time of the worker since its start, by stage.
    pub times: StepTimes,
}

/// Metrics of the branches of all streams since the start, without prompts that are only computed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BranchStats {
    /// Branches that were in a slot.
    pub n_started: u64,
    pub n_forked: u64,
    /// Branches that were cancelled individually.
    pub n_cancelled: u64,
    /// Prompt tokens computed for forks and for branches after the first of their stream; counted when the branch ends.
    pub n_computed: u64,
    /// Prompt tokens that those branches found cached.
    pub n_shared: u64,
}

/// Positions of a draft that are counted separately.
pub const N_DRAFT_POSITIONS: usize = 16;

/// Metrics of speculative decoding since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpeculationStats {
    /// By [`DraftSource`], in order of declaration.
    pub by_source: [DraftStats; DraftSource::ALL.len()],
    /// Accepted tokens by their position in the draft; the last one counts all further positions.
    pub n_accepted_at: [u64; N_DRAFT_POSITIONS],
    /// Size of the index of texts.
    pub n_index_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DraftStats {
    pub n_drafts: u64,
    pub n_drafted: u64,
    /// Drafted tokens that were sampled.
    pub n_accepted: u64,
    /// Drafts that were not accepted as a whole.
    pub n_cut: u64,
    /// Time to draft, verified or not: for [`DraftSource::Text`] with the index of texts, for [`DraftSource::Model`] all that the
    /// draft model computes.
    pub time: Duration,
}

/// Origin of drafted tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DraftSource {
    /// The text of the request, its own output, and other texts of its owner.
    #[default]
    Text,
    /// Tokens that the constraint forces.
    Constraint,
    Model,
    /// [`Replay`](crate::request::Replay), for tests and benchmarks.
    Replay,
}

impl DraftSource {
    pub const ALL: [Self; 4] = [Self::Text, Self::Constraint, Self::Model, Self::Replay];

    /// Returns the label of its metrics; `None` for tests and benchmarks.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Text => Some("text"),
            Self::Constraint => Some("constraint"),
            Self::Model => Some("model"),
            Self::Replay => None,
        }
    }
}

/// Metrics of the host cache. Tokens are counted since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostCacheStats {
    pub n_bytes: u64,
    /// Size limit; `None` for no limit.
    pub max_bytes: Option<u64>,
    pub n_entries: usize,
    pub n_offloaded: u64,
    pub n_reloaded: u64,
    /// Tokens evicted from either tier for lack of space.
    pub n_evicted: u64,
    pub n_relocated: u64,
}

pub const MAX_RECENT_STEPS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecentStep {
    pub started: Instant,
    pub took: Duration,
    pub n_rows: u32,
    /// Time per stage; the sum is `took`. Sequences are admitted both before and after the decode.
    pub times: StepTimes,
}

/// Time of the worker, by stage of a step: `receive`; `admit` and `plan` of schedule; `decode` of execute; `sample` and `detokenize` of
/// sample; `publish`. Three parts of stages count for others: admission after sampling for `admit`, wakes before a decode for
/// `publish`, and copies at any stage for `offload` and `reload`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTimes {
    /// Handling commands and dropping cancelled requests, without waiting for work.
    pub receive: Duration,
    /// Matching prefixes, admitting sequences and forking.
    pub admit: Duration,
    /// Choosing the tokens to compute, and making room for them.
    pub plan: Duration,
    /// Decoding, saving checkpoints, and reporting progress and logprobs of prompts.
    pub decode: Duration,
    pub sample: Duration,
    /// Detokenizing, verifying drafts, and ending sequences.
    pub detokenize: Duration,
    pub publish: Duration,
    /// Offloading cells, or moving tokens to lower cells.
    pub offload: Duration,
    pub reload: Duration,
}

impl StepTimes {
    fn stages(&mut self) -> [&mut Duration; 9] {
        let Self { receive, admit, plan, decode, sample, detokenize, publish, offload, reload } = self;
        [receive, admit, plan, decode, sample, detokenize, publish, offload, reload]
    }

    pub fn sum(mut self) -> Duration {
        self.stages().map(|stage| *stage).into_iter().sum()
    }

    pub(super) fn since(mut self, mut before: Self) -> Self {
        for (stage, before) in self.stages().into_iter().zip(before.stages()) {
            *stage = stage.saturating_sub(*before);
        }
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlotStats {
    /// The running sequence; `None` if the slot is idle.
    pub running: Option<RunningStats>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunningStats {
    /// Number of its request in order of submission, from 0.
    pub request_id: u64,
    /// Index of the branch or beam.
    pub index: u32,
    pub n_prompt: u32,
    pub n_computed: u32,
    pub n_cached: u32,
    pub n_predicted: u32,
    /// Maximum number of tokens still to sample; `None` for no limit, in a context that is shifted.
    pub n_remaining: Option<u32>,
}
