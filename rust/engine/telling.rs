//! What a stream hears of its prompt: how far it is computed, and the log-probabilities of its tokens.

use std::ops::Range;
use std::time::Instant;

use crate::engine::core::Core;
use crate::engine::drawing::BLOCK;
use crate::engine::runner::Runner;
use crate::engine::running::Running;
use crate::engine::sequence::named;
use crate::engine::untold::UntoldLogprobs;
use crate::request::{Event, Logprobs, Progress, PromptLogprobs, Token};
use crate::sampling;

/// Most bytes of one event of a prompt's log-probabilities, where it tells of more than one token: whoever takes events up has
/// something else to do between two of them.
const MAX_EVENT_BYTES: usize = 64 << 10;

/// Tells of the prompts that this decode computed a part of.
pub(super) fn tell_of_prompts<R: Runner>(core: &mut Core<R>) {
    let mut first_row = 0;
    for nth in 0..core.slots.running().len() {
        let running = &core.slots.running()[nth];
        if running.n_planned == 0 {
            continue;
        }
        if running.sequence.tells_of_prompt() {
            tell_logprobs(core, nth, first_row);
        }
        let running = &core.slots.running()[nth];
        if running.sequence.untold.reports_progress && running.sequence.n_predicted() == 0 {
            tell_progress(core, nth, computed(running).end);
        }
        first_row += core.slots.running()[nth].n_planned as usize;
    }
}

/// What the decode computed of a sequence.
fn computed(running: &Running) -> Range<u32> {
    running.n_held..running.n_held + running.n_planned
}

/// Tells of the log-probabilities that the rows from `first_row` on give. The row after each token is that of the next one.
fn tell_logprobs<R: Runner>(core: &mut Core<R>, nth: usize, first_row: usize) {
    let Core { slots, memory, samplers, .. } = core;
    let (running, runner) = (&mut slots.running_mut()[nth], memory.model());
    let computed = computed(running);
    let sequence = &mut running.sequence;
    let told = sequence.untold.told_by(&computed, sequence.n_prompt);
    let Some(UntoldLogprobs { n_probs, n_told }) = &mut sequence.untold.logprobs else { return };
    let is_first = std::mem::replace(n_told, told.end.max(*n_told)) == 0;
    if told.is_empty() && !is_first {
        return;
    }
    // Nothing comes before the first token.
    let mut logprobs: Vec<Option<Logprobs>> = Vec::with_capacity(told.len() + usize::from(is_first));
    logprobs.extend(is_first.then_some(None));
    let tokens: Vec<u32> = told.clone().collect();
    for block in tokens.chunks(BLOCK) {
        let mut rows: Vec<Row<'_>> = (block.iter())
            .map(|&at| Row {
                token: sequence.tokens.at(at),
                logits: runner.logits(first_row + (at - 1 - computed.start) as usize),
                found: None,
            })
            .collect();
        samplers.for_each(&mut rows, runner.n_vocab(), |row| {
            row.found = Some(sampling::logprobs(row.logits, row.token, *n_probs));
        });
        logprobs.extend(rows.into_iter().map(|Row { token, found, .. }| Some(named(found?, token))));
    }
    let mut start = if is_first { 0 } else { told.start };
    let (request_id, at_once) = (sequence.request_id, (MAX_EVENT_BYTES / Logprobs::n_bytes(*n_probs)).max(1));
    let mut logprobs = logprobs.into_iter();
    while !logprobs.as_slice().is_empty() {
        let piece: Vec<_> = logprobs.by_ref().take(at_once).collect();
        let next = start + u32::try_from(piece.len()).expect("a prompt has fewer than 2³² tokens");
        core.tell(request_id, Event::PromptLogprobs(PromptLogprobs { start, logprobs: piece }));
        start = next;
    }
}

/// Tells that the sequence at `nth` starts, where its stream hears of its progress.
pub(super) fn tell_start<R: Runner>(core: &mut Core<R>, nth: usize) {
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
struct Row<'a> {
    token: Token,
    logits: &'a [f32],
    found: Option<(f32, Vec<(Token, f32)>)>,
}
