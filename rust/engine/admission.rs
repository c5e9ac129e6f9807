//! Admission: sequences enter slots, reusing cached prefixes of their prompts.

use std::sync::Arc;
use std::time::Instant;

use crate::cache::PrefixMatch;
use crate::engine::checkpoints::checkpoint_positions;
use crate::engine::core::{Core, RefusedSequence};
use crate::engine::explanation_builder::explain;
use crate::engine::lifecycle::{free_ids, preempt, release_holder};
use crate::engine::prefix_match::{find_match, find_pending_prefix, hold_prompts};
use crate::engine::prompt_logprobs::{report_cached_logprobs, report_start};
use crate::engine::queue::Preempted;
use crate::engine::request_group::{BeamSharing, RequestGroup};
use crate::engine::resumption::{find_preempted, plan_resumption};
use crate::engine::runner::Runner;
use crate::engine::running_sequence::{HEADROOM, Phase, PrefixDependency, RunningSequence, n_reserved};
use crate::engine::scheduling_key::SchedulingKey;
use crate::engine::sequence::Sequence;
use crate::engine::shared_explanation::SharedExplanation;
use crate::request::Task;

/// Maximum number of sequences admitted per stage of a step.
const MAX_STARTS: u32 = 64;

/// Maximum prompt tokens compared with cached prefixes per stage of a step; the prompt that exceeds it is the last.
const MAX_COMPARED: u64 = 1 << 18;

/// Remaining budget for admission in one stage of a step.
pub(super) struct AdmissionBudget {
    n_starts: u32,
    n_compared: u64,
}

impl AdmissionBudget {
    pub(super) fn new() -> Self {
        Self { n_starts: MAX_STARTS, n_compared: MAX_COMPARED }
    }

    fn is_spent(&self) -> bool {
        self.n_starts == 0 || self.n_compared == 0
    }

    /// Counts a start that compares `n_compared` prompt tokens.
    fn spend(&mut self, n_compared: u64) {
        self.n_starts = self.n_starts.saturating_sub(1);
        self.n_compared = self.n_compared.saturating_sub(n_compared);
    }
}

/// Fills the free slots: first with preempted sequences, most senior first, then with new ones in queue order. A request of
/// higher priority that is senior to a preempted sequence precedes it; if there is no slot or no room for it, running sequences
/// of lower priority that are junior to it are preempted, most junior first. A request that waits for a shared prefix does not
/// block the queue; a request that does not fit yet does.
pub(super) fn admit<R: Runner>(core: &mut Core<R>, budget: &mut AdmissionBudget) {
    hold_prompts(core);
    unblock(core);
    while !budget.is_spent() {
        if core.slots.are_full() && !has_junior(core) {
            return;
        }
        let next = core.queue.next(|slot| core.slots.is_free(slot)).map(|request_id| core.queue.group(request_id));
        let resumed = core.queue.preempted().first();
        let is_next = |resumed: &&Preempted| !next.is_some_and(|next| precedes(next, &resumed.sequence));
        let is_started = match (resumed.filter(is_next), next) {
            (Some(_), _) => !core.slots.are_full() && resume(core, budget),
            (None, Some(group)) => {
                let request_id = group.request_id;
                start(core, request_id, budget)
            }
            (None, None) => false,
        };
        if !is_started {
            return;
        }
    }
}

/// Unblocks requests whose awaited prefix is computed.
fn unblock<R: Runner>(core: &mut Core<R>) {
    let (running, slow_consumers) = (core.slots.running(), &core.output.slow_consumers);
    core.queue.unblock(|owner| {
        let nth = running.binary_search_by_key(&owner, |running| running.sequence.scheduling_key()).ok()?;
        // A request does not wait for a sequence that is held back for its slow reader.
        Some(running[nth].n_held).filter(|_| !slow_consumers.contains(running[nth].sequence.stream_id))
    });
}

/// Returns true if a running sequence has a lower priority than a waiting request.
fn has_junior<R: Runner>(core: &Core<R>) -> bool {
    let highest = core.queue.highest_waiting();
    core.slots.running().iter().any(|running| highest.is_some_and(|highest| running.sequence.request().priority < highest))
}

/// Returns true if a request of higher priority precedes a sequence that was already in a slot.
fn precedes(group: &RequestGroup, sequence: &Sequence) -> bool {
    group.request.priority > sequence.request().priority && group.scheduling_key(0) < sequence.scheduling_key()
}

/// Starts the next branch of a group, or blocks it on a prefix that another sequence is computing. Returns `false` if it cannot
/// start yet.
fn start<R: Runner>(core: &mut Core<R>, request_id: u64, budget: &mut AdmissionBudget) -> bool {
    let group = core.queue.group(request_id);
    let index = group.next_branch().expect("only what waits starts");
    let (scheduling_key, n_prompt, is_held) = (group.scheduling_key(index), group.n_prompt(), group.prompt_holder.id().is_some());
    if is_refused(core, scheduling_key) {
        return false;
    }
    let n_together = core.queue.group(request_id).n_together() as usize;
    // Requests that need several slots wait for them before any lookup.
    if n_together > 1 && core.slots.n_idle() + junior_to(core, core.queue.group(request_id)).count() < n_together {
        return false;
    }
    budget.spend(if is_held { 1 } else { n_prompt.into() });
    if !is_held {
        // Touches the prefix first, so that freeing an id does not evict it.
        core.memory.cache_mut().touch(&group.adapter_schedule, &group.prompt);
    }
    if !free_ids(core, n_together) {
        return false;
    }
    let matched = find_match(core, request_id);
    let (pending_prefix, n_compared) = find_pending_prefix(core, request_id, matched.n_tokens());
    core.stats.n_compared += n_compared;
    budget.n_compared = budget.n_compared.saturating_sub(n_compared);
    if let Some(pending_prefix) = pending_prefix {
        core.queue.block_on_prefix(request_id, pending_prefix);
        core.has_changed = true;
        return true;
    }
    let group = core.queue.group(request_id);
    if !core.slots.are_full() && core.slots.free_slot(group).is_none() {
        return false;
    }
    let takes_cached_only = group.request.task == Task::Save { computes: false };
    let n_tokens = if takes_cached_only { matched.n_tokens() } else { n_prompt };
    let n_other_beams = i64::from((group.n_together() - 1) * HEADROOM);
    let Some(n_to_preempt) = n_to_preempt(core, group, n_needed(core, n_tokens, &matched) + n_other_beams) else {
        core.refused = Some(RefusedSequence { scheduling_key, n_left: core.n_left() });
        return false;
    };
    let n_kept = core.slots.running().len() - n_to_preempt;
    // Preempting a beam preempts its whole search.
    while core.slots.running().len() > n_kept {
        let nth = junior_to(core, core.queue.group(request_id)).next().expect("as many were counted");
        preempt(core, nth);
    }
    if core.slots.n_free() < n_together {
        return false;
    }
    let Some(slot) = core.slots.free_slot(core.queue.group(request_id)) else { return false };
    // The preempted sequences may have released the matched id, or the prompt's holder.
    let matched = if n_to_preempt == 0 { matched } else { find_match(core, request_id) };
    if takes_cached_only {
        let group = core.queue.group_mut(request_id);
        group.prompt = group.prompt[..matched.n_tokens() as usize].into();
    }
    start_in_slot(core, request_id, index, slot, matched);
    true
}

/// Returns the running sequences that yield to a group, most junior first.
fn junior_to<R: Runner>(core: &Core<R>, group: &RequestGroup) -> impl Iterator<Item = usize> {
    let running = core.slots.running();
    (0..running.len()).rev().filter(move |&nth| precedes(group, &running[nth].sequence))
}

/// Returns how many running sequences must be preempted so that a group gets its slots and `n_needed` cells. `None`, so that
/// none is preempted, if preempting all of them is not enough.
fn n_to_preempt<R: Runner>(core: &Core<R>, group: &RequestGroup, n_needed: i64) -> Option<usize> {
    let n_least = (group.n_together() as usize).saturating_sub(core.slots.n_idle());
    if n_least == 0 && (core.slots.running().is_empty() || n_needed <= core.n_left()) {
        return Some(0);
    }
    let candidates: Vec<usize> = junior_to(core, group).collect();
    let running = core.slots.running();
    let n_reserved: Vec<i64> = candidates.iter().map(|&nth| n_reserved(&running[nth])).collect();
    let freed = core.memory.cache().freed_by(candidates.iter().map(|&nth| running[nth].id));
    let mut n_left = core.n_left();
    for (n_before, (n_freed, n_reserved)) in freed.into_iter().zip(n_reserved).enumerate() {
        if n_before >= n_least && n_needed <= n_left {
            return Some(n_before);
        }
        n_left += i64::try_from(n_freed).expect("a device cache has fewer than 2³² cells") + n_reserved;
    }
    let is_enough = candidates.len() >= n_least && (n_needed <= n_left || candidates.len() == running.len());
    is_enough.then_some(candidates.len())
}

/// Puts branch `index` of a group into `slot`, on top of `matched`.
fn start_in_slot<R: Runner>(core: &mut Core<R>, request_id: u64, index: u32, slot: u32, mut matched: PrefixMatch) {
    let group = core.queue.group(request_id);
    if let Task::Load(saved) = &group.request.task {
        matched.take_from(saved, core.memory.kind().forks);
    }
    let mut sequence = Sequence::new(group, index, core.limits.n_ctx_slot, &core.memory.model().lexicon(), Instant::now());
    if let Some(fork_state) = core.forks.state_of(request_id) {
        sequence.resume_from(fork_state);
    }
    let (is_complete, is_first) = (group.request.task == Task::Complete, !group.has_started);
    let is_explained = is_first && group.request.explains_cache && request_id == group.stream_id;
    let (n_device, n_found) = (matched.n_device, matched.n_tokens());
    let is_fully_cached = is_complete && n_device == sequence.n_tokens();
    let logits = group.prompt_logits.clone().filter(|_| is_fully_cached);
    sequence.checkpoint_positions = checkpoint_positions(core, group, n_found);
    if is_explained {
        let explanation = explain(core, request_id, &matched);
        let (group, token_strings) = (core.queue.group(request_id), core.memory.model().lexicon());
        let explanation = Arc::new(SharedExplanation::new(explanation, Arc::clone(&group.prompt), token_strings));
        group.sender.explain(Arc::clone(&explanation));
        sequence.explanation = Some(explanation);
    }
    sequence.pending_report = core.queue.group_mut(request_id).pending_report.take().unwrap_or_default();
    if is_first {
        core.history.add_request(core.queue.group(request_id));
    }
    let nth = enter(core, slot, sequence, matched);
    let n_together = core.queue.group(request_id).n_together();
    for index in 1..n_together {
        enter_idle_beam(core, request_id, index);
    }
    report_start(core, nth);
    report_cached_logprobs(core, nth);
    count_cached(core, request_id, nth, n_device, n_found);
    for index in index..index + n_together {
        core.output.admitted.extend(core.queue.start(request_id, index));
    }
    core.stats.branches.n_started += u64::from(is_complete) * u64::from(n_together);
    if let Some(logits) = logits {
        core.slots.running_mut()[nth].phase = Phase::ReadyToSample(logits);
    }
    let group = core.queue.group_mut(request_id);
    if !group.has_waiting() {
        group.prompt_logits = None;
        release_holder(core, request_id);
    } else if group.prompt_logits.is_some() {
        group.prompt_holder.request_holder();
    }
}

/// Resumes the most senior preempted sequence. Returns `false` if there is no room for it yet.
fn resume<R: Runner>(core: &mut Core<R>, budget: &mut AdmissionBudget) -> bool {
    let sequence = &core.queue.preempted()[0].sequence;
    let scheduling_key = sequence.scheduling_key();
    if is_refused(core, scheduling_key) {
        return false;
    }
    let n_together = core.queue.resuming().len();
    if core.slots.n_free() < n_together {
        return false;
    }
    for Preempted { sequence, .. } in core.queue.resuming() {
        let tokens = sequence.tokens.first(sequence.n_tokens());
        budget.spend(sequence.n_tokens().into());
        core.memory.cache_mut().touch(&sequence.adapter_schedule, &tokens);
    }
    if !free_ids(core, n_together) {
        return false;
    }
    let request_id = core.queue.preempted()[0].sequence.request_id;
    let mut is_recomputed = core.queue.group(request_id).sharing == BeamSharing::Recomputed;
    let mut resumption = plan_resumption(core, n_together, is_recomputed);
    if resumption.n_cells > core.n_left() {
        if !core.slots.running().is_empty() {
            core.refused = Some(RefusedSequence { scheduling_key, n_left: core.n_left() });
            return false;
        }
        if n_together > 1 && !is_recomputed && !core.memory.kind().forks.can_truncate() {
            is_recomputed = true;
            resumption = plan_resumption(core, n_together, is_recomputed);
        }
    }
    if n_together > 1 && !core.memory.kind().forks.can_truncate() {
        core.queue.group_mut(request_id).sharing = if is_recomputed { BeamSharing::Recomputed } else { BeamSharing::Separate };
    }
    for placement in resumption.placements {
        // Sequences that resumed earlier may share more of its text by now.
        let matched = placement.and_then(|placement| find_preempted(core, 0, placement.at_most));
        let slot = core.slots.free_slot_or_idle(core.queue.preempted()[0].slot).expect("as many are free");
        let Preempted { sequence, reservation, .. } = core.queue.pop_preempted();
        match (placement.and_then(|placement| placement.provider), matched) {
            (Some((provider, n_tokens)), _) => {
                // Its reservation is released when it has the awaited prefix.
                enter_empty(core, slot, sequence, Phase::AwaitingPrefix(PrefixDependency { provider, n_tokens, reservation }));
                continue;
            }
            (None, Some(matched)) => drop(enter(core, slot, sequence, matched)),
            (None, None) => enter_empty(core, slot, sequence, Phase::IdleBeam),
        }
        core.memory.cache_mut().release(reservation);
    }
    true
}

/// Puts branch `index` of a group into a free slot, reserved for a beam.
fn enter_idle_beam<R: Runner>(core: &mut Core<R>, request_id: u64, index: u32) {
    let group = core.queue.group(request_id);
    let sequence = Sequence::new(group, index, core.limits.n_ctx_slot, &core.memory.model().lexicon(), Instant::now());
    let slot = core.slots.free_slot(group).expect("as many slots are free");
    enter_empty(core, slot, sequence, Phase::IdleBeam);
}

/// Puts `sequence` into `slot` without cells. An id must be free.
fn enter_empty<R: Runner>(core: &mut Core<R>, slot: u32, sequence: Sequence, phase: Phase) {
    core.has_changed = true;
    if core.queue.group(sequence.request_id).keeps_contents_of(slot) {
        core.slots.clear_contents(slot);
    }
    let id = core.memory.place(&sequence.adapter_schedule, None).expect("an id was freed before");
    core.slots.enter(RunningSequence {
        sequence,
        slot,
        id,
        n_grouped: None,
        n_held: 0,
        n_planned: 0,
        n_skipped: 0,
        phase,
        end: None,
    });
}

/// Puts `sequence` into `slot`, on top of `matched`; returns its position among the running. An id must be free.
fn enter<R: Runner>(core: &mut Core<R>, slot: u32, mut sequence: Sequence, matched: PrefixMatch) -> usize {
    core.has_changed = true;
    let group = core.queue.group(sequence.request_id);
    if group.keeps_contents_of(slot) {
        core.slots.clear_contents(slot);
    }
    let id = core.memory.place(&sequence.adapter_schedule, Some(&matched)).expect("an id was freed before");
    core.memory.cache_mut().set_provenance(id, group.provenance());
    core.memory.record_start();
    if sequence.start(matched.n_tokens()) && sequence.request().task == Task::Complete {
        core.stats.n_cached += u64::from(matched.n_tokens().min(sequence.n_prompt));
    }
    let (n_device, phase) = (matched.n_device, Phase::for_match(matched));
    core.slots.enter(RunningSequence {
        sequence,
        slot,
        id,
        n_grouped: None,
        n_held: n_device,
        n_planned: 0,
        n_skipped: 0,
        phase,
        end: None,
    })
}

/// Counts the sources of the first `n_found` tokens of the prompt of the sequence at `nth`, each token once.
fn count_cached<R: Runner>(core: &mut Core<R>, request_id: u64, nth: usize, n_device: u32, n_found: u32) {
    let group = core.queue.group(request_id);
    if n_found == n_device {
        core.memory.cache_mut().count_hit_of(core.slots.running()[nth].id);
    } else {
        core.memory.cache_mut().count_hit(&group.adapter_schedule, &group.prompt[..n_found as usize], &group.provenance());
    }
    if group.request.task != Task::Complete {
        return;
    }
    let awaited = group
        .pending_prefix
        .map_or(0..0, |pending_prefix| pending_prefix.n_known.min(n_found)..pending_prefix.n_tokens.min(n_found));
    let n_counted_twice = awaited.end.saturating_sub(awaited.start.max(n_device));
    core.stats.n_awaited += u64::from(awaited.end - awaited.start);
    core.stats.n_reloaded += u64::from(n_found - n_device - n_counted_twice);
}

/// Returns the number of cells that a sequence of `n_tokens` takes from the headroom: those it must compute or reload, and
/// the cells of `matched` that it pins.
fn n_needed<R: Runner>(core: &Core<R>, n_tokens: u32, matched: &PrefixMatch) -> i64 {
    let n_kept = core.memory.cache().n_evictable_in(matched);
    i64::from(n_tokens - matched.n_device) + i64::try_from(n_kept).expect("a device cache has fewer than 2³² cells")
}

/// Returns true if a sequence was refused for lack of cells and the headroom has not grown since. A sequence alone is never
/// refused.
fn is_refused<R: Runner>(core: &Core<R>, scheduling_key: SchedulingKey) -> bool {
    let is_same = |refused: RefusedSequence| refused.scheduling_key == scheduling_key && core.n_left() <= refused.n_left;
    !core.slots.running().is_empty() && core.refused.is_some_and(is_same)
}
