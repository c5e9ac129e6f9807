//! Resumption: preempted sequences share cells again when they resume.
//!
//! Branches of one request, forks and the beams of a search share the cells of their common prefixes. Each of them is offloaded
//! separately, and would be reloaded or computed separately: `n` times the text that they share while they run, which may
//! exceed the device cache. A sequence that resumes therefore waits for the prefix that it shares with a more senior one, and
//! is forked from it. Sequences wait only for more senior ones, so that the most senior one never waits.
//!
//! Memory that can be forked anywhere is forked as soon as the prefix is there, also if it is reloaded. The other kinds are
//! saved and reloaded as whole texts, and are forked only where a sequence ends: the beams of a search are reloaded separately
//! if there is room for that, and otherwise computed, each common prefix once ([`CellSharing::Recomputed`]).

use crate::cache::{MIN_SHARED, PrefixMatch, PrefixQuery};
use crate::engine::cache_manager::CacheManager;
use crate::engine::features::hooks;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::queue::PreemptedSequence;
use crate::engine::scheduler::request_group::{CellSharing, PrefixDependency, RequestGroup};
use crate::engine::scheduler::running_sequence::{RunningSequence, headroom};
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::scheduler::sequence::Sequence;

#[derive(Debug, Clone, Copy)]
pub(super) struct SequencePlacement {
    /// Its dependency on a more senior sequence.
    pub(crate) dependency: Option<PrefixDependency>,
    /// Maximum number of tokens that are forked or reloaded when it enters its slot.
    pub(crate) at_most: u32,
    n_cells: i64,
}

pub(super) struct Resumption {
    /// Placements in resumption order; `None` for a sequence without a text.
    pub(super) placements: Vec<Option<SequencePlacement>>,
    pub(crate) n_cells: i64,
}

/// Plans how the first `n` preempted sequences resume. If it `recomputes`, common prefixes of beams are computed once.
pub(super) fn plan_resumption<R: Runner>(
    scheduler: &Scheduler,
    cache: &mut CacheManager<R>,
    n: usize,
    recomputes: bool,
) -> Resumption {
    let all_cached: Vec<Option<CachedTokens>> =
        (0..n).map(|nth| find_preempted(scheduler, cache, nth, u32::MAX).map(|matched| count_cached(cache, &matched))).collect();
    let mut placements: Vec<Option<SequencePlacement>> = Vec::with_capacity(n);
    for (nth, &cached) in all_cached.iter().enumerate() {
        let placement = cached.map(|cached| {
            let sequence = &scheduler.queue.preempted()[nth].sequence;
            let (dependency, n_shared) = find_provider(scheduler, cache, &all_cached[..nth], cached, recomputes);
            let n_cells = i64::from(sequence.n_tokens() - n_shared.max(cached.n_pinned));
            SequencePlacement { dependency, at_most: u32::MAX, n_cells }
        });
        placements.push(placement);
    }
    if recomputes {
        stop_at_forks(scheduler, &mut placements);
    }
    let n_headroom: i64 = scheduler.queue.preempted()[..n].iter().map(|preempted| i64::from(headroom(&preempted.sequence))).sum();
    let n_cells = n_headroom + placements.iter().flatten().map(|placement| placement.n_cells).sum::<i64>();
    Resumption { placements, n_cells }
}

fn stop_at_forks(scheduler: &Scheduler, placements: &mut [Option<SequencePlacement>]) {
    for nth in 0..placements.len() {
        let scheduling_key = scheduler.queue.preempted()[nth].sequence.scheduling_key();
        let forks = placements.iter().flatten().filter_map(|placement| placement.dependency);
        let first = forks.filter(|fork| fork.provider == scheduling_key).map(|fork| fork.n_tokens).min();
        if let (Some(placement), Some(first)) = (&mut placements[nth], first) {
            placement.at_most = first;
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct CachedTokens {
    n_device: u32,
    /// Number of the device tokens that running sequences hold.
    n_pinned: u32,
    n_tokens: u32,
}

fn count_cached<R: Runner>(cache: &CacheManager<R>, matched: &PrefixMatch) -> CachedTokens {
    let n_pinned = matched.n_device - cache.kv().n_evictable_in(matched);
    CachedTokens { n_device: matched.n_device, n_pinned, n_tokens: matched.n_tokens() }
}

/// Returns the dependency of the preempted sequence that has these `cached` tokens, and how many of its tokens' cells are counted
/// for other sequences. `before` are the cached tokens of the sequences that precede it.
fn find_provider<R: Runner>(
    scheduler: &Scheduler,
    cache: &CacheManager<R>,
    before: &[Option<CachedTokens>],
    cached: CachedTokens,
    recomputes: bool,
) -> (Option<PrefixDependency>, u32) {
    let preempted = scheduler.queue.preempted();
    let (sequence, can_be_cut) = (&preempted[before.len()].sequence, cache.kind().forks.can_truncate());
    let (mut best, mut n_shared) = (None, 0);
    let mut consider = |provider: Option<SchedulingKey>, n_tokens: u32| {
        if n_tokens > n_shared {
            (best, n_shared) = (provider.map(|provider| PrefixDependency { provider, n_tokens }), n_tokens);
        }
    };
    for (PreemptedSequence { sequence: other, .. }, other_cached) in preempted.iter().zip(before) {
        let Some(other_cached) = other_cached else { continue };
        let n_common = n_common(scheduler, other, sequence);
        if recomputes || (can_be_cut && n_common > cached.n_device) {
            consider(Some(other.scheduling_key()), n_common);
        } else {
            // Both are in the device cache, where they share their common prefix.
            consider(None, n_common.min(cached.n_device).min(other_cached.n_device));
        }
    }
    let can_provide = |running: &&RunningSequence| {
        // A reload may extend beyond the position where another sequence could be forked.
        let will_stop = can_be_cut || running.n_ready() > 0;
        will_stop && running.key() < sequence.scheduling_key() && scheduler.can_provide(running, sequence.request.priority)
    };
    for running in scheduler.slots.running().iter().filter(can_provide) {
        let n_common = n_common(scheduler, &running.sequence, sequence);
        let n_known = if can_be_cut { cached.n_device } else { cached.n_tokens };
        if n_common >= n_known + MIN_SHARED && n_common > running.n_computed {
            consider(Some(running.key()), n_common);
        }
    }
    (best, n_shared)
}

/// Returns the length of the common prefix of two sequences with equal adapters at which `second` could be forked from `first`.
fn n_common(scheduler: &Scheduler, first: &Sequence, second: &Sequence) -> u32 {
    let (first_group, second_group) = (scheduler.queue.group(first.group_id), scheduler.queue.group(second.group_id));
    let n_same_adapters =
        first.adapter_schedule.n_common(&second.adapter_schedule).min(first_group.shared_until).min(second_group.shared_until);
    let mut n = first.tokens.n_common(&second.tokens).min(n_same_adapters).min(second.max_reusable());
    while let Some(cut) = second_group.media.iter().find(|placed| placed.is_cut_at(n)) {
        n = cut.start;
    }
    n
}

/// Returns `None` for a beam without a text.
pub(crate) fn find_preempted<R: Runner>(
    scheduler: &Scheduler,
    cache: &mut CacheManager<R>,
    nth: usize,
    at_most: u32,
) -> Option<PrefixMatch> {
    let PreemptedSequence { sequence, .. } = &scheduler.queue.preempted()[nth];
    (!hooks::is_vacant(&sequence.features)).then(|| find(cache, scheduler.queue.group(sequence.group_id), sequence, at_most))
}

fn find<R: Runner>(cache: &mut CacheManager<R>, group: &RequestGroup, sequence: &Sequence, at_most: u32) -> PrefixMatch {
    let tokens = sequence.tokens.first(sequence.n_tokens());
    let n_reusable = if sequence.kept_logits.is_some() { sequence.n_tokens() } else { sequence.max_reusable() };
    let at_most = n_reusable.min(group.shared_until).min(at_most);
    let query = PrefixQuery { adapters: &sequence.adapter_schedule, tokens: &tokens, at_least: 1, at_most, takes_logits: false };
    cache.find_match(&query, &group.media)
}

/// Returns the cached prefix from which a waiting sequence continues, once its provider has the awaited one.
pub(crate) fn find_awaited<R: Runner>(
    scheduler: &Scheduler,
    cache: &mut CacheManager<R>,
    running: &RunningSequence,
) -> Option<PrefixMatch> {
    let PrefixDependency { provider, n_tokens } = running.prefix_dependency()?;
    let is_available =
        |source: &&RunningSequence| !scheduler.is_paused(source.sequence.stream_id) && source.sequence.n_tokens() >= n_tokens;
    let source = scheduler.slots.get(provider).filter(is_available);
    // A context that was shifted is another text.
    let has_same_prefix = |source: &&RunningSequence| n_common(scheduler, &source.sequence, &running.sequence) >= n_tokens;
    let may_have_same_prefix = |source: &&RunningSequence| source.sequence.shifted_at().is_none() || has_same_prefix(source);
    if source.is_some_and(|source| source.n_computed < n_tokens && may_have_same_prefix(&source)) {
        return None;
    }
    let source = source.filter(has_same_prefix);
    let group = scheduler.queue.group(running.sequence.group_id);
    let is_recomputed = group.sharing == CellSharing::Recomputed;
    if let Some(source) = source.filter(|source| is_recomputed && source.n_computed == n_tokens)
        && cache.can_fork(source.id(), n_tokens)
    {
        return Some(PrefixMatch::on_device(source.id(), n_tokens));
    }
    if let Some(source) = source.filter(|_| cache.kind().forks.can_truncate()) {
        cache.share_first(source.id(), n_tokens);
    }
    Some(find(cache, group, &running.sequence, u32::MAX))
}

impl Scheduler {
    /// Makes a search resume whose beams were reloaded separately and could share cells. Returns `false` if they do already.
    pub(crate) fn reshare_cells(&mut self, key: SchedulingKey) -> bool {
        let group_id = self.slots.running_sequence(key).sequence.group_id;
        if self.queue.group(group_id).sharing != CellSharing::Separate {
            return false;
        }
        self.queue.group_mut(group_id).sharing = CellSharing::Recomputed;
        self.preempt(key);
        true
    }
}

/// Returns how many tokens `running` may compute until another is forked from it, for memory that is forked only at the end.
pub(crate) fn n_until_fork<R: Runner>(scheduler: &Scheduler, cache: &CacheManager<R>, running: &RunningSequence) -> u32 {
    if cache.kind().forks.can_truncate() {
        return u32::MAX;
    }
    let dependencies = scheduler.slots.running().iter().filter_map(RunningSequence::prefix_dependency);
    let forks = dependencies.filter(|fork| fork.provider == running.key() && fork.n_tokens > running.n_computed);
    forks.map(|fork| fork.n_tokens - running.n_computed).min().unwrap_or(u32::MAX)
}
