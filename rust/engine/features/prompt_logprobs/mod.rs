//! Reports about prompts: progress and logprobs.

pub(crate) mod cache;
pub(crate) mod pending;

use std::time::Instant;

use crate::engine::features::prompt_logprobs::cache::CachedLogprob;
use crate::engine::features::prompt_logprobs::pending::{PendingPromptLogprobs, uses_cache};
use crate::engine::numbers::to_u32;
use crate::engine::runner::Runner;
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::engine::scheduler::sample::BLOCK;
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::scheduler::sequence::{Sequence, to_logprobs};
use crate::engine::scheduler::{Scheduler, SequenceParts};
use crate::request::{Event, Logprobs, Progress, PromptLogprobs, Token};
use crate::sampling::{self, Threads};

/// Maximum bytes of an event with the logprobs of more than one token, so that a consumer never blocks long on one event.
const MAX_EVENT_BYTES: usize = 64 << 10;

pub(crate) fn report_prompts(scheduler: &mut Scheduler, runner: &impl Runner, samplers: &Threads) -> u32 {
    let mut n_reported = 0;
    let mut cursor = None;
    while let Some(key) = scheduler.next_key(&mut cursor) {
        let running = scheduler.running_sequence(key);
        if !running.is_planned() {
            continue;
        }
        let n_processed = running.planned_range().end;
        let reports_progress = running.sequence.features.prompt_logprobs.reports_progress && running.sequence.n_predicted == 0;
        if running.sequence.features.prompt_logprobs.n_reported(running.sequence.n_prompt).is_some() {
            let logprobs = computed_logprobs(running, runner, samplers);
            n_reported += to_u32(logprobs.len());
            // Only consecutive tokens from the first on are cached.
            let to_scored =
                |(logprob, top): &(f32, Vec<(Token, f32)>)| Some(CachedLogprob { logprob: *logprob, best: *top.first()? });
            let scored: Vec<CachedLogprob> = logprobs.iter().map_while(to_scored).collect();
            report_logprobs(scheduler, key, &scored, logprobs);
        }
        if reports_progress {
            report_progress(scheduler, key, n_processed);
        }
    }
    n_reported
}

/// The row after each token yields the logprobs of the next one.
fn computed_logprobs(running: &RunningSequence, runner: &impl Runner, samplers: &Threads) -> Vec<(f32, Vec<(Token, f32)>)> {
    let sequence = &running.sequence;
    let Some(PendingPromptLogprobs { n_probs, .. }) = sequence.features.prompt_logprobs.logprobs else { return Vec::new() };
    let report = &sequence.features.prompt_logprobs;
    let positions: Vec<u32> = report.reported_range(&running.planned_range(), sequence.n_prompt).collect();
    let mut logprobs = Vec::with_capacity(positions.len());
    for block in positions.chunks(BLOCK) {
        let mut rows: Vec<LogitRow<'_>> = (block.iter())
            .map(|&position| LogitRow {
                token: sequence.tokens.at(position),
                logits: runner.logits(running.row_of(position - 1)),
                logprobs: None,
            })
            .collect();
        samplers.for_each(&mut rows, runner.n_vocab(), |row| {
            // The best token is needed for the cache in any case.
            row.logprobs = Some(sampling::logprobs(row.logits, row.token, n_probs.max(1)));
        });
        logprobs.extend(rows.into_iter().filter_map(|row| row.logprobs));
    }
    logprobs
}

pub(crate) fn report_start(scheduler: &mut Scheduler, key: SchedulingKey) {
    let sequence = &scheduler.running_sequence(key).sequence;
    let n_cached = sequence.n_cached();
    if sequence.features.prompt_logprobs.reports_progress {
        report_progress(scheduler, key, n_cached);
    }
    let SequenceParts { sequence, group, features } = scheduler.parts_of(key);
    let Some(PendingPromptLogprobs { n_reported, .. }) = sequence.features.prompt_logprobs.logprobs else { return };
    if uses_cache(group) {
        let scored = features.prompt_logprobs.get(&group.adapter_schedule, &group.prompt, n_reported.max(1));
        let logprobs = scored.iter().map(|scored| (scored.logprob, vec![scored.best])).collect();
        report_logprobs(scheduler, key, &scored, logprobs);
    }
}

fn report_logprobs(
    scheduler: &mut Scheduler,
    key: SchedulingKey,
    scored: &[CachedLogprob],
    logprobs: Vec<(f32, Vec<(Token, f32)>)>,
) {
    let SequenceParts { sequence, group, features } = scheduler.parts_of(key);
    let Sequence { features: pending, group_id, .. } = sequence;
    let Some(PendingPromptLogprobs { n_probs, n_reported, cache_position, .. }) = &mut pending.prompt_logprobs.logprobs else {
        return;
    };
    let (group_id, n_probs, start) = (*group_id, *n_probs, *n_reported);
    let first = start.max(1);
    if logprobs.is_empty() && (start == first || group.prompt.len() > 1) {
        return;
    }
    features.prompt_logprobs.insert(&group.adapter_schedule, &group.prompt, first, scored, cache_position);
    let mut events: Vec<Option<Logprobs>> = vec![None; (first - start) as usize];
    events.extend(logprobs.into_iter().zip(first..).map(|((logprob, mut top), position)| {
        top.truncate(n_probs);
        Some(to_logprobs((logprob, top), group.prompt[position as usize]))
    }));
    *n_reported = start + to_u32(events.len());
    let n_per_event = (MAX_EVENT_BYTES / Logprobs::n_bytes(n_probs)).max(1);
    let (mut start, mut events) = (start, events.into_iter());
    while !events.as_slice().is_empty() {
        let part: Vec<_> = events.by_ref().take(n_per_event).collect();
        let next = start + to_u32(part.len());
        scheduler.emit(group_id, Event::PromptLogprobs(PromptLogprobs { start, logprobs: part }));
        start = next;
    }
}

fn report_progress(scheduler: &mut Scheduler, key: SchedulingKey, n_processed: u32) {
    let sequence = &scheduler.running_sequence(key).sequence;
    let ms = sequence.clock.since_start(Instant::now()).as_secs_f64() * 1e3;
    let progress = Progress { n_prompt: sequence.n_prompt, n_cached: sequence.n_cached(), n_processed, ms };
    scheduler.emit(sequence.group_id, Event::Progress(progress));
}

struct LogitRow<'a> {
    token: Token,
    logits: &'a [f32],
    logprobs: Option<(f32, Vec<(Token, f32)>)>,
}
