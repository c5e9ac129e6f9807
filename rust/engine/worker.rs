//! The loop of the one thread that owns the runner.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use crate::config::Limits;
use crate::engine::cache_manager::CacheManager;
use crate::engine::execute::{Execution, execute};
use crate::engine::features::hooks;
use crate::engine::features::state::FeatureCommand;
use crate::engine::ids::{BranchIndex, StreamId};
use crate::engine::metrics::{Metrics, SharedState};
use crate::engine::output::Output;
use crate::engine::queries::{Query, QueryQueue, answer};
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::admission::{AdmissionBudget, admit};
use crate::engine::scheduler::checkpoints::save_checkpoints;
use crate::engine::scheduler::planning::Planner;
use crate::engine::scheduler::request_group::RequestGroup;
use crate::engine::scheduler::sample::{is_due, sample_tokens};
use crate::engine::scheduler::step_budget::StepBudget;
use crate::engine::scheduler::tier_moves::move_between_tiers;
use crate::engine::stall_detector::StallDetector;
use crate::engine::stats::RecentStep;
use crate::request::Task;
use crate::sampling::Threads;

/// Longest sleep of a worker that has requests but cannot advance any of them.
const MAX_SLEEP: Duration = Duration::from_millis(10);

pub(crate) enum Command {
    /// Queues the request groups of a new stream; counted in [`SharedState::n_waiting`].
    Submit(Vec<RequestGroup>),
    Cancel(StreamId),
    CancelBranch(StreamId, BranchIndex),
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
    metrics: Metrics,
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
            scheduler: Scheduler::new(limits, Arc::clone(&published.features)),
            output: Output::default(),
            metrics: Metrics::new(published),
            stall_detector: StallDetector::default(),
            commands,
            queries: QueryQueue::default(),
        };
        worker.metrics.publish(&worker.scheduler, &mut worker.cache);
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
        let times_before = self.metrics.times();
        self.scheduler.count_step();
        self.metrics.lap(&mut self.cache, |times| &mut times.receive);
        let mut budget = AdmissionBudget::new();
        self.schedule(&mut budget);
        let decode_time = self.execute();
        if decode_time.is_some() {
            budget = AdmissionBudget::new();
        }
        let n_sampled = self.sample(&mut budget);
        let has_events = self.scheduler.has_events();
        let took = self.publish() - started;
        let (planner, moved, mut n_rows) = (&mut self.planner, self.cache.spent(), 0);
        if let Some(decode_time) = decode_time {
            n_rows = planner.n_planned_rows();
            let rest = took.saturating_sub(decode_time + moved);
            planner.observe_step(took, rest, hooks::time_of_drafts(self.scheduler.features()), n_sampled);
            hooks::after_step(self.scheduler.features_mut(), took.saturating_sub(moved));
        }
        if n_rows > 0 || moved > Duration::ZERO {
            let times = self.metrics.times().since(times_before);
            self.metrics.record_step(RecentStep { started, took, n_rows, times });
        } else if !(self.scheduler.has_changed() || has_events) {
            self.stall_detector.observe_idle_step(&mut self.scheduler, &self.cache);
            return Some(self.scheduler.slots().reserved_for().unwrap_or(MAX_SLEEP).min(MAX_SLEEP));
        }
        self.stall_detector.reset();
        None
    }

    /// Handles the commands that have arrived, and further ones until there is a request; then answers queries. Once the prompts of
    /// forks fill the copying limit of a step, later commands wait for the next step. Returns the start of the step, `None` to stop.
    fn receive(&mut self, sleep: Option<Duration>) -> Option<Instant> {
        self.scheduler.begin_step();
        let mut next = None;
        if let Some(sleep) = sleep.filter(|_| self.scheduler.is_busy() && !self.queries.are_waiting()) {
            match self.commands.recv_timeout(sleep) {
                Ok(command) => next = Some(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        let mut started_at = self.metrics.begin_step(&mut self.cache);
        while !(self.scheduler.is_busy() && hooks::is_step_full(self.scheduler.features())) {
            match next.take().map_or_else(|| self.commands.try_recv(), Ok) {
                Ok(command) => {
                    self.cache.unpin_all(&self.output.take_unread_pins());
                    handle_command(command, &mut self.scheduler, &self.cache, &mut self.queries).then_some(())?;
                }
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) if self.scheduler.is_busy() => break,
                Err(TryRecvError::Empty) => {
                    if !self.spend_idle_time() {
                        next = Some(self.commands.recv().ok()?);
                    }
                    started_at = self.metrics.begin_step(&mut self.cache);
                }
            }
        }
        let mut n_left = self.queries.take_budget();
        if self.queries.are_waiting() && n_left > 0 {
            self.output.wake_all();
        }
        while n_left > 0
            && let Some(due) = self.queries.next(&mut self.scheduler)
        {
            let n_done = answer(due, &self.scheduler, &mut self.cache, &self.metrics);
            n_left = self.queries.spend(n_left, n_done);
        }
        self.cache.unpin_all(&self.output.take_unread_pins());
        Some(started_at)
    }

    /// Without requests: answers a query, or else moves cells. Returns `false` if there is nothing to do until a command arrives.
    fn spend_idle_time(&mut self) -> bool {
        let Self { scheduler, cache, output, metrics, queries, .. } = self;
        if let Some(due) = queries.next(scheduler) {
            output.wake_all();
            answer(due, scheduler, cache, metrics);
            return true;
        }
        if cache.use_idle_time(|ids, reason| scheduler.fail_lost(ids, reason)) {
            return true;
        }
        output.wake_all();
        scheduler.record_evictions(cache.take_evicted());
        metrics.publish(scheduler, cache);
        #[cfg(test)]
        self.check_idle();
        false
    }

    fn schedule(&mut self, budget: &mut AdmissionBudget) {
        let Self { scheduler, cache, output, planner, metrics, .. } = self;
        planner.begin_moving(scheduler, cache);
        let slow =
            output.review_slow_consumers(scheduler.limits().slow_consumer_timeout, |stream_id| scheduler.backlog_of(stream_id));
        scheduler.pause(slow);
        hooks::before_admission(scheduler, cache.runner());
        admit(scheduler, cache, budget);
        move_between_tiers(scheduler, cache);
        hooks::before_planning(scheduler, cache);
        metrics.lap(cache, |times| &mut times.admit);
        scheduler.fail_unencodable();
        planner.divide(scheduler, cache);
        planner.grant_cells(scheduler, cache);
        let room = planner.draft_room(scheduler, cache);
        let wanted = hooks::request_drafts(scheduler, cache, &room);
        let drafts = cache.draft(&wanted.requests(scheduler), wanted.max_caught_up);
        hooks::draft(scheduler, cache, &room, drafts);
        planner.take_cells(scheduler.running_mut(), cache);
        if planner.changes_adapters() {
            scheduler.count_adapter_change();
        }
        metrics.lap(cache, |times| &mut times.plan);
    }

    /// Decodes the plan, then saves checkpoints and reports prompt logprobs. Returns its time, or `None` if there was none.
    fn execute(&mut self) -> Option<Duration> {
        let Self { scheduler, cache, output, planner, samplers, metrics, .. } = self;
        if (planner.n_planned_rows() - planner.n_drafted()) as usize != scheduler.running().len() || !cache.spent().is_zero() {
            // This step takes longer than the last one, computes nothing, or moved cells: wake consumers before, not after it.
            output.wake_all();
        }
        metrics.lap(cache, |times| &mut times.publish);
        let Execution { took, failed } = execute(scheduler.running_mut(), cache, planner);
        if let Some((group_ids, error)) = failed {
            scheduler.fail(&group_ids, &error);
        }
        if took.is_some() {
            scheduler.count_decode(planner.n_planned_rows() - planner.n_drafted());
            save_checkpoints(scheduler, cache);
            let started_at = Instant::now();
            let n_reported = hooks::after_decode(scheduler, cache.runner(), samplers);
            if n_reported > 0 {
                planner.observe_prompt_logprobs(n_reported, started_at.elapsed());
            }
        }
        metrics.lap(cache, |times| &mut times.decode);
        took
    }

    /// Free slots are filled after each round: branches whose prompt this step has computed sample their first token in it too.
    /// Returns the number of sampled tokens.
    fn sample(&mut self, budget: &mut AdmissionBudget) -> u64 {
        let Self { scheduler, cache, samplers, metrics, .. } = self;
        let mut n_sampled = 0;
        while is_due(scheduler) {
            let sampled_at = loop {
                sample_tokens(scheduler, cache.runner(), samplers);
                let sampled_at = metrics.lap(cache, |times| &mut times.sample);
                n_sampled += scheduler.emit_tokens(cache.runner(), sampled_at);
                let (samples_again, verified) = scheduler.verify_drafts();
                cache.drop_rejected(&verified);
                if !samples_again {
                    break sampled_at;
                }
                metrics.lap(cache, |times| &mut times.detokenize);
            };
            n_sampled += hooks::after_sampling(scheduler, cache, sampled_at);
            scheduler.finish_ended();
            scheduler.shift_full();
            metrics.lap(cache, |times| &mut times.detokenize);
            admit(scheduler, cache, budget);
            metrics.lap(cache, |times| &mut times.admit);
        }
        n_sampled
    }

    fn publish(&mut self) -> Instant {
        let ended = self.scheduler.take_ended();
        self.scheduler.record_evictions(self.cache.take_evicted());
        self.metrics.publish(&self.scheduler, &mut self.cache);
        let has_moved = !self.cache.spent().is_zero();
        let is_urgent = has_moved || !ended.is_empty() || self.scheduler.has_urgent_events();
        let n_streams = self.scheduler.drain_events(|group| self.output.send(group));
        self.output.end(ended);
        self.output.wake_rate_limited(n_streams, is_urgent);
        self.metrics.lap(&mut self.cache, |times| &mut times.publish)
    }

    #[cfg(test)]
    fn check_idle(&self) {
        self.cache.kv().check_integrity();
        assert!(self.cache.kv().is_idle(), "cells are pinned, but no sequence is running");
        let is_idle = self.scheduler.running().is_empty() && self.scheduler.queue().preempted().is_empty();
        assert!(is_idle, "a sequence outlives its request");
    }
}

/// Returns `false` when the engine stops.
fn handle_command<R: Runner>(
    command: Command,
    scheduler: &mut Scheduler,
    cache: &CacheManager<R>,
    queries: &mut QueryQueue,
) -> bool {
    match command {
        Command::Submit(groups) => {
            for group in groups {
                let (group_id, n_prompt, is_pin) = (group.group_id, group.n_prompt(), group.request.task == Task::Pin);
                scheduler.enqueue(group);
                if is_pin && let Err(error) = cache.kv().check_pin(n_prompt) {
                    // It fails before anything is computed for it.
                    scheduler.fail_stream_of(group_id, error);
                }
            }
        }
        Command::Cancel(stream_id) => scheduler.disconnect(stream_id),
        Command::CancelBranch(stream_id, branch) => {
            if !hooks::defer_cancel(scheduler, stream_id, branch) {
                scheduler.cancel_branch(stream_id, branch);
            }
        }
        Command::Feature(command) => hooks::on_command(scheduler, cache.runner(), command),
        Command::Ask(query) => queries.push(query),
        Command::Stop => return false,
    }
    true
}
