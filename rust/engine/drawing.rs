//! A decode's rows of logits → tokens → events.

use std::sync::Arc;
use std::time::Instant;

use crate::engine::runner::Runner;
use crate::engine::running::Running;
use crate::engine::sequence::{Drawn, Sequence};
use crate::engine::worker::Worker;
use crate::request::{Event, FinishReason, Finished, Made, Task};

/// Most rows that are chosen from at once. The list of them lies on the stack, and so many keep every thread busy.
pub(super) const BLOCK: usize = 64;

impl<R: Runner> Worker<R> {
    /// Tells what a decode found out about prompts, and draws a token for every sequence whose last one was computed.
    pub(super) fn draw(&mut self) {
        let started = Instant::now();
        self.tell_of_prompts();
        self.choose(started);
        let chosen = Instant::now();
        self.show_chosen(chosen);
        self.stats.times.sample += chosen - started;
        self.stats.times.text += chosen.elapsed();
        let ended: Vec<Running> = self.running.extract_if(.., |running| running.end.is_some()).collect();
        for mut running in ended {
            let reason = running.end.take().expect("it was taken out because it has one");
            self.finish(&running, reason, None);
        }
        self.shift_full();
    }

    /// Chooses the tokens, several rows at once. Sequences that draw none end `now`.
    fn choose(&mut self, now: Instant) {
        let Self { running, runner, jobs, samplers, .. } = self;
        let n_vocab = runner.n_vocab();
        let mut n_rows = 0;
        // The rows are looked up here and one after the other: a runner belongs to one thread.
        let mut due = running.iter_mut().filter_map(|running| {
            let n_planned = std::mem::take(&mut running.n_planned);
            running.n_held += n_planned;
            n_rows += n_planned as usize;
            if n_planned == 0 || running.n_uncomputed() > 0 {
                return None;
            }
            let job = jobs.get_mut(&running.sequence.request_id).expect("a job outlives its sequences");
            if job.task != Task::Complete {
                return None;
            }
            let logits = runner.logits(n_rows - 1);
            let is_prompt_done = running.sequence.n_predicted() == 0;
            if is_prompt_done && job.n_started < job.n && job.prompt_logits.is_none() {
                job.prompt_logits = Some(logits.into());
            }
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

    /// Makes events of the tokens that were chosen before `now`.
    fn show_chosen(&mut self, now: Instant) {
        for running in &mut self.running {
            let Some(Drawn { event, finished }) = running.sequence.show(&self.runner, running.slot, now) else { continue };
            running.end = finished;
            let Some(event) = event else { continue };
            self.stats.n_predicted += 1;
            let job = self.jobs.get_mut(&running.sequence.request_id).expect("a job outlives its sequences");
            job.events.push(Event::Token(event));
        }
    }

    /// The first token of a branch whose whole prompt is computed, and the logits after it are known.
    pub(super) fn draw_first(&mut self, place: usize) {
        let running = &mut self.running[place];
        let job = self.jobs.get_mut(&running.sequence.request_id).expect("a job outlives its sequences");
        let restored = running.logits.take();
        if let Some(logits) = &restored
            && job.n_started < job.n
        {
            job.prompt_logits = Some(Arc::clone(logits));
        }
        let logits = restored.or_else(|| job.prompt_logits.clone());
        let logits = logits.expect("a whole prompt is only matched where its logits are kept");
        let started = Instant::now();
        let reason = running.sequence.end_without_token(started).or_else(|| {
            running.sequence.choose(&logits);
            let chosen = Instant::now();
            let shown = running.sequence.show(&self.runner, running.slot, chosen);
            let Drawn { event, finished } = shown.expect("a token was chosen before, or none can be");
            self.stats.times.sample += chosen - started;
            self.stats.times.text += chosen.elapsed();
            self.stats.n_predicted += u64::from(event.is_some());
            job.events.extend(event.map(Event::Token));
            finished
        });
        match reason {
            Some(reason) => {
                let running = self.running.remove(place);
                self.finish(&running, reason, None);
            }
            None => self.shift_full(),
        }
    }

    /// A branch has ended: its slot is free, and its path stays cached.
    pub(super) fn finish(&mut self, running: &Running, reason: FinishReason, made: Option<Made>) {
        self.leave_slot(running);
        self.cache.unpin(running.id);
        self.finish_idle(running, reason, made);
    }

    /// As [`Worker::finish`], where slot and path were left already.
    pub(super) fn finish_idle(&mut self, running: &Running, reason: FinishReason, made: Option<Made>) {
        let Running { sequence, slot, n_held, .. } = running;
        let job = self.jobs.get_mut(&sequence.request_id).expect("a job outlives its sequences");
        job.n_running -= 1;
        job.n_finished += 1;
        let is_truncated = sequence.is_truncated() || reason == FinishReason::ContextFull;
        let (index, usage, made) = (sequence.index, sequence.usage(*n_held), made.map(Box::new));
        job.events.push(Event::Finished(Finished { index, slot: *slot, reason, usage, is_truncated, made }));
    }
}
