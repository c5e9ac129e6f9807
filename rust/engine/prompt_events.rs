//! What a stream hears of its prompt: how far it is computed, and the log-probabilities of its tokens.

use std::ops::Range;
use std::time::Instant;

use crate::engine::drawing::BLOCK;
use crate::engine::job::Job;
use crate::engine::runner::Runner;
use crate::engine::running::Running;
use crate::engine::sequence::{Sequence, named};
use crate::engine::worker::Worker;
use crate::request::{Event, Logprobs, Progress, PromptLogprobs, Token};
use crate::sampling;

/// What the first branch of a request is still to tell of its prompt; the others have nothing to tell.
#[derive(Debug, Default)]
pub(crate) struct Untold {
    logprobs: Option<UntoldLogprobs>,
    reports_progress: bool,
}

#[derive(Debug)]
struct UntoldLogprobs {
    /// How many of the most likely tokens in the place of each.
    n_probs: usize,
    /// `[0, n_told)` of the prompt are told.
    n_told: u32,
}

impl Untold {
    /// Of the next branch of `job`.
    pub(crate) fn new(job: &Job) -> Self {
        if job.n_started > 0 {
            return Self::default();
        }
        let logprobs = job.prompt_logprobs.map(|n| UntoldLogprobs { n_probs: n as usize, n_told: 0 });
        Self { logprobs, reports_progress: job.reports_progress }
    }

    /// Which tokens of a prompt the rows of `computed` tell of.
    fn told_by(&self, computed: &Range<u32>, n_prompt: u32) -> Range<u32> {
        let n_told = self.logprobs.as_ref().map_or(n_prompt, |logprobs| logprobs.n_told);
        (computed.start + 1).max(n_told)..(computed.end + 1).min(n_prompt)
    }
}

impl Sequence {
    /// Whether the logits after its token at `position` tell of the next one of its prompt.
    pub(crate) fn tells_after(&self, position: u32) -> bool {
        !self.untold.told_by(&(position..position + 1), self.n_prompt).is_empty()
    }

    /// Whether log-probabilities of its prompt's tokens are still to be told, which a decode with many rows of logits finds.
    pub(crate) fn tells_of_prompt(&self) -> bool {
        self.untold.logprobs.as_ref().is_some_and(|logprobs| logprobs.n_told < self.n_prompt)
    }

    /// Most tokens that it may find computed: what it must tell of needs the logits before it.
    pub(crate) fn most_found(&self) -> u32 {
        let untold = self.untold.logprobs.as_ref().filter(|logprobs| logprobs.n_told < self.n_prompt);
        untold.map_or(self.n_tokens() - 1, |logprobs| logprobs.n_told.saturating_sub(1))
    }
}

impl Running {
    /// What the next decode computes.
    fn computed(&self) -> Range<u32> {
        self.n_held..self.n_held + self.n_planned
    }
}

impl<R: Runner> Worker<R> {
    /// Tells of the prompts that this decode computed a part of.
    pub(super) fn tell_of_prompts(&mut self) {
        let mut first_row = 0;
        for place in 0..self.running.len() {
            let running = &self.running[place];
            if running.n_planned == 0 {
                continue;
            }
            if running.sequence.tells_of_prompt() {
                self.tell_logprobs(place, first_row);
            }
            let running = &self.running[place];
            if running.sequence.untold.reports_progress && running.sequence.n_predicted() == 0 {
                self.tell_progress(place, running.computed().end);
            }
            first_row += self.running[place].n_planned as usize;
        }
    }

    /// Tells of the log-probabilities that the rows from `first_row` on give. The row after each token is that of the next one.
    fn tell_logprobs(&mut self, place: usize, first_row: usize) {
        let Self { running, runner, jobs, samplers, .. } = self;
        let running = &mut running[place];
        let computed = running.computed();
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
                    token: sequence.tokens[at as usize],
                    logits: runner.logits(first_row + (at - 1 - computed.start) as usize),
                    found: None,
                })
                .collect();
            samplers.for_each(&mut rows, runner.n_vocab(), |row| {
                row.found = Some(sampling::logprobs(row.logits, row.token, *n_probs));
            });
            logprobs.extend(rows.into_iter().map(|Row { token, found, .. }| Some(named(found?, token, runner))));
        }
        let start = if is_first { 0 } else { told.start };
        let job = jobs.get_mut(&sequence.request_id).expect("a job outlives its sequences");
        job.events.push(Event::PromptLogprobs(PromptLogprobs { start, logprobs }));
    }

    /// Tells that the sequence at `place` starts, where its stream hears of its progress.
    pub(super) fn tell_start(&mut self, place: usize) {
        let Running { sequence, .. } = &self.running[place];
        if sequence.untold.reports_progress {
            self.tell_progress(place, sequence.n_cached());
        }
    }

    fn tell_progress(&mut self, place: usize, n_processed: u32) {
        let Running { sequence, .. } = &self.running[place];
        let (n_prompt, n_cached, ms) = (sequence.n_prompt, sequence.n_cached(), sequence.elapsed_ms(Instant::now()));
        let job = self.jobs.get_mut(&sequence.request_id).expect("a job outlives its sequences");
        job.events.push(Event::Progress(Progress { n_prompt, n_cached, n_processed, ms }));
    }
}

/// A row of logits, and what it says about the token after it.
struct Row<'a> {
    token: Token,
    logits: &'a [f32],
    found: Option<(f32, Vec<(Token, f32)>)>,
}
