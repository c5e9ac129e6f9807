//! The loop of the one thread that owns the runner.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use crate::cache::{CacheOp, Counts, KvCache, Reservation, Variant};
use crate::config::Limits;
use crate::engine::Published;
use crate::engine::job::{Job, Waiting};
use crate::engine::movement::{MAX_PATIENCE, Movement};
use crate::engine::questions::Question;
use crate::engine::runner::{Plan, Row, Runner};
use crate::engine::scheduler::Scheduler;
use crate::engine::sequence::{Drawn, Running, Sequence};
use crate::engine::stats::{RunningStats, SlotStats, Stats, StepTimes, StoreStats};
use crate::engine::stream::Bell;
use crate::engine::unread_pins::UnreadPin;
use crate::error::{Error, Result};
use crate::request::{Event, FinishReason, Finished, Made, Task, Token};

/// What a handle asks of the worker.
pub(crate) enum Command {
    /// A request to queue; counted in [`Published::n_waiting`].
    Submit(Box<Job>),
    /// To be answered between two steps.
    Ask(Question),
    /// End now.
    Stop,
}

/// A sequence that gave up its slot and waits to resume.
pub(super) struct Preempted {
    pub(super) sequence: Sequence,
    pub(super) reservation: Reserved,
}

/// What it finds when it comes back.
pub(super) struct Reserved {
    /// What it computed, in either tier.
    pub(super) place: Reservation,
    /// Where it ran.
    pub(super) slot: u32,
}

/// What is measured of the running step.
#[derive(Debug)]
struct Step {
    started: Instant,
    /// The highest used cell before its rows, plus one.
    n_cells: u32,
    decode: Duration,
}

impl Default for Step {
    fn default() -> Self {
        Self { started: Instant::now(), n_cells: 0, decode: Duration::ZERO }
    }
}

/// What the last sequence left in a slot.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// When, counted as [`Worker::next_turn`] counts.
    pub(super) at: u64,
    pub(super) variant: Variant,
    /// What it had computed.
    pub(super) tokens: Vec<Token>,
    /// Until then nobody else gets the slot, since whoever wants it erased asks again when it is free.
    pub(super) erase_by: Option<Instant>,
}

pub(crate) struct Worker<R> {
    pub(super) runner: R,
    pub(super) limits: Limits,
    pub(super) cache: KvCache,
    scheduler: Scheduler,
    pub(super) movement: Movement,
    step: Step,
    commands: Receiver<Command>,
    pub(super) published: Arc<Published>,
    /// By request id, which counts up: in order of arrival.
    pub(super) jobs: BTreeMap<u64, Job>,
    n_submitted: u64,
    n_turns: u64,
    /// Oldest first.
    pub(super) running: Vec<Running>,
    /// Oldest first.
    pub(super) preempted: Vec<Preempted>,
    /// By slot.
    pub(super) left: Vec<Left>,
    /// The cache's time at each of the last decodes, oldest first.
    pub(super) decoded_at: VecDeque<u64>,
    /// The cache's time when the last sequence was placed.
    pub(super) newest_start: u64,
    /// Requests that this step gave their first slot: they wait until the snapshot shows them there, so that it never loses one.
    pub(super) admitted: Vec<Waiting>,
    /// Requests that this step ends with an error.
    pub(super) failed: Vec<(u64, Error)>,
    pub(super) unread_pins: Vec<UnreadPin>,
    pub(super) stats: Stats,
}

impl<R: Runner> Worker<R> {
    pub(crate) fn new(runner: R, limits: Limits, commands: Receiver<Command>, published: Arc<Published>) -> Self {
        let cache = KvCache::new(limits.n_ctx, limits.n_seq_max, runner.memory(), limits.max_store_bytes);
        let worker = Self {
            runner,
            limits,
            cache,
            scheduler: Scheduler::new(limits.n_ubatch, limits.max_token_gap),
            movement: Movement::new(),
            step: Step::default(),
            commands,
            published,
            jobs: BTreeMap::new(),
            n_submitted: 0,
            n_turns: 0,
            admitted: Vec::new(),
            failed: Vec::new(),
            unread_pins: Vec::new(),
            running: Vec::new(),
            preempted: Vec::new(),
            left: (0..limits.n_slots).map(|_| Left::default()).collect(),
            decoded_at: VecDeque::with_capacity(MAX_PATIENCE),
            newest_start: 0,
            stats: Stats {
                slots: vec![SlotStats::default(); limits.n_slots as usize],
                n_cells: limits.n_ctx as usize,
                n_ids: limits.n_seq_max as usize,
                ..Stats::default()
            },
        };
        worker.publish_stats();
        worker
    }

    /// Serves requests until the engine stops.
    pub(crate) fn run(mut self) {
        while self.receive() {
            self.step = Step::default();
            self.timed(|times| &mut times.receive, Self::drop_cancelled);
            self.begin_moving();
            self.timed(|times| &mut times.place, Self::admit);
            self.move_pieces();
            self.hold_prompts();
            let plan = self.timed(|times| &mut times.plan, Self::plan);
            if self.decode(&plan) {
                self.keep_snapshots();
                self.draw();
                self.timed(|times| &mut times.place, Self::admit);
            }
            self.hold_prompts();
            self.timed(|times| &mut times.emit, Self::publish);
            self.end_step();
        }
    }

    /// Counts how long `part` takes, but for what it moves and what it draws, which are counted on their own.
    fn timed<T>(&mut self, of: impl FnOnce(&mut StepTimes) -> &mut Duration, part: impl FnOnce(&mut Self) -> T) -> T {
        let counted = |times: &StepTimes| times.spill + times.restore + times.sample + times.text;
        let (started, before) = (Instant::now(), counted(&self.stats.times));
        let result = part(self);
        let took = started.elapsed().saturating_sub(counted(&self.stats.times).saturating_sub(before));
        *of(&mut self.stats.times) += took;
        result
    }

    /// How long this step may take to move pieces between the tiers.
    fn begin_moving(&mut self) {
        let n_decoding = count(self.running.iter().filter(|running| running.n_ready() == 1));
        let n_prefilling = count(self.running.iter().filter(|running| running.n_ready() > 1));
        self.movement.begin(self.scheduler.spare(n_decoding, n_prefilling, self.n_cells()));
    }

    /// Tells the scheduler what the step took beside its decode and what was moved before that.
    fn end_step(&mut self) {
        if self.step.decode > Duration::ZERO {
            self.scheduler.observe_rest(self.step.started.elapsed().saturating_sub(self.step.decode + self.movement.spent));
        }
    }

    /// Cells that a decode looks through.
    fn n_cells(&self) -> u32 {
        u32::try_from(self.cache.n_reached()).expect("a pool has fewer than 2³² cells")
    }

    /// Takes the commands that wait; where there is nothing to do, waits for one. `false` when the engine stops.
    fn receive(&mut self) -> bool {
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) if !self.jobs.is_empty() => return true,
                Err(TryRecvError::Empty) if self.use_idle_time() => continue,
                Err(TryRecvError::Empty) => {
                    self.show();
                    if cfg!(any(test, debug_assertions)) {
                        self.check_idle();
                    }
                    match self.commands.recv() {
                        Ok(command) => command,
                        Err(_) => return false,
                    }
                }
            };
            self.drop_unread_pins();
            match command {
                Command::Submit(mut job) => {
                    let suppressed = self.runner.suppressed_tokens().iter().map(|&token| (token, f32::NEG_INFINITY));
                    job.sampling.logit_bias.extend(suppressed);
                    job.last_served = self.next_turn();
                    if job.task == Task::Pin
                        && let Err(error) = self.cache.check_pin(job.n_prompt())
                    {
                        // It ends before anything is computed for it.
                        job.n_started = job.n;
                        self.failed.push((self.n_submitted, error));
                    }
                    self.jobs.insert(self.n_submitted, *job);
                    self.n_submitted += 1;
                }
                Command::Ask(question) => self.answer(question),
                Command::Stop => return false,
            }
        }
    }

    /// Makes a change visible before anybody is told of it.
    pub(super) fn show(&mut self) {
        self.carry_out();
        self.publish_stats();
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
        self.drop_unread_pins();
        let cancelled: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| job.sender.is_cancelled()).map(|(&request_id, _)| request_id).collect();
        for request_id in cancelled {
            self.remove(request_id);
        }
    }

    /// Decides which tokens go into the next decode, and makes room for them.
    fn plan(&mut self) -> Plan {
        let n_ready: Vec<u32> = self.running.iter().map(Running::n_ready).collect();
        self.step.n_cells = self.n_cells();
        let mut n_rows = self.scheduler.plan(&n_ready, self.step.n_cells, self.movement.spent).into_iter();
        let (mut place, mut n_planned) = (0, 0);
        // The oldest takes what it needs first; where there is too little, the youngest gives up its place.
        while place < self.running.len() {
            let n_wanted = n_rows.next().expect("one number for each running sequence");
            let is_urgent = self.running[place].n_ready() == 1;
            let n = self.make_room(place, n_planned + n_wanted, is_urgent).saturating_sub(n_planned);
            self.running[place].n_planned = n.min(n_wanted);
            if n == 0 && n_wanted > 0 && !self.is_worth_waiting(is_urgent) {
                if self.running.len() == 1 {
                    self.end_oversized();
                } else {
                    self.preempt_youngest();
                }
                break;
            }
            n_planned += n.min(n_wanted);
            place += 1;
        }
        self.cache
            .extend(self.running.iter().filter(|running| running.n_planned > 0).map(|running| (running.id, running.planned())));
        self.carry_out();
        self.rows(|_| true)
    }

    /// Whether room is found later for what found none in this step: there was no time to make it.
    fn is_worth_waiting(&self, is_urgent: bool) -> bool {
        !is_urgent && self.is_out_of_time() && self.cache.n_evictable() > 0
    }

    /// The only sequence that runs does not fit alone, since pinned prefixes take the rest of the pool.
    fn end_oversized(&mut self) {
        let running = self.running.remove(0);
        if running.sequence.n_predicted() > 0 {
            self.finish(&running, FinishReason::ContextFull, None);
            return;
        }
        let (n_prompt, n_ctx) = (running.sequence.n_prompt as usize, running.n_held as usize);
        self.failed.push((running.sequence.request_id, Error::ContextOverflow { n_prompt, n_ctx }));
        self.leave_slot(&running);
        self.cache.unpin(running.id);
    }

    /// The planned rows of those that `filter` lets through, in order.
    pub(super) fn rows(&self, filter: impl Fn(&Running) -> bool) -> Plan {
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
        if self.decoded_at.len() == MAX_PATIENCE {
            self.decoded_at.pop_front();
        }
        self.decoded_at.push_back(self.cache.now());
        let started = Instant::now();
        if let Err(error) = self.runner.decode(plan) {
            return self.recover(&error);
        }
        let took = started.elapsed();
        self.stats.times.decode += took;
        let n_decoding = count(self.running.iter().filter(|running| running.is_decoding()));
        let n_prefill = count(plan.rows.iter()) - n_decoding;
        self.step.decode = took;
        self.scheduler.observe(n_decoding, n_prefill, self.step.n_cells, took);
        self.stats.n_decodes += 1;
        self.stats.n_busy += self.running.len() as u64;
        self.stats.n_computed += plan.rows.len() as u64 - self.n_drawn_before();
        true
    }

    /// Rows of the plan that compute a token drawn in the step before.
    fn n_drawn_before(&self) -> u64 {
        let fresh = |running: &&Running| running.is_decoding() && running.sequence.n_predicted() > 0;
        u64::from(count(self.running.iter().filter(fresh)))
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
            if job.task != Task::Complete {
                continue;
            }
            let logits = self.runner.logits(n_rows - 1);
            let is_prompt_done = running.sequence.n_predicted() == 0;
            if is_prompt_done && job.n_started < job.n && job.prompt_logits.is_none() {
                job.prompt_logits = Some(logits.into());
            }
            if let Some(reason) = running.sequence.end_without_token(now) {
                finished.push((place, reason));
                continue;
            }
            let Drawn { event, finished: reason } =
                running.sequence.draw(logits, &self.runner, running.slot, &mut self.stats.times);
            self.stats.n_predicted += 1;
            job.events.push(Event::Token(event));
            finished.extend(reason.map(|reason| (place, reason)));
        }
        let ended: Vec<_> = finished.into_iter().rev().map(|(place, reason)| (self.running.remove(place), reason)).collect();
        for (running, reason) in ended.into_iter().rev() {
            self.finish(&running, reason, None);
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
        let Running { sequence, slot, .. } = running;
        let job = self.jobs.get_mut(&sequence.request_id).expect("a job outlives its sequences");
        job.n_running -= 1;
        job.n_finished += 1;
        let (usage, made) = (sequence.usage(), made.map(Box::new));
        job.events.push(Event::Finished(Finished { index: sequence.index, slot: *slot, reason, usage, made }));
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
        self.unread_pins.extend(leaving.iter().filter_map(|(job, _)| UnreadPin::of(job)));
        // First, so that whoever reads the end of a stream finds its slots idle.
        self.show();
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
                CacheOp::Truncate(id, n_kept) => {
                    let is_done = self.runner.truncate(id, n_kept);
                    assert!(is_done, "only a memory that can be cut anywhere is told to");
                }
                CacheOp::Drop(id) => self.runner.drop_sequence(id),
            }
        }
    }

    fn publish_stats(&self) {
        let mut stats: MutexGuard<'_, Stats> = self.published.stats.lock().expect("no code that holds the stats can panic");
        stats.clone_from(&self.stats);
        stats.n_cells_used = self.cache.n_used();
        stats.n_cells_reached = self.cache.n_reached();
        stats.n_cells_idle = self.cache.n_evictable();
        stats.n_ids_used = self.cache.n_ids_used();
        let (n_bytes, max_bytes, n_pieces) = self.cache.store_size();
        let Counts { n_saved, n_restored, n_forgotten, n_relocated } = self.cache.counts();
        stats.store = StoreStats { n_bytes, max_bytes, n_pieces, n_saved, n_restored, n_forgotten, n_relocated };
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
