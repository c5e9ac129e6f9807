//! Preempted sequences share cells again when they resume.
//!
//! Branches of one request, forks and the beams of a search share the cells of what their texts have in common. Each of them is
//! offloaded by itself, and would be restored or computed by itself: `n` times the text that they hold once while they run, which
//! may be more than the device cache has. So a sequence that resumes waits for the prefix that it shares with a more senior one, and
//! is forked from that. A sequence waits for more senior ones only, so that the most senior one never waits.
//!
//! A memory that can be forked anywhere is forked as soon as the prefix is there, also where that is restored. The other kinds are
//! saved and restored as whole texts, and are forked only where a sequence ends: the beams of a search are restored separately where
//! there is room for that, and otherwise computed, each common prefix once ([`BeamSharing::Recomputed`]).

use crate::cache::{MIN_SHARED, PrefixMatch, PrefixQuery};
use crate::engine::core::Core;
use crate::engine::lifecycle::preempt;
use crate::engine::memory::Memory;
use crate::engine::queue::Preempted;
use crate::engine::request_group::{BeamSharing, RequestGroup};
use crate::engine::runner::Runner;
use crate::engine::running_sequence::{Phase, PrefixDependency, RunningSequence, headroom};
use crate::engine::scheduling_key::SchedulingKey;
use crate::engine::sequence::Sequence;

/// How one sequence resumes.
#[derive(Debug, Clone, Copy)]
pub(super) struct SequencePlacement {
    /// The more senior sequence whose first tokens it begins with, and how many these are.
    pub(super) provider: Option<(SchedulingKey, u32)>,
    /// Most tokens that are forked or restored when it enters its slot.
    pub(super) at_most: u32,
    /// Demand for free or evictable cells, without its margin.
    n_cells: i64,
}

/// How the sequences resume that resume together.
pub(super) struct Resumption {
    /// In order; `None` for a beam that has no text.
    pub(super) placements: Vec<Option<SequencePlacement>>,
    /// Their demand for free or evictable cells, margins included.
    pub(super) n_cells: i64,
}

/// Decides how the first `n` preempted sequences resume. With `recomputes`, what the beams of a search have in common is computed
/// once, whatever is saved of it.
pub(super) fn plan_resumption<R: Runner>(core: &mut Core<R>, n: usize, recomputes: bool) -> Resumption {
    let all_found: Vec<Option<CachedTokens>> =
        (0..n).map(|nth| find_preempted(core, nth, u32::MAX).map(|matched| found(core, &matched))).collect();
    let mut placements: Vec<Option<SequencePlacement>> = Vec::with_capacity(n);
    for (nth, &found) in all_found.iter().enumerate() {
        let placement = found.map(|found| {
            let sequence = &core.queue.preempted()[nth].sequence;
            let group = SearchGroup { found: &all_found[..nth], recomputes };
            let (provider, n_shared) = group.provider(core, nth, found);
            let n_cells = i64::from(sequence.n_tokens() - n_shared.max(found.n_pinned));
            SequencePlacement { provider, at_most: u32::MAX, n_cells }
        });
        placements.push(placement);
    }
    if recomputes {
        stop_at_forks(core, &mut placements);
    }
    let margins: i64 = core.queue.preempted()[..n].iter().map(|preempted| i64::from(headroom(&preempted.sequence))).sum();
    let n_cells = margins + placements.iter().flatten().map(|placement| placement.n_cells).sum::<i64>();
    Resumption { placements, n_cells }
}

/// A sequence from which others are forked is restored at most up to the first of these forks.
fn stop_at_forks<R: Runner>(core: &Core<R>, placements: &mut [Option<SequencePlacement>]) {
    for nth in 0..placements.len() {
        let seniority = core.queue.preempted()[nth].sequence.seniority();
        let forks = placements.iter().flatten().filter_map(|placement| placement.provider);
        let first = forks.filter(|&(provider, _)| provider == seniority).map(|(_, n_tokens)| n_tokens).min();
        if let (Some(placement), Some(first)) = (&mut placements[nth], first) {
            placement.at_most = first;
        }
    }
}

/// Cached tokens of a sequence.
#[derive(Debug, Clone, Copy)]
struct CachedTokens {
    /// Tokens in the device cache.
    n_device: u32,
    /// Of these, held by sequences that run.
    n_pinned: u32,
    /// Tokens in either tier.
    n_tokens: u32,
}

fn found<R: Runner>(core: &Core<R>, matched: &PrefixMatch) -> CachedTokens {
    let n_evictable = u32::try_from(core.memory.cache().n_evictable_in(matched)).expect("a pool has fewer than 2³² cells");
    CachedTokens { n_device: matched.n_pool, n_pinned: matched.n_pool - n_evictable, n_tokens: matched.n_tokens() }
}

/// The sequences that resume before another one of the same search.
struct SearchGroup<'a> {
    /// Their cached tokens.
    found: &'a [Option<CachedTokens>],
    recomputes: bool,
}

impl SearchGroup<'_> {
    /// Returns the provider of the `nth` preempted sequence, and the number of its tokens whose cells are counted for other sequences.
    fn provider<R: Runner>(&self, core: &Core<R>, nth: usize, found: CachedTokens) -> (Option<(SchedulingKey, u32)>, u32) {
        let sequence = &core.queue.preempted()[nth].sequence;
        let can_be_cut = core.memory.kind().forks.can_truncate();
        let (mut best, mut n_shared) = (None, 0);
        let mut consider = |provider: Option<SchedulingKey>, n_tokens: u32| {
            if n_tokens > n_shared {
                (best, n_shared) = (provider.map(|provider| (provider, n_tokens)), n_tokens);
            }
        };
        for (other, other_found) in (0..).zip(self.found) {
            let (Some(other_found), other) = (other_found, &core.queue.preempted()[other].sequence) else { continue };
            let n_common = n_common(core, other, sequence);
            if self.recomputes || (can_be_cut && n_common > found.n_device) {
                consider(Some(other.seniority()), n_common);
            } else {
                // Both are in the device cache, where they share what they have in common.
                consider(None, n_common.min(found.n_device).min(other_found.n_device));
            }
        }
        for running in core.slots.running().iter().filter(|running| can_provide(core, running, sequence)) {
            let n_common = n_common(core, &running.sequence, sequence);
            let n_known = if can_be_cut { found.n_device } else { found.n_tokens };
            if n_common >= n_known + MIN_SHARED && n_common > running.n_held {
                consider(Some(running.sequence.seniority()), n_common);
            }
        }
        (best, n_shared)
    }
}

/// Whether `sequence` may wait for what `running_sequence` computes or restores.
fn can_provide<R: Runner>(core: &Core<R>, running: &RunningSequence, sequence: &Sequence) -> bool {
    let is_held_back = core.outbox.laggards.holds(running.sequence.stream_id);
    let has_priority = running.sequence.request().priority >= sequence.request().priority;
    // What is restored may go beyond the place where another sequence could be forked.
    let will_stop = core.memory.kind().forks.can_truncate() || running.n_ready() > 0;
    let is_senior = running.sequence.seniority() < sequence.seniority();
    running.n_grouped.is_none() && !running.follows() && !is_held_back && has_priority && will_stop && is_senior
}

/// How many tokens two sequences begin with in common that are computed alike, such that `second` could be forked from `first` there.
fn n_common<R: Runner>(core: &Core<R>, first: &Sequence, second: &Sequence) -> u32 {
    let (first_job, second_job) = (core.queue.job(first.request_id), core.queue.job(second.request_id));
    let n_alike = first.variants.n_common(&second.variants).min(first_job.grouped_from).min(second_job.grouped_from);
    let mut n = first.tokens.n_common(&second.tokens).min(n_alike).min(second.most_found());
    while let Some(cut) = second_job.media.iter().find(|placed| placed.is_cut_at(n)) {
        n = cut.start;
    }
    n
}

/// Finds the longest cached prefix, of at most `at_most` tokens, of the `nth` preempted sequence; `None` for a beam without a text.
pub(super) fn find_preempted<R: Runner>(core: &mut Core<R>, nth: usize, at_most: u32) -> Option<PrefixMatch> {
    let Core { queue, memory, .. } = core;
    let Preempted { sequence, .. } = &queue.preempted()[nth];
    let is_live = sequence.beam.as_ref().is_none_or(|beam| beam.is_live);
    is_live.then(|| find(memory, queue.job(sequence.request_id), sequence, at_most))
}

/// Finds the longest cached prefix of a sequence, of at most `at_most` tokens.
fn find<R: Runner>(memory: &mut Memory<R>, job: &RequestGroup, sequence: &Sequence, at_most: u32) -> PrefixMatch {
    let tokens = sequence.tokens.first(sequence.n_tokens());
    let at_most = sequence.most_found().min(job.grouped_from).min(at_most);
    let wanted = PrefixQuery { variants: &sequence.variants, tokens: &tokens, at_least: 1, at_most, takes_logits: false };
    memory.find(&wanted, &job.media)
}

/// Places the sequence at `nth`, if it waits for a prefix, over its longest cached prefix once its provider holds that one.
pub(super) fn take_prefix<R: Runner>(core: &mut Core<R>, nth: usize) {
    let Phase::Awaiting(PrefixDependency { provider, n_tokens, reservation }) = core.slots.running()[nth].phase else { return };
    let is_provider = |running: &&RunningSequence| running.sequence.seniority() == provider;
    let source = core.slots.running().iter().find(is_provider).filter(|running| {
        let is_held_back = core.outbox.laggards.holds(running.sequence.stream_id);
        !is_held_back && running.sequence.n_tokens() >= n_tokens
    });
    // A context that was shifted is another text.
    let is_alike = |source: &&RunningSequence| n_common(core, &source.sequence, &core.slots.running()[nth].sequence) >= n_tokens;
    let is_known_alike = |source: &&RunningSequence| source.sequence.shifted_at().is_none() || is_alike(source);
    if source.is_some_and(|source| source.n_held < n_tokens && is_known_alike(&source)) {
        return;
    }
    let source = source.filter(is_alike).map(|source| (source.id, source.n_held));
    core.has_changed = true;
    let matched = match source {
        Some((id, n_held)) if n_held == n_tokens && recomputes(core, nth) && core.memory.can_fork(id, n_tokens) => {
            PrefixMatch::in_pool(id, n_tokens)
        }
        Some((id, _)) if core.memory.kind().forks.can_truncate() => {
            core.memory.cache_mut().share_first(id, n_tokens);
            find_running(core, nth)
        }
        _ => find_running(core, nth),
    };
    let (id, variants) = (core.slots.running()[nth].id, core.slots.running()[nth].sequence.variants.clone());
    core.memory.cache_mut().give_up(id);
    let id = core.memory.place(&variants, Some(&matched)).expect("it has just given one back");
    let maker = core.queue.job(core.slots.running()[nth].sequence.request_id).maker();
    core.memory.cache_mut().set_provenance(id, maker);
    core.memory.cache_mut().release(reservation);
    let running = &mut core.slots.running_mut()[nth];
    (running.id, running.n_held, running.phase) = (id, matched.n_pool, Phase::of_match(matched));
}

/// Finds the longest cached prefix of the running sequence at `nth`.
fn find_running<R: Runner>(core: &mut Core<R>, nth: usize) -> PrefixMatch {
    let Core { slots, queue, memory, .. } = core;
    let sequence = &slots.running()[nth].sequence;
    find(memory, queue.job(sequence.request_id), sequence, u32::MAX)
}

/// How many tokens the sequence at `nth` may compute until another one is forked from it, where the memory can be forked only where
/// a sequence ends.
pub(super) fn n_until_fork<R: Runner>(core: &Core<R>, running: &RunningSequence) -> u32 {
    if core.memory.kind().forks.can_truncate() {
        return u32::MAX;
    }
    let waiting = core.slots.running().iter().filter_map(|other| match &other.phase {
        Phase::Awaiting(prefix) if prefix.provider == running.sequence.seniority() => Some(prefix.n_tokens),
        _ => None,
    });
    waiting.filter(|&n_tokens| n_tokens > running.n_held).map(|n_tokens| n_tokens - running.n_held).min().unwrap_or(u32::MAX)
}

fn recomputes<R: Runner>(core: &Core<R>, nth: usize) -> bool {
    core.queue.job(core.slots.running()[nth].sequence.request_id).sharing == BeamSharing::Recomputed
}

/// Lets a search resume whose beams were restored separately and hold cells that they could share. `false` where they share them
/// already.
pub(super) fn reshare_cells<R: Runner>(core: &mut Core<R>, nth: usize) -> bool {
    let request_id = core.slots.running()[nth].sequence.request_id;
    if core.queue.job(request_id).sharing != BeamSharing::Separate {
        return false;
    }
    core.queue.job_mut(request_id).sharing = BeamSharing::Recomputed;
    preempt(core, nth);
    true
}
