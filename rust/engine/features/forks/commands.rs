//! Handles fork commands: the shared text of a branch becomes the prompt of a new group.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::engine::features::forks::ForkRegistry;
use crate::engine::features::forks::builder::{
    BuildStage, CutSearch, ForkBuild, ForkCut, ForkReplay, QueuedFork, invalid_request, stream_ended_error,
};
use crate::engine::features::forks::request::{ForkBranches, ForkRequest, ForkSource, ForkSpec};
use crate::engine::features::hooks;
use crate::engine::ids::{BranchIndex, BranchKey, GroupId, StreamId};
use crate::engine::output::completions::ForkResult;
use crate::engine::output::fork::ForkPoint;
use crate::engine::output::stream::Sender;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::queue::Queue;
use crate::engine::scheduler::request_group::{AwaitedPrefix, BranchSpec, BranchState, PrefixDependency, RequestGroup};
use crate::engine::scheduler::sequence::Sequence;
use crate::error::{Error, Result};
use crate::request::{MAX_COMPLETIONS, Task, reject};

pub(crate) fn fork(scheduler: &mut Scheduler, runner: &impl Runner, request: ForkRequest) {
    let ForkRequest { spec, answer } = request;
    let stream_id = spec.stream_id;
    let stage = find_source(scheduler, stream_id, spec.branch).and_then(|source| match spec.at {
        ForkPoint::Byte(at) => CutSearch::new(spec, source, at).map(|search| BuildStage::Searching(Box::new(search))),
        ForkPoint::End | ForkPoint::Token(_) => start_build(scheduler, runner, spec, source),
    });
    match stage {
        Ok(stage) => scheduler.features_mut().forks.enqueue(stream_id, QueuedFork::Fork(ForkBuild { answer, stage })),
        Err(error) => answer.send(Err(error)),
    }
}

pub(crate) fn advance_forks(scheduler: &mut Scheduler, runner: &impl Runner) {
    while let Some((stream_id, next)) = scheduler.features_mut().forks.next_command() {
        scheduler.mark_changed();
        match next {
            QueuedFork::CancelBranch(branch) => scheduler.cancel_branch(stream_id, branch),
            QueuedFork::Fork(build) => advance_build(scheduler, runner, stream_id, build),
        }
    }
}

pub(crate) fn before_start(scheduler: &Scheduler, sequence: &mut Sequence) {
    if let Some(fork_state) = scheduler.features().forks.state_of(sequence.group_id) {
        sequence.resume_from(fork_state);
    }
}

pub(crate) fn pass_logits(forks: &mut ForkRegistry, queue: &mut Queue, sequence: &Sequence, logits: impl FnOnce() -> Arc<[f32]>) {
    let due = forks.take_due(sequence.branch_key(), sequence.n_tokens());
    if !due.is_empty() {
        let logits = logits();
        for group_id in due {
            queue.set_prompt_logits(group_id, &logits);
        }
    }
}

/// Queues a cancellation behind earlier forks of the stream. Returns `false` if no fork is queued.
pub(crate) fn defer_cancel(scheduler: &mut Scheduler, stream_id: StreamId, branch: BranchIndex) -> bool {
    let forks = &mut scheduler.features_mut().forks;
    let has_queue = forks.has_queue(stream_id);
    if has_queue {
        forks.enqueue(stream_id, QueuedFork::CancelBranch(branch));
    }
    has_queue
}

fn advance_build(scheduler: &mut Scheduler, runner: &impl Runner, stream_id: StreamId, build: ForkBuild) {
    let ForkBuild { answer, stage } = build;
    let progress = match stage {
        BuildStage::Searching(search) => continue_search(scheduler, runner, search).map(ControlFlow::Continue),
        BuildStage::Replaying(replay) => {
            let group_id = replay.group_id;
            continue_replay(scheduler, runner, replay).inspect_err(|_| scheduler.abandon(group_id))
        }
    };
    match progress {
        Ok(ControlFlow::Continue(stage)) => scheduler.features_mut().forks.push_front(stream_id, ForkBuild { answer, stage }),
        Ok(ControlFlow::Break(result)) => answer.send(Ok(result)),
        Err(error) => answer.send(Err(error)),
    }
}

/// The next stage of a build, or its result.
type ForkProgress = ControlFlow<ForkResult, BuildStage>;

fn continue_search(scheduler: &mut Scheduler, runner: &impl Runner, mut search: Box<CutSearch>) -> Result<BuildStage> {
    if search.spec.own_stream.as_ref().unwrap_or(&search.source.sender).is_cancelled() {
        return Err(stream_ended_error());
    }
    let max_tokens = scheduler.features().forks.n_replayable();
    let (n_read, found) = search.replay(max_tokens, runner)?;
    scheduler.features_mut().forks.n_replayed += n_read;
    let Some(n_sampled) = found else { return Ok(BuildStage::Searching(search)) };
    let CutSearch { spec, source, .. } = *search;
    // The branch may have advanced, ended, or lost its consumer in the meantime.
    let source = find_source(scheduler, spec.stream_id, spec.branch).unwrap_or(source);
    start_build(scheduler, runner, ForkSpec { at: ForkPoint::Token(n_sampled), ..spec }, source)
}

fn start_build(scheduler: &mut Scheduler, runner: &impl Runner, spec: ForkSpec, source: ForkSource) -> Result<BuildStage> {
    let ForkSpec { stream_id, branch, at, append, branches, group_id, own_stream, permit } = spec;
    let cut = find_cut(scheduler, runner, (stream_id, branch), at, source)?;
    check_options(&cut.source, &branches)?;
    let (n_prompt, n_ctx) = (cut.n_tokens as usize + append.len(), scheduler.limits().n_ctx_slot as usize);
    if n_prompt >= n_ctx {
        return Err(Error::ContextOverflow { n_prompt, n_ctx });
    }
    if own_stream.is_none() && cut.source.sender.has_ended() {
        return Err(stream_ended_error());
    }
    let has_own_stream = own_stream.is_some();
    let prompt = cut.source.tokens.first_with(cut.n_tokens, &append);
    scheduler.features_mut().forks.n_copied += n_prompt;
    let running = cut.running_branch.and_then(|branch| sequence_of(scheduler, branch));
    let replay = ForkReplay::new(runner, cut, running, (group_id, has_own_stream), branches, append, &prompt)?;
    let ForkReplay { cut, append, .. } = &replay;
    let source = &cut.source;
    let sender = own_stream.unwrap_or_else(|| Arc::clone(&source.sender));
    let joined_stream = if has_own_stream { StreamId(group_id.0) } else { stream_id };
    let mut group =
        RequestGroup::unbuilt(group_id, joined_stream, Arc::clone(&source.branch_spec.request), prompt, sender, permit);
    group.features = source.features.clone();
    if source.shifted_at.is_none() && cut.n_tokens > source.n_prompt {
        hooks::on_generated_prompt(&mut group.features, source.n_prompt..cut.n_tokens);
    }
    (group.adapter_schedule, group.requested_adapters, group.media) =
        (source.adapter_schedule.clone(), source.requested_adapters.clone(), Arc::clone(&source.media));
    hooks::on_new_group(scheduler.limits(), &mut group);
    let shares_all = group.shares_prompt();
    scheduler.enqueue(group);
    scheduler.mark_changed();
    if cut.is_end() && shares_all {
        follow_branch(scheduler, group_id, stream_id, branch, append.is_empty());
    }
    Ok(BuildStage::Replaying(Box::new(replay)))
}

fn continue_replay(scheduler: &mut Scheduler, runner: &impl Runner, mut replay: Box<ForkReplay>) -> Result<ForkProgress> {
    let forks = &mut scheduler.features_mut().forks;
    while forks.n_replayable() > 0 && !replay.is_complete() {
        let n_read = replay.replay(forks.n_replayable(), runner)?;
        forks.n_replayed += n_read;
    }
    if !replay.is_complete() {
        return Ok(ControlFlow::Continue(BuildStage::Replaying(replay)));
    }
    let text_boundary = replay.text_boundary();
    let ForkReplay { cut, group_id, has_own_stream, append, fork_state, branches: fork_branches, .. } = *replay;
    let (n_prompt, n) = (cut.n_tokens as usize + append.len(), fork_branches.n());
    // Nothing may fail after the indices are assigned.
    let (branches, seed_offset) = assign_indices(&cut.source.sender, n, has_own_stream)?;
    let BranchSpec { request, first, .. } = &*cut.source.branch_spec;
    let specs = fork_branches.into_specs(
        &cut.source,
        BranchIndex(branches.start),
        request.seed.wrapping_sub(first.0).wrapping_add(seed_offset),
    );
    let seed = specs[0].request.seed;
    scheduler.features_mut().forks.set_initial_state(group_id, fork_state);
    scheduler.build_forks(group_id, specs);
    Ok(ControlFlow::Break(ForkResult { branches, seed, n_sampled: cut.n_sampled, text_boundary, n_prompt, stream: None }))
}

fn find_cut(
    scheduler: &Scheduler,
    runner: &impl Runner,
    (stream_id, branch): (StreamId, BranchIndex),
    at: ForkPoint,
    source: ForkSource,
) -> Result<ForkCut> {
    let n_sampled = n_sampled(&source, at, runner)?;
    let Some(n_tokens) = source.n_tokens_at(n_sampled) else {
        let n_left = source.tokens.len().saturating_sub(source.shifted_at.unwrap_or(0) + 1);
        let message =
            format!("the context of the branch was shifted, so that it can be forked only within its last {n_left} tokens");
        return reject("at", message);
    };
    let mut cut = ForkCut { source, running_branch: None, n_sampled, n_tokens };
    if cut.is_end() {
        let found = scheduler.queue().find_branch(stream_id, branch);
        cut.running_branch = found.filter(|&found| sequence_of(scheduler, found).is_some());
    }
    Ok(cut)
}

fn check_options(source: &ForkSource, branches: &ForkBranches) -> Result<()> {
    let ForkBranches::Restart { requests, .. } = branches else { return Ok(()) };
    if requests.iter().any(|(request, _)| request.diversity.beams().is_some()) {
        let message = "a fork cannot be a beam search; start one with the text of the branch as its prompt";
        return reject("beam_width", message);
    }
    if !source.media.is_empty() && requests.iter().any(|(request, _)| request.context_shift.is_some()) {
        let message = "a context with images or audio cannot be shifted; omit context_shift";
        return reject("context_shift", message);
    }
    Ok(())
}

fn assign_indices(sender: &Sender, n: u32, has_own_stream: bool) -> Result<(Range<u32>, u32)> {
    if has_own_stream {
        return Ok((0..n, MAX_COMPLETIONS.wrapping_add(sender.add_own_stream_forks(n))));
    }
    if sender.has_ended() {
        return Err(stream_ended_error());
    }
    let too_many = || {
        invalid_request(
            "n",
            format!("n is {n}, but the stream has at most {MAX_COMPLETIONS} branches; fork into a stream of its own"),
        )
    };
    let branches = sender.add_branches(n).ok_or_else(too_many)?;
    Ok((branches.clone(), branches.start))
}

fn follow_branch(scheduler: &mut Scheduler, group_id: GroupId, stream_id: StreamId, branch: BranchIndex, is_next: bool) {
    let Some(of) = scheduler.queue().find_branch(stream_id, branch) else { return };
    let group = scheduler.group(of.group_id);
    match group.state_of(of.member) {
        BranchState::Waiting if is_next => {
            if let Some(logits) = group.prompt_logits.clone() {
                scheduler.set_prompt_logits(group_id, &logits);
            }
        }
        BranchState::Running if !scheduler.is_paused(stream_id) => {
            let Some(sequence) = sequence_of(scheduler, of) else { return };
            let dependency = PrefixDependency { provider: sequence.scheduling_key(), n_tokens: sequence.n_tokens() };
            if is_next {
                scheduler.features_mut().forks.wait_for_logits(group_id, of, dependency.n_tokens);
            }
            scheduler.block_on_prefix(group_id, AwaitedPrefix { dependency, n_cached: dependency.n_tokens });
        }
        BranchState::Waiting | BranchState::Running | BranchState::Preempted | BranchState::Finished => {}
    }
}

fn find_source(scheduler: &Scheduler, stream_id: StreamId, branch: BranchIndex) -> Result<ForkSource> {
    if let Some(source) = scheduler.features().forks.ended(stream_id, branch) {
        return Ok(source.clone());
    }
    let message = format!("branch is {}, but the stream has no such branch, or its text was dropped after it ended", branch.0);
    let unknown = || invalid_request("branch", message.as_str());
    let key = scheduler.queue().find_branch(stream_id, branch).ok_or_else(unknown)?;
    let BranchKey { group_id, member } = key;
    let group = scheduler.group(group_id);
    if group.request.task != Task::Complete || group.state_of(member) == BranchState::Finished {
        return Err(unknown());
    }
    if group.request.diversity.beams().is_some() {
        let message = "the branch belongs to a beam search, which cannot be forked; fork a branch of another request";
        return reject("branch", message);
    }
    let mut source = ForkSource::new(group, member, scheduler.features().forks.state_of(group_id).cloned());
    if let Some(sequence) = sequence_of(scheduler, key) {
        source = source.advanced_to(sequence);
    }
    Ok(source)
}

fn sequence_of(scheduler: &Scheduler, branch: BranchKey) -> Option<&Sequence> {
    let running = scheduler.running().iter().map(|running| &running.sequence);
    let preempted = scheduler.queue().preempted().iter().map(|preempted| &preempted.sequence);
    running.chain(preempted).find(|sequence| sequence.branch_key() == branch)
}

fn n_sampled(source: &ForkSource, at: ForkPoint, runner: &impl Runner) -> Result<u32> {
    let n_all = source.n_predicted;
    match at {
        ForkPoint::End => {
            let ends = n_all > 0 && runner.is_end(source.tokens.at(source.tokens.len() - 1));
            Ok(n_all - u32::from(ends))
        }
        ForkPoint::Token(n) if n <= n_all => Ok(n),
        ForkPoint::Token(n) => reject("at", format!("at is token {n}, but the branch has {n_all} sampled tokens")),
        ForkPoint::Byte(_) => unreachable!("a byte position is converted to a token position first"),
    }
}
