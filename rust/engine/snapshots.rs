//! What is kept of a prompt that a model's memory will have never again: states, where it cannot be cut, and what a sliding window
//! sees at the prompt's end, which moves on with the answer.

use crate::cache::{MIN_SHARED, Maker, Match};
use crate::config::Checkpoints;
use crate::engine::core::Core;
use crate::engine::job::Job;
use crate::engine::runner::Runner;
use crate::engine::running::Running;
use crate::engine::sequence::Sequence;
use crate::request::{Task, Token, is_of_medium};
use crate::sampling::Lexicon;

/// What the states along one prompt take of the store at most: one part in so many.
const PART_OF_STORE: u64 = 8;

/// Whether a state is worth keeping: only a memory that cannot be cut has any use for it.
fn keeps_states<R: Runner>(core: &Core<R>) -> bool {
    core.memory.kind().is_a_state() && core.memory.cache().has_store()
}

/// Whether windows are kept where prompts part: without a store they would be lost as soon as anything needs their ids.
fn keeps_windows<R: Runner>(core: &Core<R>) -> bool {
    core.memory.kind().n_window > 0 && core.memory.cache().has_store()
}

/// Where in the prompt of a request that starts with `n_found` known tokens states are kept besides at its end, in order: where it
/// says so, where it parts from what was computed before, and about evenly in between, as far as [`Checkpoints`] allow. With a
/// sliding window, where a window is kept: where it parts, if that is worth it.
pub(super) fn snapshot_places<R: Runner>(core: &Core<R>, job: &Job, n_found: u32) -> Vec<u32> {
    let Checkpoints { n_most, min_step } = core.limits.checkpoints;
    let may_add = n_most > 0 && job.uses_cache() && job.request.task == Task::Complete;
    if core.memory.kind().n_window > 0 {
        return if may_add && keeps_windows(core) { Vec::from_iter(parting(core, job, n_found)) } else { Vec::new() };
    }
    let mut places = job.request.snapshots_at.clone();
    if !may_add || !keeps_states(core) {
        return places;
    }
    let (cache, n_prompt) = (core.memory.cache(), job.n_prompt());
    let mut add = |at: u32, distance: u32| {
        let next = places.partition_point(|&place| place < at);
        let is_apart = |place: Option<&u32>| place.is_none_or(|place| place.abs_diff(at) >= distance);
        let is_free = is_apart(places.get(next)) && is_apart(next.checked_sub(1).and_then(|before| places.get(before)));
        if at > n_found && at < n_prompt && is_free && !job.media.iter().any(|placed| placed.is_cut_at(at)) {
            places.insert(next, at);
        }
    };
    add(cache.n_there(&job.variants, &job.prompt), 1);
    // What is told of its tokens from here on needs the row before them.
    if let Some(n_told) = core.n_told(job) {
        add(n_told - 1, 1);
    }
    let (_, max_bytes, _) = cache.store_size();
    let n_affordable = max_bytes.map_or(u64::MAX, |max| max / PART_OF_STORE / core.memory.kind().bytes_of(n_prompt).max(1));
    let n_most = u32::try_from(n_affordable).unwrap_or(u32::MAX).min(n_most);
    if n_most > 0 {
        let step = (n_prompt - n_found).div_ceil(n_most + 1).max(min_step);
        let lexicon = core.memory.model().lexicon();
        for at in (n_found..n_prompt).step_by(step as usize).skip(1).take(n_most as usize) {
            add(line_end_near(at, step, &job.prompt, &lexicon), MIN_SHARED);
        }
    }
    places
}

/// Where a prompt that starts with `n_found` known tokens parts from what was computed before, if more is computed again for want of a
/// window there than the window has to hold.
fn parting<R: Runner>(core: &Core<R>, job: &Job, n_found: u32) -> Option<u32> {
    let at = core.memory.cache().n_there(&job.variants, &job.prompt);
    let n_least = core.memory.kind().n_window.max(MIN_SHARED);
    let is_worth_it = at >= n_found + n_least && at < job.n_prompt();
    (is_worth_it && !job.media.iter().any(|placed| placed.is_cut_at(at))).then_some(at)
}

/// The place nearest to `at`, less than `distance` from it, where a line of the prompt ends, else `at`: texts part where a turn, a line or a
/// paragraph begins more often than elsewhere.
fn line_end_near(at: u32, distance: u32, prompt: &[Token], lexicon: &Lexicon) -> u32 {
    let ends_line = |place: u32| {
        let before = place.checked_sub(1).and_then(|before| prompt.get(before as usize));
        before.is_some_and(|&token| !is_of_medium(token) && lexicon.spelling(token).ends_with(b"\n"))
    };
    let near = (0..distance).flat_map(|off| [at.checked_sub(off), at.checked_add(off)]);
    near.flatten().find(|&place| ends_line(place)).unwrap_or(at)
}

/// How many tokens a sequence may compute until its state, or its window, is to be kept.
pub(super) fn n_to_snapshot<R: Runner>(core: &Core<R>, running: &Running) -> u32 {
    if running.sequence.n_predicted() > 0 || !(keeps_states(core) || keeps_windows(core)) {
        return u32::MAX;
    }
    running.sequence.snapshots_at.iter().find(|&&at| at > running.n_held).map_or(u32::MAX, |at| at - running.n_held)
}

/// Keeps what this decode has reached and will be gone after the next.
pub(super) fn keep_snapshots<R: Runner>(core: &mut Core<R>) {
    if keeps_states(core) {
        keep_states(core);
    } else if core.memory.kind().n_window > 0 {
        keep_windows(core);
    }
}

/// Keeps the windows at the ends of prompts of which a later one may have no more: a chat's, whose answer may be asked for again or
/// come back otherwise. And those where prompts part. They take a sequence id that is free, and leave as any path that is idle.
fn keep_windows<R: Runner>(core: &mut Core<R>) {
    for nth in 0..core.slots.running().len() {
        let running = &core.slots.running()[nth];
        let n_tokens = running.n_held + running.n_planned;
        let is_in_prompt = running.n_planned > 0 && running.sequence.n_predicted() == 0 && running.n_grouped.is_none();
        if !is_in_prompt || n_tokens < MIN_SHARED {
            continue;
        }
        let is_wanted_end = running.will_draw() && !running.sequence.request().snapshots_at.is_empty();
        let n_least = if is_wanted_end {
            // Where the prompt comes again, its last token is computed for the logits after it.
            n_tokens - 1
        } else if running.sequence.snapshots_at.contains(&n_tokens) {
            n_tokens
        } else {
            continue;
        };
        let (id, sequence) = (running.id, &running.sequence);
        let maker = Maker { request_id: sequence.request_id, owner: sequence.request().owner.clone() };
        let variants = sequence.variants.clone();
        let Some(n_kept) = (n_least..=n_tokens).find(|&n| core.memory.can_fork(id, n)) else { continue };
        let Some(kept) = core.memory.place(&variants, Some(&Match::in_pool(id, n_kept))) else { return };
        core.memory.cache_mut().name_maker(kept, maker);
        core.memory.cache_mut().unpin(kept);
    }
}

/// Keeps the states at the ends of prompts, with the logits after them, and where requests want them.
fn keep_states<R: Runner>(core: &mut Core<R>) {
    let mut n_rows = 0;
    for nth in 0..core.slots.running().len() {
        let running = &core.slots.running()[nth];
        n_rows += running.n_planned as usize;
        let n_tokens = running.n_held + running.n_planned;
        if running.n_planned == 0 || running.sequence.n_predicted() > 0 || n_tokens < MIN_SHARED {
            continue;
        }
        let (id, is_end) = (running.id, running.will_draw());
        if !is_end && !running.sequence.snapshots_at.contains(&n_tokens) {
            continue;
        }
        let Sequence { variants, tokens, .. } = &running.sequence;
        let known = core.memory.cache().snapshot(variants, &tokens.first(n_tokens));
        let is_kept = known.is_some_and(|logits| !is_end || logits.is_some());
        if !is_kept && core.memory.cache().can_keep_snapshot(n_tokens) {
            let logits = is_end.then(|| core.memory.model().logits(n_rows - 1).into());
            core.memory.snapshot(id, n_tokens, logits);
        }
    }
}
