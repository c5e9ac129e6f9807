//! Explains why parts of a prompt must be computed, when its first branch starts in a slot.

pub(crate) mod history;
pub(crate) mod shared;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::{ForkRule, MIN_SHARED, PrefixMatch};
use crate::engine::cache_manager::CacheManager;
use crate::engine::features::explanations::history::{NearestMatch, PromptHistory};
use crate::engine::features::explanations::shared::{N_TOKENS_AFTER, SharedExplanation, excerpt, text_of};
use crate::engine::features::hooks;
use crate::engine::features::state::{SequenceFeatures, StreamFeatures};
use crate::engine::ids::GroupId;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::request_group::RequestGroup;
use crate::engine::scheduler::sequence::{Sequence, TokensView};
use crate::request::{
    BEGINNING, Cause, ComputedRun, EarlierRequest, EvictionCause, Explanation, Finished, PlacedMedia, Token, is_of_medium,
};
use crate::sampling::TokenStrings;

/// Maximum tokens compared by bytes to detect equal text in other tokens.
const MAX_COMPARED: u32 = 64;

pub(crate) fn before_start<R: Runner>(
    scheduler: &Scheduler,
    cache: &CacheManager<R>,
    sequence: &mut Sequence,
    matched: &PrefixMatch,
) {
    let group = scheduler.group(sequence.group_id);
    if !group.has_started && group.request.explains_cache && group.group_id == group.stream_id.first_group() {
        let explanation = explain(scheduler, cache, group.group_id, matched);
        let shared = SharedExplanation::new(explanation, Arc::clone(&group.prompt), cache.runner().token_strings());
        sequence.features.explanations = Some(Arc::new(shared));
        group.sender.change_features(|features| features.explanations.clone_from(&sequence.features.explanations));
    }
}

pub(crate) fn on_lower_n_cached(features: &SequenceFeatures, n_cached: u32) {
    if let Some(explanation) = &features.explanations {
        explanation.lower(n_cached);
    }
}

pub(crate) fn add_to(features: &mut SequenceFeatures, finished: &mut Finished) {
    finished.explanation = features.explanations.take().map(|explanation| Box::new(explanation.with_excerpts()));
}

pub(crate) fn explanation_of(features: &StreamFeatures) -> Option<Explanation> {
    features.explanations.as_ref().map(|explanation| explanation.with_excerpts())
}

fn explain<R: Runner>(scheduler: &Scheduler, cache: &CacheManager<R>, group_id: GroupId, matched: &PrefixMatch) -> Explanation {
    let group = scheduler.group(group_id);
    let (n_prompt, n_found) = (group.n_prompt(), matched.n_tokens());
    let awaited = group.awaited_range(n_found);
    let n_awaited = awaited.end - awaited.start;
    let computed = if n_found == n_prompt {
        Vec::new()
    } else if !group.request.uses_cache {
        vec![ComputedRun::new(0..n_prompt, Cause::CacheUnused)]
    } else if hooks::first_needed(scheduler.features(), group)
        .is_some_and(|first_uncached| first_uncached < n_prompt && n_found + 1 >= first_uncached)
    {
        // The rest is computed for its logprobs.
        vec![ComputedRun::new(n_found..n_prompt, Cause::CacheUnused)]
    } else if n_found == n_prompt - 1 {
        vec![ComputedRun::new(n_found..n_prompt, if n_awaited > 0 { Cause::Awaited } else { Cause::LastToken })]
    } else {
        ExplanationBuilder { scheduler, cache, group, n_found, history: scheduler.features().explanations.lookup(group) }
            .explain_runs()
    };
    Explanation { request_id: group.stream_id.0, n_prompt, n_found, n_awaited, computed }
}

/// Cause for which a prompt differs from earlier texts, from `position` on, and the text that it is compared with.
struct Difference<'a> {
    cause: Cause,
    nearest: Option<NearestMatch<'a>>,
    position: u32,
}

struct ExplanationBuilder<'a, R> {
    scheduler: &'a Scheduler,
    cache: &'a CacheManager<R>,
    group: &'a RequestGroup,
    n_found: u32,
    history: PromptHistory<'a>,
}

impl<R: Runner> ExplanationBuilder<'_, R> {
    fn explain_runs(&self) -> Vec<ComputedRun> {
        let n_prompt = self.group.n_prompt();
        let n_in_tree = self.cache.kv().n_computed_prefix(&self.group.adapter_schedule, &self.group.prompt);
        let n_known = self.history.n_computed.max(n_in_tree);
        let mut runs = Vec::new();
        let mut start = self.n_found;
        if n_known > start && n_known >= MIN_SHARED {
            let (cause, eviction) = self.explain_unusable(n_known, n_in_tree);
            let earlier = self.describe_earlier(self.history.nearest, start);
            runs.push(ComputedRun { eviction, earlier, ..ComputedRun::new(start..n_known.min(n_prompt), cause) });
            start = n_known;
        }
        let n_same = self.history.nearest.map_or(0, |nearest| nearest.n_common);
        // The last sampled token is never computed.
        if n_same > start + 1 && n_same >= MIN_SHARED {
            let cause = if self.is_being_computed(n_same) { Cause::Computing } else { Cause::Unfinished };
            runs.push(ComputedRun {
                earlier: self.describe_earlier(self.history.nearest, start),
                ..ComputedRun::new(start..n_same, cause)
            });
            start = n_same;
        }
        if start < n_prompt {
            let Difference { cause, nearest, position } = self.explain_difference(n_same.max(n_known));
            let earlier = self.describe_earlier(nearest, position);
            runs.push(ComputedRun { position: position.min(n_prompt), earlier, ..ComputedRun::new(start..n_prompt, cause) });
        }
        runs
    }

    /// Returns why `[n_found, n_known)`, which was computed for other requests, cannot be used.
    fn explain_unusable(&self, n_known: u32, n_in_tree: u32) -> (Cause, Option<(EvictionCause, Duration)>) {
        let (group, n_found) = (self.group, self.n_found);
        let kind = self.cache.kind();
        let splits_image = |placed: &PlacedMedia| placed.is_cut_at(n_known) && placed.start == n_found;
        if group.media.iter().any(splits_image) {
            return (Cause::Media, None);
        }
        if n_found >= group.shared_until.min(n_known) {
            return (Cause::Grouped, None);
        }
        if kind.forks == ForkRule::InWindow && n_in_tree > n_found {
            return (Cause::Window, None);
        }
        if let Some((evicted_at, run)) =
            self.scheduler.features().explanations.find_eviction(group, n_found, n_known, kind.is_a_state())
        {
            return (Cause::Evicted, Some((run.cause, evicted_at.elapsed())));
        }
        if self.is_being_computed(n_known) {
            return (Cause::Computing, None);
        }
        (if kind.is_a_state() { Cause::NoCheckpoint } else { Cause::Evicted }, None)
    }

    fn is_being_computed(&self, n_same: u32) -> bool {
        let group = self.group;
        self.scheduler.running().iter().any(|running| {
            let is_same_owner = self.scheduler.group(running.sequence.group_id).request.owner == group.request.owner;
            let will_compute_it =
                running.n_computed < n_same && running.sequence.adapter_schedule.n_common(&group.adapter_schedule) >= n_same;
            is_same_owner && will_compute_it && running.sequence.tokens.common_prefix(&group.prompt) >= n_same
        })
    }

    fn explain_difference(&self, position: u32) -> Difference<'_> {
        let difference = |cause, nearest, position| Difference { cause, nearest, position };
        let (group, history) = (self.group, &self.scheduler.features().explanations);
        let token_strings = self.cache.runner().token_strings();
        let nearest = self.history.nearest.filter(|nearest| nearest.n_common == position);
        let adapters_change_here =
            nearest.is_some_and(|nearest| nearest.record.adapter_schedule.n_common(&group.adapter_schedule) == position);
        if let Some(other) = self
            .history
            .with_other_adapters
            .filter(|other| other.n_common >= position + MIN_SHARED || (adapters_change_here && other.n_common > position))
        {
            return difference(Cause::OtherAdapters, Some(other), position);
        }
        if let Some(near) =
            token_strings.opening().filter(|_| position < 2).and_then(|opening| history.find_without_opening(group, opening))
        {
            return difference(Cause::Opening, Some(near), near.n_common);
        }
        if position > 0 && nearest.is_some() && group.request.system_end.is_some_and(|end| position < end) {
            return difference(Cause::SystemChanged, nearest, position);
        }
        if position >= MIN_SHARED && nearest.is_some_and(|nearest| nearest.is_at_end()) {
            return difference(Cause::New, nearest, position);
        }
        if position < BEGINNING
            && let Some(same) = history.find_nearest_repeat(group, position)
        {
            return difference(Cause::Beginning, Some(same), same.n_common);
        }
        if position < MIN_SHARED {
            // The token that begins every text does not count as a common beginning.
            let is_nothing = position == 0 || (position == 1 && group.prompt.first().copied() == token_strings.opening());
            return difference(if is_nothing { Cause::NeverSeen } else { Cause::TooShort }, nearest, position);
        }
        let Some(nearest) = nearest else { return difference(Cause::Differs, None, position) };
        let own = group.prompt.get(position as usize).copied();
        if own.is_some_and(is_of_medium) || is_of_medium(nearest.tokens.at(position)) {
            return difference(Cause::Media, Some(nearest), position);
        }
        let is_retokenized = is_retokenized(&group.prompt[position as usize..], nearest.tokens, position, &token_strings);
        difference(if is_retokenized { Cause::Retokenized } else { Cause::Differs }, Some(nearest), position)
    }

    fn describe_earlier(&self, nearest: Option<NearestMatch<'_>>, position: u32) -> Option<EarlierRequest> {
        let NearestMatch { record, tokens, .. } = nearest?;
        let end = tokens.len();
        let range: Range<u32> = position.min(end)..(position + N_TOKENS_AFTER).min(end);
        let text = text_of(&tokens.slices(range).concat(), &self.cache.runner().token_strings());
        Some(EarlierRequest { request_id: record.stream_id.0, text: excerpt(&text), is_in_answer: position >= record.n_prompt })
    }
}

/// Returns true if `own` and the tokens of `other` from `position` on have the same bytes beyond the longer of their first tokens.
fn is_retokenized(own: &[Token], other: TokensView<'_>, position: u32, token_strings: &TokenStrings) -> bool {
    let other = other.slices(position..other.len().min(position + MAX_COMPARED)).concat();
    let own = &own[..own.len().min(MAX_COMPARED as usize)];
    let piece = |&token: &Token| if is_of_medium(token) { &[][..] } else { token_strings.piece(token) };
    let (Some(first_own), Some(first_other)) = (own.first().map(piece), other.first().map(piece)) else { return false };
    if first_own.is_empty() || first_other.is_empty() {
        return false;
    }
    let (left, right): (Vec<u8>, Vec<u8>) =
        (own.iter().flat_map(piece).copied().collect(), other.iter().flat_map(piece).copied().collect());
    let n_same = left.iter().zip(&right).take_while(|(a, b)| a == b).count();
    n_same >= first_own.len().max(first_other.len())
}
