//! Reports about prompts: progress and logprobs.

use std::ops::Range;
use std::time::Instant;

use crate::engine::core::Core;
use crate::engine::pending_prompt_report::PendingPromptLogprobs;
use crate::engine::prompt_logprob_cache::ScoredToken;
use crate::engine::runner::Runner;
use crate::engine::running_sequence::RunningSequence;
use crate::engine::sampling_step::BLOCK;
use crate::engine::sequence::{Sequence, to_logprobs};
use crate::request::{Event, Logprobs, Progress, PromptLogprobs, Token};
use crate::sampling;

/// Maximum bytes of an event with the logprobs of more than one token, so that a reader never blocks long on one event.
const MAX_EVENT_BYTES: usize = 64 << 10;

/// Reports on the prompts that this decode computed a part of. Returns the number of tokens whose logprobs were reported.
pub(super) fn report_prompts<R: Runner>(core: &mut Core<R>) -> u32 {
    let (mut first_row, mut n_reported) = (0, 0);
    for nth in 0..core.slots.running().len() {
        let running = &core.slots.running()[nth];
        if running.n_planned == 0 {
            continue;
        }
        if running.sequence.reports_prompt() {
            n_reported += report_logprobs(core, nth, first_row);
        }
        let running = &core.slots.running()[nth];
        if running.sequence.pending_report.reports_progress && running.sequence.n_predicted() == 0 {
            report_progress(core, nth, computed(running).end);
        }
        first_row += core.slots.running()[nth].n_planned as usize;
    }
    n_reported
}

/// Returns the range of tokens that the decode computed.
fn computed(running: &RunningSequence) -> Range<u32> {
    running.n_held..running.n_held + running.n_planned
}

/// Reports the logprobs of prompt tokens from the rows from `first_row` on. The row after each token yields the logprobs of the
/// next one. Returns their number.
fn report_logprobs<R: Runner>(core: &mut Core<R>, nth: usize, first_row: usize) -> u32 {
    let Core { slots, memory, samplers, .. } = core;
    let (running, runner) = (&slots.running()[nth], memory.model());
    let computed = computed(running);
    let sequence = &running.sequence;
    let Some(PendingPromptLogprobs { n_probs, .. }) = sequence.pending_report.logprobs else { return 0 };
    let tokens: Vec<u32> = sequence.pending_report.reported_range(&computed, sequence.n_prompt).collect();
    let mut logprobs = Vec::with_capacity(tokens.len());
    for block in tokens.chunks(BLOCK) {
        let mut rows: Vec<LogitRow<'_>> = (block.iter())
            .map(|&at| LogitRow {
                token: sequence.tokens.at(at),
                logits: runner.logits(first_row + (at - 1 - computed.start) as usize),
                logprobs: None,
            })
            .collect();
        samplers.for_each(&mut rows, runner.n_vocab(), |row| {
            // The best token is needed for the cache in any case.
            row.logprobs = Some(sampling::logprobs(row.logits, row.token, n_probs.max(1)));
        });
        logprobs.extend(rows.into_iter().filter_map(|row| row.logprobs));
    }
    let to_scored = |(logprob, top): &(f32, Vec<(Token, f32)>)| Some(ScoredToken { logprob: *logprob, best: *top.first()? });
    // Only consecutive tokens from the first on are cached.
    let scored: Vec<ScoredToken> = logprobs.iter().map_while(to_scored).collect();
    let n_found = u32::try_from(logprobs.len()).expect("a decode has fewer than 2³² rows");
    report_next(core, nth, &scored, logprobs);
    n_found
}

/// Reports cached logprobs to the sequence at `nth`, which starts.
pub(super) fn report_cached_logprobs<R: Runner>(core: &mut Core<R>, nth: usize) {
    let request_id = core.slots.running()[nth].sequence.request_id;
    let sequence = &core.slots.running()[nth].sequence;
    let Some(PendingPromptLogprobs { n_reported, .. }) = sequence.pending_report.logprobs else { return };
    let group = core.queue.group(request_id);
    if !group.uses_logprob_cache() {
        return;
    }
    let scored = core.logprob_cache.get(&group.adapter_schedule, &group.prompt, n_reported.max(1));
    let logprobs = scored.iter().map(|scored| (scored.logprob, vec![scored.best])).collect();
    report_next(core, nth, &scored, logprobs);
}

/// Reports the `logprobs` of the next prompt tokens of the sequence at `nth`, and caches the `scored` ones.
fn report_next<R: Runner>(core: &mut Core<R>, nth: usize, scored: &[ScoredToken], logprobs: Vec<(f32, Vec<(Token, f32)>)>) {
    let Core { slots, logprob_cache, queue, .. } = core;
    let Sequence { pending_report, request_id, .. } = &mut slots.running_mut()[nth].sequence;
    let Some(PendingPromptLogprobs { n_probs, n_reported, cache_position, .. }) = &mut pending_report.logprobs else { return };
    let (request_id, n_probs, start) = (*request_id, *n_probs, *n_reported);
    let group = queue.group(request_id);
    // The first token has no logprob.
    let first = start.max(1);
    if logprobs.is_empty() && (start == first || group.prompt.len() > 1) {
        return;
    }
    logprob_cache.insert(&group.adapter_schedule, &group.prompt, first, scored, cache_position);
    let mut events: Vec<Option<Logprobs>> = vec![None; (first - start) as usize];
    events.extend(logprobs.into_iter().zip(first..).map(|((logprob, mut top), at)| {
        top.truncate(n_probs);
        Some(to_logprobs((logprob, top), group.prompt[at as usize]))
    }));
    *n_reported = start + count(&events);
    let n_per_event = (MAX_EVENT_BYTES / Logprobs::n_bytes(n_probs)).max(1);
    let (mut start, mut events) = (start, events.into_iter());
    while !events.as_slice().is_empty() {
        let part: Vec<_> = events.by_ref().take(n_per_event).collect();
        let next = start + count(&part);
        core.emit(request_id, Event::PromptLogprobs(PromptLogprobs { start, logprobs: part }));
        start = next;
    }
}

fn count(logprobs: &[Option<Logprobs>]) -> u32 {
    u32::try_from(logprobs.len()).expect("a prompt has fewer than 2³² tokens")
}

/// Reports progress for the sequence at `nth`, which starts.
pub(super) fn report_start<R: Runner>(core: &mut Core<R>, nth: usize) {
    let sequence = &core.slots.running()[nth].sequence;
    if sequence.pending_report.reports_progress {
        report_progress(core, nth, sequence.n_cached());
    }
}

fn report_progress<R: Runner>(core: &mut Core<R>, nth: usize, n_processed: u32) {
    let sequence = &core.slots.running()[nth].sequence;
    let (n_prompt, n_cached, ms) = (sequence.n_prompt, sequence.n_cached(), sequence.elapsed_ms(Instant::now()));
    let request_id = sequence.request_id;
    core.emit(request_id, Event::Progress(Progress { n_prompt, n_cached, n_processed, ms }));
}

/// A row of logits, and the logprobs of the token after it.
struct LogitRow<'a> {
    token: Token,
    logits: &'a [f32],
    logprobs: Option<(f32, Vec<(Token, f32)>)>,
}
