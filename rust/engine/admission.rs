//! Who runs: sequences enter slots, over what is known of their prompts.

use std::collections::VecDeque;
use std::time::Instant;

use crate::cache::{MIN_SHARED, Match, Wanted};
use crate::engine::core::{Core, Refusal};
use crate::engine::drawing::draw_first;
use crate::engine::job::{Awaits, Job, Keeper};
use crate::engine::leaving::{free_an_id, preempt, release_keeper};
use crate::engine::queue::Preempted;
use crate::engine::runner::Runner;
use crate::engine::running::{Phase, Running};
use crate::engine::seniority::Seniority;
use crate::engine::sequence::Sequence;
use crate::engine::telling::tell_start;
use crate::request::Task;

/// Cells kept free for each running sequence when another one is admitted, so that it need not be preempted at once.
const MARGIN: u32 = 64;

/// Most branches that one look at the queue starts: each may draw its first token at once.
const MAX_STARTS: u32 = 64;

/// Tokens of prompts that one look at the queue compares with what is known; the prompt that passes it is the last.
const MAX_COMPARED: u64 = 1 << 18;

/// What one look at the queue may still cost.
struct Budget {
    n_starts: u32,
    n_compared: u64,
}

impl Budget {
    fn is_spent(&self) -> bool {
        self.n_starts == 0 || self.n_compared == 0
    }

    /// A start that compares so many tokens of a prompt.
    fn spend(&mut self, n_compared: u32) {
        self.n_starts -= 1;
        self.n_compared = self.n_compared.saturating_sub(n_compared.into());
    }
}

/// What became of an attempt to start a branch.
enum Start {
    /// It runs.
    Done,
    /// Another sequence is computing what it needs.
    Waits,
    /// There is no room for it yet, and nobody else goes first.
    NoRoom,
}

/// Fills the free slots: with the most senior preempted sequence, as long as there is one, then with new ones in the order that the
/// queue says; a request of higher priority that is senior goes before both, and takes the slot of the most junior sequence of lower
/// priority where none is free. One that waits for another to compute its prompt lets others go first; one that does not fit yet
/// lets nobody. Returns whether any could start or has to wait for another.
pub(super) fn admit<R: Runner>(core: &mut Core<R>) -> bool {
    keep_prompts(core);
    unpark(core);
    let mut has_changed = false;
    let mut budget = Budget { n_starts: MAX_STARTS, n_compared: MAX_COMPARED };
    while !budget.is_spent() {
        let next = core.queue.next(|slot| core.slots.is_free(slot)).map(|request_id| core.queue.job(request_id));
        let resumed = core.queue.preempted().first();
        let is_next = |resumed: &&Preempted| !next.is_some_and(|next| goes_before(next, &resumed.sequence));
        let can_go_on = match (resumed.filter(is_next), next) {
            (Some(_), _) => !core.slots.are_full() && resume(core, &mut budget),
            (None, Some(job)) => {
                let request_id = job.request_id;
                start_in_any(core, request_id, &mut budget)
            }
            (None, None) => false,
        };
        if !can_go_on {
            break;
        }
        has_changed = true;
    }
    has_changed
}

/// Starts the next branch of a request, if need be in the place of sequences of lower priority: who gives way leaves both a slot and
/// cells. `false` where there is no room for it yet.
fn start_in_any<R: Runner>(core: &mut Core<R>, request_id: u64, budget: &mut Budget) -> bool {
    loop {
        let start = if core.slots.are_full() { Start::NoRoom } else { start(core, request_id, budget) };
        match start {
            Start::Done | Start::Waits => return true,
            Start::NoRoom if give_way_to(core, request_id) => {}
            Start::NoRoom => return false,
        }
    }
}

/// Whether a request of higher priority goes before a sequence that has been in a slot.
fn goes_before(job: &Job, sequence: &Sequence) -> bool {
    job.request.priority > sequence.request().priority && job.seniority(0) < sequence.seniority()
}

/// The most junior running sequence leaves its slot for a request of higher priority that is senior. `false` where there is none.
fn give_way_to<R: Runner>(core: &mut Core<R>, request_id: u64) -> bool {
    let job = core.queue.job(request_id);
    let does = core.slots.running.last().is_some_and(|running| goes_before(job, &running.sequence));
    if does {
        preempt(core, core.slots.running.len() - 1);
    }
    does
}

/// Requests that waited for what is computed by now may start.
fn unpark<R: Runner>(core: &mut Core<R>) {
    let running = &core.slots.running;
    core.queue.unpark(|owner| {
        let nth = running.binary_search_by_key(&owner, |running| running.sequence.seniority()).ok()?;
        Some(running[nth].n_held)
    });
}

/// Starts the next branch of a request, where there is a slot and room for it.
fn start<R: Runner>(core: &mut Core<R>, request_id: u64, budget: &mut Budget) -> Start {
    let job = core.queue.job(request_id);
    let index = job.next_branch().expect("only what waits starts");
    let seniority = job.seniority(index);
    let Some(slot) = core.slots.free_slot(job, job.request.slot) else { return Start::NoRoom };
    if is_refused(core, seniority) || !free_an_id(core) {
        return Start::NoRoom;
    }
    let matched = look_up(core, request_id, budget);
    if let Some(awaits) = worth_awaiting(core, request_id, matched.n_tokens(), budget) {
        core.queue.park(request_id, awaits);
        return Start::Waits;
    }
    let job = core.queue.job(request_id);
    let is_cut = job.request.task == Task::Save { computes: false };
    let n_tokens = if is_cut { matched.n_tokens() } else { job.n_prompt() };
    if !fits(core, n_tokens, &matched, 0) {
        core.refused = Some(Refusal { seniority, n_left: n_left(core) });
        return Start::NoRoom;
    }
    if is_cut {
        let job = core.queue.job_mut(request_id);
        job.prompt = job.prompt[..n_tokens as usize].into();
    }
    begin(core, request_id, index, slot, matched);
    Start::Done
}

/// What is known of the prompt of a request that is about to start a branch.
fn look_up<R: Runner>(core: &mut Core<R>, request_id: u64, budget: &mut Budget) -> Match {
    let job = core.queue.job(request_id);
    if let Some(keeper) = job.keeper.id() {
        budget.spend(1);
        return Match::in_pool(keeper, job.n_prompt());
    }
    budget.spend(job.n_prompt());
    core.memory.cache_mut().touch(&job.variant, &job.prompt);
    find(core, request_id)
}

/// Puts branch `index` of a request into `slot`, over what `matched` found. Where its prompt is computed, its first token is drawn
/// at once.
fn begin<R: Runner>(core: &mut Core<R>, request_id: u64, index: u32, slot: u32, mut matched: Match) {
    let job = core.queue.job(request_id);
    if let Task::Load(saved) = &job.request.task {
        matched.take_from(saved, core.memory.kind().forks);
    }
    let sequence = Sequence::new(job, index, core.limits.n_ctx_slot, &core.memory.model().lexicon(), Instant::now());
    let is_complete = job.request.task == Task::Complete;
    let (n_pool, n_found) = (matched.n_pool, matched.n_tokens());
    let is_known = is_complete && n_pool == sequence.n_tokens();
    let logits = job.prompt_logits.clone().filter(|_| is_known);
    let nth = enter(core, slot, sequence, matched);
    tell_start(core, nth);
    count_found(core, request_id, nth, n_pool, n_found);
    core.outbox.admitted.extend(core.queue.start(request_id, index));
    if let Some(logits) = logits {
        draw_first(core, nth, &logits);
    }
    let job = core.queue.job_mut(request_id);
    if !job.has_waiting() {
        job.prompt_logits = None;
        release_keeper(core, request_id);
    } else if job.prompt_logits.is_some() {
        job.keeper.want();
    }
}

/// Gives the most senior preempted sequence a slot again. `false` where there is no room for it yet.
fn resume<R: Runner>(core: &mut Core<R>, budget: &mut Budget) -> bool {
    let Preempted { sequence, slot, .. } = &core.queue.preempted()[0];
    let seniority = sequence.seniority();
    let Some(slot) = core.slots.free_slot(core.queue.job(sequence.request_id), Some(*slot)) else { return false };
    if is_refused(core, seniority) || !free_an_id(core) {
        return false;
    }
    let Preempted { sequence, .. } = &core.queue.preempted()[0];
    let job = core.queue.job(sequence.request_id);
    let tokens = sequence.tokens.first(sequence.n_tokens());
    budget.spend(sequence.n_tokens());
    core.memory.cache_mut().touch(&job.variant, &tokens);
    let at_most = sequence.most_found();
    let wanted = Wanted { variant: &job.variant, tokens: &tokens, at_least: 1, at_most, takes_logits: false };
    let matched = core.memory.find(&wanted);
    if !fits(core, sequence.n_tokens(), &matched, margin(sequence)) {
        core.refused = Some(Refusal { seniority, n_left: n_left(core) });
        return false;
    }
    let Preempted { sequence, reservation, .. } = core.queue.resume();
    enter(core, slot, sequence, matched);
    core.memory.cache_mut().release(reservation);
    true
}

/// Puts `sequence` into `slot`, over what `matched` found; returns its place among the running. An id is free.
fn enter<R: Runner>(core: &mut Core<R>, slot: u32, mut sequence: Sequence, matched: Match) -> usize {
    let job = core.queue.job(sequence.request_id);
    if job.fills(slot) {
        core.slots.forget(slot);
    }
    let id = core.memory.place(&job.variant, Some(&matched)).expect("an id was freed before");
    core.memory.remember_start();
    if sequence.start(matched.n_tokens()) && sequence.request().task == Task::Complete {
        core.stats.n_cached += u64::from(matched.n_tokens().min(sequence.n_prompt));
    }
    let Match { n_pool, restores, logits, .. } = matched;
    let phase =
        if restores.is_empty() { Phase::Prefilling } else { Phase::Restoring { pieces: VecDeque::from(restores), logits } };
    core.slots.enter(Running { sequence, slot, id, n_held: n_pool, n_planned: 0, phase, end: None })
}

/// The longest prefix of a prompt that can be shared. At least its last token is left to compute, for the logits, unless they are
/// known or not needed.
fn find<R: Runner>(core: &mut Core<R>, request_id: u64) -> Match {
    if core.queue.job(request_id).prompt_logits.is_some()
        && let Some(whole) = find_whole(core, request_id)
    {
        return whole;
    }
    let job = core.queue.job(request_id);
    if !job.uses_cache() {
        return Match::default();
    }
    let n = job.n_prompt();
    let wanted = Wanted {
        variant: &job.variant,
        tokens: &job.prompt,
        at_least: if matches!(job.request.task, Task::Save { .. }) { 1 } else { MIN_SHARED },
        at_most: if job.request.task == Task::Complete { n - 1 } else { n },
        takes_logits: true,
    };
    core.memory.find(&wanted)
}

/// What holds all of a prompt in the pool.
fn find_whole<R: Runner>(core: &mut Core<R>, request_id: u64) -> Option<Match> {
    let job = core.queue.job(request_id);
    let n = job.n_prompt();
    let wanted = Wanted { variant: &job.variant, tokens: &job.prompt, at_least: n, at_most: n, takes_logits: false };
    Some(core.memory.find(&wanted)).filter(|matched| matched.n_pool == n)
}

/// Keeps the cells of prompts that are computed and that further branches wait for, as far as sequence ids are free. What does not
/// lie in the pool any more is looked for again when the next branch has computed it.
pub(super) fn keep_prompts<R: Runner>(core: &mut Core<R>) {
    let wanted = core.queue.open().filter(|job| job.keeper == Keeper::Wanted).map(|job| job.request_id);
    for request_id in wanted.collect::<Vec<u64>>() {
        if !core.memory.cache().has_free_id() {
            return;
        }
        let matched = find_whole(core, request_id);
        let variant = &core.queue.job(request_id).variant;
        let keeper = matched.and_then(|matched| core.memory.place(variant, Some(&matched)));
        core.queue.job_mut(request_id).keeper = keeper.map_or(Keeper::Nobody, Keeper::Id);
    }
}

/// The running sequence that is computing more of a prompt than the `n_known` tokens that are known, if it is worth a wait.
fn worth_awaiting<R: Runner>(core: &mut Core<R>, request_id: u64, n_known: u32, budget: &mut Budget) -> Option<Awaits> {
    let job = core.queue.job(request_id);
    let is_known = job.prompt_logits.is_some() || matches!(job.request.task, Task::Save { computes: false } | Task::Load(_));
    if is_known || !job.uses_cache() {
        return None;
    }
    let n = job.n_prompt();
    let (mut best, mut n_compared): (Option<Awaits>, u64) = (None, 0);
    for running in core.slots.running.iter().filter(|running| running.n_uncomputed() >= MIN_SHARED) {
        let n_common = running.sequence.tokens.common_prefix(&job.prompt);
        n_compared += u64::from(n_common);
        let n_tokens = if core.memory.kind().is_a_state() {
            last_snapshot(core, running, n_common, n).unwrap_or(0)
        } else {
            n_common.min(n - 1)
        };
        let n_best = best.map_or(0, |best| best.n_tokens);
        let is_more = n_tokens > n_best && n_tokens >= n_known + MIN_SHARED && n_tokens > running.n_held;
        if is_more && core.queue.job(running.sequence.request_id).variant == job.variant {
            best = Some(Awaits { owner: running.sequence.seniority(), n_tokens, n_known });
        }
        if best.is_some_and(|best| best.n_tokens >= n - 1) {
            break;
        }
    }
    core.stats.n_compared += n_compared;
    budget.n_compared = budget.n_compared.saturating_sub(n_compared);
    best
}

/// Where a sequence that is computing its prompt will keep the last snapshot of use to a prompt of `n` tokens of which it has the
/// first `n_common`. Only that at its prompt's end has the logits that all of a prompt needs.
fn last_snapshot<R: Runner>(core: &Core<R>, running: &Running, n_common: u32, n: u32) -> Option<u32> {
    let n_prompt = running.sequence.n_prompt;
    if running.sequence.n_predicted() > 0 || !core.memory.cache().has_store() {
        return None;
    }
    let places = &running.sequence.request().snapshots_at;
    let earlier = || places.iter().rfind(|&&at| at <= n_common && at < n).copied();
    if n_common == n_prompt { Some(n_prompt) } else { earlier() }
}

/// Counts where the first `n_found` tokens of the prompt of the sequence at `nth` came from, each of them once.
fn count_found<R: Runner>(core: &mut Core<R>, request_id: u64, nth: usize, n_pool: u32, n_found: u32) {
    let job = core.queue.job(request_id);
    if n_found == n_pool {
        core.memory.cache_mut().count_hit_of(core.slots.running[nth].id);
    } else {
        core.memory.cache_mut().count_hit(&job.variant, &job.prompt[..n_found as usize]);
    }
    if job.request.task != Task::Complete {
        return;
    }
    let awaited = job.awaits.map_or(0..0, |awaits| awaits.n_known.min(n_found)..awaits.n_tokens.min(n_found));
    let n_both = awaited.end.saturating_sub(awaited.start.max(n_pool));
    core.stats.n_awaited += u64::from(awaited.end - awaited.start);
    core.stats.n_restored += u64::from(n_found - n_pool - n_both);
}

/// Whether a sequence of `n_tokens` can start: what it must compute or restore, `n_more` tokens for itself and [`MARGIN`] for each
/// running one are free or can be evicted. Alone it always can.
fn fits<R: Runner>(core: &Core<R>, n_tokens: u32, matched: &Match, n_more: u32) -> bool {
    if core.slots.running.is_empty() {
        return true;
    }
    let n_kept = core.memory.cache().n_evictable_in(matched);
    let n_needed =
        i64::from(n_tokens - matched.n_pool + n_more) + i64::try_from(n_kept).expect("a pool has fewer than 2³² cells");
    n_needed <= n_left(core)
}

/// Whether a sequence has found no room, and no cells have become free since.
fn is_refused<R: Runner>(core: &Core<R>, seniority: Seniority) -> bool {
    let is_it = |refused: Refusal| refused.seniority == seniority && n_left(core) <= refused.n_left;
    !core.slots.running.is_empty() && core.refused.is_some_and(is_it)
}

/// Cells that are free or can be evicted, but for those that running sequences will take.
fn n_left<R: Runner>(core: &Core<R>) -> i64 {
    let promised = |running: &Running| i64::from(running.n_uncomputed() + margin(&running.sequence));
    let n_promised: i64 = core.slots.running.iter().map(promised).sum();
    let n_there = core.memory.cache().n_free() + core.memory.cache().n_evictable();
    i64::try_from(n_there).expect("a pool has fewer than 2³² cells") - n_promised
}

/// Cells that a sequence is expected to take beside those of its tokens.
fn margin(sequence: &Sequence) -> u32 {
    sequence.n_remaining().map_or(MARGIN, |n| n.min(MARGIN))
}
