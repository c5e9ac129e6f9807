//! Sampling: logits become tokens and events.

use std::sync::Arc;
use std::time::Instant;

use crate::engine::cache_manager::CacheManager;
use crate::engine::features::hooks;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::running_sequence::{Phase, RunningSequence};
use crate::engine::scheduler::sequence::{SampledToken, Sequence};
use crate::request::{Event, Task};
use crate::sampling::Threads;

/// Maximum number of rows sampled together. The list is on the stack, and this many rows keep every thread busy.
pub(crate) const BLOCK: usize = 64;

pub(crate) fn is_due(scheduler: &Scheduler) -> bool {
    scheduler.running().iter().any(|running| running.n_planned > 0 || matches!(running.phase, Phase::ReadyToSample(_)))
}

/// Samples a token for every sequence whose last token was computed, or whose logits are stored; several rows in parallel.
pub(crate) fn sample_tokens(scheduler: &mut Scheduler, runner: &impl Runner, samplers: &Threads) {
    let Scheduler { slots, queue, features, .. } = scheduler;
    let now = Instant::now();
    // Rows are fetched here, one after the other: a runner belongs to one thread.
    let mut due = slots.running_mut().iter_mut().filter_map(|running| {
        let logits = take_logits(running, runner)?;
        if running.sequence.n_predicted == 0 {
            let group = queue.group_mut(running.sequence.group_id);
            if group.has_waiting() && group.shares_prompt() {
                group.keep_prompt(|| logits.to_stored());
            }
        }
        hooks::on_logits(features, queue, &running.sequence, || logits.to_stored());
        running.phase = Phase::Decoding;
        running.finish_reason = running.sequence.end_without_token(now);
        running.finish_reason.is_none().then_some((&mut running.sequence, logits))
    });
    loop {
        let mut rows: [Option<(&mut Sequence, Logits<'_>)>; BLOCK] = [const { None }; BLOCK];
        let n = rows.iter_mut().zip(&mut due).map(|(row, next)| *row = Some(next)).count();
        samplers.for_each(&mut rows[..n], runner.n_vocab(), |row| {
            let (sequence, logits) = row.as_mut().expect("the first n are filled");
            sequence.sample(logits.row());
        });
        if n < BLOCK {
            return;
        }
    }
}

/// Compares the sampled tokens with the drafted ones. A sequence whose token was drafted samples again in this step, from the row
/// after it, which is computed already; the others drop the rest of their drafts. Returns true if any sequence samples again.
pub(crate) fn verify_drafts<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>) -> bool {
    let Scheduler { slots, features, .. } = scheduler;
    let mut samples_again = false;
    for running in slots.running_mut().iter_mut().filter(|running| !running.draft.tokens.is_empty()) {
        // Empty if the sequence has ended without a token.
        let sampled = running.sequence.tokens.of(running.n_held..running.sequence.n_tokens()).next();
        let is_drafted = sampled.is_some() && running.draft.tokens.get(running.draft.n_accepted).copied() == sampled;
        running.draft.n_accepted += usize::from(is_drafted);
        if is_drafted && running.finish_reason.is_none() {
            running.n_planned = 1;
            samples_again = true;
            continue;
        }
        let draft = std::mem::take(&mut running.draft);
        if cache.n_held(running.id()) > running.n_held {
            let is_done = cache.truncate(running.id(), running.n_held);
            assert!(is_done, "only sequences whose cells can be truncated have drafts");
        }
        hooks::on_verified(features, &mut running.sequence, &draft);
    }
    samples_again
}

impl Scheduler {
    pub(crate) fn emit_tokens(&mut self, runner: &impl Runner, now: Instant) {
        let Self { slots, queue, events, stats, .. } = self;
        for running in slots.running_mut() {
            let Some(SampledToken { event, last, finished }) = running.sequence.detokenize(runner, running.slot, now) else {
                continue;
            };
            running.finish_reason = finished;
            if let Some(event) = event {
                stats.n_predicted += 1;
                stats.histograms.observe_token(running.sequence.clock.submitted, last, now);
                events.add(queue.group_mut(running.sequence.group_id), Event::Token(event));
            }
        }
    }
}

/// Returns the logits from which a sequence samples in this step. Its rows of the last decode become held tokens.
fn take_logits<'a>(running: &mut RunningSequence, runner: &'a impl Runner) -> Option<Logits<'a>> {
    if let Phase::ReadyToSample(logits) = &running.phase {
        return Some(Logits::Stored(Arc::clone(logits)));
    }
    let n_planned = std::mem::take(&mut running.n_planned);
    running.n_held += n_planned;
    running.first_row += n_planned as usize;
    let samples = n_planned > 0 && running.n_uncomputed() == 0 && running.sequence.request.task == Task::Complete;
    samples.then(|| Logits::Computed(runner.logits(running.first_row - 1)))
}

enum Logits<'a> {
    Computed(&'a [f32]),
    Stored(Arc<[f32]>),
}

impl Logits<'_> {
    fn row(&self) -> &[f32] {
        match self {
            Self::Computed(row) => row,
            Self::Stored(row) => row,
        }
    }

    fn to_stored(&self) -> Arc<[f32]> {
        match self {
            Self::Computed(row) => Arc::from(*row),
            Self::Stored(row) => Arc::clone(row),
        }
    }
}
