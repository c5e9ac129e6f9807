//! How a sequence leaves its slot, and a request the engine.

use crate::engine::core::Core;
use crate::engine::fork_request::ForkSource;
use crate::engine::queue::Preempted;
use crate::engine::request_group::{Branch, PromptHolder, RequestGroup};
use crate::engine::runner::{AdapterSchedule, KvSeqId, Runner};
use crate::engine::running_sequence::{Phase, PrefixDependency, RunningSequence};
use crate::engine::sequence::{Sequence, Tokens};
use crate::error::Error;
use crate::request::{Event, FinishReason, Finished, Task, TaskResult, Usage};

/// A branch has ended: its slot is free, and what it computed stays cached.
pub(super) fn finish<R: Runner>(core: &mut Core<R>, running: RunningSequence, reason: FinishReason, made: Option<TaskResult>) {
    leave_slot(core, &running);
    core.memory.cache_mut().unpin(running.id);
    finish_idle(core, running, reason, made);
}

/// As [`finish`], where slot and path were left already.
pub(super) fn finish_idle<R: Runner>(
    core: &mut Core<R>,
    running: RunningSequence,
    reason: FinishReason,
    made: Option<TaskResult>,
) {
    let RunningSequence { sequence, slot, n_held, .. } = running;
    end_branch(core, sequence, Some(slot), n_held, reason, made);
}

/// The stream of a sequence hears of its end; `n_held` of its tokens are computed.
fn end_branch<R: Runner>(
    core: &mut Core<R>,
    mut sequence: Sequence,
    slot: Option<u32>,
    n_held: u32,
    reason: FinishReason,
    made: Option<TaskResult>,
) {
    let is_truncated = sequence.is_truncated() || reason == FinishReason::ContextFull;
    let (usage, made) = (sequence.usage(n_held, reason == FinishReason::Cancelled), made.map(Box::new));
    let text = sequence.rest_of_text();
    remember_written(core, &sequence);
    let explanation = sequence.explanation.take().map(|explanation| Box::new(explanation.shown()));
    count_shared(core, &sequence, &usage);
    remember_end(core, &sequence, &reason);
    core.queue.job_mut(sequence.request_id).set(sequence.index, Branch::Finished);
    let finished = Finished { index: sequence.branch, slot, reason, text, usage, is_truncated, made, score: None, explanation };
    core.tell(sequence.request_id, Event::Finished(finished));
}

/// Counts what a branch that is not the only one of its prompt has shared with others.
fn count_shared<R: Runner>(core: &mut Core<R>, sequence: &Sequence, usage: &Usage) {
    if sequence.request().task == Task::Complete && (sequence.branch > 0 || core.forks.begun(sequence.request_id).is_some()) {
        core.stats.branches.n_computed += u64::from(usage.n_computed);
        core.stats.branches.n_shared += u64::from(usage.n_cached);
    }
}

/// A branch has ended: whoever forks it goes on from where it was.
fn remember_end<R: Runner>(core: &mut Core<R>, sequence: &Sequence, reason: &FinishReason) {
    let Core { queue, forks, .. } = core;
    let job = queue.job(sequence.request_id);
    if job.request.task == Task::Complete {
        let mut source = ForkSource::new(job, sequence.index, forks.begun(job.request_id).cloned()).reached(sequence);
        // One that is cut short shows what was held back beside its end.
        source.has_shown_all = sequence.n_predicted() > 0 && *reason != FinishReason::Cancelled;
        forks.end(job.stream_id, sequence.branch, source, &job.sender);
    }
}

/// Branch `index` of a stream ends here, and the others go on. Nothing happens where there is none, where it has ended, and where it
/// is only there for its prompt.
pub(super) fn cancel_branch<R: Runner>(core: &mut Core<R>, stream_id: u64, index: u32) {
    let Some((request_id, place)) = core.queue.find_branch(stream_id, index) else { return };
    let job = core.queue.job(request_id);
    if job.request.task != Task::Complete {
        return;
    }
    core.has_changed = true;
    core.stats.branches.n_cancelled += u64::from(job.branches[place as usize] != Branch::Finished);
    match job.branches[place as usize] {
        Branch::Finished => {}
        Branch::Running => cancel_running(core, request_id, place),
        Branch::Preempted => {
            let Preempted { mut sequence, reservation, slot, n_held } =
                core.queue.take_preempted(request_id, place).expect("a branch is where its job says");
            core.memory.cache_mut().release(reservation);
            give_untold_back(core, &mut sequence);
            end_branch(core, sequence, Some(slot), n_held, FinishReason::Cancelled, None);
        }
        Branch::Waiting => {
            let source = ForkSource::new(job, place, core.forks.begun(request_id).cloned());
            core.forks.end(stream_id, index, source, &job.sender);
            // Whoever looks at the queue finds it shorter at once.
            drop(core.queue.drop_waiting(request_id, place));
            let finished = Finished {
                index,
                slot: None,
                reason: FinishReason::Cancelled,
                text: "".into(),
                usage: Usage::default(),
                is_truncated: false,
                made: None,
                score: None,
                explanation: None,
            };
            core.tell(request_id, Event::Finished(finished));
        }
    }
    if !core.queue.job(request_id).has_waiting() {
        core.queue.job_mut(request_id).prompt_logits = None;
        release_holder(core, request_id);
    }
}

fn cancel_running<R: Runner>(core: &mut Core<R>, request_id: u64, place: u32) {
    let is_it = |running: &RunningSequence| running.sequence.request_id == request_id && running.sequence.index == place;
    for mut running in core.slots.take_all(is_it) {
        leave_cut_media(core, &mut running);
        give_untold_back(core, &mut running.sequence);
        finish(core, running, FinishReason::Cancelled, None);
    }
}

/// What its stream was still to hear of the prompt, the next branch tells that starts.
fn give_untold_back<R: Runner>(core: &mut Core<R>, sequence: &mut Sequence) {
    if sequence.n_predicted() == 0 && (sequence.untold.reports_progress || sequence.reports_prompt()) {
        core.queue.job_mut(sequence.request_id).untold = Some(std::mem::take(&mut sequence.untold));
    }
}

/// What was written in a chat is known in its tokens when it is sent back.
fn remember_written<R: Runner>(core: &Core<R>, sequence: &Sequence) {
    remember_text(core, sequence.request_id, &sequence.tokens);
}

/// As [`remember_written`], of a text of a request.
pub(super) fn remember_text<R: Runner>(core: &Core<R>, request_id: u64, tokens: &Tokens) {
    let job = core.queue.job(request_id);
    let (n_prompt, n_tokens) = (job.n_prompt(), tokens.len());
    if !job.request.keeps_answers || n_tokens == n_prompt || !tokens.has_prompt(n_prompt) {
        return;
    }
    let mut written = job.written.clone();
    written.push(n_prompt..n_tokens);
    let owner = job.request.owner.clone();
    core.outbox.published.said().remember(owner, job.asked_for.clone(), tokens.clone(), written);
}

/// The request of the sequence at `nth` ends with an error, and what it held is forgotten.
pub(super) fn end_with<R: Runner>(core: &mut Core<R>, nth: usize, error: Error) {
    let running = core.slots.take(nth);
    forget(core, &running);
    fail_request(core, running.sequence.request_id, error);
}

/// These requests end with `error`, and what their running sequences held is forgotten.
pub(super) fn fail<R: Runner>(core: &mut Core<R>, request_ids: &[u64], error: &Error) {
    for &request_id in request_ids {
        for running in core.slots.take_all(|running| running.sequence.request_id == request_id) {
            forget(core, &running);
        }
        fail_request(core, request_id, error.clone());
    }
}

/// A request ends with an error when the step does, and with it all of its stream: nothing of that starts any more.
pub(super) fn fail_request<R: Runner>(core: &mut Core<R>, request_id: u64, error: Error) {
    fail_stream(core, core.queue.job(request_id).stream_id, error);
}

/// As [`fail_request`], of the stream itself.
pub(super) fn fail_stream<R: Runner>(core: &mut Core<R>, stream_id: u64, error: Error) {
    core.has_changed = true;
    for request_id in core.queue.groups_of(stream_id) {
        release_holder(core, request_id);
        core.queue.give_up(request_id);
    }
    core.outbox.failed.push((stream_id, error));
}

/// Takes all of a stream out, with everything that it holds.
pub(super) fn remove_stream<R: Runner>(core: &mut Core<R>, stream_id: u64) -> Vec<RequestGroup> {
    core.queue.groups_of(stream_id).into_iter().filter_map(|request_id| remove(core, request_id)).collect()
}

/// Takes a request out, with everything that it holds.
pub(super) fn remove<R: Runner>(core: &mut Core<R>, request_id: u64) -> Option<RequestGroup> {
    core.queue.get(request_id)?;
    for mut running in core.slots.take_all(|running| running.sequence.request_id == request_id) {
        leave_cut_media(core, &mut running);
        leave_slot(core, &running);
        core.memory.cache_mut().unpin(running.id);
        count_shared(core, &running.sequence, &running.sequence.usage(running.n_held, true));
    }
    for preempted in core.queue.remove_preempted(request_id) {
        count_shared(core, &preempted.sequence, &preempted.sequence.usage(preempted.n_held, true));
        core.memory.cache_mut().release(preempted.reservation);
    }
    release_holder(core, request_id);
    core.forks.leave(request_id);
    core.queue.remove(request_id)
}

/// Takes the sequence at `nth` off its slot. Its text and its generator stay; its cells can be evicted, after others. What is being
/// loaded has neither: it goes back to its place in the queue, and to the copy that it is loaded from. The beams of a search leave
/// together.
pub(super) fn preempt<R: Runner>(core: &mut Core<R>, nth: usize) {
    if core.slots.running()[nth].sequence.beam.is_none() {
        let running = core.slots.take(nth);
        return preempt_one(core, running);
    }
    let request_id = core.slots.running()[nth].sequence.request_id;
    for running in core.slots.take_all(|running| running.sequence.request_id == request_id) {
        preempt_one(core, running);
    }
}

fn preempt_one<R: Runner>(core: &mut Core<R>, mut running: RunningSequence) {
    leave_cut_media(core, &mut running);
    running.sequence.reach(running.n_held);
    core.stats.n_preempted += 1;
    if let Phase::Awaiting(PrefixDependency { reservation, .. }) = running.phase {
        // It has computed nothing since it was resumed, and still has its reservation.
        running.phase = Phase::Prefilling;
        leave_slot(core, &running);
        core.memory.cache_mut().unpin(running.id);
        core.queue.wait_to_resume(Preempted { n_held: 0, sequence: running.sequence, reservation, slot: running.slot });
        return;
    }
    leave_slot(core, &running);
    if matches!(running.sequence.request().task, Task::Load(_)) {
        core.memory.cache_mut().unpin(running.id);
        core.queue.put_back(running.sequence.request_id);
        core.queue.job_mut(running.sequence.request_id).untold = Some(running.sequence.untold);
        return;
    }
    if let Some(beam) = &mut running.sequence.beam {
        // Its last token is computed again.
        beam.proposals = None;
    }
    let reservation = core.memory.cache_mut().reserve(running.id);
    core.queue.wait_to_resume(Preempted { n_held: running.n_held, sequence: running.sequence, reservation, slot: running.slot });
}

/// Shifts the contexts that are full.
pub(super) fn shift_full<R: Runner>(core: &mut Core<R>) {
    for nth in (0..core.slots.running().len()).rev() {
        if core.slots.running()[nth].sequence.is_full() {
            shift(core, nth);
        }
    }
}

/// Shifts the context of the sequence at `nth`. `false` where nothing can be dropped. What it has computed stays cached, as that of
/// every branch that ends.
///
/// Moving the cells to their new positions instead, as llama-server does, would move those that others share, turn the whole pool
/// at the next decode, and lose precision where the cache is quantised. So the sequence waits to be placed anew, as one that was
/// preempted: over the tokens that it kept, or over what a snapshot has of them; the rest is an ordinary prompt.
pub(super) fn shift<R: Runner>(core: &mut Core<R>, nth: usize) -> bool {
    let Sequence { tokens, variants, .. } = &core.slots.running()[nth].sequence;
    let (tokens, variants) = (tokens.clone(), variants.clone());
    let Some(n_kept) = core.slots.running_mut()[nth].sequence.shift() else { return false };
    let running = core.slots.take(nth);
    core.forks.drop_due(running.sequence.request_id, running.sequence.index);
    leave_slot_with(core, &running, &variants, tokens, running.n_held);
    let reservation = core.memory.cache_mut().reserve_first(running.id, running.n_held.min(n_kept));
    core.queue.wait_to_resume(Preempted { n_held: running.n_held, sequence: running.sequence, reservation, slot: running.slot });
    true
}

/// Forgets what it computed of a picture that is held whole or not at all, where that is not all of it.
fn leave_cut_media<R: Runner>(core: &mut Core<R>, running: &mut RunningSequence) {
    let n_kept = running.n_cacheable();
    if n_kept < running.n_held && core.memory.truncate(running.id, n_kept) {
        running.n_held = n_kept;
    }
}

/// A slot keeps the tokens that the sequence which leaves it has computed, until the next one comes that fills it.
pub(super) fn leave_slot<R: Runner>(core: &mut Core<R>, running: &RunningSequence) {
    leave_slot_with(core, running, &running.sequence.variants, running.sequence.tokens.clone(), running.n_held);
}

/// As [`leave_slot`], where what it had computed is of no use: neither slot nor cache keep it.
fn forget<R: Runner>(core: &mut Core<R>, running: &RunningSequence) {
    let RunningSequence { sequence, n_held, .. } = running;
    core.history.leave(sequence.request_id, sequence.index, &sequence.tokens, *n_held);
    leave_slot_with(core, running, &AdapterSchedule::default(), Tokens::default(), 0);
    core.memory.cache_mut().forget(running.id);
}

fn leave_slot_with<R: Runner>(
    core: &mut Core<R>,
    running: &RunningSequence,
    variants: &AdapterSchedule,
    tokens: Tokens,
    n_held: u32,
) {
    core.has_changed = true;
    if let Some(prefix) = running.prefix_dependency() {
        core.memory.cache_mut().release(prefix.reservation);
    }
    if n_held > 0 {
        core.history.leave(running.sequence.request_id, running.sequence.index, &tokens, n_held);
    }
    let job = core.queue.job(running.sequence.request_id);
    if job.fills(running.slot) {
        core.slots.leave(running.slot, variants, tokens, n_held.min(job.grouped_from));
    }
}

/// Frees `n_wanted` cells for the running sequence at `nth` if that can be done without taking from more senior ones; returns how
/// many of them are free. Idle paths go first, then kept prompts, then the most junior sequences. Where it is not `urgent`, no
/// longer is spent on it than this step has time for.
pub(super) fn free_cells<R: Runner>(core: &mut Core<R>, nth: usize, n_wanted: u32, urgency: Urgency) -> u32 {
    while core.memory.n_free() < n_wanted {
        if urgency == Urgency::WhenThereIsTime && core.memory.is_out_of_time() {
            break;
        }
        let has_more = core.memory.evict() || release_junior_keeper(core) || {
            let (running, last) = (core.slots.running(), core.slots.running().len() - 1);
            let is_junior = last > nth && !running[last].is_together_with(&running[nth]);
            if is_junior {
                preempt(core, last);
            }
            is_junior
        };
        if !has_more {
            break;
        }
    }
    n_wanted.min(core.memory.n_free())
}

/// Whether room is made however long it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// In this step.
    Now,
    /// In this step's time for moving.
    WhenThereIsTime,
}

/// Makes sure that `n` sequence ids are free; `false` where they cannot be had yet, or this step has no more time to save what holds
/// them.
pub(super) fn free_ids<R: Runner>(core: &mut Core<R>, n: usize) -> bool {
    while core.memory.cache().n_free_ids() < n {
        if core.memory.is_out_of_time() || !(core.memory.evict() || release_junior_keeper(core)) {
            return false;
        }
    }
    true
}

/// Makes sure that a sequence id is free for a sequence in a slot that has none, however long that takes.
///
/// # Panics
/// If sequences in slots and pinned prefixes hold all ids. There are at least as many ids as slots, pinned prefixes leave one for
/// each slot, and kept prompts give theirs up.
pub(super) fn free_id_now<R: Runner>(core: &mut Core<R>) {
    while !core.memory.cache().has_free_id() {
        let has_more = core.memory.evict() || release_junior_keeper(core);
        assert!(has_more, "pinned prefixes leave an id for each slot");
    }
}

/// Gives up the kept prompt of the most junior request that has one; `false` where there is none.
fn release_junior_keeper<R: Runner>(core: &mut Core<R>) -> bool {
    let kept = core.queue.open().filter(|job| job.keeper.id().is_some());
    let junior = kept.max_by_key(|job| job.seniority(0)).map(|job| job.request_id);
    junior.is_some_and(|request_id| release_holder(core, request_id))
}

pub(super) fn release_holder<R: Runner>(core: &mut Core<R>, request_id: u64) -> bool {
    let keeper = std::mem::replace(&mut core.queue.job_mut(request_id).keeper, PromptHolder::Nobody);
    keeper.id().map(|id| core.memory.cache_mut().unpin(id)).is_some()
}

/// What these ids held is of no use any more: the requests that run on them end with an error, and the prompts that they kept are
/// computed again.
pub(super) fn lose<R: Runner>(core: &mut Core<R>, ids: &[KvSeqId], reason: &str) {
    // Includes requests that have failed already or fail below: removing one would release an id that no longer exists.
    for request_id in core.queue.kept_on(ids) {
        core.queue.job_mut(request_id).keeper = PromptHolder::Nobody;
    }
    let lost = core.slots.running().iter().filter(|running| ids.contains(&running.id));
    let mut lost: Vec<u64> = lost.map(|running| running.sequence.request_id).collect();
    lost.dedup();
    fail(core, &lost, &Error::Decode { reason: reason.to_owned() });
    core.memory.cache_mut().lose(ids);
}
