//! The loop of the one thread that owns the runner.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use crate::config::Limits;
use crate::engine::admission::{AdmissionBudget, admit};
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
use crate::engine::publishing::{pause_slow_consumers, publish, publish_metrics};
use crate::engine::questions::{Question, Questions, answer, answer_some};
use crate::engine::queue::Queue;
use crate::engine::request_group::RequestGroup;
use crate::engine::runner::Runner;
use crate::engine::sampling_step::sample;
use crate::engine::slots::Slots;
use crate::engine::stall_detector::StallDetector;
use crate::engine::stats::{RecentStep, Stats};
use crate::engine::step_budget::StepBudget;
use crate::engine::stopwatch::Stopwatch;
use crate::engine::tier_moves::{move_between_tiers, use_idle_time};
use crate::request::Task;
use crate::sampling::Threads;

/// Longest sleep of a worker that has requests but cannot advance any of them.
const MAX_SLEEP: Duration = Duration::from_millis(10);

/// Command to the worker.
pub(crate) enum Command {
    /// Queues the request groups of a new stream; counted in [`SharedState::n_waiting`].
    Submit(Vec<RequestGroup>),
    /// Cancels this stream, because its reader has left.
    Cancel(u64),
    /// Cancels a branch of a stream, by its index there.
    CancelBranch(u64, u32),
    /// Forks a branch; counted in [`SharedState::n_waiting`].
    Fork(Box<ForkRequest>),
    /// Answered between two steps, after the commands that are queued.
    Ask(Question),
    /// Ends the worker.
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
            output: Output::new(published),
            history: History::default(),
            forks: ForkRegistry::default(),
            logprob_cache: PromptLogprobCache::default(),
            samplers,
            stats,
            stopwatch: Stopwatch::new(),
            has_changed: false,
            refused: None,
            limits,
        };
        publish_metrics(&mut core);
        Self { core, planner, stall_detector: StallDetector::default(), commands, questions: Questions::default() }
    }

    /// Serves requests until the engine stops.
    pub(crate) fn run(mut self) {
        let mut sleep = None;
        while let Some(started) = self.receive(sleep) {
            sleep = self.step(started);
        }
    }

    /// Runs one step, which began at `started`: admits sequences, moves cache entries, decodes, samples, publishes.
    /// Returns how long to sleep before the next step if this one made no progress.
    fn step(&mut self, started: Instant) -> Option<Duration> {
        let Self { core, planner, stall_detector, .. } = self;
        let before = core.stopwatch.times();
        core.stats.n_steps += 1;
        core.output.drop_unread_pins(core.memory.cache_mut());
        core.lap(|times| &mut times.receive);
        planner.begin_moving(core);
        core.has_changed = false;
        pause_slow_consumers(core);
        advance_forks(core);
        admit(core, &mut AdmissionBudget::new());
        core.lap(|times| &mut times.place);
        move_between_tiers(core);
        hold_prompts(core);
        group(core);
        core.lap(|times| &mut times.place);
        planner.plan(core);
        core.lap(|times| &mut times.plan);
        if planner.plan.rows.len() != core.slots.running().len() || !core.memory.spent().is_zero() {
            // This step takes longer than the last one, computes nothing, or moved cells: wake readers before, not after it.
            core.output.wake_all();
        }
        core.lap(|times| &mut times.emit);
        let decode = compute(core, planner);
        core.lap(|times| &mut times.decode);
        if decode.is_some() {
            save_checkpoints(core);
            let started_at = Instant::now();
            let n_reported = report_prompts(core);
            if n_reported > 0 {
                planner.budget.observe_prompt_logprobs(n_reported, started_at.elapsed());
            }
        }
        sample(core);
        let has_events = !core.output.groups_with_events.is_empty() || !core.output.failed.is_empty();
        publish(core);
        let took = core.lap(|times| &mut times.emit) - started;
        if let Some(decode) = decode {
            planner.budget.observe_rest(took.saturating_sub(decode + core.memory.spent()));
            planner.adapters.observe(took.as_secs_f64());
        }
        let n_rows = if decode.is_some() { count(planner.plan.rows.iter()) } else { 0 };
        if n_rows > 0 || core.memory.spent() > Duration::ZERO {
            let times = core.stopwatch.times().since(&before);
            core.output.shared.record_step(RecentStep { started, took, n_rows, times });
            stall_detector.reset();
            return None;
        }
        if core.has_changed || has_events {
            stall_detector.reset();
            return None;
        }
        stall_detector.observe_idle_step(core);
        Some(core.slots.reserved_for().unwrap_or(MAX_SLEEP).min(MAX_SLEEP))
    }

    /// Handles queued commands and answers queries. Returns the time at which the step starts, or `None` when the engine stops.
    /// Blocks while there is no work, and sleeps for `sleep` while no work can be done.
    fn receive(&mut self, sleep: Option<Duration>) -> Option<Instant> {
        let started_at = self.take_commands(sleep)?;
        answer_some(&mut self.core, &mut self.questions);
        Some(started_at)
    }

    /// As [`Worker::receive`], but answers queries only while the engine is idle. Once the prompts of forks fill the copying
    /// limit of a step, later commands wait for the next step.
    fn take_commands(&mut self, sleep: Option<Duration>) -> Option<Instant> {
        self.core.forks.begin_step();
        if let Some(sleep) = sleep.filter(|_| self.core.is_busy() && !self.questions.are_waiting()) {
            match self.commands.recv_timeout(sleep) {
                Ok(command) => self.handle_command(command).then_some(())?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        let mut started_at = self.core.begin_step();
        loop {
            if self.core.forks.is_step_full() && self.core.is_busy() {
                return Some(started_at);
            }
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) if self.core.is_busy() => return Some(started_at),
                Err(TryRecvError::Empty) if self.questions.are_waiting() => {
                    self.core.output.wake_all();
                    let question = self.questions.next().expect("one is waiting");
                    answer(&mut self.core, question);
                    continue;
                }
                Err(TryRecvError::Empty) if use_idle_time(&mut self.core) => {
                    started_at = self.core.begin_step();
                    continue;
                }
                Err(TryRecvError::Empty) => {
                    self.core.output.wake_all();
                    publish_metrics(&mut self.core);
                    if cfg!(any(test, debug_assertions)) {
                        self.check_idle();
                    }
                    let command = self.commands.recv().ok()?;
                    started_at = self.core.begin_step();
                    command
                }
            };
            self.handle_command(command).then_some(())?;
        }
    }

    /// Returns `false` when the engine stops.
    fn handle_command(&mut self, command: Command) -> bool {
        let core = &mut self.core;
        core.output.drop_unread_pins(core.memory.cache_mut());
        match command {
            Command::Submit(groups) => {
                for group in groups {
                    let (request_id, n_prompt, is_pin) = (group.request_id, group.n_prompt(), group.request.task == Task::Pin);
                    core.queue.push(group);
                    if is_pin && let Err(error) = core.memory.cache().check_pin(n_prompt) {
                        // It fails before anything is computed for it.
                        fail_request(core, request_id, error);
                    }
                }
            }
            Command::Cancel(stream_id) => {
                drop(remove_stream(core, stream_id));
                core.forks.remove_stream(stream_id);
            }
            Command::CancelBranch(stream_id, index) => cancel_in_order(core, stream_id, index),
            Command::Fork(command) => fork(core, *command),
            Command::Ask(question) => self.questions.push(question),
            Command::Stop => return false,
        }
        true
    }

    /// Checks that nothing is in use while there is no work.
    fn check_idle(&self) {
        self.core.memory.cache().check_integrity();
        assert!(self.core.memory.cache().is_idle(), "cells are pinned, but nobody runs");
        let is_idle = self.core.slots.running().is_empty() && self.core.queue.preempted().is_empty();
        assert!(is_idle, "a sequence outlives its request");
    }
}
