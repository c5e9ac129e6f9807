//! Hooks: the moments at which the stages of a step call the features, each by a line or in a list of calls.
//!
//! *Architecture invariant:* outside of `features`, the engine calls a feature only by these hooks, and holds its state only as
//! [`state`]. The types by which callers request one ([`Request`](crate::request::Request), `output/fork.rs`) are part of the
//! interface.
//!
//! [`state`]: crate::engine::features::state

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::{AdapterSet, EvictedRun, PrefixMatch};
use crate::config::Limits;
use crate::engine::Inner;
use crate::engine::cache_manager::CacheManager;
use crate::engine::features::state::{
    FeatureCommand, GroupFeatures, SchedulerFeatures, SequenceFeatures, SharedFeatures, SpecFeatures, StreamFeatures,
};
use crate::engine::features::{beams, diversity, explanations, forks, prompt_logprobs, self_extend, speculation, transcripts};
use crate::engine::ids::{BranchIndex, GroupId, MemberIndex, StreamId};
use crate::engine::output::completions::Completions;
use crate::engine::runner::{ModelDrafts, Runner};
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::drafting::{DraftRoom, WantedDrafts};
use crate::engine::scheduler::queue::Queue;
use crate::engine::scheduler::request_group::{BranchSpec, RequestGroup};
use crate::engine::scheduler::running_sequence::{Draft, RunningSequence};
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::scheduler::sequence::{Sequence, Tokens};
use crate::engine::stats::Stats;
use crate::error::Result;
use crate::request::{Explanation, Finished, Request};
use crate::sampling::{Sampler, Threads};

// Calls are in lists, even a single one, so that `scripts/delete_feature.py` can delete those of a feature.

fn any<const N: usize>(answers: [bool; N]) -> bool {
    answers.contains(&true)
}

fn min_of<const N: usize>(limits: [u32; N]) -> u32 {
    limits.into_iter().min().unwrap_or(u32::MAX)
}

fn first<T, const N: usize>(answers: [Option<T>; N]) -> Option<T> {
    answers.into_iter().flatten().next()
}

// Submission, on the caller's thread.

pub(in crate::engine) fn on_open_stream(inner: &Arc<Inner>, stream_id: StreamId, completions: &mut Completions) {
    forks::control::on_open_stream(inner, stream_id, completions);
}

/// `invoked_at` is a position in the prompt of the request.
pub(in crate::engine) fn on_validate(
    inner: &Inner,
    request: &mut Request,
    features: &mut GroupFeatures,
    adapters: &AdapterSet,
    invoked_at: &mut Option<u32>,
) -> Result<()> {
    beams::on_validate(&inner.limits, request)?;
    transcripts::on_validate(inner, request, features, adapters, invoked_at);
    Ok(())
}

pub(crate) fn on_new_request(request: &Request, pending: &mut SequenceFeatures) {
    pending.prompt_logprobs = prompt_logprobs::pending::PendingPromptReport::new(request);
}

pub(crate) fn on_new_spec(features: &mut SpecFeatures, request: &Request, sampler: &Sampler, n: u32) {
    diversity::on_new_spec(features, request, sampler, n);
}

/// Returns the number of sequences of a request that run together: they start, are preempted and resume together.
pub(crate) fn n_together(request: &Request) -> u32 {
    let mut n = 1;
    n = n.max(beams::width(request));
    n
}

pub(crate) fn on_new_group(limits: &Limits, group: &mut RequestGroup) {
    self_extend::on_new_group(limits, group);
}

pub(crate) fn on_generated_prompt(features: &mut GroupFeatures, range: Range<u32>) {
    features.transcripts.push(range);
}

pub(crate) fn explanation_of(features: &StreamFeatures) -> Option<Explanation> {
    first([explanations::explanation_of(features)])
}

// Stage `receive`.

pub(crate) fn before_commands(features: &mut SchedulerFeatures) {
    features.forks.reset_budget();
}

pub(crate) fn on_command(scheduler: &mut Scheduler, runner: &impl Runner, command: FeatureCommand) {
    match command {
        FeatureCommand::Forks(request) => forks::commands::fork(scheduler, runner, *request),
    }
}

/// Returns true if further commands must wait for the next step.
pub(crate) fn is_step_full(features: &SchedulerFeatures) -> bool {
    any([features.forks.is_step_full()])
}

pub(crate) fn is_busy(features: &SchedulerFeatures) -> bool {
    any([features.forks.is_building()])
}

/// Defers the cancellation of a branch if a feature must handle earlier commands first. Returns true if it is deferred.
pub(crate) fn defer_cancel(scheduler: &mut Scheduler, stream_id: StreamId, branch: BranchIndex) -> bool {
    any([forks::commands::defer_cancel(scheduler, stream_id, branch)])
}

pub(crate) fn on_disconnect(features: &mut SchedulerFeatures, stream_id: StreamId) {
    features.forks.remove_stream(stream_id);
}

// Stage `schedule`: admission, then the rows of the next decode.

pub(crate) fn before_admission(scheduler: &mut Scheduler, runner: &impl Runner) {
    forks::commands::advance_forks(scheduler, runner);
}

/// Returns the first prompt position whose logits the next branch of a group needs, besides the last; at least 1.
pub(crate) fn first_needed(features: &SchedulerFeatures, group: &RequestGroup) -> Option<u32> {
    first([prompt_logprobs::pending::first_uncached(&features.prompt_logprobs, group)])
}

/// Returns how many of `n_common` tokens that `running` computes are usable for a group that needs logits from `first_needed` on.
pub(crate) fn n_usable(running: &RunningSequence, group: &RequestGroup, first_needed: u32, n_common: u32) -> u32 {
    min_of([prompt_logprobs::pending::n_usable(running, group, first_needed, n_common)]).min(n_common)
}

pub(crate) fn max_reusable(sequence: &Sequence) -> u32 {
    min_of([prompt_logprobs::pending::max_reusable(sequence)])
}

pub(crate) fn on_eviction(features: &mut SchedulerFeatures, evicted: impl Iterator<Item = EvictedRun>) {
    features.explanations.add_evictions(evicted, Instant::now());
}

pub(crate) fn on_new_sequence(sequence: &mut Sequence, spec: &BranchSpec, nth: u32) {
    diversity::on_new_sequence(sequence, spec, nth);
    beams::on_new_sequence(sequence, nth);
}

pub(crate) fn before_start<R: Runner>(
    scheduler: &Scheduler,
    cache: &CacheManager<R>,
    sequence: &mut Sequence,
    matched: &PrefixMatch,
) {
    forks::commands::before_start(scheduler, sequence);
    explanations::before_start(scheduler, cache, sequence, matched);
}

pub(crate) fn on_start(features: &mut SchedulerFeatures, group: &mut RequestGroup, sequence: &mut Sequence) {
    prompt_logprobs::pending::on_start(group, sequence);
    features.explanations.on_start(group);
}

pub(crate) fn after_start(scheduler: &mut Scheduler, key: SchedulingKey) {
    prompt_logprobs::report_start(scheduler, key);
}

pub(crate) fn on_lower_n_cached(features: &SequenceFeatures, n_cached: u32) {
    explanations::on_lower_n_cached(features, n_cached);
}

pub(crate) fn is_vacant(features: &SequenceFeatures) -> bool {
    any([beams::is_vacant(features)])
}

pub(crate) fn before_planning<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>) {
    self_extend::group_due_tokens(scheduler, cache);
}

/// Returns the number of uncomputed rows whose logits features need, except the last.
pub(crate) fn rows_wanted(running: &RunningSequence) -> Option<u32> {
    first([prompt_logprobs::pending::n_rows_wanted(running)])
}

/// Returns the maximum number of rows of a sequence in the next decode, if `n_more` may have logits in addition to the last.
pub(crate) fn max_rows_with_logits(running: &RunningSequence, n_more: u32) -> u32 {
    min_of([prompt_logprobs::pending::max_rows(running, n_more)])
}

/// Returns how many tokens a sequence may compute in the next decode.
pub(crate) fn max_rows_until_due(scheduler: &Scheduler, running: &RunningSequence) -> u32 {
    min_of([self_extend::n_until_grouped(scheduler, running)])
}

pub(crate) fn wants_logits(sequence: &Sequence, position: u32) -> bool {
    any([prompt_logprobs::pending::wants_logits(sequence, position)])
}

/// Ends a group that fills the device cache by itself. Returns true if a feature has ended it.
pub(crate) fn end_oversized(scheduler: &mut Scheduler, runner: &impl Runner, group_id: GroupId) -> bool {
    any([beams::end_full(scheduler, runner, group_id)])
}

/// Returns the sequences for which the draft model drafts in this step.
pub(crate) fn request_drafts<R: Runner>(scheduler: &mut Scheduler, cache: &CacheManager<R>, room: &DraftRoom) -> WantedDrafts {
    first([speculation::request_drafts(scheduler, cache, room)]).unwrap_or_default()
}

/// Drafts tokens for running sequences, with the `drafts` that the draft model returned.
pub(crate) fn draft<R: Runner>(scheduler: &mut Scheduler, cache: &CacheManager<R>, room: &DraftRoom, drafts: ModelDrafts) {
    speculation::draft(scheduler, cache, room, drafts);
}

// Stages `execute` and `sample`.

/// Reports on a decode. Returns the number of tokens whose logprobs were reported.
pub(crate) fn after_decode(scheduler: &mut Scheduler, runner: &impl Runner, samplers: &Threads) -> u32 {
    let mut n_reported = 0;
    n_reported += prompt_logprobs::report_prompts(scheduler, runner, samplers);
    n_reported
}

/// Passes on the logits after all tokens of `sequence`.
pub(crate) fn on_logits(
    features: &mut SchedulerFeatures,
    queue: &mut Queue,
    sequence: &Sequence,
    logits: impl FnOnce() -> Arc<[f32]>,
) {
    forks::commands::pass_logits(&mut features.forks, queue, sequence, logits);
}

/// Samples a sequence from `logits`, on any thread. Returns false if no feature does.
pub(crate) fn sample(sequence: &mut Sequence, logits: &[f32]) -> bool {
    let mut is_sampled = false;
    is_sampled = is_sampled || diversity::sample(sequence, logits);
    is_sampled = is_sampled || beams::sample(sequence, logits);
    is_sampled
}

pub(crate) fn on_verified(features: &mut SchedulerFeatures, sequence: &mut Sequence, draft: &Draft) {
    speculation::on_verified(features, sequence, draft);
}

/// Returns the number of tokens that features sampled.
pub(crate) fn after_sampling<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>, now: Instant) -> u64 {
    let mut n_sampled = 0;
    n_sampled += beams::advance(scheduler, cache, now);
    n_sampled
}

/// Records the time of a step with a decode.
pub(crate) fn after_step(features: &mut SchedulerFeatures, took: Duration) {
    speculation::after_step(features, took);
}

/// Returns the time of this step outside of its decode that depends on no sampled token.
pub(crate) fn time_of_drafts(features: &SchedulerFeatures) -> Duration {
    let mut time = Duration::ZERO;
    time += speculation::model_time(features);
    time
}

pub(crate) fn add_metrics(features: &SchedulerFeatures, stats: &mut Stats) {
    stats.speculation = features.speculation.stats.clone();
}

// Sequences and requests leave, at any stage.

pub(crate) fn on_shift(features: &mut SchedulerFeatures, sequence: &Sequence) {
    features.forks.drop_due(sequence.branch_key());
}

pub(crate) fn on_preempt(features: &mut SequenceFeatures) {
    beams::on_preempt(features);
}

/// Records the `tokens` of a sequence that leaves its slot; `n_computed` of them are computed.
pub(crate) fn on_leave(features: &mut SchedulerFeatures, sequence: &Sequence, tokens: &Tokens, n_computed: u32) {
    features.explanations.update_tokens(sequence.branch_key(), tokens, n_computed);
}

/// Returns the `pending` state of a sequence that is cancelled or will start again to its group, for the next branch.
pub(crate) fn on_end_early(sequence: &mut Sequence, pending: &mut SequenceFeatures) {
    prompt_logprobs::pending::on_end(sequence, pending);
}

/// Cancels a branch with all branches of its group, if they run together. Returns true if a feature has cancelled them.
pub(crate) fn cancel_together(scheduler: &mut Scheduler, stream_id: StreamId, branch: BranchIndex) -> bool {
    any([beams::cancel_search(scheduler, stream_id, branch)])
}

pub(crate) fn on_cancel_waiting(features: &mut SchedulerFeatures, group: &RequestGroup, member: MemberIndex) {
    features.forks.on_cancel_waiting(group, member);
}

/// Returns true if the prompts of a group are computed or shared by other branches first.
pub(crate) fn is_fork(features: &SchedulerFeatures, group_id: GroupId) -> bool {
    any([features.forks.state_of(group_id).is_some()])
}

pub(crate) fn on_finish(
    features: &mut SchedulerFeatures,
    shared: &SharedFeatures,
    group: &RequestGroup,
    sequence: &mut Sequence,
    finished: &mut Finished,
) {
    on_text(shared, group, &sequence.tokens);
    features.forks.on_finish(group, sequence, &finished.reason);
    add_reports(&mut sequence.features, finished);
}

pub(crate) fn add_reports(features: &mut SequenceFeatures, finished: &mut Finished) {
    explanations::add_to(features, finished);
    speculation::add_to(features, finished);
}

/// Records the generated text of a request, which follows its prompt in `tokens`.
pub(crate) fn on_text(shared: &SharedFeatures, group: &RequestGroup, tokens: &Tokens) {
    transcripts::on_text(shared, group, tokens);
}

pub(crate) fn on_remove(features: &mut SchedulerFeatures, group_id: GroupId) {
    features.forks.remove_group(group_id);
}
