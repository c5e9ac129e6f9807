//! A branch is forked: what others continue of it becomes the prompt of a job of theirs.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::beams::cancel_search;
use crate::engine::core::Core;
use crate::engine::fork_builder::{BuildStage, CutSearch, ForkBuild, ForkCut, ForkReplay, QueuedFork, refused, stream_has_ended};
use crate::engine::fork_request::{ForkBranches, ForkRequest, ForkSource, ForkSpec};
use crate::engine::lifecycle::cancel_branch;
use crate::engine::request_group::{Branch, BranchSpec, PendingPrefix, RequestGroup};
use crate::engine::runner::Runner;
use crate::engine::sequence::Sequence;
use crate::engine::stream::{ForkOutcome, ForkPoint, Sender};
use crate::error::{Error, Result};
use crate::request::{MAX_COMPLETIONS, Task};

/// Takes up what is asked for: it waits behind what was asked for before of the same stream, and [`advance_forks`] makes it.
pub(super) fn fork<R: Runner>(core: &mut Core<R>, order: ForkRequest) {
    let ForkRequest { order, answer } = order;
    let stream_id = order.stream_id;
    let begun = find_source(core, stream_id, order.branch).and_then(|known| match order.at {
        ForkPoint::Byte(at) => CutSearch::new(order, known, at).map(|finding| BuildStage::Finding(Box::new(finding))),
        ForkPoint::End | ForkPoint::Token(_) => begin(core, order, known),
    });
    match begun {
        Ok(stage) => core.forks.enqueue(stream_id, QueuedFork::Fork(ForkBuild { answer, stage })),
        Err(error) => answer.give(Err(error)),
    }
}

/// Makes forks, stream by stream, as far as a step has room for it, and does what was asked for behind them.
pub(super) fn advance_forks<R: Runner>(core: &mut Core<R>) {
    while let Some((stream_id, next)) = core.forks.next_in_line() {
        core.has_changed = true;
        match next {
            QueuedFork::CancelBranch(index) => cancel(core, stream_id, index),
            QueuedFork::Fork(making) => make(core, stream_id, making),
        }
    }
}

/// One branch of a stream is wanted no longer: once the forks are made that were asked for before.
pub(super) fn cancel_in_order<R: Runner>(core: &mut Core<R>, stream_id: u64, index: u32) {
    if core.forks.has_queue(stream_id) {
        core.forks.enqueue(stream_id, QueuedFork::CancelBranch(index));
    } else {
        cancel(core, stream_id, index);
    }
}

fn cancel<R: Runner>(core: &mut Core<R>, stream_id: u64, index: u32) {
    if !cancel_search(core, stream_id, index) {
        cancel_branch(core, stream_id, index);
    }
}

/// Makes forks as far as this step has room for it: they are answered, or first in line again.
fn make<R: Runner>(core: &mut Core<R>, stream_id: u64, making: ForkBuild) {
    let ForkBuild { answer, stage } = making;
    let went_on = match stage {
        BuildStage::Finding(finding) => find(core, finding).map(ForkProgress::On),
        BuildStage::Reading(reading) => {
            let request_id = reading.request_id;
            let went_on = read(core, reading);
            if went_on.is_err() {
                give_up(core, request_id);
            }
            went_on
        }
    };
    match went_on {
        Ok(ForkProgress::On(stage)) => core.forks.put_back(stream_id, ForkBuild { answer, stage }),
        Ok(ForkProgress::Made(made)) => answer.give(Ok(made)),
        Err(error) => answer.give(Err(error)),
    }
}

/// How far the making of forks has come.
enum ForkProgress {
    On(BuildStage),
    Made(ForkOutcome),
}

/// What was to become forks is refused: nothing of it is left when the step ends, nor is its stream where that was its last job.
fn give_up<R: Runner>(core: &mut Core<R>, request_id: u64) {
    // Whoever looks at the queue finds it shorter at once.
    drop(core.queue.job_mut(request_id).waiting.take());
    core.outbox.told.push(request_id);
}

/// Reads on for the place that is to have so many bytes of text before it; once it is found, the forks are begun there.
fn find<R: Runner>(core: &mut Core<R>, mut finding: Box<CutSearch>) -> Result<BuildStage> {
    if finding.order.own.as_ref().unwrap_or(&finding.known.1).is_cancelled() {
        return Err(stream_has_ended());
    }
    let n_most = core.forks.n_readable();
    let (n_read, found) = finding.read(n_most, core.memory.model())?;
    core.forks.count_read(n_read);
    let Some(n_said) = found else { return Ok(BuildStage::Finding(finding)) };
    let CutSearch { order, known, .. } = *finding;
    // It may have gone on, or ended, or been left by its reader in the meantime.
    let known = find_source(core, order.stream_id, order.branch).unwrap_or(known);
    begin(core, ForkSpec { at: ForkPoint::Token(n_said), ..order }, known)
}

/// Begins to make forks where it is known at which token: what they become takes its place in the queue, where it waits until they
/// are made.
fn begin<R: Runner>(core: &mut Core<R>, order: ForkSpec, known: (ForkSource, Arc<Sender>)) -> Result<BuildStage> {
    let ForkSpec { stream_id, branch, at, append, ways, request_id, own, place } = order;
    let cut = cut(core, (stream_id, branch), at, known)?;
    check(&cut.source, &ways)?;
    let (n_prompt, n_ctx) = (cut.n_tokens as usize + append.len(), core.limits.n_ctx_slot as usize);
    if n_prompt >= n_ctx {
        return Err(Error::ContextOverflow { n_prompt, n_ctx });
    }
    if own.is_none() && cut.sender.has_ended() {
        return Err(stream_has_ended());
    }
    let is_own = own.is_some();
    let prompt = cut.source.tokens.first_with(cut.n_tokens, &append);
    core.forks.count_copied(n_prompt);
    let running = cut.live.and_then(|live| sequence_of(core, live));
    let reading = ForkReplay::new(core.memory.model(), cut, running, (request_id, is_own), ways, append, &prompt)?;
    let ForkReplay { cut: ForkCut { source, sender, n_tokens, is_end, .. }, append, .. } = &reading;
    let sender = own.unwrap_or_else(|| Arc::clone(sender));
    let mut job = RequestGroup::unbuilt_fork(request_id, Arc::clone(&source.way.request), prompt, sender, place);
    job.stream_id = if is_own { request_id } else { stream_id };
    job.written.clone_from(&source.written);
    if source.shifted_at.is_none() && *n_tokens > source.n_prompt {
        job.written.push(source.n_prompt..*n_tokens);
    }
    (job.variants, job.asked_for, job.media) = (source.variants.clone(), source.asked_for.clone(), Arc::clone(&source.media));
    if let Some(grouping) = core.limits.grouping {
        job.grouped_from = grouping.first(job.n_prompt());
    }
    let shares_all = job.shares_prompt();
    core.queue.push(job);
    core.has_changed = true;
    if *is_end && shares_all {
        follow(core, request_id, stream_id, branch, append.is_empty());
    }
    Ok(BuildStage::Reading(Box::new(reading)))
}

/// Reads on what forks go on from; once all is read, they get their numbers, and what they became waits as any request does.
fn read<R: Runner>(core: &mut Core<R>, mut reading: Box<ForkReplay>) -> Result<ForkProgress> {
    let mut n_most = core.forks.n_readable();
    while n_most > 0 && !reading.is_read() {
        let n_read = reading.read(n_most, core.memory.model())?;
        core.forks.count_read(n_read);
        n_most = core.forks.n_readable();
    }
    if !reading.is_read() {
        return Ok(ForkProgress::On(BuildStage::Reading(reading)));
    }
    let seam = reading.seam();
    let ForkReplay { cut, request_id, is_own, append, begun, ways, .. } = *reading;
    let (n_prompt, n) = (cut.n_tokens as usize + append.len(), ways.n());
    // Nothing is refused any more once they have their numbers.
    let (branches, number) = number(&cut.sender, n, is_own)?;
    let BranchSpec { request, first, .. } = &*cut.source.way;
    let ways = ways.written(&cut.source, branches.start, request.seed.wrapping_sub(*first).wrapping_add(number));
    let seed = ways[0].request.seed;
    core.forks.begin(request_id, begun);
    core.queue.make(request_id, ways);
    core.stats.branches.n_forked += u64::from(n);
    Ok(ForkProgress::Made(ForkOutcome { branches, seed, n_said: cut.n_said, seam, n_prompt }))
}

/// Looks where a branch is to be forked.
fn cut<R: Runner>(
    core: &Core<R>,
    (stream_id, branch): (u64, u32),
    at: ForkPoint,
    known: (ForkSource, Arc<Sender>),
) -> Result<ForkCut> {
    let (source, sender) = known;
    let n_said = n_said(&source, at, core.memory.model())?;
    let is_end = n_said == source.n_predicted;
    let Some(n_tokens) = source.cut(n_said) else {
        let n_left = source.tokens.len().saturating_sub(source.shifted_at.unwrap_or(0) + 1);
        let message = format!("the context of the branch was shifted: only in its last {n_left} tokens can it be forked");
        return Err(refused("at", message));
    };
    let live = core.queue.find_branch(stream_id, branch).filter(|&found| is_end && sequence_of(core, found).is_some());
    Ok(ForkCut { source, sender, live, n_said, n_tokens, is_end })
}

/// Refuses what forks of this branch cannot have.
fn check(source: &ForkSource, ways: &ForkBranches) -> Result<()> {
    let ForkBranches::Anew { requests, .. } = ways else { return Ok(()) };
    if requests.iter().any(|(request, _)| request.diversity.beams().is_some()) {
        return Err(refused(
            "beam_width",
            "a fork is no search of beams; ask for one with the branch's text as its prompt".to_owned(),
        ));
    }
    if !source.media.is_empty() && requests.iter().any(|(request, _)| request.context_shift.is_some()) {
        let message = "a context that holds a picture or a sound is not shifted; leave context_shift out".to_owned();
        return Err(refused("context_shift", message));
    }
    Ok(())
}

/// The numbers of `n` forks in their stream, and the number of the first among the seeds of the branch's.
fn number(sender: &Sender, n: u32, is_own: bool) -> Result<(Range<u32>, u32)> {
    if is_own {
        return Ok((0..n, MAX_COMPLETIONS.wrapping_add(sender.fork_off(n))));
    }
    if sender.has_ended() {
        return Err(stream_has_ended());
    }
    let too_many = || refused("n", format!("a stream has at most {MAX_COMPLETIONS} branches, and {n} more would be too many"));
    let branches = sender.add_branches(n).ok_or_else(too_many)?;
    let number = branches.start;
    Ok((branches, number))
}

/// The fork of a request id stands at the end of a branch, or `is_next` false, behind that: it waits for what that computes next.
fn follow<R: Runner>(core: &mut Core<R>, request_id: u64, stream_id: u64, branch: u32, is_next: bool) {
    let Some((of, index)) = core.queue.find_branch(stream_id, branch) else { return };
    let job = core.queue.job(of);
    match job.branches[index as usize] {
        Branch::Waiting if is_next => {
            if let Some(logits) = job.prompt_logits.clone() {
                core.queue.give_logits(request_id, &logits);
            }
        }
        Branch::Running if !core.outbox.laggards.holds(stream_id) => {
            let Some(sequence) = sequence_of(core, (of, index)) else { return };
            let (owner, n_tokens) = (sequence.seniority(), sequence.n_tokens());
            if is_next {
                core.forks.wait(request_id, (of, index), n_tokens);
            }
            core.queue.block_on_prefix(request_id, PendingPrefix { owner, n_tokens, n_known: n_tokens });
        }
        Branch::Waiting | Branch::Running | Branch::Preempted | Branch::Finished => {}
    }
}

/// A branch of a stream, and the stream's end.
fn find_source<R: Runner>(core: &Core<R>, stream_id: u64, branch: u32) -> Result<(ForkSource, Arc<Sender>)> {
    if let Some((source, sender)) = core.forks.ended(stream_id, branch) {
        return Ok((check_beams(source.clone())?, Arc::clone(sender)));
    }
    let unknown = || refused("branch", format!("the stream has no branch {branch}, or it ended too long ago"));
    let (request_id, index) = core.queue.find_branch(stream_id, branch).ok_or_else(unknown)?;
    let job = core.queue.job(request_id);
    if job.request.task != Task::Complete || job.branches[index as usize] == Branch::Finished {
        return Err(unknown());
    }
    let mut source = ForkSource::new(job, index, core.forks.begun(request_id).cloned());
    if let Some(sequence) = sequence_of(core, (request_id, index)) {
        source = source.reached(sequence);
    }
    Ok((check_beams(source)?, Arc::clone(&job.sender)))
}

fn check_beams(source: ForkSource) -> Result<ForkSource> {
    if source.way.request.diversity.beams().is_some() {
        return Err(refused(
            "branch",
            "the beams of a search replace each other, and are not forked; fork a branch of its own".to_owned(),
        ));
    }
    Ok(source)
}

/// A branch of a job that was in a slot and has not ended.
pub(super) fn sequence_of<R: Runner>(core: &Core<R>, (request_id, index): (u64, u32)) -> Option<&Sequence> {
    let running = core.slots.running().iter().map(|running| &running.sequence);
    let preempted = core.queue.preempted().iter().map(|preempted| &preempted.sequence);
    running.chain(preempted).find(|sequence| sequence.request_id == request_id && sequence.index == index)
}

/// After how many of the tokens that it has drawn a branch is forked.
fn n_said(source: &ForkSource, at: ForkPoint, runner: &impl Runner) -> Result<u32> {
    let n_all = source.n_predicted;
    match at {
        ForkPoint::End => {
            let ends = n_all > 0 && runner.is_end(source.tokens.at(source.tokens.len() - 1));
            Ok(n_all - u32::from(ends))
        }
        ForkPoint::Token(n) if n <= n_all => Ok(n),
        ForkPoint::Token(n) => Err(refused("at", format!("the branch has drawn {n_all} tokens, and is to be forked after {n}"))),
        ForkPoint::Byte(_) => unreachable!("a byte is looked for before"),
    }
}
