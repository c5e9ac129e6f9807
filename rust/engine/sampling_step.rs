//! A decode's rows of logits → tokens → events.

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

/// Most rows that are chosen from at once. The list of them lies on the stack, and so many keep every thread busy.
pub(super) const BLOCK: usize = 64;

/// Draws a token for every sequence whose last one was computed, and takes out those that end with it.
pub(super) fn draw<R: Runner>(core: &mut Core<R>) {
    choose(core);
    let chosen = core.lap(|times| &mut times.sample);
    show_chosen(core, chosen);
    advance(core, chosen);
    for mut running in core.slots.take_all(|running| running.end.is_some()) {
        let reason = running.end.take().expect("it was taken out because it has one");
        finish(core, running, reason, None);
    }
    shift_full(core);
    core.lap(|times| &mut times.text);
}

/// Chooses the tokens, several rows at once.
fn choose<R: Runner>(core: &mut Core<R>) {
    let Core { slots, memory, queue, forks, samplers, .. } = core;
    let (runner, now) = (memory.model(), Instant::now());
    let n_vocab = runner.n_vocab();
    let mut n_rows = 0;
    // The rows are looked up here and one after the other: a runner belongs to one thread.
    let mut due = slots.running_mut().iter_mut().filter_map(|running| {
        let n_planned = std::mem::take(&mut running.n_planned);
        running.n_held += n_planned;
        n_rows += n_planned as usize;
        if n_planned == 0 || running.n_uncomputed() > 0 || running.sequence.request().task != Task::Complete {
            return None;
        }
        let logits = runner.logits(n_rows - 1);
        if running.sequence.n_predicted() == 0 {
            let job = queue.job_mut(running.sequence.request_id);
            if job.has_waiting() && job.shares_prompt() {
                job.prompt_logits.get_or_insert_with(|| logits.into());
                job.keeper.want();
            }
        }
        give_to_forks(queue, forks, &running.sequence, || logits.into());
        running.phase = Phase::Decoding;
        running.end = running.sequence.end_without_token(now);
        running.end.is_none().then_some((&mut running.sequence, logits))
    });
    loop {
        let mut rows: [Option<(&mut Sequence, &[f32])>; BLOCK] = [const { None }; BLOCK];
        let n = rows.iter_mut().zip(&mut due).map(|(row, next)| *row = Some(next)).count();
        samplers.for_each(&mut rows[..n], n_vocab, |row| {
            let (sequence, logits) = row.as_mut().expect("the first n are filled");
            sequence.choose(logits);
        });
        if n < BLOCK {
            return;
        }
    }
}

/// Forks at the end of a sequence draw from the same `logits` as that.
fn give_to_forks(queue: &mut Queue, forks: &mut ForkRegistry, sequence: &Sequence, logits: impl FnOnce() -> Arc<[f32]>) {
    let due = forks.take_due(sequence.request_id, sequence.index, sequence.n_tokens());
    if !due.is_empty() {
        let logits = logits();
        for request_id in due {
            queue.give_logits(request_id, &logits);
        }
    }
}

/// Makes events of the tokens that were chosen before `now`.
fn show_chosen<R: Runner>(core: &mut Core<R>, now: Instant) {
    for nth in 0..core.slots.running().len() {
        let running = &mut core.slots.running_mut()[nth];
        let Some(SampledToken { event, finished }) = running.sequence.show(core.memory.model(), running.slot, now) else {
            continue;
        };
        running.end = finished;
        let request_id = running.sequence.request_id;
        if let Some(event) = event {
            core.stats.n_predicted += 1;
            core.tell(request_id, Event::Token(event));
        }
    }
}

/// The first token of the sequence at `nth`, all of whose prompt is computed, from the `logits` after it.
pub(super) fn sample_first_token<R: Runner>(core: &mut Core<R>, nth: usize, logits: &Arc<[f32]>) {
    let running = &mut core.slots.running_mut()[nth];
    let job = core.queue.job_mut(running.sequence.request_id);
    if job.has_waiting() {
        job.prompt_logits.get_or_insert_with(|| Arc::clone(logits));
        job.keeper.want();
    }
    give_to_forks(&mut core.queue, &mut core.forks, &running.sequence, || Arc::clone(logits));
    running.phase = Phase::Decoding;
    let started = Instant::now();
    running.end = running.sequence.end_without_token(started);
    if running.end.is_none() {
        running.sequence.choose(logits);
        let chosen = Instant::now();
        if running.sequence.beam.is_some() {
            return advance(core, chosen);
        }
        let shown = running.sequence.show(core.memory.model(), running.slot, chosen);
        let SampledToken { event, finished } = shown.expect("a token was chosen before, or none can be");
        running.end = finished;
        let request_id = running.sequence.request_id;
        core.stopwatch.count(|times| &mut times.sample, chosen - started);
        core.stopwatch.count(|times| &mut times.text, chosen.elapsed());
        if let Some(event) = event {
            core.stats.n_predicted += 1;
            core.tell(request_id, Event::Token(event));
        }
    }
    if let Some(reason) = core.slots.running_mut()[nth].end.take() {
        let running = core.slots.take(nth);
        finish(core, running, reason, None);
    } else {
        shift_full(core);
    }
}
