//! Who runs: sequences enter slots, give them up under pressure, and come back.

use std::collections::VecDeque;
use std::time::Instant;

use crate::cache::{MIN_SHARED, Match, Wanted, common_prefix};
use crate::engine::job::{Awaits, Job};
use crate::engine::runner::{Runner, SequenceId};
use crate::engine::running::Running;
use crate::engine::sequence::Sequence;
use crate::engine::worker::{Preempted, Reserved, Worker};
use crate::request::{SavedPrefix, Task};

/// Cells kept free for each running sequence when another one is admitted, so that it need not be preempted at once.
const MARGIN: u32 = 64;

/// What became of an attempt to start a branch.
enum Start {
    /// It runs.
    Done,
    /// Another sequence is computing what it needs.
    Waits,
    /// There is no room for it yet, and nobody else goes first.
    NoRoom,
}

impl<R: Runner> Worker<R> {
    /// Fills the free slots: first with preempted sequences, oldest first; then with new ones, from the request that has the
    /// fewest running, of these the one that has waited for its turn the longest. So a request for many completions takes the
    /// slots that are free, one for a single completion gets the next, and where both wait they take turns. One that waits for
    /// another to compute its prompt lets others go first; one that does not fit yet lets nobody.
    pub(super) fn admit(&mut self) {
        while self.running.len() < self.limits.n_slots as usize {
            if !self.preempted.is_empty() {
                if !self.resume() {
                    return;
                }
                continue;
            }
            let Some(request_id) = self.next_job() else { return };
            match self.start(request_id) {
                Start::Done | Start::Waits => {}
                Start::NoRoom => return,
            }
        }
    }

    fn next_job(&self) -> Option<u64> {
        self.jobs
            .iter()
            .filter(|(_, job)| job.can_start() && !self.is_waiting(job))
            .min_by_key(|(_, job)| (job.n_running, job.last_served))
            .map(|(&request_id, _)| request_id)
    }

    /// Whether what a request needs is still being computed, or the slot that it must have is not free.
    fn is_waiting(&self, job: &Job) -> bool {
        let is_computing = |Awaits { owner, n_tokens, .. }: Awaits| {
            self.running.iter().any(|running| running.sequence.age() == owner && running.n_held < n_tokens)
        };
        job.awaits.is_some_and(is_computing) || job.must_have().is_some_and(|slot| !self.is_free(slot))
    }

    /// Starts the next branch of a request. Where its prompt is computed, its first token is drawn at once.
    fn start(&mut self, request_id: u64) -> Start {
        let now = Instant::now();
        let job = &self.jobs[&request_id];
        self.cache.touch(&job.variant, &job.prompt);
        if !self.free_an_id() {
            return Start::NoRoom;
        }
        self.carry_out();
        let job = &self.jobs[&request_id];
        let mut matched = self.find(job);
        if let Some(awaits) = self.worth_awaiting(job, matched.n_tokens()) {
            self.jobs.get_mut(&request_id).expect("it was found above").awaits = Some(awaits);
            return Start::Waits;
        }
        let is_cut = job.task == Task::Save { computes: false };
        let n_tokens = if is_cut { matched.n_tokens() as usize } else { job.prompt.len() };
        if !self.fits(n_tokens, &matched, 0) {
            return Start::NoRoom;
        }
        let Some(slot) = self.free_slot(job, job.slot) else { return Start::NoRoom };
        let job = self.jobs.get_mut(&request_id).expect("it was found above");
        match &job.task {
            Task::Save { computes: false } => job.prompt.truncate(matched.n_tokens() as usize),
            Task::Load(saved) => matched.take_from(saved, self.runner.memory().forks),
            Task::Complete | Task::Pin | Task::Save { computes: true } => {}
        }
        let (n_pool, n_found) = (matched.n_pool, matched.n_tokens());
        let sequence = Sequence::new(request_id, job, self.limits.n_ctx_slot, &self.runner.lexicon(), now);
        let place = self.run_in(slot, sequence, matched);
        self.tell_start(place);
        self.count_found(request_id, n_pool, n_found);
        let turn = self.next_turn();
        let job = self.jobs.get_mut(&request_id).expect("it was found above");
        job.n_started += 1;
        job.last_served = turn;
        job.awaits = None;
        if job.n_started == job.n {
            self.admitted.extend(job.waiting.take());
        }
        let is_complete = job.task == Task::Complete;
        let running = &self.running[place];
        if is_complete && running.restores.is_empty() && running.n_uncomputed() == 0 {
            self.draw_first(place);
        }
        let job = self.jobs.get_mut(&request_id).expect("it was found above");
        if job.n_started == job.n {
            job.prompt_logits = None;
            self.release_holder(request_id);
        }
        Start::Done
    }

    /// Makes sure that some sequence id is free; `false` where none can be had yet, or this step has no more time to save what
    /// holds one.
    fn free_an_id(&mut self) -> bool {
        while !self.cache.has_free_id() {
            if self.is_out_of_time() || !(self.evict() || self.release_youngest_holder()) {
                return false;
            }
        }
        true
    }

    /// Gives the oldest preempted sequence a slot again.
    fn resume(&mut self) -> bool {
        let Preempted { sequence, .. } = &self.preempted[0];
        let (request_id, n_more) = (sequence.request_id, margin(sequence));
        let variant = self.jobs[&request_id].variant.clone();
        let Preempted { sequence, .. } = &self.preempted[0];
        self.cache.touch(&variant, &sequence.tokens);
        if !self.free_an_id() {
            return false;
        }
        let Preempted { sequence, .. } = &self.preempted[0];
        let at_most = sequence.most_found();
        let wanted = Wanted { variant: &variant, tokens: &sequence.tokens, at_least: 1, at_most, takes_logits: false };
        let matched = self.look_up(&wanted);
        if !self.fits(sequence.tokens.len(), &matched, n_more) {
            return false;
        }
        let wanted = Some(self.preempted[0].reservation.slot);
        let Some(slot) = self.free_slot(&self.jobs[&request_id], wanted) else { return false };
        let Preempted { sequence, reservation } = self.preempted.remove(0);
        self.run_in(slot, sequence, matched);
        self.cache.release(reservation.place);
        true
    }

    /// The longest prefix of a prompt that can be shared. At least its last token is left to compute, for the logits, unless they
    /// are known or not needed.
    fn find(&self, job: &Job) -> Match {
        let n = job.n_prompt();
        let needs_logits = job.task == Task::Complete;
        let whole = if job.prompt_logits.is_some() { self.find_whole(job) } else { None };
        whole.unwrap_or_else(|| {
            if !job.uses_cache() {
                return Match::default();
            }
            let wanted = Wanted {
                variant: &job.variant,
                tokens: &job.prompt,
                at_least: if matches!(job.task, Task::Save { .. }) { 1 } else { MIN_SHARED },
                at_most: if needs_logits { n - 1 } else { n },
                takes_logits: true,
            };
            self.look_up(&wanted)
        })
    }

    fn look_up(&self, wanted: &Wanted<'_>) -> Match {
        self.cache.find(wanted, |id, n_held, n_tokens| self.runner.can_fork(id, n_held, n_tokens)).unwrap_or_default()
    }

    /// What holds all of a prompt in the pool.
    fn find_whole(&self, job: &Job) -> Option<Match> {
        let n = job.n_prompt();
        let wanted = Wanted { variant: &job.variant, tokens: &job.prompt, at_least: n, at_most: n, takes_logits: false };
        Some(self.look_up(&wanted)).filter(|matched| matched.n_pool == n)
    }

    /// The running sequence that is computing more of a prompt than the `n_known` tokens that are known, if it is worth a wait.
    fn worth_awaiting(&self, job: &Job, n_known: u32) -> Option<Awaits> {
        let is_known = job.prompt_logits.is_some() || matches!(job.task, Task::Save { computes: false } | Task::Load(_));
        if is_known || !job.uses_cache() {
            return None;
        }
        let is_a_state = self.runner.memory().is_a_state();
        let n = job.n_prompt();
        let ahead = self.running.iter().filter(|running| running.n_uncomputed() >= MIN_SHARED).filter_map(|running| {
            let owner = &self.jobs[&running.sequence.request_id];
            let tokens = &running.sequence.tokens;
            let n_common = common_prefix(tokens, &job.prompt);
            let n_tokens = if is_a_state { self.last_snapshot(running, n_common, n)? } else { n_common.min(n - 1) };
            let is_more = n_tokens >= n_known + MIN_SHARED && n_tokens > running.n_held && owner.variant == job.variant;
            is_more.then(|| Awaits { owner: running.sequence.age(), n_tokens, n_known })
        });
        ahead.max_by_key(|awaits| awaits.n_tokens)
    }

    /// Where a sequence that is computing its prompt will keep the last snapshot of use to a prompt of `n` tokens of which it has
    /// the first `n_common`. Only that at its prompt's end has the logits that all of a prompt needs.
    fn last_snapshot(&self, running: &Running, n_common: u32, n: u32) -> Option<u32> {
        let n_prompt = running.sequence.n_prompt;
        if running.sequence.n_predicted() > 0 || !self.cache.has_store() {
            return None;
        }
        let earlier = || {
            let places = &self.jobs[&running.sequence.request_id].snapshots_at;
            places.iter().rfind(|&&at| at <= n_common && at < n).copied()
        };
        if n_common == n_prompt { Some(n_prompt) } else { earlier() }
    }

    /// Counts where the first `n_found` tokens of a prompt came from, each of them once.
    fn count_found(&mut self, request_id: u64, n_pool: u32, n_found: u32) {
        let job = &self.jobs[&request_id];
        self.cache.count_hit(&job.variant, &job.prompt[..n_found as usize]);
        if job.task != Task::Complete {
            return;
        }
        let awaited = job.awaits.map_or(0..0, |awaits| awaits.n_known.min(n_found)..awaits.n_tokens.min(n_found));
        let n_both = awaited.end.saturating_sub(awaited.start.max(n_pool));
        self.stats.n_awaited += u64::from(awaited.end - awaited.start);
        self.stats.n_restored += u64::from(n_found - n_pool - n_both);
    }

    /// Whether a sequence of `n_tokens` can start: what it must compute or restore, `n_more` tokens for itself and [`MARGIN`] for
    /// each running one are free or can be evicted. Alone it always can.
    fn fits(&self, n_tokens: usize, matched: &Match, n_more: u32) -> bool {
        if self.running.is_empty() {
            return true;
        }
        let n_needed = n_tokens - matched.n_pool as usize;
        let n_promised: u32 = self.running.iter().map(|running| running.n_uncomputed() + margin(&running.sequence)).sum();
        let n_kept = self.cache.n_evictable_in(matched);
        n_needed + (n_promised + n_more) as usize + n_kept <= self.cache.n_free() + self.cache.n_evictable()
    }

    /// Puts `sequence` into `slot`, over what `matched` found; returns its place among the running. An id is free.
    fn run_in(&mut self, slot: u32, mut sequence: Sequence, matched: Match) -> usize {
        let job = self.jobs.get_mut(&sequence.request_id).expect("a job outlives its sequences");
        job.n_running += 1;
        if job.fills(slot) {
            self.left[slot as usize].tokens.clear();
        }
        let id = self.cache.place(&job.variant, Some(&matched)).expect("an id was freed before");
        self.carry_out();
        self.newest_start = self.cache.now();
        let is_complete = self.jobs[&sequence.request_id].task == Task::Complete;
        if sequence.start(matched.n_tokens()) && is_complete {
            self.stats.n_cached += u64::from(matched.n_tokens().min(sequence.n_prompt));
        }
        let place = self.running.partition_point(|other| other.sequence.age() < sequence.age());
        let Match { n_pool, restores, logits, .. } = matched;
        let (restores, saved) = (VecDeque::from(restores), SavedPrefix::default());
        self.running
            .insert(place, Running { sequence, slot, id, n_held: n_pool, n_planned: 0, restores, logits, saved, end: None });
        place
    }

    /// Frees `n_wanted` cells for the running sequence at `place` if that can be done without taking from older ones; returns how
    /// many of them are free. Idle paths go first, then kept prompts, then the youngest sequences. Where it is not `urgent`,
    /// no longer is spent on it than this step has time for.
    pub(super) fn make_room(&mut self, place: usize, n_wanted: u32, is_urgent: bool) -> u32 {
        while self.cache.n_free() < n_wanted as usize {
            if !is_urgent && self.is_out_of_time() {
                break;
            }
            let has_more = self.evict() || self.release_youngest_holder() || {
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

    /// Takes the youngest running sequence off its slot. Its text and its generator stay; its cells can be evicted, after others.
    /// What is being loaded has neither: it goes back to its place in the queue, and to the copy that it is loaded from.
    pub(super) fn preempt_youngest(&mut self) {
        let running = self.running.pop().expect("somebody runs where room is made");
        self.leave_slot(&running);
        let Running { sequence, slot, id, .. } = running;
        self.stats.n_preempted += 1;
        let job = self.jobs.get_mut(&sequence.request_id).expect("a job outlives its sequences");
        job.n_running -= 1;
        if matches!(job.task, Task::Load(_)) {
            job.n_started = 0;
            self.cache.unpin(id);
            return;
        }
        let place = self.cache.reserve(id);
        self.wait_to_resume(Preempted { sequence, reservation: Reserved { place, slot } });
    }

    pub(super) fn wait_to_resume(&mut self, preempted: Preempted) {
        let age = preempted.sequence.age();
        let at = self.preempted.partition_point(|other| other.sequence.age() < age);
        self.preempted.insert(at, preempted);
    }

    /// Keeps the cells of prompts that are computed and that further branches wait for.
    pub(super) fn hold_prompts(&mut self) {
        let waiting: Vec<u64> = (self.jobs.iter())
            .filter(|(_, job)| job.waits_with_prompt() && job.holder.is_none())
            .map(|(&request_id, _)| request_id)
            .collect();
        for request_id in waiting {
            self.carry_out();
            let job = &self.jobs[&request_id];
            if self.cache.has_free_id()
                && let Some(matched) = self.find_whole(job)
            {
                let holder = self.cache.place(&job.variant, Some(&matched));
                self.jobs.get_mut(&request_id).expect("it was found above").holder = holder;
            }
        }
    }

    /// Gives up the kept prompt of the youngest request that has one; `false` where there is none.
    fn release_youngest_holder(&mut self) -> bool {
        let youngest = self.jobs.iter().rev().find(|(_, job)| job.holder.is_some()).map(|(&request_id, _)| request_id);
        youngest.is_some_and(|request_id| self.release_holder(request_id))
    }

    fn release_holder(&mut self, request_id: u64) -> bool {
        let holder: Option<SequenceId> = self.jobs.get_mut(&request_id).and_then(|job| job.holder.take());
        holder.map(|holder| self.cache.unpin(holder)).is_some()
    }

    /// Takes a request out, with everything that it holds.
    pub(super) fn remove(&mut self, request_id: u64) -> Option<Job> {
        let ended: Vec<Running> = self.running.extract_if(.., |running| running.sequence.request_id == request_id).collect();
        for running in ended {
            self.leave_slot(&running);
            self.cache.unpin(running.id);
        }
        for preempted in self.preempted.extract_if(.., |preempted| preempted.sequence.request_id == request_id) {
            self.cache.release(preempted.reservation.place);
        }
        self.release_holder(request_id);
        self.jobs.remove(&request_id)
    }
}

/// Cells that a sequence is expected to take beside those of its tokens.
fn margin(sequence: &Sequence) -> u32 {
    sequence.n_remaining().map_or(MARGIN, |n| n.min(MARGIN))
}
