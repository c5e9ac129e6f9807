//! What a stream hears of its prompt: how far it is computed, and the log-probabilities of its tokens.

use std::ops::Range;
use std::time::Instant;

use crate::engine::core::Core;
use crate::engine::pending_prompt_report::PendingPromptLogprobs;
use crate::engine::prompt_logprob_cache::ScoredToken;
use crate::engine::runner::Runner;
use crate::engine::running_sequence::RunningSequence;
use crate::engine::sampling_step::BLOCK;
use crate::engine::sequence::{Sequence, named};
use crate::request::{Event, Logprobs, Progress, PromptLogprobs, Token};
use crate::sampling;

/// Most bytes of one event of a prompt's log-probabilities, where it tells of more than one token: whoever takes events up has
/// something else to do between two of them.
const MAX_EVENT_BYTES: usize = 64 << 10;

/// Tells of the prompts that this decode computed a part of. Returns of how many tokens it told the log-probabilities.
pub(super) fn report_prompts<R: Runner>(core: &mut Core<R>) -> u32 {
    let (mut first_row, mut n_told) = (0, 0);
    for nth in 0..core.slots.running().len() {
        let running = &core.slots.running()[nth];
        if running.n_planned == 0 {
            continue;
        }
        if running.sequence.reports_prompt() {
            n_told += tell_logprobs(core, nth, first_row);
        }
        let running = &core.slots.running()[nth];
        if running.sequence.untold.reports_progress && running.sequence.n_predicted() == 0 {
            tell_progress(core, nth, computed(running).end);
        }
        first_row += core.slots.running()[nth].n_planned as usize;
    }
    n_told
}

/// What the decode computed of a sequence.
fn computed(running: &RunningSequence) -> Range<u32> {
    running.n_held..running.n_held + running.n_planned
}

/// Tells of the log-probabilities that the rows from `first_row` on give. The row after each token is that of the next one. Returns
/// how many there are.
fn tell_logprobs<R: Runner>(core: &mut Core<R>, nth: usize, first_row: usize) -> u32 {
    let Core { slots, memory, samplers, .. } = core;
    let (running, runner) = (&slots.running()[nth], memory.model());
    let computed = computed(running);
    let sequence = &running.sequence;
    let Some(PendingPromptLogprobs { n_probs, .. }) = sequence.untold.logprobs else { return 0 };
    let tokens: Vec<u32> = sequence.untold.reported_range(&computed, sequence.n_prompt).collect();
    let mut found = Vec::with_capacity(tokens.len());
    for block in tokens.chunks(BLOCK) {
        let mut rows: Vec<LogitRow<'_>> = (block.iter())
            .map(|&at| LogitRow {
                token: sequence.tokens.at(at),
                logits: runner.logits(first_row + (at - 1 - computed.start) as usize),
                found: None,
            })
            .collect();
        samplers.for_each(&mut rows, runner.n_vocab(), |row| {
            // The most likely one is found anyway.
            row.found = Some(sampling::logprobs(row.logits, row.token, n_probs.max(1)));
        });
        found.extend(rows.into_iter().filter_map(|row| row.found));
    }
    let best = |(logprob, top): &(f32, Vec<(Token, f32)>)| Some(ScoredToken { logprob: *logprob, best: *top.first()? });
    // A row of which nothing is known ends what is kept.
    let known: Vec<ScoredToken> = found.iter().map_while(best).collect();
    let n_found = u32::try_from(found.len()).expect("a decode has fewer than 2³² rows");
    tell_next(core, nth, &known, found);
    n_found
}

/// Tells the sequence at `nth`, which starts, what earlier prompts were told of the tokens that it begins with.
pub(super) fn report_cached_logprobs<R: Runner>(core: &mut Core<R>, nth: usize) {
    let request_id = core.slots.running()[nth].sequence.request_id;
    let sequence = &core.slots.running()[nth].sequence;
    let Some(PendingPromptLogprobs { n_told, .. }) = sequence.untold.logprobs else { return };
    let job = core.queue.job(request_id);
    if !job.uses_logprob_cache() {
        return;
    }
    let known = core.recall.known(&job.variants, &job.prompt, n_told.max(1));
    let found = known.iter().map(|told| (told.logprob, vec![told.best])).collect();
    tell_next(core, nth, &known, found);
}

/// Tells of the next tokens of the prompt of the sequence at `nth`, of which these log-probabilities were `found`, and keeps what is
/// `known` of them.
fn tell_next<R: Runner>(core: &mut Core<R>, nth: usize, known: &[ScoredToken], found: Vec<(f32, Vec<(Token, f32)>)>) {
    let Core { slots, recall, queue, .. } = core;
    let Sequence { untold, request_id, .. } = &mut slots.running_mut()[nth].sequence;
    let Some(PendingPromptLogprobs { n_probs, n_told, place, .. }) = &mut untold.logprobs else { return };
    let (request_id, n_probs, start) = (*request_id, *n_probs, *n_told);
    let job = queue.job(request_id);
    // Nothing comes before the first token.
    let first = start.max(1);
    if found.is_empty() && (start == first || job.prompt.len() > 1) {
        return;
    }
    recall.learn(&job.variants, &job.prompt, first, known, place);
    let mut logprobs: Vec<Option<Logprobs>> = vec![None; (first - start) as usize];
    logprobs.extend(found.into_iter().zip(first..).map(|((logprob, mut top), at)| {
        top.truncate(n_probs);
        Some(named((logprob, top), job.prompt[at as usize]))
    }));
    *n_told = start + count(&logprobs);
    let at_once = (MAX_EVENT_BYTES / Logprobs::n_bytes(n_probs)).max(1);
    let (mut start, mut logprobs) = (start, logprobs.into_iter());
    while !logprobs.as_slice().is_empty() {
        let piece: Vec<_> = logprobs.by_ref().take(at_once).collect();
        let next = start + count(&piece);
        core.tell(request_id, Event::PromptLogprobs(PromptLogprobs { start, logprobs: piece }));
        start = next;
    }
}

fn count(logprobs: &[Option<Logprobs>]) -> u32 {
    u32::try_from(logprobs.len()).expect("a prompt has fewer than 2³² tokens")
}

/// Tells that the sequence at `nth` starts, where its stream hears of its progress.
pub(super) fn report_start<R: Runner>(core: &mut Core<R>, nth: usize) {
    let sequence = &core.slots.running()[nth].sequence;
    if sequence.untold.reports_progress {
        tell_progress(core, nth, sequence.n_cached());
    }
}

fn tell_progress<R: Runner>(core: &mut Core<R>, nth: usize, n_processed: u32) {
    let sequence = &core.slots.running()[nth].sequence;
    let (n_prompt, n_cached, ms) = (sequence.n_prompt, sequence.n_cached(), sequence.elapsed_ms(Instant::now()));
    let request_id = sequence.request_id;
    core.tell(request_id, Event::Progress(Progress { n_prompt, n_cached, n_processed, ms }));
}

/// A row of logits, and what it says about the token after it.
struct LogitRow<'a> {
    token: Token,
    logits: &'a [f32],
    found: Option<(f32, Vec<(Token, f32)>)>,
}
