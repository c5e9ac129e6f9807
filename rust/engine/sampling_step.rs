//! Sampling: the logits of a decode become tokens and events.

use std::sync::Arc;
use std::time::Instant;

use crate::engine::beams::advance;
use crate::engine::core::Core;
use crate::engine::forks::ForkRegistry;
use crate::engine::lifecycle::{finish, shift_full};
use crate::engine::queue::Queue;
use crate::engine::runner::Runner;
use crate::engine::running_sequence::Phase;
use crate::engine::sequence::{SampledToken, Sequence};
use crate::request::{Event, Task};

/// Maximum number of rows sampled together. The list is on the stack, and this many rows keep every thread busy.
pub(super) const BLOCK: usize = 64;

/// Samples a token for every sequence whose last one was computed, and finishes the sequences that end with it.
pub(super) fn sample<R: Runner>(core: &mut Core<R>) {
    sample_rows(core);
    let sampled_at = core.lap(|times| &mut times.sample);
    publish_tokens(core, sampled_at);
    advance(core, sampled_at);
    for mut running in core.slots.take_all(|running| running.end.is_some()) {
        let reason = running.end.take().expect("it was taken out because it has one");
        finish(core, running, reason, None);
    }
    shift_full(core);
    core.lap(|times| &mut times.text);
}

/// Samples the tokens, several rows in parallel.
fn sample_rows<R: Runner>(core: &mut Core<R>) {
    let Core { slots, memory, queue, forks, samplers, .. } = core;
    let (runner, now) = (memory.model(), Instant::now());
    let n_vocab = runner.n_vocab();
    let mut n_rows = 0;
    // Rows are fetched here, one after the other: a runner belongs to one thread.
    let mut due = slots.running_mut().iter_mut().filter_map(|running| {
        let n_planned = std::mem::take(&mut running.n_planned);
        running.n_held += n_planned;
        n_rows += n_planned as usize;
        if n_planned == 0 || running.n_uncomputed() > 0 || running.sequence.request().task != Task::Complete {
            return None;
        }
        let logits = runner.logits(n_rows - 1);
        if running.sequence.n_predicted() == 0 {
            let group = queue.group_mut(running.sequence.request_id);
            if group.has_waiting() && group.shares_prompt() {
                group.prompt_logits.get_or_insert_with(|| logits.into());
                group.prompt_holder.request_holder();
            }
        }
        pass_logits_to_forks(queue, forks, &running.sequence, || logits.into());
        running.phase = Phase::Decoding;
        running.end = running.sequence.end_without_token(now);
        running.end.is_none().then_some((&mut running.sequence, logits))
    });
    loop {
        let mut rows: [Option<(&mut Sequence, &[f32])>; BLOCK] = [const { None }; BLOCK];
        let n = rows.iter_mut().zip(&mut due).map(|(row, next)| *row = Some(next)).count();
        samplers.for_each(&mut rows[..n], n_vocab, |row| {
            let (sequence, logits) = row.as_mut().expect("the first n are filled");
            sequence.sample(logits);
        });
        if n < BLOCK {
            return;
        }
    }
}

/// Passes `logits` to forks at the end of a sequence, which sample their first token from them.
fn pass_logits_to_forks(queue: &mut Queue, forks: &mut ForkRegistry, sequence: &Sequence, logits: impl FnOnce() -> Arc<[f32]>) {
    let due = forks.take_due(sequence.request_id, sequence.index, sequence.n_tokens());
    if !due.is_empty() {
        let logits = logits();
        for request_id in due {
            queue.set_prompt_logits(request_id, &logits);
        }
    }
}

/// Publishes the tokens that were sampled before `now`.
fn publish_tokens<R: Runner>(core: &mut Core<R>, now: Instant) {
    for nth in 0..core.slots.running().len() {
        let running = &mut core.slots.running_mut()[nth];
        let Some(SampledToken { event, finished }) = running.sequence.detokenize(core.memory.model(), running.slot, now) else {
            continue;
        };
        running.end = finished;
        let request_id = running.sequence.request_id;
        if let Some(event) = event {
            core.stats.n_predicted += 1;
            core.emit(request_id, Event::Token(event));
        }
    }
}

/// Samples the first token of the sequence at `nth`, whose prompt is fully computed, from `logits`.
pub(super) fn sample_first_token<R: Runner>(core: &mut Core<R>, nth: usize, logits: &Arc<[f32]>) {
    let running = &mut core.slots.running_mut()[nth];
    let group = core.queue.group_mut(running.sequence.request_id);
    if group.has_waiting() {
        group.prompt_logits.get_or_insert_with(|| Arc::clone(logits));
        group.prompt_holder.request_holder();
    }
    pass_logits_to_forks(&mut core.queue, &mut core.forks, &running.sequence, || Arc::clone(logits));
    running.phase = Phase::Decoding;
    let started = Instant::now();
    running.end = running.sequence.end_without_token(started);
    if running.end.is_none() {
        running.sequence.sample(logits);
        let sampled_at = Instant::now();
        if running.sequence.beam.is_some() {
            return advance(core, sampled_at);
        }
        let result = running.sequence.detokenize(core.memory.model(), running.slot, sampled_at);
        let SampledToken { event, finished } = result.expect("a token was chosen before, or none can be");
        running.end = finished;
        let request_id = running.sequence.request_id;
        core.stopwatch.count(|times| &mut times.sample, sampled_at - started);
        core.stopwatch.count(|times| &mut times.text, sampled_at.elapsed());
        if let Some(event) = event {
            core.stats.n_predicted += 1;
            core.emit(request_id, Event::Token(event));
        }
    }
    if let Some(reason) = core.slots.running_mut()[nth].end.take() {
        let running = core.slots.take(nth);
        finish(core, running, reason, None);
    } else {
        shift_full(core);
    }
}
