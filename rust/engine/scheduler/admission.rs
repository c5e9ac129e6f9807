//! Admission: sequences enter slots, reusing cached prefixes of their prompts.

use crate::cache::PrefixMatch;
use crate::engine::cache_manager::CacheManager;
use crate::engine::cache_manager::guards::PathGuard;
use crate::engine::cache_manager::reclaim::Urgency;
use crate::engine::ids::{BranchKey, GroupId, MemberIndex};
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::placement::{BranchStart, new_sequence, place, place_empty};
use crate::engine::scheduler::prefix_match::{find_match, find_pending_prefix, hold_prompts};
use crate::engine::scheduler::queue::PreemptedSequence;
use crate::engine::scheduler::request_group::{CellSharing, PrefixDependency, RequestGroup};
use crate::engine::scheduler::resumption::{find_preempted, plan_resumption};
use crate::engine::scheduler::running_sequence::{HEADROOM, Phase, RunningSequence, n_expected_cells};
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::scheduler::sequence::Sequence;
use crate::request::Task;

/// Maximum number of sequences admitted in a step before its decode, and after it.
const MAX_STARTS: u32 = 64;

/// Maximum prompt tokens compared with cached prefixes, before a step's decode and after it; one prompt may exceed it.
const MAX_COMPARED: u64 = 1 << 18;

pub(crate) struct AdmissionBudget {
    n_starts: u32,
    n_compared: u64,
}

impl AdmissionBudget {
    pub(crate) fn new() -> Self {
        Self { n_starts: MAX_STARTS, n_compared: MAX_COMPARED }
    }

    fn is_spent(&self) -> bool {
        self.n_starts == 0 || self.n_compared == 0
    }

    fn spend(&mut self, n_compared: u64) {
        self.n_starts = self.n_starts.saturating_sub(1);
        self.n_compared = self.n_compared.saturating_sub(n_compared);
    }
}

/// Fills the free slots: first with preempted sequences, most senior first, then with new ones in queue order. A request of
/// higher priority that is senior to a preempted sequence precedes it; if there is no slot or no room for it, running sequences
/// of lower priority that are junior to it are preempted, most junior first. A request that waits for a shared prefix does not
/// block the queue; a request that does not fit yet does.
pub(crate) fn admit<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>, budget: &mut AdmissionBudget) {
    hold_prompts(&mut scheduler.queue, cache);
    scheduler.unblock();
    while !budget.is_spent() {
        let Some(next) = scheduler.next_sequence().filter(|next| !is_refused(scheduler, cache, next.key)) else { return };
        // Touches the prefixes first, so that freeing an id does not evict them.
        next.touch(scheduler, cache, budget);
        if !cache.free_ids(next.n_together, Urgency::WithinMoveTime, || scheduler.release_junior_holder()) {
            return;
        }
        match next.admission {
            Admission::Start(branch) => {
                if !start(scheduler, cache, &next, branch, budget) {
                    return;
                }
            }
            Admission::Resume => {
                let Some((sharing, placed)) = place_preempted(scheduler, cache, &next) else {
                    return scheduler.refuse(next.key, cache);
                };
                scheduler.resume(next.group_id, sharing, placed);
            }
        }
    }
}

/// The sequence that is admitted next, and how many enter slots together with it, itself included.
struct NextSequence {
    key: SchedulingKey,
    group_id: GroupId,
    admission: Admission,
    n_together: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Admission {
    Start(BranchKey),
    Resume,
}

impl NextSequence {
    /// Marks the cached prefixes of its prompt or texts as used, and counts their tokens.
    fn touch<R: Runner>(&self, scheduler: &Scheduler, cache: &mut CacheManager<R>, budget: &mut AdmissionBudget) {
        let group = scheduler.queue.group(self.group_id);
        if self.admission == Admission::Resume {
            for PreemptedSequence { sequence, .. } in scheduler.queue.resuming() {
                budget.spend(sequence.n_tokens().into());
                cache.touch(&sequence.adapter_schedule, &sequence.tokens.first(sequence.n_tokens()));
            }
        } else if group.prompt_holder.id().is_some() {
            budget.spend(1);
        } else {
            budget.spend(group.n_prompt().into());
            cache.touch(&group.adapter_schedule, &group.prompt);
        }
    }
}

impl Scheduler {
    /// Returns `None` if no sequence waits, or if the next one lacks slots.
    fn next_sequence(&self) -> Option<NextSequence> {
        let Self { queue, slots, .. } = self;
        if slots.are_full() && !self.has_junior() {
            return None;
        }
        let next = queue.next(|slot| slots.is_free(slot)).map(|group_id| queue.group(group_id));
        let is_next = |resumed: &&PreemptedSequence| !next.is_some_and(|next| precedes(next, &resumed.sequence));
        if let Some(PreemptedSequence { sequence, .. }) = queue.preempted().first().filter(is_next) {
            let (key, group_id, n_together) = (sequence.scheduling_key(), sequence.group_id, queue.resuming().len());
            let has_slots = !slots.are_full() && slots.n_free() >= n_together;
            return has_slots.then_some(NextSequence { key, group_id, admission: Admission::Resume, n_together });
        }
        let group = next?;
        let member = group.next_branch().expect("the queue returns groups with a waiting branch");
        let (key, group_id, n_together) = (group.scheduling_key(member), group.group_id, group.n_together() as usize);
        // Requests that need several slots wait for them before any lookup.
        let lacks_slots = n_together > 1 && slots.n_idle() + self.junior_to(group).count() < n_together;
        let admission = Admission::Start(BranchKey { group_id, member });
        (!lacks_slots).then_some(NextSequence { key, group_id, admission, n_together })
    }

    fn unblock(&mut self) {
        let Self { queue, slots, paused, .. } = self;
        queue.unblock(|provider| {
            let running = slots.get(provider)?;
            // A request does not wait for a paused sequence.
            Some(running.n_computed).filter(|_| !paused.contains(&running.sequence.stream_id))
        });
    }

    /// Refuses a sequence for lack of cells: it is tried again once there are more.
    fn refuse<R: Runner>(&mut self, key: SchedulingKey, cache: &CacheManager<R>) {
        self.refused = Some((key, self.n_spare_cells(cache)));
    }

    fn has_junior(&self) -> bool {
        let highest = self.queue.highest_waiting();
        self.slots.running().iter().any(|running| highest.is_some_and(|highest| running.sequence.request.priority < highest))
    }

    fn junior_to(&self, group: &RequestGroup) -> impl Iterator<Item = &RunningSequence> {
        self.slots.running().iter().rev().filter(move |running| precedes(group, &running.sequence))
    }
}

/// Returns true if a request of higher priority precedes a sequence that was already in a slot.
fn precedes(group: &RequestGroup, sequence: &Sequence) -> bool {
    group.request.priority > sequence.request.priority && group.scheduling_key(MemberIndex(0)) < sequence.scheduling_key()
}

/// Starts a group's next branch, or blocks it on a prefix that is being computed. Returns `false` if it cannot start yet.
fn start<R: Runner>(
    scheduler: &mut Scheduler,
    cache: &mut CacheManager<R>,
    &NextSequence { key, group_id, n_together, .. }: &NextSequence,
    branch: BranchKey,
    budget: &mut AdmissionBudget,
) -> bool {
    let matched = find_match(scheduler, cache, group_id);
    let (awaited_prefix, n_compared) = find_pending_prefix(scheduler, cache, group_id, matched.n_tokens());
    scheduler.stats.n_compared += n_compared;
    budget.n_compared = budget.n_compared.saturating_sub(n_compared);
    if let Some(awaited_prefix) = awaited_prefix {
        scheduler.block_on_prefix(group_id, awaited_prefix);
        return true;
    }
    let Some((slot, has_preempted)) = scheduler.make_space(cache, group_id, key, &matched) else { return false };
    // The preempted sequences may have released the matched id, or the prompt's holder.
    let mut matched = if has_preempted { find_match(scheduler, cache, group_id) } else { matched };
    prepare_task(scheduler.queue.group_mut(group_id), cache, &mut matched);
    scheduler.record_evictions(cache.take_evicted());
    let sequence = new_sequence(scheduler, cache, branch, &matched);
    let path = place(cache, &sequence, &matched);
    cache.count_hit(&path, &scheduler.queue.group(group_id).prompt[..matched.n_tokens() as usize]);
    let vacant = (1..n_together).map(|_| place_empty(cache, &sequence)).collect();
    scheduler.start_branches(BranchStart { sequence, slot, path, matched, vacant }, &cache.runner().token_strings());
    true
}

/// Truncates the prompt of a save to its cached part, or matches the saved tokens of a load.
fn prepare_task<R: Runner>(group: &mut RequestGroup, cache: &CacheManager<R>, matched: &mut PrefixMatch) {
    match &group.request.task {
        Task::Save { computes: false } => group.prompt = group.prompt[..matched.n_tokens() as usize].into(),
        Task::Load(saved) => matched.take_from(saved, cache.kind().forks),
        _ => {}
    }
}

impl Scheduler {
    /// Preempts junior sequences if that makes space for a group's next branch. Returns its slot, and whether any was preempted.
    fn make_space<R: Runner>(
        &mut self,
        cache: &CacheManager<R>,
        group_id: GroupId,
        key: SchedulingKey,
        matched: &PrefixMatch,
    ) -> Option<(u32, bool)> {
        let group = self.queue.group(group_id);
        if !self.slots.are_full() && self.slots.free_slot(group).is_none() {
            return None;
        }
        let takes_cached_only = group.request.task == Task::Save { computes: false };
        let n_tokens = if takes_cached_only { matched.n_tokens() } else { group.n_prompt() };
        let n_other = i64::from((group.n_together() - 1) * HEADROOM);
        let Some(n_to_preempt) = n_to_preempt(self, cache, group, n_needed(cache, n_tokens, matched) + n_other) else {
            self.refuse(key, cache);
            return None;
        };
        let n_kept = self.slots.running().len() - n_to_preempt;
        // Sequences that run together are preempted together.
        while self.slots.running().len() > n_kept {
            let junior = self.junior_to(self.queue.group(group_id)).next().expect("as many were counted").key();
            self.preempt(junior);
        }
        let group = self.queue.group(group_id);
        let slot = self.slots.free_slot(group).filter(|_| self.slots.n_free() >= group.n_together() as usize)?;
        Some((slot, n_to_preempt > 0))
    }
}

/// Returns how many running sequences must be preempted for a group's slots and `n_needed` cells; `None` if all are too few.
fn n_to_preempt<R: Runner>(scheduler: &Scheduler, cache: &CacheManager<R>, group: &RequestGroup, n_needed: i64) -> Option<usize> {
    let n_min = (group.n_together() as usize).saturating_sub(scheduler.slots.n_idle());
    if n_min == 0 && (scheduler.slots.running().is_empty() || n_needed <= scheduler.n_spare_cells(cache)) {
        return Some(0);
    }
    let candidates: Vec<&RunningSequence> = scheduler.junior_to(group).collect();
    let freed = cache.kv().count_freed(candidates.iter().map(|running| running.id()));
    let mut n_left = scheduler.n_spare_cells(cache);
    for (n_before, (n_freed, running)) in freed.into_iter().zip(&candidates).enumerate() {
        if n_before >= n_min && n_needed <= n_left {
            return Some(n_before);
        }
        n_left += i64::from(n_freed) + n_expected_cells(running);
    }
    let is_enough = candidates.len() >= n_min && (n_needed <= n_left || candidates.len() == scheduler.slots.running().len());
    is_enough.then_some(candidates.len())
}

/// The path of a preempted sequence that resumes, and what it continues from.
struct PlacedSequence {
    path: PathGuard,
    dependency: Option<PrefixDependency>,
    matched: Option<PrefixMatch>,
}

/// Places the preempted sequences that resume together. `None` if there is no room for them yet.
fn place_preempted<R: Runner>(
    scheduler: &Scheduler,
    cache: &mut CacheManager<R>,
    &NextSequence { group_id, n_together: n, .. }: &NextSequence,
) -> Option<(CellSharing, Vec<PlacedSequence>)> {
    let mut sharing = scheduler.queue.group(group_id).sharing;
    let mut resumption = plan_resumption(scheduler, cache, n, sharing == CellSharing::Recomputed);
    let has_room = resumption.n_cells <= scheduler.n_spare_cells(cache);
    if !has_room && !scheduler.slots.running().is_empty() {
        return None;
    }
    if n > 1 && !cache.kind().forks.can_truncate() && sharing != CellSharing::Recomputed {
        sharing = if has_room { CellSharing::Separate } else { CellSharing::Recomputed };
        if !has_room {
            resumption = plan_resumption(scheduler, cache, n, true);
        }
    }
    let placed = resumption.placements.into_iter().enumerate().map(|(nth, placement)| {
        // Sequences that were placed earlier may share more of its text by now.
        let matched = placement.and_then(|placement| find_preempted(scheduler, cache, nth, placement.at_most));
        let dependency = placement.and_then(|placement| placement.dependency);
        let sequence = &scheduler.queue.preempted()[nth].sequence;
        let path = match &matched {
            Some(matched) if dependency.is_none() => place(cache, sequence, matched),
            _ => place_empty(cache, sequence),
        };
        PlacedSequence { path, dependency, matched }
    });
    Some((sharing, placed.collect()))
}

impl Scheduler {
    fn resume(&mut self, group_id: GroupId, sharing: CellSharing, placed: Vec<PlacedSequence>) {
        self.queue.group_mut(group_id).sharing = sharing;
        for PlacedSequence { path, dependency, matched } in placed {
            let slot = self.slots.free_slot_or_idle(self.queue.preempted()[0].slot).expect("as many are free");
            let PreemptedSequence { sequence, reservation, .. } = self.queue.pop_preempted();
            match (dependency, matched) {
                // Its reservation ends when it has the awaited prefix.
                (Some(dependency), _) => self.enter(slot, sequence, Phase::AwaitingPrefix(dependency, reservation), path, 0),
                (None, Some(matched)) => self.enter_on(slot, sequence, path, matched),
                (None, None) => self.enter(slot, sequence, Phase::Vacant, path, 0),
            }
        }
    }
}

/// Returns the cells that a sequence takes from the headroom: cells that it computes or reloads, and cells of `matched` that it
/// pins.
fn n_needed<R: Runner>(cache: &CacheManager<R>, n_tokens: u32, matched: &PrefixMatch) -> i64 {
    i64::from(n_tokens - matched.n_device) + i64::from(cache.kv().n_evictable_in(matched))
}

/// Returns true if a sequence was refused for lack of cells. It is tried again once there are more, or if no other one runs.
fn is_refused<R: Runner>(scheduler: &Scheduler, cache: &CacheManager<R>, key: SchedulingKey) -> bool {
    let is_same = |(refused, n_then)| refused == key && scheduler.n_spare_cells(cache) <= n_then;
    !scheduler.slots.running().is_empty() && scheduler.refused.is_some_and(is_same)
}
