//! Speculative decoding: likely tokens are drafted, computed in the decode of the last token, and sampled in the same step as long
//! as the sampled tokens equal the drafted ones.
//!
//! A drafted row is sampled only once the token before it was sampled, emitted, and ended nothing, with the state that the sequence
//! has then. So no state of a sampler is ever restored, and where results do not depend on the rows of a decode, each token is the
//! one that a step of its own would sample, with the same logprobs. Drafts take rows, cells and logits that a step leaves;
//! they evict nothing and preempt no sequence.

pub(crate) mod acceptance;
pub(crate) mod drafts;
pub(crate) mod forced_tokens;
pub(crate) mod gate;
pub(crate) mod model_drafts;
pub(crate) mod text_index;

#[cfg(test)]
mod simulation;

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::engine::cache_manager::CacheManager;
use crate::engine::features::hooks;
use crate::engine::features::speculation::drafts::DraftProposal;
use crate::engine::features::speculation::gate::{DraftCandidate, ExpectedStep, Gate, StepLimits, best_lengths};
use crate::engine::features::speculation::model_drafts::DraftModelUse;
use crate::engine::features::speculation::text_index::TextIndex;
use crate::engine::features::state::{SchedulerFeatures, SequenceFeatures};
use crate::engine::ids::MemberIndex;
use crate::engine::runner::{ForkRule, ModelDrafts, Runner};
use crate::engine::scheduler::drafting::{DraftRoom, WantedDrafts};
use crate::engine::scheduler::running_sequence::{Draft, RunningSequence};
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::scheduler::sequence::Sequence;
use crate::engine::scheduler::{Scheduler, SequenceParts};
use crate::engine::stats::{DraftSource, N_DRAFT_POSITIONS, SpeculationStats};
use crate::request::{Finished, Task};
use crate::sampling::TokenStrings;

/// Size of the index of texts: 400,000 tokens. Adding one takes 0.9 µs with 32 streams; an index of 32 MiB is beyond the processor's
/// caches, and takes 3.6 µs (two cores of an Intel Xeon).
const MAX_INDEX_BYTES: usize = 8 << 20;

/// Minimum probability that a token is accepted with all before it, so that it is considered: no row is that cheap. Measured rows cost
/// 0.05 of a step or more for one stream, and 0.8 ÷ n for n streams.
const MIN_SURVIVAL: f64 = 0.03;

/// Maximum number of tokens of prompts that one step adds to the index.
const MAX_INDEXED: u32 = 2048;

/// Drafting state that all sequences share.
#[derive(Default)]
pub(crate) struct Speculator {
    pub(crate) stats: SpeculationStats,
    /// `None` until the first draft is due.
    index: Option<TextIndex>,
    gate: Gate,
    model: DraftModelUse,
    last_step: ExpectedStep,
    /// Expected tokens of each sequence that samples in this step.
    proposals: Vec<(SchedulingKey, DraftProposal)>,
}

/// Proposes tokens for running sequences. Returns the sequences for which the draft model drafts too.
pub(crate) fn request_drafts<R: Runner>(
    scheduler: &mut Scheduler,
    cache: &CacheManager<R>,
    room: &DraftRoom,
) -> Option<WantedDrafts> {
    if !is_on(scheduler, cache) {
        return None;
    }
    let proposals = propose(scheduler, &cache.runner().token_strings(), room.n_rows);
    let wanted = model_drafts::request(scheduler, cache, room, &proposals);
    scheduler.features_mut().speculation.proposals = proposals;
    wanted
}

/// Chooses which of the proposed tokens, and of the `drafts` of the draft model, are verified in this step.
pub(crate) fn draft<R: Runner>(scheduler: &mut Scheduler, cache: &CacheManager<R>, room: &DraftRoom, drafts: ModelDrafts) {
    if !is_on(scheduler, cache) {
        return;
    }
    let mut proposals = std::mem::take(&mut scheduler.features_mut().speculation.proposals);
    model_drafts::add(scheduler, cache, drafts, &mut proposals);
    let row_percent = scheduler.limits().speculation.row_percent;
    let lengths = choose(&proposals, row_percent, &mut scheduler.features_mut().speculation, room);
    for ((key, proposal), length) in proposals.into_iter().zip(lengths).filter(|&(_, length)| length > 0) {
        let DraftProposal { source, mut tokens, .. } = proposal;
        tokens.truncate(length);
        scheduler.set_draft(key, tokens);
        if let Some(drafts) = &mut scheduler.sequence_mut(key).features.speculation {
            drafts.begin(source);
        }
    }
}

/// Returns the expected tokens of each sequence that samples in this step, at most `max_rows`.
fn propose(scheduler: &mut Scheduler, token_strings: &TokenStrings, max_rows: u32) -> Vec<(SchedulingKey, DraftProposal)> {
    let mut proposals = Vec::new();
    let mut n_indexable = MAX_INDEXED;
    let min_match = scheduler.limits().speculation.min_match as usize;
    let mut cursor = None;
    while let Some(key) = scheduler.next_key(&mut cursor) {
        let running = scheduler.running_sequence(key);
        let mut proposal = DraftProposal::default();
        let samples = running.is_planned() && running.will_sample();
        if takes_drafts(running) {
            let (n_computed, max_draft) = (running.n_computed, max_draft(scheduler, running).min(max_rows));
            let SequenceParts { sequence, features, .. } = scheduler.parts_of(key);
            // The text of a fork is indexed by the branch that it was forked from.
            let is_later_branch = sequence.member != MemberIndex(0) || hooks::is_fork(features, sequence.group_id);
            let Speculator { stats, index, last_step, model, .. } = &mut features.speculation;
            let index = index.get_or_insert_with(|| TextIndex::new(MAX_INDEX_BYTES, RandomState::new().hash_one(0)));
            let mut drafts = sequence.features.speculation.take().unwrap_or_else(|| Box::new(model.begin_sequence()));
            drafts.is_later_branch = is_later_branch;
            drafts.observe_step(sequence, *last_step);
            let started = Instant::now();
            n_indexable -= drafts.index_prediction(sequence, n_indexable, index);
            n_indexable -= drafts.index_tokens(sequence, n_computed, n_indexable, index, token_strings);
            let indexed = Instant::now();
            proposal = drafts.propose(sequence, max_draft as usize, min_match, index, token_strings);
            stats.by_source[DraftSource::Text as usize].time += indexed - started;
            stats.by_source[proposal.source as usize].time += indexed.elapsed();
            sequence.features.speculation = Some(drafts);
        }
        if samples {
            proposals.push((key, proposal));
        }
    }
    let Speculator { index, stats, .. } = &mut scheduler.features_mut().speculation;
    stats.n_index_bytes = index.as_ref().map_or(0, TextIndex::n_bytes);
    proposals
}

/// Returns the number of tokens to verify of each proposal: forced ones as far as there is room, others as the gate chooses.
fn choose(
    proposals: &[(SchedulingKey, DraftProposal)],
    row_percent: Option<u32>,
    speculator: &mut Speculator,
    room: &DraftRoom,
) -> Vec<usize> {
    let mut max_rows = room.n_rows;
    let forced = |(_, proposal): &(SchedulingKey, DraftProposal)| {
        let length = if proposal.is_forced { proposal.tokens.len().min(max_rows as usize) } else { 0 };
        max_rows -= u32::try_from(length).expect("there is room for as many");
        length
    };
    let forced: Vec<usize> = proposals.iter().map(forced).collect();
    let min_survival = if row_percent.is_some() { 0.0 } else { MIN_SURVIVAL };
    let candidate = |(_, proposal): &(SchedulingKey, DraftProposal)| {
        let survival = proposal.survival.iter().take_while(|&&survival| !proposal.is_forced && survival >= min_survival);
        DraftCandidate { survival: survival.copied().collect(), slack: proposal.slack }
    };
    let candidates: Vec<DraftCandidate> = proposals.iter().map(candidate).collect();
    let DraftRoom { row_s, token_s, max_decode_s, .. } = *room;
    let model_s = speculator.model.spent().as_secs_f64();
    let max_decode_s = max_decode_s - model_s;
    let choice = if let Some(row_percent) = row_percent {
        let decode_s = |n_drafted| 1.0 + f64::from(row_percent * n_drafted) / 100.0;
        let limits = StepLimits { decode_s: &decode_s, row_s: 1.0, token_s: 0.0, max_rows, max_decode_s: f64::INFINITY };
        best_lengths(&candidates, &limits, |_| true)
    } else {
        let decode_s = |n_drafted| room.decode_s(n_drafted);
        speculator.gate.choose(&candidates, &StepLimits { decode_s: &decode_s, row_s, token_s, max_rows, max_decode_s })
    };
    speculator.last_step = ExpectedStep { step_s: choice.step.step_s + model_s, ..choice.step };
    forced.into_iter().zip(choice.lengths).map(|(forced, chosen)| forced + chosen).collect()
}

fn is_on<R: Runner>(scheduler: &Scheduler, cache: &CacheManager<R>) -> bool {
    let can_truncate = cache.kind().forks == ForkRule::Anywhere;
    scheduler.limits().speculation.check(cache.runner().is_repeatable(), can_truncate).is_ok()
}

/// Returns true if drafts of a sequence may be verified in this step or a later one. Beams choose their tokens together.
fn takes_drafts(running: &RunningSequence) -> bool {
    let Sequence { request, runs_together, .. } = &running.sequence;
    request.task == Task::Complete && !runs_together && request.speculation.max_draft != Some(0) && running.is_planned()
}

/// Returns the maximum length of a draft, after which one more token is sampled. First tokens are not drafted.
fn max_draft(scheduler: &Scheduler, running: &RunningSequence) -> u32 {
    let sequence = &running.sequence;
    if !running.takes_one_row() || sequence.n_predicted == 0 {
        return 0;
    }
    let n_sampled = sequence.n_remaining().unwrap_or(u32::MAX).min(sequence.window.n_until_full(sequence.n_tokens()));
    let n_rows = hooks::max_rows_until_due(scheduler, running).min(sequence.adapter_schedule.n_unchanged(running.n_computed));
    n_sampled
        .min(n_rows)
        .saturating_sub(1)
        .min(sequence.request.speculation.max_draft.unwrap_or(scheduler.limits().speculation.max_draft()))
}

pub(crate) fn on_verified(features: &mut SchedulerFeatures, sequence: &mut Sequence, draft: &Draft) {
    let Some(drafts) = &mut sequence.features.speculation else { return };
    let source = drafts.count(draft);
    if source == DraftSource::Model {
        features.speculation.model.on_verified(draft);
    }
    let stats = &mut features.speculation.stats;
    let of_source = &mut stats.by_source[source as usize];
    of_source.n_drafts += 1;
    of_source.n_drafted += draft.tokens.len() as u64;
    of_source.n_accepted += draft.n_accepted as u64;
    of_source.n_cut += u64::from(draft.n_accepted < draft.tokens.len());
    for position in 0..draft.n_accepted {
        stats.n_accepted_at[position.min(N_DRAFT_POSITIONS - 1)] += 1;
    }
}

/// Returns the time in which a draft model has drafted in this step.
pub(crate) fn model_time(features: &SchedulerFeatures) -> Duration {
    features.speculation.model.spent()
}

/// Records the time of a step with a decode.
pub(crate) fn after_step(features: &mut SchedulerFeatures, took: Duration) {
    let Speculator { gate, model, .. } = &mut features.speculation;
    gate.observe(took.saturating_sub(model.spent()).as_secs_f64());
    model.observe_step(took);
}

pub(crate) fn add_to(features: &SequenceFeatures, finished: &mut Finished) {
    if let Some(drafts) = &features.speculation {
        (finished.usage.n_drafted, finished.usage.n_draft_accepted) = (drafts.n_drafted, drafts.n_accepted);
    }
}
