//! The loop of the one thread that owns the runner.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use crate::config::Limits;
use crate::engine::cache_manager::CacheManager;
use crate::engine::execute::{execute, recover};
use crate::engine::features::hooks;
use crate::engine::features::state::FeatureCommand;
use crate::engine::output::{Output, SharedState};
use crate::engine::publish::publish_metrics;
use crate::engine::queries::{Query, QueryQueue, answer};
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::admission::{AdmissionBudget, admit};
use crate::engine::scheduler::checkpoints::save_checkpoints;
use crate::engine::scheduler::planning::Planner;
use crate::engine::scheduler::request_group::RequestGroup;
use crate::engine::scheduler::running_sequence::count_u32;
use crate::engine::scheduler::sample::{is_due, sample_tokens, verify_drafts};
use crate::engine::scheduler::step_budget::StepBudget;
use crate::engine::scheduler::tier_moves::move_between_tiers;
use crate::engine::stall_detector::StallDetector;
use crate::engine::stats::{RecentStep, StepTimes};
use crate::engine::stopwatch::Stopwatch;
use crate::request::Task;
use crate::sampling::Threads;

/// Longest sleep of a worker that has requests but cannot advance any of them.
const MAX_SLEEP: Duration = Duration::from_millis(10);

pub(crate) enum Command {
    /// Queues the request groups of a new stream; counted in [`SharedState::n_waiting`].
    Submit(Vec<RequestGroup>),
    Cancel(u64),
    CancelBranch(u64, u32),
    Feature(FeatureCommand),
    /// Answered between two steps, after the commands that are queued.
    Ask(Query),
    Stop,
}

pub(crate) struct Worker<R> {
    scheduler: Scheduler,
    cache: CacheManager<R>,
    output: Output,
    planner: Planner,
    samplers: Threads,
    stopwatch: Stopwatch,
    stall_detector: StallDetector,
    commands: Receiver<Command>,
    queries: QueryQueue,
}

impl<R: Runner> Worker<R> {
    pub(crate) fn new(runner: R, limits: Limits, commands: Receiver<Command>, published: Arc<SharedState>) -> Self {
        let mut worker = Self {
            samplers: Threads::new(runner.n_threads()),
            cache: CacheManager::new(runner, &limits),
            planner: Planner::new(StepBudget::new(limits.n_ubatch, limits.max_token_gap)),
            scheduler: Scheduler::new(limits, published),
            output: Output::default(),
            stopwatch: Stopwatch::new(),
            stall_detector: StallDetector::default(),
            commands,
            queries: QueryQueue::default(),
        };
        publish_metrics(&worker.scheduler, &mut worker.cache, StepTimes::default());
        worker
    }

    pub(crate) fn run(mut self) {
        let mut sleep = None;
        while let Some(started) = self.receive(sleep) {
            sleep = self.step(started);
        }
    }

    /// Runs one step, which began at `started`, after its commands were received: schedules, executes, samples, publishes. Returns
    /// how long to sleep before the next step if this one made no progress.
    fn step(&mut self, started: Instant) -> Option<Duration> {
        let times_before = self.stopwatch.times();
        self.scheduler.count_step();
        self.stopwatch.lap(self.cache.take_copy_time(), |times| &mut times.receive);
        let mut budget = AdmissionBudget::new();
        self.schedule(&mut budget);
        let decode_time = self.execute();
        if decode_time.is_some() {
            budget = AdmissionBudget::new();
        }
        let n_before = self.scheduler.stats().n_predicted;
        self.sample(&mut budget);
        let n_sampled = self.scheduler.stats().n_predicted - n_before;
        let has_events = self.scheduler.has_events();
        let took = self.publish() - started;
        let (planner, moved) = (&mut self.planner, self.cache.spent());
        if let Some(decode_time) = decode_time {
            let rest = took.saturating_sub(decode_time + moved);
            planner.budget.observe_rest(rest);
            let of_drafts = hooks::time_of_drafts(self.scheduler.features());
            planner.budget.observe_tokens(n_sampled, rest.saturating_sub(of_drafts));
            hooks::after_step(self.scheduler.features_mut(), took.saturating_sub(moved));
            planner.adapters.observe(took.as_secs_f64());
        }
        let n_rows = if decode_time.is_some() { count_u32(planner.plan.rows.iter()) } else { 0 };
        if n_rows > 0 || moved > Duration::ZERO {
            let times = self.stopwatch.times().since(times_before);
            self.scheduler.shared().record_step(RecentStep { started, took, n_rows, times });
        } else if !(self.scheduler.has_changed() || has_events) {
            self.stall_detector.observe_idle_step(&mut self.scheduler, &self.cache);
            return Some(self.scheduler.slots().held_for().unwrap_or(MAX_SLEEP).min(MAX_SLEEP));
        }
        self.stall_detector.reset();
        None
    }

    /// Handles commands and answers queries; waits while there is no work. Returns the start of the step, `None` to stop.
    fn receive(&mut self, sleep: Option<Duration>) -> Option<Instant> {
        self.scheduler.begin_step();
        if let Some(sleep) = sleep.filter(|_| self.scheduler.is_busy() && !self.queries.are_waiting()) {
            match self.commands.recv_timeout(sleep) {
                Ok(command) => self.handle_command(command).then_some(())?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        let started_at = self.take_commands()?;
        let mut n_left = self.queries.take_budget();
        if self.queries.are_waiting() && n_left > 0 {
            self.output.wake_all();
        }
        while n_left > 0
            && let Some(query) = self.queries.next()
        {
            let n_done = answer(&mut self.scheduler, &mut self.cache, self.stopwatch.times(), query);
            n_left = self.queries.spend(n_left, n_done);
        }
        self.cache.unpin_all(&self.output.take_unread_pins());
        Some(started_at)
    }

    /// Handles the commands that have arrived, and further ones until there is a request. Once the prompts of forks fill the copying
    /// limit of a step, later commands wait for the next step. Returns as [`Worker::receive`].
    fn take_commands(&mut self) -> Option<Instant> {
        let mut started_at = self.stopwatch.begin(self.cache.take_copy_time());
        while !(self.scheduler.is_busy() && hooks::is_step_full(self.scheduler.features())) {
            match self.commands.try_recv() {
                Ok(command) => self.handle_command(command).then_some(())?,
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) if self.scheduler.is_busy() => break,
                Err(TryRecvError::Empty) => started_at = self.spend_idle_time(started_at)?,
            }
        }
        Some(started_at)
    }

    /// Without requests: answers a query, or else moves cells, or else waits for a command. Returns the start of a step that would
    /// follow, `None` to stop.
    fn spend_idle_time(&mut self, started_at: Instant) -> Option<Instant> {
        if let Some(query) = self.queries.next() {
            self.output.wake_all();
            answer(&mut self.scheduler, &mut self.cache, self.stopwatch.times(), query);
            return Some(started_at);
        }
        let mut command = None;
        if !self.cache.use_idle_time(|ids, reason| self.scheduler.fail_lost(ids, reason)) {
            self.output.wake_all();
            self.scheduler.record_evictions(self.cache.take_evicted());
            publish_metrics(&self.scheduler, &mut self.cache, self.stopwatch.times());
            #[cfg(test)]
            self.check_idle();
            command = Some(self.commands.recv().ok()?);
        }
        let started_at = self.stopwatch.begin(self.cache.take_copy_time());
        command.is_none_or(|command| self.handle_command(command)).then_some(started_at)
    }

    fn schedule(&mut self, budget: &mut AdmissionBudget) {
        let Self { scheduler, cache, output, planner, stopwatch, .. } = self;
        planner.begin_moving(scheduler, cache);
        let slow =
            output.review_slow_consumers(scheduler.limits().slow_consumer_timeout, |request_id| scheduler.backlog_of(request_id));
        scheduler.pause(slow);
        hooks::before_admission(scheduler, cache.runner());
        admit(scheduler, cache, budget);
        stopwatch.lap(cache.take_copy_time(), |times| &mut times.admit);
        move_between_tiers(scheduler, cache);
        hooks::before_planning(scheduler, cache);
        stopwatch.lap(cache.take_copy_time(), |times| &mut times.admit);
        scheduler.fail_unencodable();
        cache.settle();
        planner.divide(scheduler, cache);
        planner.grant_cells(scheduler, cache);
        cache.settle();
        planner.draft(scheduler, cache);
        planner.take_cells(scheduler.running_mut(), cache);
        if planner.changes_adapters {
            scheduler.count_adapter_change();
        }
        stopwatch.lap(cache.take_copy_time(), |times| &mut times.plan);
    }

    /// Saves and reports what the decode computed of prompts too. Returns its time, or `None` if there was none.
    fn execute(&mut self) -> Option<Duration> {
        let Self { scheduler, cache, output, planner, samplers, .. } = self;
        if planner.plan.rows.len() - planner.n_drafted as usize != scheduler.running().len() || !cache.spent().is_zero() {
            // This step takes longer than the last one, computes nothing, or moved cells: wake readers before, not after it.
            output.wake_all();
        }
        self.stopwatch.lap(cache.take_copy_time(), |times| &mut times.publish);
        let mut decode_time = None;
        if !planner.plan.rows.is_empty() {
            let started_at = Instant::now();
            decode_time = execute(scheduler, cache, planner)
                .map_or_else(|error| recover(scheduler, cache, planner, error).then(|| started_at.elapsed()), Some);
        }
        self.stopwatch.lap(cache.take_copy_time(), |times| &mut times.decode);
        if decode_time.is_some() {
            scheduler.count_full_decode(count_u32(planner.plan.rows.iter()) - planner.n_drafted);
            save_checkpoints(scheduler, cache);
            let started_at = Instant::now();
            let n_reported = hooks::after_decode(scheduler, cache.runner(), samplers);
            if n_reported > 0 {
                planner.budget.observe_prompt_logprobs(n_reported, started_at.elapsed());
            }
        }
        decode_time
    }

    /// Free slots are filled after each round: branches whose prompt this step has computed sample their first token in it too.
    fn sample(&mut self, budget: &mut AdmissionBudget) {
        let Self { scheduler, cache, samplers, stopwatch, .. } = self;
        while is_due(scheduler) {
            let sampled_at = loop {
                sample_tokens(scheduler, cache.runner(), samplers);
                let sampled_at = stopwatch.lap(cache.take_copy_time(), |times| &mut times.sample);
                scheduler.emit_tokens(cache.runner(), sampled_at);
                if !verify_drafts(scheduler, cache) {
                    break sampled_at;
                }
                stopwatch.lap(cache.take_copy_time(), |times| &mut times.detokenize);
            };
            hooks::after_sampling(scheduler, cache, sampled_at);
            scheduler.finish_ended();
            scheduler.shift_full();
            stopwatch.lap(cache.take_copy_time(), |times| &mut times.detokenize);
            admit(scheduler, cache, budget);
            stopwatch.lap(cache.take_copy_time(), |times| &mut times.admit);
        }
    }

    fn publish(&mut self) -> Instant {
        let ended = self.scheduler.take_ended();
        self.scheduler.record_evictions(self.cache.take_evicted());
        publish_metrics(&self.scheduler, &mut self.cache, self.stopwatch.times());
        let has_moved = !self.cache.spent().is_zero();
        let is_urgent = has_moved || !ended.is_empty() || self.scheduler.has_urgent_events();
        let n_streams = self.scheduler.drain_events(|group| self.output.send(group));
        self.output.end(ended);
        self.output.wake_rate_limited(n_streams, is_urgent);
        self.stopwatch.lap(self.cache.take_copy_time(), |times| &mut times.publish)
    }

    /// Returns `false` when the engine stops.
    fn handle_command(&mut self, command: Command) -> bool {
        let Self { scheduler, cache, output, .. } = self;
        cache.unpin_all(&output.take_unread_pins());
        match command {
            Command::Submit(groups) => {
                for group in groups {
                    let (group_id, n_prompt, is_pin) = (group.group_id, group.n_prompt(), group.request.task == Task::Pin);
                    scheduler.enqueue(group);
                    if is_pin && let Err(error) = cache.check_pin(n_prompt) {
                        // It fails before anything is computed for it.
                        scheduler.fail_request(group_id, error);
                    }
                }
            }
            Command::Cancel(request_id) => {
                scheduler.disconnect(request_id);
            }
            Command::CancelBranch(request_id, index) => {
                if !hooks::defer_cancel(scheduler, request_id, index) {
                    scheduler.cancel_branch(request_id, index);
                }
            }
            Command::Feature(command) => hooks::on_command(scheduler, cache.runner(), command),
            Command::Ask(query) => self.queries.push(query),
            Command::Stop => return false,
        }
        true
    }

    #[cfg(test)]
    fn check_idle(&self) {
        self.cache.kv().check_integrity();
        assert!(self.cache.kv().is_idle(), "cells are pinned, but no sequence is running");
        let is_idle = self.scheduler.running().is_empty() && self.scheduler.queue().preempted().is_empty();
        assert!(is_idle, "a sequence outlives its request");
    }
}
