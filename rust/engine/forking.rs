//! A branch is forked: what others continue of it becomes the prompt of a job of theirs.

use std::ops::Range;
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
const MAX_TOKENS_OF_CHARACTER: u32 = 4;

/// Forks a branch, and answers.
pub(super) fn fork<R: Runner>(core: &mut Core<R>, order: ForkOrder) {
    let ForkOrder { order, answer } = order;
    answer.give(make(core, order));
}

/// Where a branch is forked.
struct Cut {
    source: Source,
    /// The end of the branch's stream.
    sender: Arc<Sender>,
    /// Its job and its place there, where it was in a slot, has not ended, and is forked at its end.
    live: Option<(u64, u32)>,
    /// After so many of the tokens that it has drawn.
    n_said: u32,
    /// All before the place.
    n_tokens: u32,
    is_end: bool,
}

fn make<R: Runner>(core: &mut Core<R>, order: Ordered) -> Result<ForkMade> {
    let Ordered { stream_id, branch, at, append, ways, request_id, own, place } = order;
    let cut = cut(core, stream_id, branch, at)?;
    check(&cut.source, &ways)?;
    let (n_prompt, n_ctx) = (cut.n_tokens as usize + append.len(), core.limits.n_ctx_slot as usize);
    if n_prompt >= n_ctx {
        return Err(Error::ContextOverflow { n_prompt, n_ctx });
    }
    count(core, &cut, &ways, n_prompt);
    let begun = begun(core, &cut, &ways, &append)?;
    let prompt = cut.source.tokens.first_with(cut.n_tokens, &append);
    // Nothing is refused any more once they have their numbers.
    let (branches, number) = number(&cut.sender, ways.n(), own.is_some())?;
    let Way { request, first, .. } = &*cut.source.way;
    let seed = request.seed.wrapping_sub(*first).wrapping_add(number);
    let ways = written(core, &cut, ways, (branches.start, seed), &prompt, &append);
    let seed = ways[0].request.seed;
    let is_own = own.is_some();
    let Cut { source, sender, n_said, n_tokens, is_end, .. } = cut;
    let mut job = Job::of_ways(request_id, ways, prompt, own.unwrap_or(sender), place);
    job.stream_id = if is_own { request_id } else { stream_id };
    job.written = source.written;
    if source.shifted_at.is_none() && n_tokens > source.n_prompt {
        job.written.push(source.n_prompt..n_tokens);
    }
    (job.variants, job.asked_for, job.media) = (source.variants, source.asked_for, source.media);
    if let Some(grouping) = core.limits.grouping {
        job.grouped_from = grouping.first(job.n_prompt());
    }
    let (n, shares_all) = (job.branches.len() as u64, job.shares_prompt());
    core.forks.begin(request_id, begun);
    core.queue.push(job);
    core.stats.branches.n_forked += n;
    core.has_changed = true;
    if is_end && shares_all {
        follow(core, request_id, stream_id, branch, append.is_empty());
    }
    Ok(ForkMade { branches, seed, n_said, n_prompt })
}

/// Counts what forks take over as the step's work.
fn count<R: Runner>(core: &mut Core<R>, cut: &Cut, ways: &OrderedWays, n_prompt: usize) {
    let n_appended = n_prompt - cut.n_tokens as usize;
    let (n_kinds, n_read) = match ways {
        OrderedWays::Alike(_) => (1, n_appended + if cut.live.is_none() { cut.source.drawn(cut.n_said).len() } else { 0 }),
        // The penalties of each count the prompt.
        OrderedWays::Anew { requests, .. } => (1 + requests.len(), 0),
    };
    core.forks.count(n_kinds * n_prompt, n_read);
}

/// Looks where a branch is to be forked.
fn cut<R: Runner>(core: &mut Core<R>, stream_id: u64, branch: u32, at: At) -> Result<Cut> {
    let (source, sender) = find_source(core, stream_id, branch)?;
    if source.way.request.diversity.beams().is_some() {
        return Err(refused(
            "branch",
            "the beams of a search replace each other, and are not forked; fork a branch of its own".to_owned(),
        ));
    }
    if matches!(at, At::Byte(_)) {
        core.forks.count(0, source.drawn(source.n_predicted).len());
    }
    let n_said = n_said(&source, at, core.memory.model())?;
    let (n_tokens, is_end) = (source.cut(n_said), n_said == source.n_predicted);
    if let Some(shifted_at) = source.shifted_at.filter(|&at| n_tokens <= at) {
        let n_left = source.tokens.len() - shifted_at - 1;
        let message = format!("the context of the branch was shifted: only in its last {n_left} tokens can it be forked");
        return Err(refused("at", message));
    }
    let live = core.queue.find_branch(stream_id, branch).filter(|&found| is_end && sequence_of(core, found).is_some());
    Ok(Cut { source, sender, live, n_said, n_tokens, is_end })
}

/// Refuses what forks of this branch cannot have.
fn check(source: &Source, ways: &OrderedWays) -> Result<()> {
    let OrderedWays::Anew { requests, .. } = ways else { return Ok(()) };
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

/// What forks begin with, beside the tokens.
fn begun<R: Runner>(core: &Core<R>, cut: &Cut, ways: &OrderedWays, append: &[Token]) -> Result<Begun> {
    let (source, runner) = (&cut.source, core.memory.model());
    let mut begun = match (ways, cut.live.and_then(|live| sequence_of(core, live))) {
        (OrderedWays::Anew { .. }, _) => anew(source, cut.n_said, runner),
        (OrderedWays::Alike(_), Some(sequence)) => sequence.begun(),
        (OrderedWays::Alike(_), None) => said_again(core, source, cut.n_said)?,
    };
    begun.append(append, &source.way.request).map_err(|token| {
        let piece = String::from_utf8_lossy(runner.lexicon().spelling(token)).into_owned();
        refused("append", format!("the grammar of the branch does not allow what is appended, from {piece:?} on"))
    })?;
    Ok(begun)
}

/// The numbers of `n` forks in their stream, and the number of the first among the seeds of the branch's.
fn number(sender: &Sender, n: u32, is_own: bool) -> Result<(Range<u32>, u32)> {
    if is_own {
        return Ok((0..n, MAX_COMPLETIONS.wrapping_add(sender.fork_off(n))));
    }
    if sender.has_ended() {
        return Err(refused("stream", "the stream has ended; forks of its branches need a stream of their own".to_owned()));
    }
    let too_many = || refused("n", format!("a stream has at most {MAX_COMPLETIONS} branches, and {n} more would be too many"));
    let branches = sender.add_branches(n).ok_or_else(too_many)?;
    let number = branches.start;
    Ok((branches, number))
}

/// How forks are written that continue `prompt`, of which `append` is none of the branch's own.
fn written<R: Runner>(
    core: &Core<R>,
    cut: &Cut,
    ways: OrderedWays,
    (mut first, mut seed): (u32, u32),
    prompt: &Arc<[Token]>,
    append: &[Token],
) -> Vec<Way> {
    let source = &cut.source;
    match ways {
        OrderedWays::Alike(n) => {
            let mut sampler = match cut.live.and_then(|live| sequence_of(core, live)) {
                Some(sequence) => sequence.sampler().branch(seed),
                None => after(source, cut.n_said),
            };
            for &token in append {
                sampler.accept(token);
            }
            let request = Arc::new(forked(&source.way.request, n, seed));
            vec![Way { first, n, request, stops: Arc::clone(&source.way.stops), sampler, firsts: None }]
        }
        OrderedWays::Anew { requests, with_own_seeds } => {
            let drawable: Arc<[Token]> = if source.media.is_empty() {
                Arc::clone(prompt)
            } else {
                prompt.iter().copied().filter(|&id| !is_of_medium(id)).collect()
            };
            let way = |(mut request, sampler): (Request, Sampler)| {
                let n = request.n;
                if !with_own_seeds {
                    request.seed = seed;
                }
                let way = Way::new(first, request, sampler, Arc::clone(&drawable));
                (first, seed) = (first + n, seed.wrapping_add(n));
                way
            };
            requests.into_iter().map(way).collect()
        }
    }
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
    let drawn = source.tokens.of(source.drawn(source.n_predicted));
    for (n, token) in (1..).zip(drawn.map(Some).chain([None])) {
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
        let Some(token) = token else { break };
        append_text(token, &source.way.request, runner, &mut bytes);
    }
    Err(refused("at", format!("the text has {n_before} bytes, and is to be forked after {at}; the nearest place is {below}")))
}

/// Where a branch was after the first `n_said` tokens that it drew.
fn said_again<R: Runner>(core: &Core<R>, source: &Source, n_said: u32) -> Result<Begun> {
    let Way { request, stops, .. } = &*source.way;
    let is_held = request.constraint.is_some() || request.thought.is_some();
    if is_held && source.shifted_at.is_some() {
        let message =
            "the context of the branch was shifted, and with it went what its grammar has read; give the forks their own";
        return Err(refused("at", message.to_owned()));
    }
    let runner = core.memory.model();
    let mut begun = match &source.begun {
        Some(begun) => begun.copy(),
        None => Begun::new(request, Arc::clone(stops), &runner.lexicon()),
    };
    begun.say(source.tokens.of(source.drawn(n_said)), request, runner);
    Ok(begun)
}

/// Where forks begin that have their own parameters, behind the first `n_said` tokens that a branch drew.
fn anew(source: &Source, n_said: u32, runner: &impl Runner) -> Begun {
    let drawn = source.drawn(n_said);
    let last = drawn.start.max(drawn.end.saturating_sub(MAX_TOKENS_OF_CHARACTER))..drawn.end;
    let mut bytes = source.begun.as_deref().filter(|_| last == drawn).map_or_else(Vec::new, Begun::held);
    for token in source.tokens.of(last) {
        append_text(token, &source.way.request, runner, &mut bytes);
    }
    let n_whole = bytes.len() - incomplete_tail(&bytes);
    Begun::Anew(bytes.split_off(n_whole))
}

/// A sampler that has seen what that of a branch had after the first `n_said` tokens that it drew.
fn after(source: &Source, n_said: u32) -> Sampler {
    let mut sampler = source.way.sampler.branch(0);
    for token in source.tokens.of(source.drawn(n_said)) {
        sampler.accept(token);
    }
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
