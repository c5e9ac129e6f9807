//! Prefix matches of a prompt: cached tokens, and tokens that another sequence is computing.

use crate::cache::{MIN_SHARED, PrefixMatch, PrefixQuery};
use crate::engine::cache_manager::CacheManager;
use crate::engine::features::hooks;
use crate::engine::ids::GroupId;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::queue::Queue;
use crate::engine::scheduler::request_group::{AwaitedPrefix, PrefixDependency, PromptHolder, RequestGroup};
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::request::Task;

/// Returns the longest cached prefix of a group's prompt, without the last token if its logits are needed and unknown.
pub(crate) fn find_match<R: Runner>(scheduler: &Scheduler, cache: &mut CacheManager<R>, group_id: GroupId) -> PrefixMatch {
    let group = scheduler.queue.group(group_id);
    if let Some(prompt_holder) = group.prompt_holder.id() {
        return PrefixMatch::on_device(prompt_holder, group.n_prompt());
    }
    if group.prompt_logits.is_some()
        && let Some(whole) = find_whole(group, cache)
    {
        return whole;
    }
    if !group.request.uses_cache {
        return PrefixMatch::default();
    }
    let n = group.n_prompt();
    let reports = hooks::first_needed(&scheduler.features, group).filter(|&first_uncached| first_uncached < n);
    let query = PrefixQuery {
        adapters: &group.adapter_schedule,
        tokens: &group.prompt,
        at_least: if matches!(group.request.task, Task::Save { .. }) { 1 } else { MIN_SHARED },
        at_most: match reports {
            Some(first_uncached) => (first_uncached - 1).min(group.shared_until),
            None if group.request.task == Task::Complete => (n - 1).min(group.shared_until),
            None => n,
        },
        takes_logits: reports.is_none(),
    };
    cache.find_match(&query, &group.media)
}

fn find_whole<R: Runner>(group: &RequestGroup, cache: &mut CacheManager<R>) -> Option<PrefixMatch> {
    let n = group.n_prompt();
    let query =
        PrefixQuery { adapters: &group.adapter_schedule, tokens: &group.prompt, at_least: n, at_most: n, takes_logits: false };
    Some(cache.find_match(&query, &group.media)).filter(|matched| matched.n_device == n)
}

/// Holds computed prompts with waiting branches, while sequence ids are free. A prompt that is no longer in the device cache is
/// held again once the next branch has computed it.
pub(super) fn hold_prompts<R: Runner>(queue: &mut Queue, cache: &mut CacheManager<R>) {
    let without_holder = queue.open().filter(|group| matches!(group.prompt_holder, PromptHolder::NextFreeId));
    for group_id in without_holder.map(|group| group.group_id).collect::<Vec<GroupId>>() {
        if cache.n_free_ids() == 0 {
            return;
        }
        let group = queue.group_mut(group_id);
        let matched = find_whole(group, cache);
        let path = matched.and_then(|matched| cache.place(None, &group.adapter_schedule, Some(&matched)));
        group.prompt_holder = path.map_or(PromptHolder::Empty, PromptHolder::Path);
    }
}

/// Returns a running sequence whose prefix of the prompt justifies waiting, and the number of tokens compared.
pub(crate) fn find_pending_prefix<R: Runner>(
    scheduler: &Scheduler,
    cache: &CacheManager<R>,
    group_id: GroupId,
    n_known: u32,
) -> (Option<AwaitedPrefix>, u64) {
    let group = scheduler.queue.group(group_id);
    let is_known = group.prompt_logits.is_some() || matches!(group.request.task, Task::Save { computes: false } | Task::Load(_));
    if is_known || !group.request.uses_cache {
        return (None, 0);
    }
    let n = group.n_prompt();
    let first_uncached = hooks::first_needed(&scheduler.features, group);
    let (mut best, mut n_compared): (Option<PrefixDependency>, u64) = (None, 0);
    let can_share = |running: &&RunningSequence| {
        running.n_uncomputed() >= MIN_SHARED && scheduler.can_provide(running, group.request.priority)
    };
    for running in scheduler.slots.running().iter().filter(can_share) {
        let n_common = running.sequence.tokens.common_prefix(&group.prompt);
        n_compared += u64::from(n_common);
        let n_same_adapters = running.sequence.adapter_schedule.n_common(&group.adapter_schedule);
        let shared_until = scheduler.queue.group(running.sequence.group_id).shared_until;
        let n_common = n_common.min(n_same_adapters).min(group.shared_until).min(shared_until);
        let n_common = first_uncached.map_or(n_common, |first| hooks::n_usable(running, group, first, n_common));
        let n_tokens = if cache.kind().is_a_state() {
            last_checkpoint(cache, running, n_common, n).unwrap_or(0)
        } else {
            n_common.min(n - 1)
        };
        let n_best = best.map_or(0, |best| best.n_tokens);
        let is_more = n_tokens > n_best && n_tokens >= n_known + MIN_SHARED && n_tokens > running.n_computed;
        if is_more {
            best = Some(PrefixDependency { provider: running.key(), n_tokens });
        }
        if best.is_some_and(|best| best.n_tokens >= n - 1) {
            break;
        }
    }
    (best.map(|dependency| AwaitedPrefix { dependency, n_cached: n_known }), n_compared)
}

/// Returns the last checkpoint that is usable for a prompt of `n` tokens. Only the one at the end has the logits after all of it.
fn last_checkpoint<R: Runner>(cache: &CacheManager<R>, running: &RunningSequence, n_common: u32, n: u32) -> Option<u32> {
    let n_prompt = running.sequence.n_prompt;
    if running.sequence.n_predicted > 0 || !cache.kv().has_host_cache() {
        return None;
    }
    if n_common == n_prompt { Some(n_prompt) } else { running.sequence.checkpoint_positions.last_within(n_common.min(n - 1)) }
}
