//! What is known of a prompt: what is computed of it, and what somebody is computing.

use crate::cache::{MIN_SHARED, PrefixMatch, PrefixQuery};
use crate::engine::core::Core;
use crate::engine::request_group::{PendingPrefix, PromptHolder, RequestGroup};
use crate::engine::runner::Runner;
use crate::engine::running_sequence::RunningSequence;
use crate::request::Task;

/// The longest prefix of a request's prompt that can be shared. At least its last token is left to compute, for the logits, unless
/// they are known or not needed.
pub(super) fn find<R: Runner>(core: &mut Core<R>, request_id: u64) -> PrefixMatch {
    let job = core.queue.job(request_id);
    if let Some(keeper) = job.keeper.id() {
        return PrefixMatch::in_pool(keeper, job.n_prompt());
    }
    if job.prompt_logits.is_some()
        && let Some(whole) = find_whole(core, request_id)
    {
        return whole;
    }
    let job = core.queue.job(request_id);
    if !job.uses_cache() {
        return PrefixMatch::default();
    }
    let n = job.n_prompt();
    let tells = core.n_told(job).filter(|&n_told| n_told < n);
    let wanted = PrefixQuery {
        variants: &job.variants,
        tokens: &job.prompt,
        at_least: if matches!(job.request.task, Task::Save { .. }) { 1 } else { MIN_SHARED },
        at_most: match tells {
            Some(n_told) => (n_told - 1).min(job.grouped_from),
            None if job.request.task == Task::Complete => (n - 1).min(job.grouped_from),
            None => n,
        },
        takes_logits: tells.is_none(),
    };
    core.memory.find(&wanted, &job.media)
}

/// What holds all of a prompt in the pool.
fn find_whole<R: Runner>(core: &mut Core<R>, request_id: u64) -> Option<PrefixMatch> {
    let job = core.queue.job(request_id);
    let n = job.n_prompt();
    let wanted = PrefixQuery { variants: &job.variants, tokens: &job.prompt, at_least: n, at_most: n, takes_logits: false };
    Some(core.memory.find(&wanted, &job.media)).filter(|matched| matched.n_pool == n)
}

/// Keeps the cells of prompts that are computed and that further branches wait for, as far as sequence ids are free. What does not
/// lie in the pool any more is looked for again when the next branch has computed it.
pub(super) fn hold_prompts<R: Runner>(core: &mut Core<R>) {
    let wanted = core.queue.open().filter(|job| job.keeper == PromptHolder::Wanted).map(|job| job.request_id);
    for request_id in wanted.collect::<Vec<u64>>() {
        if !core.memory.cache().has_free_id() {
            return;
        }
        let matched = find_whole(core, request_id);
        let variants = &core.queue.job(request_id).variants;
        let keeper = matched.and_then(|matched| core.memory.place(variants, Some(&matched)));
        core.queue.job_mut(request_id).keeper = keeper.map_or(PromptHolder::Nobody, PromptHolder::Id);
    }
}

/// The running sequence that is computing more of a prompt than the `n_known` tokens that are known, if it is worth a wait; and how
/// many tokens were compared to find it.
pub(super) fn find_pending_prefix<R: Runner>(core: &Core<R>, request_id: u64, n_known: u32) -> (Option<PendingPrefix>, u64) {
    let job = core.queue.job(request_id);
    let is_known = job.prompt_logits.is_some() || matches!(job.request.task, Task::Save { computes: false } | Task::Load(_));
    if is_known || !job.uses_cache() {
        return (None, 0);
    }
    let n = job.n_prompt();
    let n_told = core.n_told(job);
    let (mut best, mut n_compared): (Option<PendingPrefix>, u64) = (None, 0);
    let can_share = |running: &&RunningSequence| {
        let is_held_back = core.outbox.laggards.holds(running.sequence.stream_id);
        // One of a lower priority may have to stand back for others, and with it whoever waits for it.
        let is_slow = running.sequence.request().priority < job.request.priority;
        running.n_uncomputed() >= MIN_SHARED && running.n_grouped.is_none() && !is_held_back && !is_slow
    };
    for running in core.slots.running().iter().filter(can_share) {
        let n_common = running.sequence.tokens.common_prefix(&job.prompt);
        n_compared += u64::from(n_common);
        let n_alike = running.sequence.variants.n_common(&job.variants);
        let grouped_from = core.queue.job(running.sequence.request_id).grouped_from;
        let n_common = n_common.min(n_alike).min(job.grouped_from).min(grouped_from);
        let n_common = n_told.map_or(n_common, |n_told| n_common.min(n_of_use(running, job, n_told, n_common)));
        let n_tokens = if core.memory.kind().is_a_state() {
            last_snapshot(core, running, n_common, n).unwrap_or(0)
        } else {
            n_common.min(n - 1)
        };
        let n_best = best.map_or(0, |best| best.n_tokens);
        let is_more = n_tokens > n_best && n_tokens >= n_known + MIN_SHARED && n_tokens > running.n_held;
        if is_more {
            best = Some(PendingPrefix { owner: running.sequence.seniority(), n_tokens, n_known });
        }
        if best.is_some_and(|best| best.n_tokens >= n - 1) {
            break;
        }
    }
    (best, n_compared)
}

/// How many tokens of a prompt are of use to a branch which knows what it is to tell up to `n_told`, where `running_sequence` computes the first
/// `n_common` of them: what that one tells of them is known too, and the row before the first token that is not known must be computed.
fn n_of_use(running: &RunningSequence, job: &RequestGroup, n_told: u32, n_common: u32) -> u32 {
    let untold = running.sequence.untold.logprobs.as_ref().filter(|untold| untold.from <= n_told);
    let will_be_told = if job.uses_logprob_cache() { untold.map_or(0, |_| n_common.min(running.sequence.n_prompt)) } else { 0 };
    will_be_told.max(n_told) - 1
}

/// Where a sequence that is computing its prompt will keep the last snapshot of use to a prompt of `n` tokens of which it has the
/// first `n_common`. Only that at its prompt's end has the logits that all of a prompt needs.
fn last_snapshot<R: Runner>(core: &Core<R>, running: &RunningSequence, n_common: u32, n: u32) -> Option<u32> {
    let n_prompt = running.sequence.n_prompt;
    if running.sequence.n_predicted() > 0 || !core.memory.cache().has_host_cache() {
        return None;
    }
    if n_common == n_prompt { Some(n_prompt) } else { running.sequence.snapshots_at.last_within(n_common.min(n - 1)) }
}
