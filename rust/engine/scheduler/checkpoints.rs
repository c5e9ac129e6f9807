//! Checkpoints of prompts: saved states for recurrent memory, which cannot be cut, and saved windows for sliding-window memory,
//! which overwrites them.

use std::ops::RangeInclusive;

use crate::cache::{MIN_SHARED, PrefixMatch};
use crate::config::Checkpoints;
use crate::engine::cache_manager::CacheManager;
use crate::engine::features::hooks;
use crate::engine::runner::{MemoryKind, Runner};
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::checkpoint_positions::{CheckpointPositions, PromptEndWindow};
use crate::engine::scheduler::request_group::RequestGroup;
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::engine::scheduler::sequence::Sequence;
use crate::request::{Task, Token, is_of_medium};
use crate::sampling::TokenStrings;

/// The checkpoints of one prompt take at most one part in this many of the host cache.
const HOST_CACHE_PARTS: u64 = 8;

/// Minimum distance between windows along a prompt, in window lengths: they hold at most a third of what the sliding-window
/// layers compute of the prompt.
const MIN_WINDOW_DISTANCE: u32 = 3;

/// Returns true if the memory cannot be cut, so that states are saved.
fn saves_states<R: Runner>(cache: &CacheManager<R>) -> bool {
    cache.kind().is_a_state() && cache.kv().has_host_cache()
}

/// Returns false without a host cache: windows along prompts would be evicted as soon as their ids are needed.
fn saves_windows<R: Runner>(cache: &CacheManager<R>) -> bool {
    cache.kind().n_window > 0 && cache.kv().has_host_cache()
}

/// Returns the checkpoint positions, besides the end, in the prompt of a request: the requested ones, where the prompt diverges
/// from cached ones, and about evenly in between, within the limits of [`Checkpoints`].
pub(crate) fn checkpoint_positions<R: Runner>(
    scheduler: &Scheduler,
    cache: &CacheManager<R>,
    group: &RequestGroup,
    n_found: u32,
) -> CheckpointPositions {
    let start = PromptStart { scheduler, cache, group, n_found };
    if cache.kind().n_window > 0 { start.window_positions() } else { start.state_positions() }
}

struct PromptStart<'a, R: Runner> {
    scheduler: &'a Scheduler,
    cache: &'a CacheManager<R>,
    group: &'a RequestGroup,
    n_found: u32,
}

impl<R: Runner> PromptStart<'_, R> {
    fn may_add(&self) -> bool {
        let is_completion = self.group.request.task == Task::Complete;
        self.scheduler.limits.checkpoints.max_per_prompt > 0 && self.group.request.uses_cache && is_completion
    }

    fn diverges_at(&self) -> u32 {
        self.cache.kv().n_computed_prefix(&self.group.adapter_schedule, &self.group.prompt)
    }

    fn state_positions(&self) -> CheckpointPositions {
        let Self { cache, group, n_found, .. } = *self;
        let positions = group.request.checkpoints_at.clone();
        let mut positions = CheckpointPositions { positions, ..CheckpointPositions::default() };
        if !self.may_add() || !saves_states(cache) {
            return positions;
        }
        positions.add(self.diverges_at(), 1, group, n_found);
        // The first reported logprob needs the preceding row.
        if let Some(first_uncached) = hooks::first_needed(self.scheduler.features(), group) {
            positions.add(first_uncached - 1, 1, group, n_found);
        }
        self.add_evenly_spaced(&mut positions, cache.kind().bytes_of(group.n_prompt()));
        positions
    }

    /// The prompt gets a window where it diverges from cached ones if more tokens than a window are computed again without it.
    fn window_positions(&self) -> CheckpointPositions {
        let Self { cache, group, n_found, .. } = *self;
        let MemoryKind { n_window, bytes_per_token, .. } = cache.kind();
        let mut positions = CheckpointPositions::default();
        if self.may_add() && saves_windows(cache) {
            let diverges_at = self.diverges_at();
            if diverges_at >= n_found + n_window.max(MIN_SHARED) {
                positions.diverges_at = positions.add(diverges_at, 1, group, n_found).then_some(diverges_at);
            }
            self.add_evenly_spaced(&mut positions, u64::from(n_window) * bytes_per_token);
        }
        positions.end = self.end_window(&positions);
        positions
    }

    /// The window at the prompt's end serves the same prompt and its other continuations. It is copied to the host cache if at
    /// least a window follows the last checkpoint. Sharing its cells copies nothing but takes a sequence id.
    fn end_window(&self, positions: &CheckpointPositions) -> PromptEndWindow {
        let Self { cache, group, n_found, .. } = *self;
        if group.request.task != Task::Complete {
            return PromptEndWindow::NotCopied;
        }
        let n_new = group.n_prompt() - positions.last_within(group.n_prompt()).unwrap_or(n_found);
        if !group.request.checkpoints_at.is_empty() {
            // In a chat, another answer is usually requested soon, while the cells are still in the device cache.
            PromptEndWindow::InDeviceCache
        } else if saves_windows(cache) && n_new >= cache.kind().n_window.max(MIN_SHARED) {
            PromptEndWindow::InHostCache
        } else if n_new > 1 {
            PromptEndWindow::InDeviceCache
        } else {
            PromptEndWindow::NotCopied
        }
    }

    /// Adds positions that divide the uncached prompt about equally, each at the nearest end of a line if that is valid.
    fn add_evenly_spaced(&self, positions: &mut CheckpointPositions, n_bytes: u64) {
        let Self { cache, group, n_found, .. } = *self;
        let Checkpoints { max_per_prompt, min_step } = self.scheduler.limits.checkpoints;
        let (_, max_bytes, _) = cache.kv().host_cache_size();
        let n_affordable = max_bytes.map_or(u64::MAX, |max| max / HOST_CACHE_PARTS / n_bytes.max(1));
        let max_per_prompt = u32::try_from(n_affordable).unwrap_or(u32::MAX).min(max_per_prompt);
        if max_per_prompt == 0 {
            return;
        }
        let (n_prompt, n_window) = (group.n_prompt(), cache.kind().n_window);
        let min_step = min_step.max(MIN_WINDOW_DISTANCE.saturating_mul(n_window)).max(1);
        let step = (n_prompt - n_found).div_ceil(max_per_prompt + 1).max(min_step);
        let token_strings = cache.runner().token_strings();
        for position in (n_found..n_prompt).step_by(step as usize).skip(1).take(max_per_prompt as usize) {
            let mut near = line_ends_near(position, step, &group.prompt, &token_strings).chain([position]);
            near.find(|&end| positions.add(end, n_window.max(MIN_SHARED), group, n_found));
        }
    }
}

/// Returns the ends of lines within `distance` of `position`, nearest first: texts diverge there more often than elsewhere.
fn line_ends_near(position: u32, distance: u32, prompt: &[Token], token_strings: &TokenStrings) -> impl Iterator<Item = u32> {
    let ends_line = |end: &u32| {
        let before = end.checked_sub(1).and_then(|before| prompt.get(before as usize));
        before.is_some_and(|&token| !is_of_medium(token) && token_strings.spelling(token).ends_with(b"\n"))
    };
    (0..distance).flat_map(move |off| [position.checked_sub(off), position.checked_add(off)]).flatten().filter(ends_line)
}

pub(crate) fn n_until_checkpoint<R: Runner>(cache: &CacheManager<R>, running: &RunningSequence) -> u32 {
    if running.sequence.n_predicted > 0 || !(saves_states(cache) || saves_windows(cache)) {
        return u32::MAX;
    }
    running.sequence.checkpoint_positions.after(running.n_computed).map_or(u32::MAX, |position| position - running.n_computed)
}

/// Saves the checkpoints that this decode reached and the next one would overwrite.
pub(crate) fn save_checkpoints<R: Runner>(scheduler: &Scheduler, cache: &mut CacheManager<R>) {
    if saves_states(cache) {
        save_states(scheduler, cache);
    } else if cache.kind().n_window > 0 {
        save_windows(scheduler, cache);
    }
}

/// Saves windows at the ends of prompts, for another answer or a retokenized one, where prompts diverge, and along prompts.
fn save_windows<R: Runner>(scheduler: &Scheduler, cache: &mut CacheManager<R>) {
    for running in scheduler.slots.running() {
        let (id, n_tokens) = (running.id(), running.planned_range().end);
        let is_in_prompt = running.is_planned() && running.sequence.n_predicted == 0 && running.shares_cells;
        if !is_in_prompt || n_tokens < MIN_SHARED {
            continue;
        }
        let positions = &running.sequence.checkpoint_positions;
        let end = if running.will_sample() { positions.end } else { PromptEndWindow::NotCopied };
        if end == PromptEndWindow::InDeviceCache {
            // The same prompt computes its last token again, for the logits after it. Storing those instead takes a float per
            // token of the vocabulary: with Gemma 3 270M, as many bytes as the cells of 57 tokens.
            share_cells(cache, running, n_tokens - 1..=n_tokens);
        } else if positions.diverges_at == Some(n_tokens) {
            share_cells(cache, running, n_tokens..=n_tokens);
        } else if positions.contains(n_tokens) || end == PromptEndWindow::InHostCache {
            cache.save_window(id, n_tokens);
        }
    }
}

/// Shares the cells at the first of `positions` with a complete window: the new path is idle, and evicted like any other.
fn share_cells<R: Runner>(cache: &mut CacheManager<R>, running: &RunningSequence, mut positions: RangeInclusive<u32>) {
    let (id, sequence) = (running.id(), &running.sequence);
    let Some(n_kept) = positions.find(|&n| cache.can_fork(id, n)) else { return };
    while cache.n_free_ids() == 0 && saves_windows(cache) && !cache.is_out_of_time() && cache.evict() {}
    drop(cache.place(Some(sequence.provenance()), &sequence.adapter_schedule, Some(&PrefixMatch::on_device(id, n_kept))));
}

/// Saves states at the ends of prompts, with the logits there, at requested positions, and where a fork may start later.
fn save_states<R: Runner>(scheduler: &Scheduler, cache: &mut CacheManager<R>) {
    for running in scheduler.slots.running() {
        let n_tokens = running.planned_range().end;
        if !running.is_planned() || n_tokens < MIN_SHARED {
            continue;
        }
        let (id, is_end) = (running.id(), running.will_sample());
        let is_needed = if running.sequence.n_predicted > 0 {
            may_start_late(scheduler, cache, running, n_tokens)
        } else {
            is_end || running.sequence.checkpoint_positions.contains(n_tokens)
        };
        if !is_needed {
            continue;
        }
        let Sequence { adapter_schedule, tokens, .. } = &running.sequence;
        let tokens = tokens.first(n_tokens);
        let is_kept = cache
            .kv()
            .find_checkpoint(adapter_schedule, &tokens)
            .is_some_and(|checkpoint| !is_end || checkpoint.logits.is_some());
        if !is_kept && cache.kv().can_save_checkpoint(n_tokens) {
            let logits = is_end.then(|| cache.runner().logits(running.row_of(n_tokens - 1)).into());
            cache.save_checkpoint(id, n_tokens, logits);
        }
    }
}

/// Returns true if a fork waits for this state and may start after the branch has advanced: it is unbuilt, or must share or wait.
fn may_start_late<R: Runner>(
    scheduler: &Scheduler,
    cache: &mut CacheManager<R>,
    running: &RunningSequence,
    n_tokens: u32,
) -> bool {
    let Some(fork) = scheduler.queue.blocked(running.sequence.scheduling_key(), n_tokens).next() else { return false };
    let is_alone =
        scheduler.queue.n_blocked() == 1 && scheduler.queue.highest_waiting().is_none() && scheduler.queue.preempted().is_empty();
    let fits = || {
        let is_free = !scheduler.slots.are_full() && cache.n_free_ids() > 0;
        is_free && i64::from(fork.n_prompt() - n_tokens) <= scheduler.n_spare_cells(cache)
    };
    fork.is_unbuilt() || !is_alone || !fits()
}
