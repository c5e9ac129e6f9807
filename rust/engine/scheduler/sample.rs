//! Sampling: logits become tokens and events.

use std::sync::Arc;
use std::time::Instant;

use crate::engine::features::hooks;
use crate::engine::runner::{KvSeqId, Runner};
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::running_sequence::{Phase, RunningSequence};
use crate::engine::scheduler::sequence::{SampledToken, Sequence};
use crate::request::{Event, Task};
use crate::sampling::Threads;

/// Maximum number of rows sampled together. The list is on the stack, and this many rows keep every thread busy.
pub(crate) const BLOCK: usize = 64;

pub(crate) fn is_due(scheduler: &Scheduler) -> bool {
    scheduler.running().iter().any(|running| running.is_planned() || matches!(running.phase, Phase::ReadyToSample(_)))
}

/// Samples a token for every sequence whose last token was computed, or whose logits are stored; several rows in parallel.
pub(crate) fn sample_tokens(scheduler: &mut Scheduler, runner: &impl Runner, samplers: &Threads) {
    let Scheduler { slots, queue, features, .. } = scheduler;
    let now = Instant::now();
    // Rows are fetched here, one after the other: a runner belongs to one thread.
    let mut due = slots.running_mut().iter_mut().filter_map(|running| {
        let has_advanced = running.record_computed_rows();
        let logits = next_logits(running, has_advanced, runner)?;
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

impl Scheduler {
    /// Compares the sampled tokens with the drafted ones. A sequence whose token was drafted samples again in this step, from the
    /// row after it, which is computed already; the others drop the rest of their drafts. Returns true if any sequence samples
    /// again, and the number of computed tokens of each of the others.
    pub(crate) fn verify_drafts(&mut self) -> (bool, Vec<(KvSeqId, u32)>) {
        let Self { slots, features, .. } = self;
        let (mut samples_again, mut verified) = (false, Vec::new());
        for running in slots.running_mut().iter_mut().filter(|running| !running.draft.tokens.is_empty()) {
            // Empty if the sequence has ended without a token.
            let sampled = running.sequence.tokens.of(running.n_computed..running.sequence.n_tokens()).next();
            let is_drafted = sampled.is_some() && running.draft.tokens.get(running.draft.n_accepted).copied() == sampled;
            running.draft.n_accepted += usize::from(is_drafted);
            if is_drafted && running.finish_reason.is_none() {
                running.n_planned = 1;
                samples_again = true;
                continue;
            }
            let draft = std::mem::take(&mut running.draft);
            verified.push((running.id(), running.n_computed));
            hooks::on_verified(features, &mut running.sequence, &draft);
        }
        (samples_again, verified)
    }

    /// Returns the number of sampled tokens.
    pub(crate) fn emit_tokens(&mut self, runner: &impl Runner, now: Instant) -> u64 {
        let Self { slots, queue, events, stats, .. } = self;
        let n_before = stats.n_predicted;
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
        stats.n_predicted - n_before
    }
}

/// Returns the logits from which a sequence samples now: stored ones, or those of its last row if it `has_advanced`.
fn next_logits<'a>(running: &RunningSequence, has_advanced: bool, runner: &'a impl Runner) -> Option<Logits<'a>> {
    if let Phase::ReadyToSample(logits) = &running.phase {
        return Some(Logits::Stored(Arc::clone(logits)));
    }
    let samples = has_advanced && running.n_uncomputed() == 0 && running.sequence.request.task == Task::Complete;
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
