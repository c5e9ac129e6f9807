//! The loop of the one thread that owns the runner.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use crate::config::Limits;
use crate::engine::admission::admit;
use crate::engine::checkpoints::save_checkpoints;
use crate::engine::computing::compute;
use crate::engine::core::Core;
use crate::engine::fork_request::ForkRequest;
use crate::engine::forking::{advance_forks, cancel_in_order, fork};
use crate::engine::forks::ForkRegistry;
use crate::engine::grouping::group;
use crate::engine::history::History;
use crate::engine::lifecycle::{fail_request, remove_stream};
use crate::engine::memory::Memory;
use crate::engine::output::{Output, SharedState};
use crate::engine::planning::{Planner, count};
use crate::engine::prefix_match::hold_prompts;
use crate::engine::prompt_logprob_cache::PromptLogprobCache;
use crate::engine::prompt_logprobs::report_prompts;
use crate::engine::publishing::{pause_slow_consumers, publish, show};
use crate::engine::questions::{Question, Questions, answer, answer_some};
use crate::engine::queue::Queue;
use crate::engine::request_group::RequestGroup;
use crate::engine::runner::Runner;
use crate::engine::sampling_step::draw;
use crate::engine::slots::Slots;
use crate::engine::stall_detector::StallDetector;
use crate::engine::stats::{RecentStep, Stats};
use crate::engine::step_budget::StepBudget;
use crate::engine::stopwatch::Stopwatch;
use crate::engine::tier_moves::{move_between_tiers, use_idle_time};
use crate::request::Task;
use crate::sampling::Threads;

/// How long a worker sleeps at most that has requests, but can do nothing for any of them.
const LONGEST_NAP: Duration = Duration::from_millis(10);

/// What a handle asks of the worker.
pub(crate) enum Command {
    /// The jobs of a new stream, to be queued; counted in [`SharedState::n_waiting`].
    Submit(Vec<RequestGroup>),
    /// The reader of this stream has gone.
    Cancel(u64),
    /// This branch of a stream, by its number there, is wanted no longer.
    CancelBranch(u64, u32),
    /// A branch is to be forked; counted in [`SharedState::n_waiting`].
    Fork(Box<ForkRequest>),
    /// To be answered between two steps, behind the commands that wait.
    Ask(Question),
    /// End now.
    Stop,
}

pub(crate) struct Worker<R> {
    core: Core<R>,
    planner: Planner,
    stall_detector: StallDetector,
    commands: Receiver<Command>,
    questions: Questions,
}

impl<R: Runner> Worker<R> {
    pub(crate) fn new(runner: R, limits: Limits, commands: Receiver<Command>, published: Arc<SharedState>) -> Self {
        let samplers = Threads::new(runner.n_threads());
        let stats = Stats { n_cells: limits.n_ctx as usize, n_ids: limits.n_seq_max as usize, ..Stats::default() };
        let planner = Planner::new(StepBudget::new(limits.n_ubatch, limits.max_token_gap));
        let mut core = Core {
            memory: Memory::new(runner, &limits),
            queue: Queue::new(limits.n_slots),
            slots: Slots::new(limits.n_slots),
            outbox: Output::new(published),
            history: History::default(),
            forks: ForkRegistry::default(),
            recall: PromptLogprobCache::default(),
            samplers,
            stats,
            stopwatch: Stopwatch::new(),
            has_changed: false,
            refused: None,
            limits,
        };
        show(&mut core);
        Self { core, planner, stall_detector: StallDetector::default(), commands, questions: Questions::default() }
    }

    /// Serves requests until the engine stops.
    pub(crate) fn run(mut self) {
        let mut nap = None;
        while let Some(started) = self.receive(nap) {
            nap = self.step(started);
        }
    }

    /// One step, which began at `started`: places sequences, moves pieces, computes, draws, tells. Returns how long to sleep before
    /// the next one where it could do nothing.
    fn step(&mut self, started: Instant) -> Option<Duration> {
        let Self { core, planner, stall_detector, .. } = self;
        let before = core.stopwatch.times();
        core.stats.n_steps += 1;
        core.outbox.drop_unread_pins(core.memory.cache_mut());
        core.lap(|times| &mut times.receive);
        planner.begin_moving(core);
        core.has_changed = false;
        pause_slow_consumers(core);
        advance_forks(core);
        admit(core);
        core.lap(|times| &mut times.place);
        move_between_tiers(core);
        hold_prompts(core);
        group(core);
        core.lap(|times| &mut times.place);
        planner.plan(core);
        core.lap(|times| &mut times.plan);
        if planner.plan.rows.len() != core.slots.running().len() || !core.memory.spent().is_zero() {
            // It takes longer than the step before, or is none; or that time has gone into what was moved.
            core.outbox.ring();
        }
        core.lap(|times| &mut times.emit);
        let decode = compute(core, planner);
        core.lap(|times| &mut times.decode);
        if decode.is_some() {
            save_checkpoints(core);
            let began = Instant::now();
            let n_told = report_prompts(core);
            if n_told > 0 {
                planner.scheduler.observe_prompt_logprobs(n_told, began.elapsed());
            }
            draw(core);
            admit(core);
        }
        core.lap(|times| &mut times.place);
        let has_told = !core.outbox.told.is_empty() || !core.outbox.failed.is_empty();
        publish(core);
        let took = core.lap(|times| &mut times.emit) - started;
        if let Some(decode) = decode {
            planner.scheduler.observe_rest(took.saturating_sub(decode + core.memory.spent()));
            planner.rounds.observe(took.as_secs_f64());
        }
        let n_rows = if decode.is_some() { count(planner.plan.rows.iter()) } else { 0 };
        if n_rows > 0 || core.memory.spent() > Duration::ZERO {
            let times = core.stopwatch.times().since(&before);
            core.outbox.published.remember(RecentStep { started, took, n_rows, times });
            stall_detector.reset();
            return None;
        }
        if core.has_changed || has_told {
            stall_detector.reset();
            return None;
        }
        stall_detector.observe_idle_step(core);
        Some(core.slots.kept_for().unwrap_or(LONGEST_NAP).min(LONGEST_NAP))
    }

    /// Handles the waiting commands and answers questions; returns the time at which it started. Blocks while there is nothing to do,
    /// and naps while nothing can be done. Returns `None` when the engine stops.
    fn receive(&mut self, nap: Option<Duration>) -> Option<Instant> {
        let began = self.take_commands(nap)?;
        answer_some(&mut self.core, &mut self.questions);
        Some(began)
    }

    /// As [`Worker::receive`], but answers questions only while the engine is idle. Commands behind forks whose prompts are enough to
    /// copy in one step wait for the next one.
    fn take_commands(&mut self, nap: Option<Duration>) -> Option<Instant> {
        self.core.forks.begin_step();
        if let Some(nap) = nap.filter(|_| self.core.is_busy() && !self.questions.are_waiting()) {
            match self.commands.recv_timeout(nap) {
                Ok(command) => self.handle_command(command).then_some(())?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        let mut began = self.core.begin_step();
        loop {
            if self.core.forks.is_step_full() && self.core.is_busy() {
                return Some(began);
            }
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) if self.core.is_busy() => return Some(began),
                Err(TryRecvError::Empty) if self.questions.are_waiting() => {
                    self.core.outbox.ring();
                    let question = self.questions.next().expect("one is waiting");
                    answer(&mut self.core, question);
                    continue;
                }
                Err(TryRecvError::Empty) if use_idle_time(&mut self.core) => {
                    began = self.core.begin_step();
                    continue;
                }
                Err(TryRecvError::Empty) => {
                    self.core.outbox.ring();
                    show(&mut self.core);
                    if cfg!(any(test, debug_assertions)) {
                        self.check_idle();
                    }
                    let command = self.commands.recv().ok()?;
                    began = self.core.begin_step();
                    command
                }
            };
            self.handle_command(command).then_some(())?;
        }
    }

    /// `false` when the engine stops.
    fn handle_command(&mut self, command: Command) -> bool {
        let core = &mut self.core;
        core.outbox.drop_unread_pins(core.memory.cache_mut());
        match command {
            Command::Submit(jobs) => {
                for job in jobs {
                    let (request_id, n_prompt, is_pin) = (job.request_id, job.n_prompt(), job.request.task == Task::Pin);
                    core.queue.push(job);
                    if is_pin && let Err(error) = core.memory.cache().check_pin(n_prompt) {
                        // It ends before anything is computed for it.
                        fail_request(core, request_id, error);
                    }
                }
            }
            Command::Cancel(stream_id) => {
                drop(remove_stream(core, stream_id));
                core.forks.forget(stream_id);
            }
            Command::CancelBranch(stream_id, index) => cancel_in_order(core, stream_id, index),
            Command::Fork(order) => fork(core, *order),
            Command::Ask(question) => self.questions.push(question),
            Command::Stop => return false,
        }
        true
    }

    /// Nobody holds anything when there is nothing to do.
    fn check_idle(&self) {
        self.core.memory.cache().check_integrity();
        assert!(self.core.memory.cache().is_idle(), "cells are pinned, but nobody runs");
        let is_idle = self.core.slots.running().is_empty() && self.core.queue.preempted().is_empty();
        assert!(is_idle, "a sequence outlives its request");
    }
}
