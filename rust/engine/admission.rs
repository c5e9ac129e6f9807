//! Who runs: sequences enter slots, give them up under pressure, and come back.

use std::time::Instant;

use crate::cache::{MIN_SHARED, Match};
use crate::engine::job::Job;
use crate::engine::runner::{Runner, SequenceId};
use crate::engine::sequence::{Drawn, Running, Sequence};
use crate::engine::worker::Worker;
use crate::request::{Event, Token};

/// Cells kept free for each running sequence when another one is admitted, so that it need not be preempted at once.
const MARGIN: u32 = 64;

impl<R: Runner> Worker<R> {
    /// Fills the free slots: first with preempted sequences, oldest first; then with new ones, from the request that has the
    /// fewest running, of these the one that has waited for its turn the longest. So a request for many completions takes the
    /// slots that are free, one for a single completion gets the next, and where both wait they take turns.
    pub(super) fn admit(&mut self) {
        while let Some(slot) = self.free_slot() {
            let is_admitted = if self.preempted.is_empty() {
                match self.next_job() {
                    Some(request_id) => self.start(request_id, slot),
                    None => return,
                }
            } else {
                self.resume(slot)
            };
            if !is_admitted {
                return;
            }
        }
    }

    fn free_slot(&self) -> Option<u32> {
        (0..self.limits.n_slots).find(|&slot| self.running.iter().all(|running| running.slot != slot))
    }

    fn next_job(&self) -> Option<u64> {
        self.jobs
            .iter()
            .filter(|(_, job)| job.can_start())
            .min_by_key(|(_, job)| (job.n_running, job.last_served))
            .map(|(&request_id, _)| request_id)
    }

    /// Starts the next branch of a request in `slot`. Where its prompt is computed, its first token is drawn at once.
    fn start(&mut self, request_id: u64, slot: u32) -> bool {
        let now = Instant::now();
        self.carry_out();
        let job = &self.jobs[&request_id];
        let matched = self.find(&job.prompt, job.prompt_logits.is_some());
        if !self.fits(job.prompt.len(), matched, 0) {
            return false;
        }
        let sequence = Sequence::new(request_id, job, self.limits.n_ctx_slot, self.runner.end_tokens(), now);
        let place = self.run_in(slot, sequence, matched);
        let turn = self.next_turn();
        let job = self.jobs.get_mut(&request_id).expect("it was found above");
        job.n_started += 1;
        job.last_served = turn;
        self.admitted.extend(job.waiting.take());
        if self.running[place].n_uncomputed() == 0 {
            self.draw_first(place, now);
        }
        let job = self.jobs.get_mut(&request_id).expect("it was found above");
        if job.n_started == job.n {
            job.prompt_logits = None;
            self.release_holder(request_id);
        }
        true
    }

    /// The first token of a branch whose whole prompt was computed for another one.
    fn draw_first(&mut self, place: usize, now: Instant) {
        let running = &mut self.running[place];
        let job = self.jobs.get_mut(&running.sequence.request_id).expect("a job outlives its sequences");
        let reason = running.sequence.end_without_token(now).or_else(|| {
            let logits = job.prompt_logits.as_ref().expect("a whole prompt is only matched where its logits are kept");
            let Drawn { event, finished } = running.sequence.draw(logits, &self.runner, running.slot, now);
            self.stats.n_predicted += 1;
            job.events.push(Event::Token(event));
            finished
        });
        if let Some(reason) = reason {
            let running = self.running.remove(place);
            self.finish(running, reason);
        }
    }

    /// Gives the oldest preempted sequence a slot again.
    fn resume(&mut self, slot: u32) -> bool {
        self.carry_out();
        let oldest = &self.preempted[0];
        let matched = self.find(&oldest.tokens, false);
        if !self.fits(oldest.tokens.len(), matched, oldest.n_remaining().min(MARGIN)) {
            return false;
        }
        let sequence = self.preempted.remove(0);
        self.run_in(slot, sequence, matched);
        true
    }

    /// The longest prefix that can be shared. At least the last token is left to compute, for its logits, unless they are kept.
    fn find(&self, tokens: &[Token], has_logits: bool) -> Option<Match> {
        let n = u32::try_from(tokens.len()).expect("a sequence fits its context");
        let can_fork = |id, n_held, n_tokens| self.runner.can_fork(id, n_held, n_tokens);
        let whole = if has_logits { self.find_whole(tokens) } else { None };
        whole.or_else(|| self.cache.longest_prefix(tokens, MIN_SHARED, n - 1, can_fork))
    }

    /// An id that holds all of `tokens`.
    fn find_whole(&self, tokens: &[Token]) -> Option<Match> {
        let n = u32::try_from(tokens.len()).expect("a sequence fits its context");
        self.cache.longest_prefix(tokens, n, n, |id, n_held, n_tokens| self.runner.can_fork(id, n_held, n_tokens))
    }

    /// Whether a sequence of `n_tokens` can start: what it must compute, `n_more` tokens for itself and [`MARGIN`] for each running
    /// one are free or can be evicted. Alone it always can.
    fn fits(&self, n_tokens: usize, matched: Option<Match>, n_more: u32) -> bool {
        if self.running.is_empty() {
            return true;
        }
        let n_needed = n_tokens - matched.map_or(0, |matched| matched.n_tokens as usize);
        let n_promised: u32 =
            self.running.iter().map(|running| running.n_uncomputed() + running.sequence.n_remaining().min(MARGIN)).sum();
        let n_kept = matched.map_or(0, |matched| self.cache.n_evictable_in(matched));
        n_needed + (n_promised + n_more) as usize + n_kept <= self.cache.n_free() + self.cache.n_evictable()
    }

    /// Puts `sequence` into `slot`, over what `matched` found; returns its place among the running.
    fn run_in(&mut self, slot: u32, mut sequence: Sequence, mut matched: Option<Match>) -> usize {
        let id = loop {
            if let Some(id) = self.cache.place(matched) {
                break id;
            }
            // No id but those of running sequences and kept prompts, and the match's own: that one is the last to be given up.
            if !self.release_youngest_holder(matched.map(|matched| matched.source)) {
                assert!(matched.take().is_some(), "there are more ids than slots");
            }
        };
        let n_held = matched.map_or(0, |matched| matched.n_tokens);
        self.carry_out();
        if sequence.start(n_held) {
            self.stats.n_cached += u64::from(n_held);
        }
        self.jobs.get_mut(&sequence.request_id).expect("a job outlives its sequences").n_running += 1;
        let place = self.running.partition_point(|other| other.sequence.age() < sequence.age());
        self.running.insert(place, Running { sequence, slot, id, n_held, n_planned: 0 });
        place
    }

    /// Frees `n_wanted` cells for the running sequence at `place` if that can be done without taking from older ones; returns how
    /// many of them are free. Idle paths go first, then kept prompts, then the youngest sequences.
    pub(super) fn make_room(&mut self, place: usize, n_wanted: u32) -> u32 {
        while self.cache.n_free() < n_wanted as usize {
            let has_more = self.cache.evict() || self.release_youngest_holder(None) || {
                let is_younger = self.running.len() > place + 1;
                if is_younger {
                    self.preempt_youngest();
                }
                is_younger
            };
            if !has_more {
                break;
            }
        }
        n_wanted.min(u32::try_from(self.cache.n_free()).expect("a pool has fewer than 2³² cells"))
    }

    /// Takes the youngest running sequence off its slot. Its text and its generator stay, its cells can be evicted.
    pub(super) fn preempt_youngest(&mut self) {
        let Running { sequence, id, .. } = self.running.pop().expect("somebody runs where room is made");
        self.cache.unpin(id);
        self.jobs.get_mut(&sequence.request_id).expect("a job outlives its sequences").n_running -= 1;
        let place = self.preempted.partition_point(|other| other.age() < sequence.age());
        self.preempted.insert(place, sequence);
        self.stats.n_preempted += 1;
    }

    /// Keeps the cells of prompts that are computed and that further branches wait for.
    pub(super) fn hold_prompts(&mut self) {
        let waiting: Vec<u64> = (self.jobs.iter())
            .filter(|(_, job)| job.waits_with_prompt() && job.holder.is_none())
            .map(|(&request_id, _)| request_id)
            .collect();
        for request_id in waiting {
            self.carry_out();
            let prompt = &self.jobs[&request_id].prompt;
            if let Some(matched) = self.find_whole(prompt) {
                let holder = self.cache.place(Some(matched));
                self.jobs.get_mut(&request_id).expect("it was found above").holder = holder;
            }
        }
    }

    /// Gives up the kept prompt of the youngest request that has one, but not that on the id `kept`; `false` where there is none.
    fn release_youngest_holder(&mut self, kept: Option<SequenceId>) -> bool {
        let can_go = |job: &Job| job.holder.is_some() && job.holder != kept;
        let youngest = self.jobs.iter().rev().find(|(_, job)| can_go(job)).map(|(&request_id, _)| request_id);
        youngest.is_some_and(|request_id| self.release_holder(request_id))
    }

    fn release_holder(&mut self, request_id: u64) -> bool {
        let holder = self.jobs.get_mut(&request_id).and_then(|job| job.holder.take());
        holder.map(|holder| self.cache.forget(holder)).is_some()
    }

    /// Takes a request out, with everything that it holds.
    pub(super) fn remove(&mut self, request_id: u64) -> Option<Job> {
        for running in self.running.extract_if(.., |running| running.sequence.request_id == request_id) {
            self.cache.unpin(running.id);
        }
        self.preempted.retain(|sequence| sequence.request_id != request_id);
        self.release_holder(request_id);
        self.jobs.remove(&request_id)
    }
}
