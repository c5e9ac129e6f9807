//! Lifecycle: how sequences leave their slots, and requests the engine.

use crate::engine::core::Core;
use crate::engine::fork_request::ForkSource;
use crate::engine::queue::Preempted;
use crate::engine::request_group::{Branch, PromptHolder, RequestGroup};
use crate::engine::runner::{AdapterSchedule, KvSeqId, Runner};
use crate::engine::running_sequence::{Phase, PrefixDependency, RunningSequence};
use crate::engine::sequence::{Sequence, Tokens};
use crate::error::Error;
use crate::request::{Event, FinishReason, Finished, Task, TaskResult, Usage};

/// Finishes a branch: its slot is free, and its computed tokens stay cached.
pub(super) fn finish<R: Runner>(core: &mut Core<R>, running: RunningSequence, reason: FinishReason, result: Option<TaskResult>) {
    leave_slot(core, &running);
    core.memory.cache_mut().unpin(running.id);
    finish_idle(core, running, reason, result);
}

/// As [`finish`], for a sequence whose slot and path are already released.
pub(super) fn finish_idle<R: Runner>(
    core: &mut Core<R>,
    running: RunningSequence,
    reason: FinishReason,
    result: Option<TaskResult>,
) {
    let RunningSequence { sequence, slot, n_held, .. } = running;
    end_branch(core, sequence, Some(slot), n_held, reason, result);
}

/// Publishes the end of a sequence, of which `n_held` tokens are computed.
fn end_branch<R: Runner>(
    core: &mut Core<R>,
    mut sequence: Sequence,
    slot: Option<u32>,
    n_held: u32,
    reason: FinishReason,
    result: Option<TaskResult>,
) {
    let is_truncated = sequence.is_truncated() || reason == FinishReason::ContextFull;
    let (usage, result) = (sequence.usage(n_held, reason == FinishReason::Cancelled), result.map(Box::new));
    let text = sequence.remaining_text();
    record_generated_text(core, &sequence);
    let explanation = sequence.explanation.take().map(|explanation| Box::new(explanation.with_excerpts()));
    count_shared(core, &sequence, &usage);
    record_ended_branch(core, &sequence, &reason);
    core.queue.group_mut(sequence.request_id).set(sequence.index, Branch::Finished);
    let finished =
        Finished { index: sequence.branch, slot, reason, text, usage, is_truncated, made: result, score: None, explanation };
    core.emit(sequence.request_id, Event::Finished(finished));
}

/// Counts the shared prompt tokens of a branch that is not the first of its stream, or of a fork.
fn count_shared<R: Runner>(core: &mut Core<R>, sequence: &Sequence, usage: &Usage) {
    if sequence.request().task == Task::Complete && (sequence.branch > 0 || core.forks.state_of(sequence.request_id).is_some()) {
        core.stats.branches.n_computed += u64::from(usage.n_computed);
        core.stats.branches.n_shared += u64::from(usage.n_cached);
    }
}

/// Records an ended branch, from which others can be forked.
fn record_ended_branch<R: Runner>(core: &mut Core<R>, sequence: &Sequence, reason: &FinishReason) {
    let Core { queue, forks, .. } = core;
    let group = queue.group(sequence.request_id);
    if group.request.task == Task::Complete {
        let mut source = ForkSource::new(group, sequence.index, forks.state_of(group.request_id).cloned()).advanced_to(sequence);
        // The event of a cancelled branch does not publish text that was held back.
        source.has_published_all = sequence.n_predicted() > 0 && *reason != FinishReason::Cancelled;
        forks.end(group.stream_id, sequence.branch, source, &group.sender);
    }
}

/// Cancels branch `index` of a stream; the others continue. Does nothing if there is no such branch, if it has ended, or for a
/// task.
pub(super) fn cancel_branch<R: Runner>(core: &mut Core<R>, stream_id: u64, index: u32) {
    let Some((request_id, index_in_group)) = core.queue.find_branch(stream_id, index) else { return };
    let group = core.queue.group(request_id);
    if group.request.task != Task::Complete {
        return;
    }
    core.has_changed = true;
    core.stats.branches.n_cancelled += u64::from(group.branches[index_in_group as usize] != Branch::Finished);
    match group.branches[index_in_group as usize] {
        Branch::Finished => {}
        Branch::Running => cancel_running(core, request_id, index_in_group),
        Branch::Preempted => {
            let Preempted { mut sequence, reservation, slot, n_held } =
                core.queue.take_preempted(request_id, index_in_group).expect("a branch is where its group says");
            core.memory.cache_mut().release(reservation);
            return_pending_report(core, &mut sequence);
            end_branch(core, sequence, Some(slot), n_held, FinishReason::Cancelled, None);
        }
        Branch::Waiting => {
            let source = ForkSource::new(group, index_in_group, core.forks.state_of(request_id).cloned());
            core.forks.end(stream_id, index, source, &group.sender);
            // So that the queue length is correct immediately.
            drop(core.queue.drop_waiting(request_id, index_in_group));
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
            core.emit(request_id, Event::Finished(finished));
        }
    }
    if !core.queue.group(request_id).has_waiting() {
        core.queue.group_mut(request_id).prompt_logits = None;
        release_holder(core, request_id);
    }
}

fn cancel_running<R: Runner>(core: &mut Core<R>, request_id: u64, index_in_group: u32) {
    let matches =
        |running: &RunningSequence| running.sequence.request_id == request_id && running.sequence.index == index_in_group;
    for mut running in core.slots.take_all(matches) {
        drop_partial_media(core, &mut running);
        return_pending_report(core, &mut running.sequence);
        finish(core, running, FinishReason::Cancelled, None);
    }
}

/// Returns pending reports of the prompt to the group, for the next branch that starts.
fn return_pending_report<R: Runner>(core: &mut Core<R>, sequence: &mut Sequence) {
    if sequence.n_predicted() == 0 && (sequence.pending_report.reports_progress || sequence.reports_prompt()) {
        core.queue.group_mut(sequence.request_id).pending_report = Some(std::mem::take(&mut sequence.pending_report));
    }
}

/// Records generated chat text with its tokens, for later requests that contain it.
fn record_generated_text<R: Runner>(core: &Core<R>, sequence: &Sequence) {
    record_text(core, sequence.request_id, &sequence.tokens);
}

/// As [`record_generated_text`], for a text of a request.
pub(super) fn record_text<R: Runner>(core: &Core<R>, request_id: u64, tokens: &Tokens) {
    let group = core.queue.group(request_id);
    let (n_prompt, n_tokens) = (group.n_prompt(), tokens.len());
    if !group.request.keeps_answers || n_tokens == n_prompt || !tokens.has_prompt(n_prompt) {
        return;
    }
    let mut generated_ranges = group.generated_ranges.clone();
    generated_ranges.push(n_prompt..n_tokens);
    let owner = group.request.owner.clone();
    core.output.shared.transcripts().add(owner, group.requested_adapters.clone(), tokens.clone(), generated_ranges);
}

/// Ends the request of the sequence at `nth` with an error, and drops the cells of the sequence.
pub(super) fn fail_sequence<R: Runner>(core: &mut Core<R>, nth: usize, error: Error) {
    let running = core.slots.take(nth);
    drop_sequence(core, &running);
    fail_request(core, running.sequence.request_id, error);
}

/// Ends requests with `error`, and drops the cells of their running sequences.
pub(super) fn fail<R: Runner>(core: &mut Core<R>, request_ids: &[u64], error: &Error) {
    for &request_id in request_ids {
        for running in core.slots.take_all(|running| running.sequence.request_id == request_id) {
            drop_sequence(core, &running);
        }
        fail_request(core, request_id, error.clone());
    }
}

/// Ends a request, and all groups of its stream, with an error at the end of the step; nothing of the stream starts any more.
pub(super) fn fail_request<R: Runner>(core: &mut Core<R>, request_id: u64, error: Error) {
    fail_stream(core, core.queue.group(request_id).stream_id, error);
}

/// As [`fail_request`], for a stream.
pub(super) fn fail_stream<R: Runner>(core: &mut Core<R>, stream_id: u64, error: Error) {
    core.has_changed = true;
    for request_id in core.queue.groups_of(stream_id) {
        release_holder(core, request_id);
        core.queue.block_starts(request_id);
    }
    core.output.failed.push((stream_id, error));
}

/// Removes all groups of a stream and releases their resources.
pub(super) fn remove_stream<R: Runner>(core: &mut Core<R>, stream_id: u64) -> Vec<RequestGroup> {
    core.queue.groups_of(stream_id).into_iter().filter_map(|request_id| remove(core, request_id)).collect()
}

/// Removes a group and releases its resources.
pub(super) fn remove<R: Runner>(core: &mut Core<R>, request_id: u64) -> Option<RequestGroup> {
    core.queue.get(request_id)?;
    for mut running in core.slots.take_all(|running| running.sequence.request_id == request_id) {
        drop_partial_media(core, &mut running);
        leave_slot(core, &running);
        core.memory.cache_mut().unpin(running.id);
        count_shared(core, &running.sequence, &running.sequence.usage(running.n_held, true));
    }
    for preempted in core.queue.remove_preempted(request_id) {
        count_shared(core, &preempted.sequence, &preempted.sequence.usage(preempted.n_held, true));
        core.memory.cache_mut().release(preempted.reservation);
    }
    release_holder(core, request_id);
    core.forks.remove_group(request_id);
    core.queue.remove(request_id)
}

/// Preempts the sequence at `nth`. It keeps its text and its sampler; its cells can be evicted, after others. A load keeps
/// neither: it returns to its position in the queue and starts again. The beams of a search are preempted together.
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
    drop_partial_media(core, &mut running);
    running.sequence.reach(running.n_held);
    core.stats.n_preempted += 1;
    if let Phase::AwaitingPrefix(PrefixDependency { reservation, .. }) = running.phase {
        // It has computed nothing since it resumed, and still has its reservation.
        running.phase = Phase::Prefilling;
        leave_slot(core, &running);
        core.memory.cache_mut().unpin(running.id);
        core.queue.push_preempted(Preempted { n_held: 0, sequence: running.sequence, reservation, slot: running.slot });
        return;
    }
    leave_slot(core, &running);
    if matches!(running.sequence.request().task, Task::Load(_)) {
        core.memory.cache_mut().unpin(running.id);
        core.queue.reset(running.sequence.request_id);
        core.queue.group_mut(running.sequence.request_id).pending_report = Some(running.sequence.pending_report);
        return;
    }
    if let Some(beam) = &mut running.sequence.beam {
        // Its last token is computed again.
        beam.proposals = None;
    }
    let reservation = core.memory.cache_mut().reserve(running.id);
    core.queue.push_preempted(Preempted { n_held: running.n_held, sequence: running.sequence, reservation, slot: running.slot });
}

/// Shifts the contexts that are full.
pub(super) fn shift_full<R: Runner>(core: &mut Core<R>) {
    for nth in (0..core.slots.running().len()).rev() {
        if core.slots.running()[nth].sequence.is_full() {
            shift(core, nth);
        }
    }
}

/// Shifts the context of the sequence at `nth`. Returns `false` if nothing can be dropped. Its computed tokens stay cached,
/// like the tokens of every branch that ends.
///
/// Moving the cells to their new positions instead, as llama-server does, would move cells that other sequences share, rotate
/// the whole device cache at the next decode, and lose precision if the cache is quantised. The sequence therefore waits to
/// resume like a preempted one: from the tokens that it kept, or from a checkpoint; the rest is an ordinary prompt.
pub(super) fn shift<R: Runner>(core: &mut Core<R>, nth: usize) -> bool {
    let Sequence { tokens, adapter_schedule, .. } = &core.slots.running()[nth].sequence;
    let (tokens, adapter_schedule) = (tokens.clone(), adapter_schedule.clone());
    let Some(n_kept) = core.slots.running_mut()[nth].sequence.shift() else { return false };
    let running = core.slots.take(nth);
    core.forks.drop_due(running.sequence.request_id, running.sequence.index);
    leave_slot_as(core, &running, &adapter_schedule, tokens, running.n_held);
    let reservation = core.memory.cache_mut().reserve_first(running.id, running.n_held.min(n_kept));
    core.queue.push_preempted(Preempted { n_held: running.n_held, sequence: running.sequence, reservation, slot: running.slot });
    true
}

/// Drops the computed part of an incomplete picture that can only be cached as a whole.
fn drop_partial_media<R: Runner>(core: &mut Core<R>, running: &mut RunningSequence) {
    let n_kept = running.n_cacheable();
    if n_kept < running.n_held && core.memory.truncate(running.id, n_kept) {
        running.n_held = n_kept;
    }
}

/// Releases a slot, whose contents remain until the next sequence that replaces them.
pub(super) fn leave_slot<R: Runner>(core: &mut Core<R>, running: &RunningSequence) {
    leave_slot_as(core, running, &running.sequence.adapter_schedule, running.sequence.tokens.clone(), running.n_held);
}

/// As [`leave_slot`], but neither slot nor cache keep the computed tokens.
fn drop_sequence<R: Runner>(core: &mut Core<R>, running: &RunningSequence) {
    let RunningSequence { sequence, n_held, .. } = running;
    core.history.update_text(sequence.request_id, sequence.index, &sequence.tokens, *n_held);
    leave_slot_as(core, running, &AdapterSchedule::default(), Tokens::default(), 0);
    core.memory.cache_mut().discard_failed(running.id);
}

fn leave_slot_as<R: Runner>(
    core: &mut Core<R>,
    running: &RunningSequence,
    adapter_schedule: &AdapterSchedule,
    tokens: Tokens,
    n_held: u32,
) {
    core.has_changed = true;
    if let Some(prefix) = running.prefix_dependency() {
        core.memory.cache_mut().release(prefix.reservation);
    }
    if n_held > 0 {
        core.history.update_text(running.sequence.request_id, running.sequence.index, &tokens, n_held);
    }
    let group = core.queue.group(running.sequence.request_id);
    if group.keeps_contents_of(running.slot) {
        core.slots.set_contents(running.slot, adapter_schedule, tokens, n_held.min(group.grouped_from));
    }
}

/// Frees `n_wanted` cells for the running sequence at `nth` without taking from more senior ones; returns how many of them are
/// free. Evicts idle paths first, then releases held prompts, then preempts the most junior sequences.
pub(super) fn free_cells<R: Runner>(core: &mut Core<R>, nth: usize, n_wanted: u32, urgency: Urgency) -> u32 {
    while core.memory.n_free() < n_wanted {
        if urgency == Urgency::WithinMoveTime && core.memory.is_out_of_time() {
            break;
        }
        let has_more = core.memory.evict() || release_junior_holder(core) || {
            let (running, last) = (core.slots.running(), core.slots.running().len() - 1);
            let is_junior = last > nth && !running[last].is_in_same_search(&running[nth]);
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

/// Time limit for freeing cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Within this step, however long it takes.
    Now,
    /// Within the time of this step for moves.
    WithinMoveTime,
}

/// Frees `n` sequence ids. Returns `false` if they are not available yet, or this step has no time left to save the paths that
/// use them.
pub(super) fn free_ids<R: Runner>(core: &mut Core<R>, n: usize) -> bool {
    while core.memory.cache().n_free_ids() < n {
        if core.memory.is_out_of_time() || !(core.memory.evict() || release_junior_holder(core)) {
            return false;
        }
    }
    true
}

/// Frees a sequence id for a sequence in a slot that has none, however long that takes.
///
/// # Panics
/// If sequences in slots and pinned prefixes use all ids. There are at least as many ids as slots, pinned prefixes leave one
/// for each slot, and held prompts release theirs.
pub(super) fn free_id_now<R: Runner>(core: &mut Core<R>) {
    while !core.memory.cache().has_free_id() {
        let has_more = core.memory.evict() || release_junior_holder(core);
        assert!(has_more, "pinned prefixes leave an id for each slot");
    }
}

/// Releases the held prompt of the most junior request that has one; `false` if no request has.
fn release_junior_holder<R: Runner>(core: &mut Core<R>) -> bool {
    let holding = core.queue.open().filter(|group| group.prompt_holder.id().is_some());
    let junior = holding.max_by_key(|group| group.scheduling_key(0)).map(|group| group.request_id);
    junior.is_some_and(|request_id| release_holder(core, request_id))
}

pub(super) fn release_holder<R: Runner>(core: &mut Core<R>, request_id: u64) -> bool {
    let prompt_holder = std::mem::replace(&mut core.queue.group_mut(request_id).prompt_holder, PromptHolder::Empty);
    prompt_holder.id().map(|id| core.memory.cache_mut().unpin(id)).is_some()
}

/// Handles lost cells: ends the requests that run on these ids with an error, and clears the prompts that they hold, which are
/// computed again.
pub(super) fn fail_lost<R: Runner>(core: &mut Core<R>, ids: &[KvSeqId], reason: &str) {
    // Includes requests that have failed already or fail below: removing one would release an id that no longer exists.
    for request_id in core.queue.held_on(ids) {
        core.queue.group_mut(request_id).prompt_holder = PromptHolder::Empty;
    }
    let failed = core.slots.running().iter().filter(|running| ids.contains(&running.id));
    let mut failed: Vec<u64> = failed.map(|running| running.sequence.request_id).collect();
    failed.dedup();
    fail(core, &failed, &Error::Decode { reason: reason.to_owned() });
    core.memory.cache_mut().invalidate(ids);
}
