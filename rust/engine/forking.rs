//! A branch is forked: what others continue of it becomes the prompt of a job of theirs.

use std::sync::Arc;

use crate::engine::core::Core;
use crate::engine::forks::{ForkOrder, Ordered, OrderedWays, Source};
use crate::engine::job::{Awaits, Branch, Job, Way};
use crate::engine::runner::Runner;
use crate::engine::sequence::{Begun, Sequence, append_text, incomplete_tail};
use crate::engine::stream::{At, ForkMade, Sender};
use crate::error::{Error, Result};
use crate::request::{MAX_COMPLETIONS, Request, Task, Token, is_of_medium};
use crate::sampling::Sampler;

/// The longest character takes so many tokens.
const MAX_TOKENS_OF_CHARACTER: usize = 4;

/// Forks a branch, and answers.
pub(super) fn fork<R: Runner>(core: &mut Core<R>, order: ForkOrder) {
    let ForkOrder { order, answer } = order;
    answer.give(make(core, order));
}

fn make<R: Runner>(core: &mut Core<R>, order: Ordered) -> Result<ForkMade> {
    let Ordered { stream_id, branch, at, append, ways, request_id, own, place } = order;
    let (source, sender) = find_source(core, stream_id, branch)?;
    let live = live(core, stream_id, branch);
    let n_said = n_said(&source, at, core.memory.model())?;
    let n_cut = source.cut(n_said);
    if let Some(shifted_at) = source.shifted_at.filter(|&at| n_cut <= at) {
        let n_left = source.tokens.len() - shifted_at - 1;
        let message = format!("the context of the branch was shifted: only in its last {n_left} tokens can it be forked");
        return Err(refused("at", message));
    }
    let mut tokens = source.tokens.first(n_cut);
    tokens.extend(&append);
    let (n_prompt, n_ctx) = (tokens.len(), core.limits.n_ctx_slot as usize);
    if n_prompt >= n_ctx {
        return Err(Error::ContextOverflow { n_prompt, n_ctx });
    }
    let drawn = source.drawn(n_said);
    let is_end = n_said == source.n_predicted;
    let begun = match (&ways, live.filter(|_| is_end)) {
        (OrderedWays::Anew { .. }, _) => {
            let mut begun = anew(&source, &drawn, core.memory.model());
            begun.append(&append, &source.request).map(|()| begun)
        }
        (OrderedWays::Alike(_), Some(live)) => {
            let mut begun = sequence_of(core, live).expect("it was just found").begun();
            begun.append(&append, &source.request).map(|()| begun)
        }
        (OrderedWays::Alike(_), None) => {
            let mut begun = said_again(core, &source, &drawn)?;
            begun.append(&append, &source.request).map(|()| begun)
        }
    };
    let begun = begun.map_err(|token| {
        let piece = String::from_utf8_lossy(core.memory.model().lexicon().spelling(token)).into_owned();
        refused("append", format!("the grammar of the branch does not allow what is appended, from {piece:?} on"))
    })?;
    let prompt: Arc<[Token]> = tokens.into();
    let n = match &ways {
        OrderedWays::Alike(n) => *n,
        OrderedWays::Anew { requests, .. } => requests.iter().map(|(request, _)| request.n).sum(),
    };
    let (branches, seed) = match &own {
        Some(_) => (0..n, MAX_COMPLETIONS.wrapping_add(sender.fork_off(n))),
        None if sender.has_ended() => {
            return Err(refused("stream", "the stream has ended; forks of its branches need a stream of their own".to_owned()));
        }
        None => {
            let branches = sender.add_branches(n).ok_or_else(|| {
                refused("n", format!("a stream has at most {MAX_COMPLETIONS} branches, and {n} more would be too many"))
            })?;
            let seed = branches.start;
            (branches, seed)
        }
    };
    let seed = source.request.seed.wrapping_sub(source.first).wrapping_add(seed);
    let (ways, seed) = match ways {
        OrderedWays::Alike(_) => {
            let mut sampler = match live.filter(|_| is_end).and_then(|live| sequence_of(core, live)) {
                Some(sequence) => sequence.sampler().branch(seed),
                None => after(&source.sampler, &drawn),
            };
            append.iter().for_each(|&token| sampler.accept(token));
            let request = Arc::new(forked(&source.request, n, seed));
            (vec![Way { first: branches.start, n, request, stops: Arc::clone(&source.stops), sampler }], seed)
        }
        OrderedWays::Anew { mut requests, with_own_seeds } => {
            if !with_own_seeds {
                let mut next = seed;
                for (request, _) in &mut requests {
                    request.seed = next;
                    next = next.wrapping_add(request.n);
                }
            }
            let seed = requests.first().map_or(seed, |(request, _)| request.seed);
            let drawable: Arc<[Token]> = if source.media.is_empty() {
                Arc::clone(&prompt)
            } else {
                prompt.iter().copied().filter(|&id| !is_of_medium(id)).collect()
            };
            let mut first = branches.start;
            let ways = requests.into_iter().map(|(request, sampler)| {
                let at = first;
                first += request.n;
                Way::new(at, request, sampler, Arc::clone(&drawable))
            });
            (ways.collect(), seed)
        }
    };
    let is_own = own.is_some();
    let mut job = Job::of_ways(request_id, ways, Arc::clone(&prompt), own.unwrap_or(sender), place);
    job.stream_id = if is_own { request_id } else { stream_id };
    (job.variants, job.asked_for, job.media) = (source.variants.clone(), source.asked_for.clone(), Arc::clone(&source.media));
    job.written = source.written.clone();
    if source.shifted_at.is_none() {
        job.written.push(source.n_prompt..n_cut);
        job.written.retain(|range| !range.is_empty());
    }
    if let Some(grouping) = core.limits.grouping {
        job.grouped_from = grouping.first(job.n_prompt());
    }
    let shares_all = job.shares_prompt();
    core.forks.begin(request_id, begun);
    core.queue.push(job);
    core.stats.branches.n_forked += u64::from(n);
    core.has_changed = true;
    if is_end && shares_all {
        follow(core, request_id, stream_id, branch, append.is_empty());
    }
    Ok(ForkMade { branches, seed, n_prompt })
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
            core.queue.park(request_id, Awaits { owner, n_tokens, n_known: n_tokens });
        }
        Branch::Waiting | Branch::Running | Branch::Preempted | Branch::Finished => {}
    }
}

/// A branch of a stream, and the stream's end.
fn find_source<R: Runner>(core: &Core<R>, stream_id: u64, branch: u32) -> Result<(Source, Arc<Sender>)> {
    if let Some((source, sender)) = core.forks.ended(stream_id, branch) {
        return Ok((source.clone(), Arc::clone(sender)));
    }
    let unknown = || refused("branch", format!("the stream has no branch {branch}, or it ended too long ago"));
    let (request_id, index) = core.queue.find_branch(stream_id, branch).ok_or_else(unknown)?;
    let job = core.queue.job(request_id);
    if job.request.task != Task::Complete || job.branches[index as usize] == Branch::Finished {
        return Err(unknown());
    }
    let mut source = Source::new(job, index, core.forks.begun(request_id).cloned());
    if let Some(sequence) = sequence_of(core, (request_id, index)) {
        source = source.reached(sequence);
    }
    Ok((source, Arc::clone(&job.sender)))
}

/// The job of a branch that was in a slot and has not ended, and which of the job's it is.
fn live<R: Runner>(core: &Core<R>, stream_id: u64, branch: u32) -> Option<(u64, u32)> {
    core.queue.find_branch(stream_id, branch).filter(|&found| sequence_of(core, found).is_some())
}

/// A branch of a job that was in a slot and has not ended.
fn sequence_of<R: Runner>(core: &Core<R>, (request_id, index): (u64, u32)) -> Option<&Sequence> {
    let running = core.slots.running().iter().map(|running| &running.sequence);
    let preempted = core.queue.preempted().iter().map(|preempted| &preempted.sequence);
    running.chain(preempted).find(|sequence| sequence.request_id == request_id && sequence.index == index)
}

/// After how many of the tokens that it has drawn a branch is forked.
fn n_said(source: &Source, at: At, runner: &impl Runner) -> Result<u32> {
    let n_all = source.n_predicted;
    match at {
        At::End => {
            let ends = n_all > 0 && runner.is_end(source.tokens.at(source.tokens.len() - 1));
            Ok(n_all - u32::from(ends))
        }
        At::Token(n) if n <= n_all => Ok(n),
        At::Token(n) => Err(refused("at", format!("the branch has drawn {n_all} tokens, and is to be forked after {n}"))),
        At::Byte(at) => after_bytes(source, at, runner),
    }
}

/// After how many of the tokens that it has drawn the text of a branch has `at` bytes.
fn after_bytes(source: &Source, at: usize, runner: &impl Runner) -> Result<u32> {
    if source.shifted_at.is_some() {
        let message =
            "the context of the branch was shifted, and its first bytes are gone; name the place by its token".to_owned();
        return Err(refused("at", message));
    }
    let (mut bytes, mut n_before, mut below) = (source.begun.as_deref().map_or_else(Vec::new, Begun::held), 0, 0);
    let drawn = source.drawn(source.n_predicted);
    for (n, token) in (1..).zip(drawn.iter().map(Some).chain([None])) {
        let is_place = incomplete_tail(&bytes) == 0;
        if is_place && bytes.len() == at {
            return Ok(n - 1);
        }
        if is_place && bytes.len() > at {
            let above = bytes.len();
            let message =
                format!("no token and character ends after {at} bytes of the text; the nearest are {below} and {above}");
            return Err(refused("at", message));
        }
        if is_place {
            below = bytes.len();
        }
        n_before = bytes.len();
        let Some(&token) = token else { break };
        append_text(token, &source.request, runner, &mut bytes);
    }
    Err(refused("at", format!("the text has {n_before} bytes, and is to be forked after {at}; the nearest place is {below}")))
}

/// Where a branch was after the tokens that it drew.
fn said_again<R: Runner>(core: &Core<R>, source: &Source, drawn: &[Token]) -> Result<Begun> {
    let is_held = source.request.constraint.is_some() || source.request.thought.is_some();
    if is_held && source.shifted_at.is_some() {
        let message =
            "the context of the branch was shifted, and with it went what its grammar has read; give the forks their own";
        return Err(refused("at", message.to_owned()));
    }
    let runner = core.memory.model();
    let mut begun = match &source.begun {
        Some(begun) => begun.copy(),
        None => Begun::new(&source.request, Arc::clone(&source.stops), &runner.lexicon()),
    };
    begun.say(drawn, &source.request, runner);
    Ok(begun)
}

/// Where forks begin that have their own parameters, behind the tokens that a branch drew.
fn anew(source: &Source, drawn: &[Token], runner: &impl Runner) -> Begun {
    let start = drawn.len().saturating_sub(MAX_TOKENS_OF_CHARACTER);
    let mut bytes = source.begun.as_deref().filter(|_| start == 0).map_or_else(Vec::new, Begun::held);
    drawn[start..].iter().for_each(|&token| append_text(token, &source.request, runner, &mut bytes));
    let n_whole = bytes.len() - incomplete_tail(&bytes);
    Begun::Anew(bytes.split_off(n_whole))
}

/// A sampler that has seen what `sampler` has, and then `drawn`.
fn after(sampler: &Sampler, drawn: &[Token]) -> Sampler {
    let mut sampler = sampler.branch(0);
    drawn.iter().for_each(|&token| sampler.accept(token));
    sampler
}

/// What is asked for of the forks of a branch of `request`: nothing of its prompt, and no slot of its own.
fn forked(request: &Request, n: u32, seed: u32) -> Request {
    Request {
        n,
        seed,
        slot: None,
        prompt_logprobs: None,
        prompt_logprobs_from: 0,
        reports_progress: false,
        explains_cache: false,
        snapshots_at: Vec::new(),
        system_end: None,
        ..request.clone()
    }
}

fn refused(param: &'static str, message: String) -> Error {
    Error::InvalidRequest { param, message }
}
