//! Who runs: sequences enter slots, over what is known of their prompts.

use std::sync::Arc;
use std::time::Instant;

use crate::cache::PrefixMatch;
use crate::engine::checkpoints::checkpoint_positions;
use crate::engine::core::{Core, RefusedSequence};
use crate::engine::explanation_builder::explain;
use crate::engine::lifecycle::{free_ids, preempt, release_holder};
use crate::engine::prefix_match::{find, find_pending_prefix, hold_prompts};
use crate::engine::prompt_logprobs::{report_cached_logprobs, report_start};
use crate::engine::queue::Preempted;
use crate::engine::request_group::{BeamSharing, RequestGroup};
use crate::engine::resumption::{find_preempted, plan_resumption};
use crate::engine::runner::Runner;
use crate::engine::running_sequence::{MARGIN, Phase, PrefixDependency, RunningSequence, n_reserved};
use crate::engine::sampling_step::sample_first_token;
use crate::engine::scheduling_key::SchedulingKey;
use crate::engine::sequence::Sequence;
use crate::engine::shared_explanation::SharedExplanation;
use crate::request::Task;

/// Most branches that one look at the queue starts: each may draw its first token at once.
const MAX_STARTS: u32 = 64;

/// Tokens of prompts that one look at the queue compares with what is known; the prompt that passes it is the last.
const MAX_COMPARED: u64 = 1 << 18;

/// What one look at the queue may still cost.
struct AdmissionBudget {
    n_starts: u32,
    n_compared: u64,
}

impl AdmissionBudget {
    fn is_spent(&self) -> bool {
        self.n_starts == 0 || self.n_compared == 0
    }

    /// A start that compares so many tokens of a prompt.
    fn spend(&mut self, n_compared: u64) {
        self.n_starts = self.n_starts.saturating_sub(1);
        self.n_compared = self.n_compared.saturating_sub(n_compared);
    }
}

/// Fills the free slots: with the most senior preempted sequence, as long as there is one, then with new ones in the order that the
/// queue says. A request of higher priority that is senior to a preempted sequence goes before it, and where there is no slot or no
/// room for it, running sequences of lower priority that are junior to it give way, the most junior first. One that waits for
/// another to compute its prompt lets others go first; one that does not fit yet lets nobody.
pub(super) fn admit<R: Runner>(core: &mut Core<R>) {
    hold_prompts(core);
    unblock(core);
    let mut budget = AdmissionBudget { n_starts: MAX_STARTS, n_compared: MAX_COMPARED };
    while !budget.is_spent() {
        if core.slots.are_full() && !has_junior(core) {
            return;
        }
        let next = core.queue.next(|slot| core.slots.is_free(slot)).map(|request_id| core.queue.job(request_id));
        let resumed = core.queue.preempted().first();
        let is_next = |resumed: &&Preempted| !next.is_some_and(|next| goes_before(next, &resumed.sequence));
        let can_go_on = match (resumed.filter(is_next), next) {
            (Some(_), _) => !core.slots.are_full() && resume(core, &mut budget),
            (None, Some(job)) => {
                let request_id = job.request_id;
                start(core, request_id, &mut budget)
            }
            (None, None) => false,
        };
        if !can_go_on {
            return;
        }
    }
}

/// Requests that waited for what is computed by now may start.
fn unblock<R: Runner>(core: &mut Core<R>) {
    let (running, laggards) = (core.slots.running(), &core.outbox.laggards);
    core.queue.unblock(|owner| {
        let nth = running.binary_search_by_key(&owner, |running| running.sequence.seniority()).ok()?;
        // Nobody waits for another's reader.
        Some(running[nth].n_held).filter(|_| !laggards.holds(running[nth].sequence.stream_id))
    });
}

/// Whether some running sequence is of lower priority than some request that waits.
fn has_junior<R: Runner>(core: &Core<R>) -> bool {
    let highest = core.queue.highest_waiting();
    core.slots.running().iter().any(|running| highest.is_some_and(|highest| running.sequence.request().priority < highest))
}

/// Whether a request of higher priority goes before a sequence that has been in a slot.
fn goes_before(job: &RequestGroup, sequence: &Sequence) -> bool {
    job.request.priority > sequence.request().priority && job.seniority(0) < sequence.seniority()
}

/// Starts the next branch of a request, or lets it wait for what another sequence is computing. Where its prompt is computed, its
/// first token is drawn at once. `false` where it cannot start yet.
fn start<R: Runner>(core: &mut Core<R>, request_id: u64, budget: &mut AdmissionBudget) -> bool {
    let job = core.queue.job(request_id);
    let index = job.next_branch().expect("only what waits starts");
    let (seniority, n_prompt, is_kept) = (job.seniority(index), job.n_prompt(), job.keeper.id().is_some());
    if is_refused(core, seniority) {
        return false;
    }
    let n_together = core.queue.job(request_id).n_together() as usize;
    // Whoever needs several slots waits for them before anything is looked up.
    if n_together > 1 && core.slots.n_untaken() + junior_to(core, core.queue.job(request_id)).count() < n_together {
        return false;
    }
    budget.spend(if is_kept { 1 } else { n_prompt.into() });
    if !is_kept {
        // Before an id is freed, so that it is not taken from what the request goes on with.
        core.memory.cache_mut().touch(&job.variants, &job.prompt);
    }
    if !free_ids(core, n_together) {
        return false;
    }
    let matched = find(core, request_id);
    let (awaits, n_compared) = find_pending_prefix(core, request_id, matched.n_tokens());
    core.stats.n_compared += n_compared;
    budget.n_compared = budget.n_compared.saturating_sub(n_compared);
    if let Some(awaits) = awaits {
        core.queue.block_on_prefix(request_id, awaits);
        core.has_changed = true;
        return true;
    }
    let job = core.queue.job(request_id);
    if !core.slots.are_full() && core.slots.free_slot(job).is_none() {
        return false;
    }
    let is_cut = job.request.task == Task::Save { computes: false };
    let n_tokens = if is_cut { matched.n_tokens() } else { n_prompt };
    let n_beside = i64::from((job.n_together() - 1) * MARGIN);
    let Some(n_giving_way) = n_giving_way(core, job, n_needed(core, n_tokens, &matched) + n_beside) else {
        core.refused = Some(RefusedSequence { seniority, n_left: core.n_left() });
        return false;
    };
    let n_staying = core.slots.running().len() - n_giving_way;
    // Beams take those of their search with them.
    while core.slots.running().len() > n_staying {
        let nth = junior_to(core, core.queue.job(request_id)).next().expect("as many were counted");
        preempt(core, nth);
    }
    if core.slots.n_free() < n_together {
        return false;
    }
    let Some(slot) = core.slots.free_slot(core.queue.job(request_id)) else { return false };
    // What gave way may have given up the id that was found, or kept the prompt.
    let matched = if n_giving_way == 0 { matched } else { find(core, request_id) };
    if is_cut {
        let job = core.queue.job_mut(request_id);
        job.prompt = job.prompt[..matched.n_tokens() as usize].into();
    }
    begin(core, request_id, index, slot, matched);
    true
}

/// The running sequences that give way to a request, the most junior first.
fn junior_to<R: Runner>(core: &Core<R>, job: &RequestGroup) -> impl Iterator<Item = usize> {
    let running = core.slots.running();
    (0..running.len()).rev().filter(move |&nth| goes_before(job, &running[nth].sequence))
}

/// How many running sequences must give way so that a request gets a slot and `n_needed` cells. `None` where all that would are not
/// enough: then none does.
fn n_giving_way<R: Runner>(core: &Core<R>, job: &RequestGroup, n_needed: i64) -> Option<usize> {
    let n_least = (job.n_together() as usize).saturating_sub(core.slots.n_untaken());
    if n_least == 0 && (core.slots.running().is_empty() || n_needed <= core.n_left()) {
        return Some(0);
    }
    let giving_way: Vec<usize> = junior_to(core, job).collect();
    let running = core.slots.running();
    let n_reserved: Vec<i64> = giving_way.iter().map(|&nth| n_reserved(&running[nth])).collect();
    let freed = core.memory.cache().freed_by(giving_way.iter().map(|&nth| running[nth].id));
    let mut n_left = core.n_left();
    for (n_before, (n_freed, n_reserved)) in freed.into_iter().zip(n_reserved).enumerate() {
        if n_before >= n_least && n_needed <= n_left {
            return Some(n_before);
        }
        n_left += i64::try_from(n_freed).expect("a pool has fewer than 2³² cells") + n_reserved;
    }
    let is_enough = giving_way.len() >= n_least && (n_needed <= n_left || giving_way.len() == running.len());
    is_enough.then_some(giving_way.len())
}

/// Puts branch `index` of a request into `slot`, over what `matched` found.
fn begin<R: Runner>(core: &mut Core<R>, request_id: u64, index: u32, slot: u32, mut matched: PrefixMatch) {
    let job = core.queue.job(request_id);
    if let Task::Load(saved) = &job.request.task {
        matched.take_from(saved, core.memory.kind().forks);
    }
    let mut sequence = Sequence::new(job, index, core.limits.n_ctx_slot, &core.memory.model().lexicon(), Instant::now());
    if let Some(begun) = core.forks.begun(request_id) {
        sequence.resume_from(begun);
    }
    let (is_complete, is_first) = (job.request.task == Task::Complete, !job.has_started);
    let is_explained = is_first && job.request.explains_cache && request_id == job.stream_id;
    let (n_pool, n_found) = (matched.n_pool, matched.n_tokens());
    let is_known = is_complete && n_pool == sequence.n_tokens();
    let logits = job.prompt_logits.clone().filter(|_| is_known);
    sequence.snapshots_at = checkpoint_positions(core, job, n_found);
    if is_explained {
        let explanation = explain(core, request_id, &matched);
        let (job, lexicon) = (core.queue.job(request_id), core.memory.model().lexicon());
        let explanation = Arc::new(SharedExplanation::new(explanation, Arc::clone(&job.prompt), lexicon));
        job.sender.explain(Arc::clone(&explanation));
        sequence.explanation = Some(explanation);
    }
    sequence.untold = core.queue.job_mut(request_id).untold.take().unwrap_or_default();
    if is_first {
        core.history.begin(core.queue.job(request_id));
    }
    let nth = enter(core, slot, sequence, matched);
    let n_together = core.queue.job(request_id).n_together();
    for index in 1..n_together {
        follow(core, request_id, index);
    }
    report_start(core, nth);
    report_cached_logprobs(core, nth);
    count_found(core, request_id, nth, n_pool, n_found);
    for index in index..index + n_together {
        core.outbox.admitted.extend(core.queue.start(request_id, index));
    }
    core.stats.branches.n_started += u64::from(is_complete) * u64::from(n_together);
    if let Some(logits) = logits {
        sample_first_token(core, nth, &logits);
    }
    let job = core.queue.job_mut(request_id);
    if !job.has_waiting() {
        job.prompt_logits = None;
        release_holder(core, request_id);
    } else if job.prompt_logits.is_some() {
        job.keeper.want();
    }
}

/// Gives the most senior preempted sequence a slot again. `false` where there is no room for it yet.
fn resume<R: Runner>(core: &mut Core<R>, budget: &mut AdmissionBudget) -> bool {
    let sequence = &core.queue.preempted()[0].sequence;
    let seniority = sequence.seniority();
    if is_refused(core, seniority) {
        return false;
    }
    let n_together = core.queue.resuming().len();
    if core.slots.n_free() < n_together {
        return false;
    }
    for Preempted { sequence, .. } in core.queue.resuming() {
        let tokens = sequence.tokens.first(sequence.n_tokens());
        budget.spend(sequence.n_tokens().into());
        core.memory.cache_mut().touch(&sequence.variants, &tokens);
    }
    if !free_ids(core, n_together) {
        return false;
    }
    let request_id = core.queue.preempted()[0].sequence.request_id;
    let mut recomputes = core.queue.job(request_id).sharing == BeamSharing::Recomputed;
    let mut resumption = plan_resumption(core, n_together, recomputes);
    if resumption.n_cells > core.n_left() {
        if !core.slots.running().is_empty() {
            core.refused = Some(RefusedSequence { seniority, n_left: core.n_left() });
            return false;
        }
        if n_together > 1 && !recomputes && !core.memory.kind().forks.can_truncate() {
            recomputes = true;
            resumption = plan_resumption(core, n_together, recomputes);
        }
    }
    if n_together > 1 && !core.memory.kind().forks.can_truncate() {
        core.queue.job_mut(request_id).sharing = if recomputes { BeamSharing::Recomputed } else { BeamSharing::Separate };
    }
    for placement in resumption.placements {
        // Sequences that resumed before may hold more of its text by now.
        let matched = placement.and_then(|placement| find_preempted(core, 0, placement.at_most));
        let slot = core.slots.free_slot_like(core.queue.preempted()[0].slot).expect("as many are free");
        let Preempted { sequence, reservation, .. } = core.queue.resume();
        match (placement.and_then(|placement| placement.provider), matched) {
            (Some((provider, n_tokens)), _) => {
                // Its reservation is released when it holds what it waits for.
                enter_empty(core, slot, sequence, Phase::Awaiting(PrefixDependency { provider, n_tokens, reservation }));
                continue;
            }
            (None, Some(matched)) => drop(enter(core, slot, sequence, matched)),
            (None, None) => enter_empty(core, slot, sequence, Phase::Following),
        }
        core.memory.cache_mut().release(reservation);
    }
    true
}

/// Puts branch `index` of a request into some free slot, where it waits for a beam to go on with.
fn follow<R: Runner>(core: &mut Core<R>, request_id: u64, index: u32) {
    let job = core.queue.job(request_id);
    let sequence = Sequence::new(job, index, core.limits.n_ctx_slot, &core.memory.model().lexicon(), Instant::now());
    let slot = core.slots.free_slot(job).expect("as many slots are free");
    enter_empty(core, slot, sequence, Phase::Following);
}

/// Puts `sequence` into `slot`, where it holds nothing yet. An id is free.
fn enter_empty<R: Runner>(core: &mut Core<R>, slot: u32, sequence: Sequence, phase: Phase) {
    core.has_changed = true;
    if core.queue.job(sequence.request_id).fills(slot) {
        core.slots.forget(slot);
    }
    let id = core.memory.place(&sequence.variants, None).expect("an id was freed before");
    core.slots.enter(RunningSequence {
        sequence,
        slot,
        id,
        n_grouped: None,
        n_held: 0,
        n_planned: 0,
        n_waited: 0,
        phase,
        end: None,
    });
}

/// Puts `sequence` into `slot`, over what `matched` found; returns its place among the running. An id is free.
fn enter<R: Runner>(core: &mut Core<R>, slot: u32, mut sequence: Sequence, matched: PrefixMatch) -> usize {
    core.has_changed = true;
    let job = core.queue.job(sequence.request_id);
    if job.fills(slot) {
        core.slots.forget(slot);
    }
    let id = core.memory.place(&sequence.variants, Some(&matched)).expect("an id was freed before");
    core.memory.cache_mut().set_provenance(id, job.maker());
    core.memory.remember_start();
    if sequence.start(matched.n_tokens()) && sequence.request().task == Task::Complete {
        core.stats.n_cached += u64::from(matched.n_tokens().min(sequence.n_prompt));
    }
    let (n_pool, phase) = (matched.n_pool, Phase::of_match(matched));
    core.slots.enter(RunningSequence {
        sequence,
        slot,
        id,
        n_grouped: None,
        n_held: n_pool,
        n_planned: 0,
        n_waited: 0,
        phase,
        end: None,
    })
}

/// Counts where the first `n_found` tokens of the prompt of the sequence at `nth` came from, each of them once.
fn count_found<R: Runner>(core: &mut Core<R>, request_id: u64, nth: usize, n_pool: u32, n_found: u32) {
    let job = core.queue.job(request_id);
    if n_found == n_pool {
        core.memory.cache_mut().count_hit_of(core.slots.running()[nth].id);
    } else {
        core.memory.cache_mut().count_hit(&job.variants, &job.prompt[..n_found as usize], &job.maker());
    }
    if job.request.task != Task::Complete {
        return;
    }
    let awaited = job.awaits.map_or(0..0, |awaits| awaits.n_known.min(n_found)..awaits.n_tokens.min(n_found));
    let n_both = awaited.end.saturating_sub(awaited.start.max(n_pool));
    core.stats.n_awaited += u64::from(awaited.end - awaited.start);
    core.stats.n_restored += u64::from(n_found - n_pool - n_both);
}

/// Cells that a sequence of `n_tokens` takes from those that are left: what it must compute or restore, and what can be evicted
/// until it holds it.
fn n_needed<R: Runner>(core: &Core<R>, n_tokens: u32, matched: &PrefixMatch) -> i64 {
    let n_kept = core.memory.cache().n_evictable_in(matched);
    i64::from(n_tokens - matched.n_pool) + i64::try_from(n_kept).expect("a pool has fewer than 2³² cells")
}

/// Whether a sequence has found no room, and no cells have become free since. Alone it always finds some.
fn is_refused<R: Runner>(core: &Core<R>, seniority: SchedulingKey) -> bool {
    let is_it = |refused: RefusedSequence| refused.seniority == seniority && core.n_left() <= refused.n_left;
    !core.slots.running().is_empty() && core.refused.is_some_and(is_it)
}
