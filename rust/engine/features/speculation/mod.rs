//! Speculative decoding: likely tokens are drafted, computed in the decode of the last token, and sampled in the same step as long
//! as the sampled tokens equal the drafted ones.
//!
//! A drafted row is sampled only once the token before it was sampled, emitted, and ended nothing, with the state that the sequence
//! has then. So no state of a sampler is ever restored, and where results do not depend on the rows of a decode, each token is the
//! one that a step of its own would sample, with the same logprobs. Drafts take rows, cells and logits that a step leaves;
//! they evict nothing and preempt no sequence.

#[allow(dead_code, reason = "called once the engine drafts tokens")]
pub(crate) mod forced_tokens;
#[allow(dead_code, reason = "called once the engine drafts tokens")]
pub(crate) mod gate;
#[allow(dead_code, reason = "called once the engine drafts tokens")]
pub(crate) mod text_index;

use crate::config::SpeculationMode;
use crate::engine::cache_manager::CacheManager;
use crate::engine::features::hooks;
use crate::engine::features::state::{SchedulerFeatures, SequenceFeatures};
use crate::engine::runner::{ForkRule, Runner};
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::running_sequence::{Draft, RunningSequence};
use crate::engine::scheduler::sequence::Sequence;
use crate::engine::stats::{DraftSource, N_DRAFT_POSITIONS, SpeculationStats};
use crate::request::{Finished, Token};

/// Maximum length of a draft, if the request sets none.
const MAX_DRAFT: u32 = 8;

/// State of the engine.
#[derive(Default)]
pub(crate) struct Speculator {
    pub(crate) stats: SpeculationStats,
}

/// Drafts of a sequence.
#[derive(Default)]
pub(crate) struct SequenceDrafts {
    n_drafted: u32,
    n_accepted: u32,
    /// Source of the draft that is being verified.
    source: Option<DraftSource>,
}

/// Drafts tokens for running sequences, most senior first: at most `n_left`.
pub(crate) fn draft<R: Runner>(scheduler: &mut Scheduler, cache: &CacheManager<R>, mut n_left: u32) {
    if n_left == 0 || !is_on(scheduler, cache) {
        return;
    }
    let mut next = scheduler.next_key(None);
    while let Some(key) = next {
        let n_most = max_draft(scheduler, scheduler.sequence(key)).min(n_left);
        if n_most > 0 {
            let (sequence, _, features) = scheduler.parts_of(key);
            let mut tokens = features.speculation.draft_for(sequence, n_most);
            // Only tokens of the vocabulary may be computed; a prompt with media contains others.
            let n_vocab = cache.runner().n_vocab();
            let n_valid = tokens.iter().take_while(|&&token| usize::try_from(token).is_ok_and(|token| token < n_vocab)).count();
            tokens.truncate(n_valid.min(n_most as usize));
            n_left -= u32::try_from(tokens.len()).expect("at most as many were left");
            scheduler.set_draft(key, tokens);
        }
        next = scheduler.next_key(Some(key));
    }
}

/// Rejected tokens must leave the cache, whatever their number.
fn is_on<R: Runner>(scheduler: &Scheduler, cache: &CacheManager<R>) -> bool {
    let is_requested = match scheduler.limits().speculation {
        SpeculationMode::Off => false,
        SpeculationMode::Auto => cache.runner().is_repeatable(),
        SpeculationMode::On => true,
    };
    is_requested && cache.kind().forks == ForkRule::Anywhere
}

/// Returns the maximum length of a draft, after which one more token is sampled. First tokens and beams are not drafted.
fn max_draft(scheduler: &Scheduler, running: &RunningSequence) -> u32 {
    let sequence = &running.sequence;
    if !running.takes_one_row() || sequence.n_predicted == 0 || sequence.runs_together {
        return 0;
    }
    let n_sampled = sequence.n_remaining().unwrap_or(u32::MAX).min(sequence.window.n_until_full(sequence.n_tokens()));
    let n_rows = hooks::max_rows_until_due(scheduler, running).min(sequence.adapter_schedule.n_unchanged(running.n_held));
    n_sampled.min(n_rows).saturating_sub(1).min(sequence.request.speculation.max_draft.unwrap_or(MAX_DRAFT))
}

impl Speculator {
    /// Returns the expected next tokens of `sequence`.
    fn draft_for(&mut self, sequence: &mut Sequence, n_most: u32) -> Vec<Token> {
        let Sequence { request, features, branch, n_predicted, .. } = sequence;
        let Some(replay) = &request.speculation.replay else { return Vec::new() };
        features.speculation.source = Some(DraftSource::Replay);
        replay.tokens(*branch, *n_predicted).take(n_most as usize).collect()
    }
}

pub(crate) fn on_verified(features: &mut SchedulerFeatures, sequence: &mut Sequence, draft: &Draft) {
    let drafts = &mut sequence.features.speculation;
    let source = drafts.source.take().expect("a draft has a source");
    let [n_drafted, n_accepted] = [draft.tokens.len(), draft.n_accepted].map(|n| u32::try_from(n).expect("a draft is short"));
    drafts.n_drafted += n_drafted;
    drafts.n_accepted += n_accepted;
    let stats = &mut features.speculation.stats;
    let of_source = &mut stats.by_source[source as usize];
    of_source.n_drafts += 1;
    of_source.n_drafted += u64::from(n_drafted);
    of_source.n_accepted += u64::from(n_accepted);
    of_source.n_cut += u64::from(n_accepted < n_drafted);
    for position in 0..draft.n_accepted {
        stats.n_accepted_at[position.min(N_DRAFT_POSITIONS - 1)] += 1;
    }
}

pub(crate) fn add_to(features: &SequenceFeatures, finished: &mut Finished) {
    let SequenceDrafts { n_drafted, n_accepted, .. } = features.speculation;
    (finished.usage.n_drafted, finished.usage.n_draft_accepted) = (n_drafted, n_accepted);
}
