//! The loop of the one thread that owns the runner.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use crate::cache::{CacheOp, KvCache};
use crate::config::Limits;
use crate::engine::Published;
use crate::engine::job::{Job, Waiting};
use crate::engine::runner::{DecodeError, Plan, Row, Runner};
use crate::engine::scheduler::Scheduler;
use crate::engine::sequence::{Drawn, Running, Sequence};
use crate::engine::stats::{CachedNode, RunningStats, SlotStats, Stats};
use crate::engine::stream::Bell;
use crate::error::{Error, Result};
use crate::request::{Event, FinishReason, Finished, PinnedPrefix, Token};

/// What a handle asks of the worker.
pub(crate) enum Command {
    /// A request to queue; counted in [`Published::n_waiting`].
    Submit(Box<Job>),
    /// To be answered between two steps.
    Ask(Question),
    /// End now.
    Stop,
}

/// A question, with the channel for its answer.
pub(crate) enum Question {
    Cached(SyncSender<Vec<CachedNode>>),
    Pinned(SyncSender<Vec<PinnedPrefix>>),
    Unpin(u64, SyncSender<bool>),
    SlotTokens(u32, SyncSender<Vec<Token>>),
    EraseSlot(u32, SyncSender<u32>),
}

pub(crate) struct Worker<R> {
    pub(super) runner: R,
    pub(super) limits: Limits,
    pub(super) cache: KvCache,
    scheduler: Scheduler,
    commands: Receiver<Command>,
    pub(super) published: Arc<Published>,
    /// By request id, which counts up: in order of arrival.
    pub(super) jobs: BTreeMap<u64, Job>,
    n_submitted: u64,
    n_turns: u64,
    /// Oldest first.
    pub(super) running: Vec<Running>,
    /// Sequences that gave up their slot and wait to resume, oldest first.
    pub(super) preempted: Vec<Sequence>,
    /// Requests that this step gave their first slot: they wait until the snapshot shows them there, so that it never loses one.
    pub(super) admitted: Vec<Waiting>,
    /// Requests that this step ends with an error.
    failed: Vec<(u64, Error)>,
    pub(super) stats: Stats,
}

impl<R: Runner> Worker<R> {
    pub(crate) fn new(runner: R, limits: Limits, commands: Receiver<Command>, published: Arc<Published>) -> Self {
        let worker = Self {
            runner,
            limits,
            cache: KvCache::new(limits.n_ctx, limits.n_seq_max),
            scheduler: Scheduler::new(limits.n_ubatch, limits.max_token_gap),
            commands,
            published,
            jobs: BTreeMap::new(),
            n_submitted: 0,
            n_turns: 0,
            admitted: Vec::new(),
            failed: Vec::new(),
            running: Vec::new(),
            preempted: Vec::new(),
            stats: Stats {
                slots: vec![SlotStats::default(); limits.n_slots as usize],
                n_cells: limits.n_ctx as usize,
                ..Stats::default()
            },
        };
        worker.publish_stats();
        worker
    }

    /// Serves requests until the engine stops.
    pub(crate) fn run(mut self) {
        while self.receive() {
            self.drop_cancelled();
            self.admit();
            let plan = self.plan();
            if self.decode(&plan) {
                self.draw();
                self.admit();
            }
            self.hold_prompts();
            self.publish();
        }
    }

    /// Takes the commands that wait; where there is nothing to do, waits for one. `false` when the engine stops.
    fn receive(&mut self) -> bool {
        loop {
            let command = if self.jobs.is_empty() {
                if cfg!(any(test, debug_assertions)) {
                    self.check_idle();
                }
                self.commands.recv().ok()
            } else {
                match self.commands.try_recv() {
                    Ok(command) => Some(command),
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => None,
                }
            };
            match command {
                Some(Command::Submit(mut job)) => {
                    let suppressed = self.runner.suppressed_tokens().iter().map(|&token| (token, f32::NEG_INFINITY));
                    job.sampling.logit_bias.extend(suppressed);
                    job.last_served = self.next_turn();
                    self.jobs.insert(self.n_submitted, *job);
                    self.n_submitted += 1;
                }
                Some(Command::Ask(_)) => todo!("the cache is being rewritten"),
                Some(Command::Stop) | None => return false,
            }
        }
    }

    /// Nobody holds anything when there is nothing to do.
    fn check_idle(&self) {
        self.cache.check_integrity();
        assert!(self.cache.is_idle(), "cells are pinned, but nobody runs");
        assert!(self.running.is_empty() && self.preempted.is_empty(), "a sequence outlives its request");
    }

    /// Counts arrivals and starts, so that requests can take turns.
    pub(super) fn next_turn(&mut self) -> u64 {
        self.n_turns += 1;
        self.n_turns
    }

    /// Frees what requests hold whose reader has gone.
    fn drop_cancelled(&mut self) {
        let cancelled: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| job.sender.is_cancelled()).map(|(&request_id, _)| request_id).collect();
        for request_id in cancelled {
            self.remove(request_id);
        }
    }

    /// Decides which tokens go into the next decode, and makes room for them.
    fn plan(&mut self) -> Plan {
        let n_uncomputed: Vec<u32> = self.running.iter().map(Running::n_uncomputed).collect();
        let mut n_rows = self.scheduler.plan(&n_uncomputed).into_iter();
        let mut place = 0;
        // The oldest takes what it needs first; where there is too little, the youngest gives up its place.
        while place < self.running.len() {
            let n_wanted = n_rows.next().expect("one number for each running sequence");
            let n = self.make_room(place, n_wanted);
            if n == 0 && n_wanted > 0 {
                self.preempt_youngest();
                break;
            }
            let running = &mut self.running[place];
            running.n_planned = n;
            self.cache.extend(running.id, running.planned());
            place += 1;
        }
        self.carry_out();
        self.rows(|_| true)
    }

    /// The planned rows of those that `filter` lets through, in order.
    fn rows(&self, filter: impl Fn(&Running) -> bool) -> Plan {
        let rows = self.running.iter().filter(|running| filter(running)).flat_map(|running| {
            let last = running.n_held + running.n_planned;
            let draws = running.will_draw();
            (running.n_held..last).map(move |position| Row {
                sequence: running.id,
                token: running.sequence.tokens[position as usize],
                position,
                wants_logits: draws && position + 1 == last,
            })
        });
        Plan { rows: rows.collect() }
    }

    /// Computes the plan. `false` where there was nothing to compute, or nothing came of it.
    fn decode(&mut self, plan: &Plan) -> bool {
        if plan.rows.is_empty() {
            return false;
        }
        let started = Instant::now();
        if let Err(error) = self.runner.decode(plan) {
            return self.recover(&error);
        }
        let took = started.elapsed();
        let n_decoding = count(self.running.iter().filter(|running| running.is_decoding()));
        let n_prefill = count(plan.rows.iter()) - n_decoding;
        self.scheduler.observe(n_decoding, n_prefill, took);
        self.stats.n_decodes += 1;
        self.stats.n_computed += plan.rows.len() as u64 - self.n_drawn_before();
        true
    }

    /// Rows of the plan that compute a token drawn in the step before.
    fn n_drawn_before(&self) -> u64 {
        let fresh = |running: &&Running| running.is_decoding() && running.sequence.n_predicted() > 0;
        u64::from(count(self.running.iter().filter(fresh)))
    }

    /// A decode failed: takes its rows back, tries once more without those of prompts, and ends what still fails with an error.
    fn recover(&mut self, error: &DecodeError) -> bool {
        let planned = |running: &&Running| running.n_planned > 0;
        let (decoding, prefilling): (Vec<u64>, Vec<u64>) = {
            let (decoding, prefilling): (Vec<&Running>, Vec<&Running>) =
                self.running.iter().filter(planned).partition(|running| running.is_decoding());
            let ids = |of: Vec<&Running>| of.into_iter().map(|running| running.sequence.request_id).collect();
            (ids(decoding), ids(prefilling))
        };
        let is_whole = self.take_back(|_| true);
        if is_whole && !decoding.is_empty() && !prefilling.is_empty() {
            self.fail(&prefilling, error);
            for running in &self.running {
                self.cache.extend(running.id, running.planned());
            }
            self.carry_out();
            let plan = self.rows(Running::is_decoding);
            if self.runner.decode(&plan).is_ok() {
                self.stats.n_decodes += 1;
                return true;
            }
            self.take_back(Running::is_decoding);
        }
        self.fail(&prefilling, error);
        self.fail(&decoding, error);
        false
    }

    /// Forgets the planned rows of those that `filter` lets through; `false` where the model's memory cannot.
    fn take_back(&mut self, filter: impl Fn(&Running) -> bool) -> bool {
        let mut is_whole = true;
        for running in self.running.iter().filter(|running| running.n_planned > 0 && filter(running)) {
            self.cache.truncate(running.id, running.n_held);
            is_whole &= self.runner.truncate(running.id, running.n_held);
        }
        is_whole
    }

    fn fail(&mut self, request_ids: &[u64], error: &DecodeError) {
        for &request_id in request_ids {
            for running in self.running.extract_if(.., |running| running.sequence.request_id == request_id) {
                self.cache.forget(running.id);
            }
            self.failed.push((request_id, Error::Decode { reason: error.reason.clone() }));
        }
    }

    /// Draws a token for every sequence whose last one was computed.
    fn draw(&mut self) {
        let now = Instant::now();
        let mut n_rows = 0;
        let mut finished = Vec::new();
        for (place, running) in self.running.iter_mut().enumerate() {
            let n_planned = std::mem::take(&mut running.n_planned);
            running.n_held += n_planned;
            n_rows += n_planned as usize;
            if n_planned == 0 || running.n_uncomputed() > 0 {
                continue;
            }
            let job = self.jobs.get_mut(&running.sequence.request_id).expect("a job outlives its sequences");
            let logits = self.runner.logits(n_rows - 1);
            let is_prompt_done = running.sequence.n_predicted() == 0;
            if is_prompt_done && job.n_started < job.n && job.prompt_logits.is_none() {
                job.prompt_logits = Some(logits.to_vec());
            }
            if let Some(reason) = running.sequence.end_without_token(now) {
                finished.push((place, reason));
                continue;
            }
            let Drawn { event, finished: reason } = running.sequence.draw(logits, &self.runner, running.slot, now);
            self.stats.n_predicted += 1;
            job.events.push(Event::Token(event));
            finished.extend(reason.map(|reason| (place, reason)));
        }
        let ended: Vec<_> = finished.into_iter().rev().map(|(place, reason)| (self.running.remove(place), reason)).collect();
        for (running, reason) in ended.into_iter().rev() {
            self.finish(running, reason);
        }
    }

    /// A branch has ended: its slot is free, and its path stays cached.
    pub(super) fn finish(&mut self, running: Running, reason: FinishReason) {
        let Running { sequence, slot, id, .. } = running;
        self.cache.unpin(id);
        let job = self.jobs.get_mut(&sequence.request_id).expect("a job outlives its sequences");
        job.n_running -= 1;
        job.n_finished += 1;
        job.events.push(Event::Finished(Finished { index: sequence.index, slot, reason, usage: sequence.usage(), made: None }));
    }

    /// Makes the step's events readable, then rings each bell once.
    fn publish(&mut self) {
        let mut ended: Vec<(u64, Result<()>)> =
            self.failed.drain(..).map(|(request_id, error)| (request_id, Err(error))).collect();
        for (&request_id, job) in self.jobs.iter().filter(|(_, job)| !job.events.is_empty()) {
            let has_room = job.sender.check_room(job.events.len());
            if has_room.is_err() || job.is_done() {
                ended.push((request_id, has_room));
            }
        }
        let mut leaving: Vec<(Job, Result<()>)> =
            ended.into_iter().filter_map(|(request_id, how)| Some((self.remove(request_id)?, how))).collect();
        // First, so that whoever reads the end of a stream finds its slots idle.
        self.publish_stats();
        self.admitted.clear();
        let mut bells: Vec<Arc<dyn Bell>> = Vec::new();
        let staying = self.jobs.values_mut().filter(|job| !job.events.is_empty());
        for job in staying.chain(leaving.iter_mut().map(|(job, _)| job)) {
            job.sender.send(&mut job.events);
            if let Some(bell) = job.sender.bell()
                && !bells.iter().any(|known| Arc::ptr_eq(known, bell))
            {
                bells.push(Arc::clone(bell));
            }
        }
        for (job, how) in leaving {
            job.sender.end(how);
        }
        for bell in bells {
            bell.ring();
        }
    }

    /// Carries the cache's changes out in the model's memory.
    pub(super) fn carry_out(&mut self) {
        for op in self.cache.take_ops() {
            match op {
                CacheOp::Fork { from, to, n_tokens } => self.runner.fork(from, to, n_tokens),
                CacheOp::Drop(id) => self.runner.drop_sequence(id),
            }
        }
    }

    fn publish_stats(&self) {
        let mut stats: MutexGuard<'_, Stats> = self.published.stats.lock().expect("no code that holds the stats can panic");
        stats.clone_from(&self.stats);
        stats.n_cells_used = self.cache.n_used();
        for Running { sequence, slot, n_held, .. } in &self.running {
            stats.slots[*slot as usize].running = Some(RunningStats {
                request_id: sequence.request_id,
                index: sequence.index,
                n_prompt: sequence.n_prompt,
                n_computed: (*n_held).min(sequence.n_prompt).saturating_sub(sequence.n_cached()),
                n_cached: sequence.n_cached(),
                n_predicted: sequence.n_predicted(),
                n_remaining: sequence.n_remaining(),
            });
        }
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).expect("a decode has fewer than 2³² rows")
}
