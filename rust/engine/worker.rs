//! The loop of the one thread that owns the runner.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use crate::cache::{CacheOp, KvCache, Reservation, Variant};
use crate::config::Limits;
use crate::engine::job::{Job, Waiting};
use crate::engine::movement::{Movement, N_REMEMBERED};
use crate::engine::publishing::Published;
use crate::engine::questions::Question;
use crate::engine::runner::{Plan, Row, Runner};
use crate::engine::running::Running;
use crate::engine::scheduler::Scheduler;
use crate::engine::sequence::Sequence;
use crate::engine::stats::{RecentStep, Stats, StepTimes};
use crate::engine::stream::Bell;
use crate::engine::unread_pins::UnreadPin;
use crate::error::Error;
use crate::request::{FinishReason, Task, Token};
use crate::sampling::Threads;

/// What a handle asks of the worker.
pub(crate) enum Command {
    /// A request to queue; counted in [`Published::n_waiting`].
    Submit { request_id: u64, job: Box<Job> },
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
    /// The worker's times when it began.
    before: StepTimes,
    /// The highest used cell before its rows, plus one.
    n_cells: u32,
    /// Rows that were computed.
    n_rows: u32,
    decode: Duration,
}

impl Step {
    fn begin(times: StepTimes) -> Self {
        Self { started: Instant::now(), before: times, n_cells: 0, n_rows: 0, decode: Duration::ZERO }
    }
}

/// Tokens that wait to be computed by each running sequence, and how many of them the next decode computes. Kept between steps for
/// its memory.
#[derive(Debug, Default)]
struct Shares {
    n_ready: Vec<u32>,
    n_rows: Vec<u32>,
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
    shares: Shares,
    /// What the decode of this step computes.
    pub(super) plan: Plan,
    pub(super) samplers: Threads,
    commands: Receiver<Command>,
    pub(super) published: Arc<Published>,
    /// By request id, which counts up: in order of submission.
    pub(super) jobs: BTreeMap<u64, Job>,
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
    /// Who is told of this step's events.
    pub(super) bells: Vec<Arc<dyn Bell>>,
    pub(super) unread_pins: Vec<UnreadPin>,
    /// All but [`Stats::slots`], which only the published ones have.
    pub(super) stats: Stats,
}

impl<R: Runner> Worker<R> {
    pub(crate) fn new(runner: R, limits: Limits, commands: Receiver<Command>, published: Arc<Published>) -> Self {
        let samplers = Threads::new(runner.n_threads());
        let cache = KvCache::new(limits.n_ctx, limits.n_seq_max, runner.memory(), limits.max_store_bytes);
        let worker = Self {
            runner,
            limits,
            cache,
            scheduler: Scheduler::new(limits.n_ubatch, limits.max_token_gap),
            movement: Movement::new(),
            step: Step::begin(StepTimes::default()),
            shares: Shares::default(),
            plan: Plan::default(),
            samplers,
            commands,
            published,
            jobs: BTreeMap::new(),
            n_turns: 0,
            admitted: Vec::new(),
            failed: Vec::new(),
            bells: Vec::new(),
            unread_pins: Vec::new(),
            running: Vec::new(),
            preempted: Vec::new(),
            left: (0..limits.n_slots).map(|_| Left::default()).collect(),
            decoded_at: VecDeque::with_capacity(N_REMEMBERED),
            newest_start: 0,
            stats: Stats { n_cells: limits.n_ctx as usize, n_ids: limits.n_seq_max as usize, ..Stats::default() },
        };
        worker.publish_stats();
        worker
    }

    /// Serves requests until the engine stops.
    pub(crate) fn run(mut self) {
        while self.receive() {
            self.step = Step::begin(self.stats.times);
            self.timed(|times| &mut times.receive, Self::drop_cancelled);
            self.begin_moving();
            self.timed(|times| &mut times.place, Self::admit);
            self.move_pieces();
            self.hold_prompts();
            self.timed(|times| &mut times.plan, Self::plan);
            if self.decode() {
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

    /// Tells the scheduler what the step took beside its decode and what was moved before that, and whoever looks what it did.
    fn end_step(&mut self) {
        let Step { started, before, n_rows, decode, .. } = self.step;
        let took = started.elapsed();
        if decode > Duration::ZERO {
            self.scheduler.observe_rest(took.saturating_sub(decode + self.movement.spent));
        }
        if n_rows > 0 || self.movement.spent > Duration::ZERO {
            self.published.remember(RecentStep { started, took, n_rows, times: self.stats.times.since(&before) });
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
                Command::Submit { request_id, mut job } => {
                    let suppressed = self.runner.suppressed_tokens().iter().map(|&token| (token, f32::NEG_INFINITY));
                    job.sampling.logit_bias.extend(suppressed);
                    job.last_served = self.next_turn();
                    if job.task == Task::Pin
                        && let Err(error) = self.cache.check_pin(job.n_prompt())
                    {
                        // It ends before anything is computed for it.
                        job.n_started = job.n;
                        self.failed.push((request_id, error));
                    }
                    self.jobs.insert(request_id, *job);
                }
                Command::Ask(question) => self.answer(question),
                Command::Stop => return false,
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
        self.drop_unread_pins();
        let cancelled: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| job.sender.is_cancelled()).map(|(&request_id, _)| request_id).collect();
        for request_id in cancelled {
            self.remove(request_id);
        }
    }

    /// Decides which tokens go into the next decode, and makes room for them.
    fn plan(&mut self) {
        self.step.n_cells = self.n_cells();
        self.count_ready();
        let Shares { n_ready, n_rows } = &mut self.shares;
        self.scheduler.plan(n_ready, self.step.n_cells, self.movement.spent, n_rows);
        let (mut place, mut n_planned) = (0, 0);
        // The oldest takes what it needs first; where there is too little, the youngest gives up its place.
        while place < self.running.len() {
            let n_wanted = self.shares.n_rows[place];
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
        self.plan_rows(|_| true);
    }

    /// Counts the tokens of each running sequence that the next decode could compute.
    fn count_ready(&mut self) {
        let mut n_ready = std::mem::take(&mut self.shares.n_ready);
        n_ready.clear();
        // At most `n_seq_max` rows may want logits: everybody keeps one, for the next token, and those that tell of their prompts
        // share the rest.
        let n_telling = count(self.running.iter().filter(|running| running.sequence.tells_of_prompt()));
        let n_more = (self.limits.n_seq_max - count(self.running.iter())) / n_telling.max(1);
        n_ready.extend(self.running.iter().map(|running| {
            let most = if running.sequence.tells_of_prompt() { 1 + n_more } else { u32::MAX };
            running.n_ready().min(self.n_to_snapshot(running)).min(most)
        }));
        self.shares.n_ready = n_ready;
    }

    /// Whether room is found later for what found none in this step: there was no time to make it.
    fn is_worth_waiting(&self, is_urgent: bool) -> bool {
        !is_urgent && self.is_out_of_time() && self.cache.n_evictable() > 0
    }

    /// The only sequence that runs does not fit alone, since pinned prefixes take the rest of the pool.
    fn end_oversized(&mut self) {
        if self.running[0].sequence.n_predicted() > 0 && self.shift(0) {
            return;
        }
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

    /// Plans the rows of those that `filter` lets through, in order.
    pub(super) fn plan_rows(&mut self, filter: impl Fn(&Running) -> bool) {
        let rows = self.running.iter().filter(|running| filter(running)).flat_map(|running| {
            let last = running.n_held + running.n_planned;
            let draws = running.will_draw();
            (running.n_held..last).map(move |position| Row {
                sequence: running.id,
                token: running.sequence.tokens[position as usize],
                position,
                wants_logits: (draws && position + 1 == last) || running.sequence.tells_after(position),
            })
        });
        self.plan.rows.clear();
        self.plan.rows.extend(rows);
    }

    /// Computes the plan. `false` where there was nothing to compute, or nothing came of it.
    fn decode(&mut self) -> bool {
        if self.plan.rows.is_empty() {
            return false;
        }
        if self.decoded_at.len() == N_REMEMBERED {
            self.decoded_at.pop_front();
        }
        self.decoded_at.push_back(self.cache.now());
        let started = Instant::now();
        if let Err(error) = self.runner.decode(&self.plan) {
            return self.recover(&error);
        }
        let took = started.elapsed();
        self.stats.times.decode += took;
        let n_decoding = count(self.running.iter().filter(|running| running.is_decoding()));
        self.step.n_rows = count(self.plan.rows.iter());
        self.step.decode = took;
        self.scheduler.observe(n_decoding, self.step.n_rows - n_decoding, self.step.n_cells, took);
        self.stats.n_decodes += 1;
        self.stats.n_busy += self.running.len() as u64;
        self.stats.n_computed += u64::from(self.step.n_rows) - self.n_drawn_before();
        true
    }

    /// Rows of the plan that compute a token drawn in the step before.
    fn n_drawn_before(&self) -> u64 {
        let fresh = |running: &&Running| running.is_decoding() && running.sequence.n_predicted() > 0;
        u64::from(count(self.running.iter().filter(fresh)))
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
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).expect("a decode has fewer than 2³² rows")
}
