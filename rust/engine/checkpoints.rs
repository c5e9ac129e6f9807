//! What is kept of a prompt that a model's memory will have never again: states, where it cannot be cut, and what a sliding window
//! sees, which moves on.

use std::ops::RangeInclusive;

use crate::cache::{MIN_SHARED, PrefixMatch, Provenance};
use crate::config::Checkpoints;
use crate::engine::checkpoint_positions::{CheckpointPositions, PromptEndWindow};
use crate::engine::core::Core;
use crate::engine::request_group::RequestGroup;
use crate::engine::runner::{MemoryKind, Runner};
use crate::engine::running_sequence::RunningSequence;
use crate::engine::sequence::Sequence;
use crate::request::{Task, Token, is_of_medium};
use crate::sampling::TokenStrings;

/// What is kept along one prompt takes of the store at most: one part in so many.
const PART_OF_STORE: u64 = 8;

/// Windows along a prompt are so many times as far apart as each is long: of what a sliding window's layers computed of the prompt,
/// they hold a third at most.
const WINDOWS_APART: u32 = 3;

/// Whether a state is worth keeping: only a memory that cannot be cut has any use for it.
fn keeps_states<R: Runner>(core: &Core<R>) -> bool {
    core.memory.kind().is_a_state() && core.memory.cache().has_host_cache()
}

/// Whether windows are kept along prompts: without a store they would be lost as soon as anything needs their ids.
fn keeps_windows<R: Runner>(core: &Core<R>) -> bool {
    core.memory.kind().n_window > 0 && core.memory.cache().has_host_cache()
}

/// Where in the prompt of a request that starts with `n_found` known tokens states, or windows, are kept besides at its end: where it
/// says so, where it parts from what was computed before, and about evenly in between, as far as [`Checkpoints`] allow.
pub(super) fn checkpoint_positions<R: Runner>(core: &Core<R>, job: &RequestGroup, n_found: u32) -> CheckpointPositions {
    let may_add = core.limits.checkpoints.n_most > 0 && job.uses_cache() && job.request.task == Task::Complete;
    if core.memory.kind().n_window > 0 {
        let mut places =
            if may_add && keeps_windows(core) { window_places(core, job, n_found) } else { CheckpointPositions::default() };
        places.end = kept_end(core, job, n_found, &places);
        return places;
    }
    let mut places = CheckpointPositions { at: job.request.snapshots_at.clone(), ..CheckpointPositions::default() };
    if !may_add || !keeps_states(core) {
        return places;
    }
    places.add(core.memory.cache().n_there(&job.variants, &job.prompt), 1, job, n_found);
    // What is told of its tokens from here on needs the row before them.
    if let Some(n_told) = core.n_told(job) {
        places.add(n_told - 1, 1, job, n_found);
    }
    let n_bytes = core.memory.kind().bytes_of(job.n_prompt());
    add_evenly(core, &mut places, Spacing { n_bytes, min_step: 1, distance: MIN_SHARED }, job, n_found);
    places
}

/// Where windows are kept: where the prompt parts from what was computed before, if more is computed again for want of a window there
/// than the window has to hold, and in between.
fn window_places<R: Runner>(core: &Core<R>, job: &RequestGroup, n_found: u32) -> CheckpointPositions {
    let MemoryKind { n_window, bytes_per_token, .. } = core.memory.kind();
    let distance = n_window.max(MIN_SHARED);
    let parts_at = core.memory.cache().n_there(&job.variants, &job.prompt);
    let mut places = CheckpointPositions::default();
    if parts_at >= n_found + distance {
        places.parts_at = places.add(parts_at, 1, job, n_found).then_some(parts_at);
    }
    let spacing =
        Spacing { n_bytes: u64::from(n_window) * bytes_per_token, min_step: WINDOWS_APART.saturating_mul(n_window), distance };
    add_evenly(core, &mut places, spacing, job, n_found);
    places
}

/// Where the window at the prompt's end is kept, for requests with the same prompt and for other continuations of it.
///
/// It is stored where at least a window of the prompt is computed after the last place that is kept. Sharing its cells copies nothing
/// but takes a sequence id.
fn kept_end<R: Runner>(core: &Core<R>, job: &RequestGroup, n_found: u32, places: &CheckpointPositions) -> PromptEndWindow {
    if job.request.task != Task::Complete {
        return PromptEndWindow::Nowhere;
    }
    let n_new = job.n_prompt() - places.at.last().copied().unwrap_or(n_found);
    if !job.request.snapshots_at.is_empty() {
        // A chat: another answer is mostly asked for soon, while the cells are still in the device cache.
        PromptEndWindow::InPool
    } else if keeps_windows(core) && n_new >= core.memory.kind().n_window.max(MIN_SHARED) {
        PromptEndWindow::InStore
    } else if n_new > 1 {
        PromptEndWindow::InPool
    } else {
        PromptEndWindow::Nowhere
    }
}

/// How far from each other places lie that are about even.
#[derive(Debug, Clone, Copy)]
struct Spacing {
    /// What each adds to the store.
    n_bytes: u64,
    /// So many tokens or more are from one to the next on average.
    min_step: u32,
    /// So many always, whatever else is near.
    distance: u32,
}

/// Adds places to those of a prompt, of which `n_found` tokens are known: they divide what is computed of it into about equal parts.
///
/// Each is at the end of the line that is nearest to where a part ends, or just there where no line near may be a place.
fn add_evenly<R: Runner>(core: &Core<R>, places: &mut CheckpointPositions, spacing: Spacing, job: &RequestGroup, n_found: u32) {
    let Checkpoints { n_most, min_step } = core.limits.checkpoints;
    let (_, max_bytes, _) = core.memory.cache().host_cache_size();
    let n_affordable = max_bytes.map_or(u64::MAX, |max| max / PART_OF_STORE / spacing.n_bytes.max(1));
    let n_most = u32::try_from(n_affordable).unwrap_or(u32::MAX).min(n_most);
    if n_most == 0 {
        return;
    }
    let n_prompt = job.n_prompt();
    let step = (n_prompt - n_found).div_ceil(n_most + 1).max(min_step).max(spacing.min_step);
    let lexicon = core.memory.model().lexicon();
    for at in (n_found..n_prompt).step_by(step as usize).skip(1).take(n_most as usize) {
        let mut near = line_ends_near(at, step, &job.prompt, &lexicon).chain([at]);
        near.find(|&place| places.add(place, spacing.distance, job, n_found));
    }
}

/// Where lines of the prompt end, less than `distance` from `at`, the nearest first: texts part where a turn, a line or a paragraph
/// begins more often than elsewhere.
fn line_ends_near(at: u32, distance: u32, prompt: &[Token], lexicon: &TokenStrings) -> impl Iterator<Item = u32> {
    let ends_line = |place: &u32| {
        let before = place.checked_sub(1).and_then(|before| prompt.get(before as usize));
        before.is_some_and(|&token| !is_of_medium(token) && lexicon.spelling(token).ends_with(b"\n"))
    };
    (0..distance).flat_map(move |off| [at.checked_sub(off), at.checked_add(off)]).flatten().filter(ends_line)
}

/// How many tokens a sequence may compute until its state, or its window, is to be kept.
pub(super) fn n_until_checkpoint<R: Runner>(core: &Core<R>, running: &RunningSequence) -> u32 {
    if running.sequence.n_predicted() > 0 || !(keeps_states(core) || keeps_windows(core)) {
        return u32::MAX;
    }
    running.sequence.snapshots_at.after(running.n_held).map_or(u32::MAX, |at| at - running.n_held)
}

/// Keeps what this decode has reached and will be gone after the next.
pub(super) fn save_checkpoints<R: Runner>(core: &mut Core<R>) {
    if keeps_states(core) {
        keep_states(core);
    } else if core.memory.kind().n_window > 0 {
        keep_windows(core);
    }
}

/// Keeps the windows at the ends of prompts, since an answer may be asked for again or come back otherwise, where prompts part, and
/// along prompts.
fn keep_windows<R: Runner>(core: &mut Core<R>) {
    for nth in 0..core.slots.running().len() {
        let running = &core.slots.running()[nth];
        let (id, n_tokens) = (running.id, running.n_held + running.n_planned);
        let is_in_prompt = running.n_planned > 0 && running.sequence.n_predicted() == 0 && running.n_grouped.is_none();
        if !is_in_prompt || n_tokens < MIN_SHARED {
            continue;
        }
        let places = &running.sequence.snapshots_at;
        let end = if running.will_draw() { places.end } else { PromptEndWindow::Nowhere };
        if end == PromptEndWindow::InPool {
            // The same prompt computes its last token again, for the logits after it. Storing those instead takes a float for each
            // token of the vocabulary: with Gemma 3 270M, as many bytes as the cells of 57 tokens.
            keep_in_pool(core, nth, n_tokens - 1..=n_tokens);
        } else if places.parts_at == Some(n_tokens) {
            keep_in_pool(core, nth, n_tokens..=n_tokens);
        } else if places.contains(n_tokens) || end == PromptEndWindow::InStore {
            core.memory.save_window(id, n_tokens);
        }
    }
}

/// Keeps the first of `checkpoint_positions` of which the sequence at `nth` has the window: others who go on from there share its cells. It takes a
/// sequence id, for which the least recently used idle path is offloaded where there is a store, and leaves as any path that is idle.
fn keep_in_pool<R: Runner>(core: &mut Core<R>, nth: usize, mut places: RangeInclusive<u32>) {
    let RunningSequence { id, ref sequence, .. } = core.slots.running()[nth];
    let maker = Provenance { request_id: sequence.request_id, owner: sequence.request().owner.clone() };
    let variants = sequence.variants.clone();
    let Some(n_kept) = places.find(|&n| core.memory.can_fork(id, n)) else { return };
    while !core.memory.cache().has_free_id() && keeps_windows(core) && !core.memory.is_out_of_time() && core.memory.evict() {}
    let Some(kept) = core.memory.place(&variants, Some(&PrefixMatch::in_pool(id, n_kept))) else { return };
    core.memory.cache_mut().set_provenance(kept, maker);
    core.memory.cache_mut().unpin(kept);
}

/// Keeps the states at the ends of prompts, with the logits after them, where requests want them, and where forks go on that may not
/// start before their branch does.
fn keep_states<R: Runner>(core: &mut Core<R>) {
    let mut n_rows = 0;
    for nth in 0..core.slots.running().len() {
        let running = &core.slots.running()[nth];
        n_rows += running.n_planned as usize;
        let n_tokens = running.n_held + running.n_planned;
        if running.n_planned == 0 || n_tokens < MIN_SHARED {
            continue;
        }
        let (id, is_end) = (running.id, running.will_draw());
        let is_wanted = if running.sequence.n_predicted() > 0 {
            is_left_behind(core, running, n_tokens)
        } else {
            is_end || running.sequence.snapshots_at.contains(n_tokens)
        };
        if !is_wanted {
            continue;
        }
        let Sequence { variants, tokens, .. } = &running.sequence;
        let known = core.memory.cache().snapshot(variants, &tokens.first(n_tokens));
        let is_kept = known.is_some_and(|logits| !is_end || logits.is_some());
        if !is_kept && core.memory.cache().can_save_checkpoint(n_tokens) {
            let logits = is_end.then(|| core.memory.model().logits(n_rows - 1).into());
            core.memory.snapshot(id, n_tokens, logits);
        }
    }
}

/// Whether a fork waits for the state after so many tokens of a running branch which may have gone on before the fork starts: it is not
/// made yet, others wait too, or no slot, no id or too few cells are free for it.
fn is_left_behind<R: Runner>(core: &Core<R>, running: &RunningSequence, n_tokens: u32) -> bool {
    let Some(fork) = core.queue.blocked(running.sequence.seniority(), n_tokens).next() else { return false };
    let is_alone = core.queue.n_blocked() == 1 && core.queue.highest_waiting().is_none() && core.queue.preempted().is_empty();
    let has_room = || {
        let is_free = !core.slots.are_full() && core.memory.cache().n_free_ids() > 0;
        is_free && i64::from(fork.n_prompt() - n_tokens) <= core.n_left()
    };
    fork.is_unbuilt() || !is_alone || !has_room()
}
